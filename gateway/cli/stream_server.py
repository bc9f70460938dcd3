"""Choose the host of a DSN with several hosts that a command asks: the server that the gateway
reads, or would read.

The first host that answers may be a standby, or an old primary that was started again after a
failover. The gateway notices this by its position, and tries the next host
(gateway/startup/timeline_checks.py). A command may have no position yet, or may be about to change
it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from gateway.config.source import SourceSettings
from gateway.errors import WalgateError
from gateway.postgres.classify_errors import DRIVER_ERRORS
from gateway.postgres.connection import sql_session
from gateway.postgres.credentials import Credentials, login_of, names_one_host
from gateway.postgres.login import addresses_of
from gateway.postgres.server import TIMELINE

_QUERY: Final = f"""
SELECT {TIMELINE} AS timeline,
       EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS s
               WHERE s.slot_name = $1 AND s.database = pg_catalog.current_database() AND s.active) AS is_read
WHERE NOT pg_catalog.pg_is_in_recovery()
"""

_OTHERS_S: Final = 3.0
"""The time that the other hosts have after a primary has answered."""


@dataclass(frozen=True, slots=True)
class Primary:
    """A server that is not a standby. `is_read`: a process reads the gateway's slot there."""

    login: Credentials
    timeline: int
    is_read: bool


async def stream_login(source: SourceSettings, *, timeout_s: float = 30.0) -> Credentials:
    """Return the login to the primary where the slot is being read, or else to the primary on the
    newest timeline, of those that answer in time. If no host answers as a primary, all hosts are
    left to the caller, whose connection then fails with their errors. Raises WalgateError about the
    DSN."""
    login = login_of(source)
    if names_one_host(login.dsn):
        return login
    addresses = await addresses_of(login)
    looks = [
        asyncio.create_task(_look_at(replace(login, server=address), source.slot, timeout_s / len(addresses)))
        for address in addresses
    ]
    try:
        async with asyncio.timeout(None) as limit:
            for look in asyncio.as_completed(looks):
                primary = await look
                if primary is not None and primary.is_read:
                    break
                if primary is not None and limit.when() is None:
                    limit.reschedule(asyncio.get_running_loop().time() + _OTHERS_S)
    except TimeoutError:
        pass  # the other hosts do not answer
    finally:
        for unfinished in looks:
            unfinished.cancel()
        found = await asyncio.gather(*looks, return_exceptions=True)
    return choose(login, [primary for primary in found if isinstance(primary, Primary)])


def choose(login: Credentials, primaries: list[Primary]) -> Credentials:
    """Return the login of the primary to ask; the first of equal ones, as the DSN names them."""
    if not primaries:
        return login
    return max(primaries, key=lambda primary: (primary.is_read, primary.timeline)).login


async def _look_at(login: Credentials, slot: str, timeout_s: float) -> Primary | None:
    """Return None if the host does not answer, or is a standby."""
    try:
        async with sql_session(login, timeout_s=timeout_s) as sql:
            row = await sql.fetchrow(_QUERY, slot, timeout=timeout_s)
    except (WalgateError, *DRIVER_ERRORS):
        return None
    return None if row is None else Primary(login, row["timeline"], row["is_read"])
