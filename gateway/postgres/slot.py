"""Create, query, advance and drop the replication slot."""

from __future__ import annotations

import json
from typing import Any

import asyncpg

from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.start_replication import checked_slot
from gateway.startup.facts import SlotFacts
from gateway.startup.slot_checks import PLUGIN
from schemas.lsn import Lsn

_ADVANCE = "SELECT pg_catalog.pg_replication_slot_advance($1, $2::text::pg_lsn)"
_CREATION_TIMEOUT_S = 3600.0
DECODING_TIMEOUT_S = 86_400.0
"""The time limit for decoding from the beginning of the slot's oldest transaction. The server may
have to read the whole backlog, which takes hours."""
# As JSON, because the columns depend on the version: a missing one reads as null.
SLOT_QUERY = """
SELECT to_jsonb(s) || jsonb_build_object('sync_state', (
    SELECT r.sync_state FROM pg_catalog.pg_stat_replication AS r WHERE r.pid = s.active_pid))
FROM pg_catalog.pg_replication_slots AS s WHERE s.slot_name = $1
"""


def parse_slot(row: dict[str, Any]) -> SlotFacts:
    return SlotFacts(
        name=row["slot_name"],
        plugin=row["plugin"],
        slot_type=row["slot_type"],
        database=row["database"],
        active_pid=row["active_pid"],
        restart_lsn=_lsn(row["restart_lsn"]),
        confirmed_flush_lsn=_lsn(row["confirmed_flush_lsn"]),
        wal_status=row["wal_status"],
        safe_wal_bytes=row["safe_wal_size"],
        two_phase=bool(row.get("two_phase")),
        invalidation_reason=row.get("invalidation_reason"),
        conflicting=row.get("conflicting"),
        failover=row.get("failover"),
        inactive_since=row.get("inactive_since"),
        sync_state=row.get("sync_state"),
    )


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)


async def slot_facts(sql: asyncpg.Connection, name: str) -> SlotFacts | None:
    """Return the facts about the slot, or None if it does not exist. Raises WalgateError."""
    with classified_errors(f"querying slot {name}"):
        row = await sql.fetchval(SLOT_QUERY, name)
    return None if row is None else parse_slot(json.loads(row))


async def create_slot(
    sql: asyncpg.Connection, name: str, *, version_num: int, two_phase: bool = False, failover: bool = False
) -> Lsn:
    """Create a permanent logical slot; return its consistent point. The slot sends everything that
    commits after this point.

    The server waits, for up to an hour, for the end of every open transaction that has written.
    Raises WalgateError: Retry if the slot exists (42710), as another gateway may have created it.
    Earlier checks have refused options that the version lacks: failover before 17, and two_phase
    before 15. Version 14 has slots with two_phase, but its pgoutput does not send prepared
    transactions.
    """
    checked_slot(name)
    query = "SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot($1, $2, false, $3"
    arguments: list[Any] = [name, PLUGIN, two_phase]
    if version_num >= 170000:
        query += ", $4"
        arguments.append(failover)
    with classified_errors(f"creating slot {name}"):
        return Lsn.parse(await sql.fetchval(query + ")", *arguments, timeout=_CREATION_TIMEOUT_S))


async def advance_slot(sql: asyncpg.Connection, name: str, end_lsn: Lsn) -> None:
    """Give up the changes that commit before `end_lsn`. The slot is advanced twice: the first call
    confirms the LSN and notes one place from which decoding can begin again, and the second finds
    the newest such place. The server reads all WAL from restart_lsn on before it returns. Raises
    WalgateError."""
    with classified_errors(f"advancing slot {name}"):
        for _ in range(2):
            await sql.execute(_ADVANCE, name, str(end_lsn), timeout=DECODING_TIMEOUT_S)


async def drop_slot(sql: asyncpg.Connection, name: str) -> None:
    """Drop the slot. Raises WalgateError."""
    with classified_errors(f"dropping slot {name}"):
        await sql.execute("SELECT pg_catalog.pg_drop_replication_slot($1)", name)
