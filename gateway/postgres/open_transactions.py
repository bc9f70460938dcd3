"""Transactions whose end other sessions do not see yet, so that the catalog does not show their
ALTER TABLEs."""

from __future__ import annotations

import asyncio
from typing import Final

import asyncpg

from gateway.postgres.classify_errors import DRIVER_ERRORS, classify_exception

_LOCK_QUERY: Final = """
select exists (
    select from pg_catalog.pg_locks l
    where l.virtualtransaction = t.virtualtransaction and l.locktype = 'relation' and l.relation = $1
      and l.mode = 'AccessExclusiveLock' and l.granted)
from pg_catalog.pg_locks t
where t.locktype = 'transactionid' and t.transactionid = $2::pg_catalog.text::pg_catalog.xid
  and t.mode = 'ExclusiveLock' and t.granted
"""
_LOOKS: Final = 20
_LOOKS_APART_S: Final = 0.05


async def holds_lock(sql: asyncpg.Connection, relation_oid: int, xid: int) -> bool | None:
    """Return whether a transaction has the lock on a relation without which it cannot have changed
    its columns; None if the transaction has ended. A prepared transaction has not ended."""
    try:
        found: bool | None = await sql.fetchval(_LOCK_QUERY, relation_oid, str(xid))
    except DRIVER_ERRORS as error:
        raise classify_exception(error, f"querying the locks of transaction {xid}") from error
    return found


async def is_seen(sql: asyncpg.Connection, xid: int, relation_oid: int | None = None) -> bool:
    """Wait until other sessions see the end of a transaction whose commit was received, and return
    False if they do not after a second: they see it only after its synchronous standbys have
    answered. `relation_oid`: it is enough that the transaction cannot have altered this
    relation."""
    for _ in range(_LOOKS):
        found = await holds_lock(sql, relation_oid or 0, xid)
        if found is None or (relation_oid is not None and not found):
            return True
        await asyncio.sleep(_LOOKS_APART_S)
    return False
