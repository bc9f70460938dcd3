"""Find the transactions that delay the creation of the slot: PostgreSQL waits for the end of every
open transaction that has written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import asyncpg
import structlog

from gateway.errors import WalgateError
from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.connection import sql_session
from gateway.postgres.credentials import Credentials

log = structlog.get_logger()

ASK_INTERVAL_S: Final = 2.0
# A prepared transaction has no process: pg_blocking_pids returns 0 for each, so the oldest ones are
# shown instead. Without pg_read_all_stats, only the process ID and the user of another role's
# session are visible.
_QUERY: Final = """
SELECT b.pid, a.usename::text, coalesce(a.application_name, ''), coalesce(a.state, ''),
       extract(epoch FROM statement_timestamp() - a.xact_start)::float8,
       extract(epoch FROM statement_timestamp() - a.query_start)::float8, NULL::text
FROM (SELECT DISTINCT unnest(pg_catalog.pg_blocking_pids($1))) AS b (pid)
LEFT JOIN pg_catalog.pg_stat_activity AS a USING (pid) WHERE b.pid <> 0
UNION ALL
SELECT * FROM (
    SELECT 0, p.owner::text, '', 'prepared', extract(epoch FROM statement_timestamp() - p.prepared)::float8,
           NULL::float8, p.gid
    FROM pg_catalog.pg_prepared_xacts AS p WHERE 0 = ANY (pg_catalog.pg_blocking_pids($1)) ORDER BY p.prepared LIMIT 3
) AS oldest
"""


@dataclass(frozen=True, slots=True)
class SlotCreationBlocker:
    """A transaction for which another session waits. None means unknown or not visible to the
    gateway's role. If `gid` is set, the transaction is prepared and `pid` is 0."""

    pid: int
    user: str | None
    application: str
    state: str
    open_s: float | None
    statement_s: float | None
    gid: str | None

    def __str__(self) -> str:
        if self.gid is not None:
            return f"the prepared transaction {self.gid!r} of {self.user} (prepared {_ago(self.open_s)})"
        parts = [f"user {self.user}"] if self.user else []
        parts += [f"application {self.application}"] if self.application else []
        parts += [self.state] if self.state else []
        parts += [f"open for {self.open_s:.0f} s"] if self.open_s is not None else []
        parts += [f"last statement began {_ago(self.statement_s)}"] if self.statement_s is not None else []
        return f"the open transaction of process {self.pid}" + (f" ({', '.join(parts)})" if parts else "")


def _ago(seconds: float | None) -> str:
    return "at an unknown time" if seconds is None else f"{seconds:.0f} s ago"


async def blockers(sql: asyncpg.Connection, waiting_pid: int) -> tuple[SlotCreationBlocker, ...]:
    """Return the transactions for which a session waits, if any. Raises WalgateError."""
    with classified_errors("looking for blocking transactions"):
        return tuple(SlotCreationBlocker(*row) for row in await sql.fetch(_QUERY, waiting_pid))


@asynccontextmanager
async def naming_blockers(
    login: Credentials | str,
    waiting_pid: int,
    wait_for: Callable[[str], None] = lambda _: None,
    blocked_by: Callable[[tuple[SlotCreationBlocker, ...]], None] = lambda _: None,
) -> AsyncIterator[None]:
    """Report to `wait_for` and `blocked_by` the transactions for which the body waits within
    PostgreSQL, as process `waiting_pid`. A warning is logged when they change. A separate
    connection is used, whose failures do not affect the body."""
    watching = asyncio.create_task(_watch(login, waiting_pid, wait_for, blocked_by))
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(
    login: Credentials | str,
    waiting_pid: int,
    wait_for: Callable[[str], None],
    blocked_by: Callable[[tuple[SlotCreationBlocker, ...]], None],
) -> None:
    known: frozenset[tuple[int, str | None]] = frozenset()
    while True:
        await asyncio.sleep(ASK_INTERVAL_S)
        try:
            async with sql_session(login) as sql:
                while True:
                    found = await blockers(sql, waiting_pid)
                    if found:
                        text = "; ".join(map(str, found))
                        wait_for(f"the replication slot, whose creation waits for {text}")
                        blocked_by(found)
                        pids = frozenset((one.pid, one.gid) for one in found)
                        if pids != known:
                            known = pids
                            log.warning("slot_waits", blockers=text, hint=remedy(found[0]))
                    await asyncio.sleep(ASK_INTERVAL_S)
        except WalgateError as error:
            log.debug("blockers_unknown", reason=error.message)


def remedy(first: SlotCreationBlocker) -> str:
    if first.gid is not None:
        return "if it was forgotten, run COMMIT PREPARED or ROLLBACK PREPARED in its database"
    return f"wait for it to end, or end its session, which rolls it back: SELECT pg_terminate_backend({first.pid})"
