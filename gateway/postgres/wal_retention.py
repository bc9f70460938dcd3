"""Find what retains WAL, for the status: the slot itself, open and prepared transactions, and other
slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import asyncpg

from gateway.observe.status_types import SlotStatus, WalRetentionCause
from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.slot import slot_facts
from gateway.postgres.slot_creation_blockers import SlotCreationBlocker, remedy
from gateway.startup.facts import SlotFacts
from gateway.startup.synchronous_standby import names_the_gateway

OLD_S: Final = 5.0
"""A transaction that is younger than this many seconds is not reported."""
_HELD_LEAST: Final = 64 << 20
"""Another slot that retains less than this many bytes of WAL is not reported."""

# On a standby, the end of the WAL is the LSN up to which it has been replayed.
CLOCK_QUERY: Final = """
SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8,
       pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                                       ELSE pg_catalog.pg_current_wal_flush_lsn() END, '0/0')::bigint
"""
# A slot needs the WAL from the start of the oldest transaction that has written, in any database. A
# transaction that only reads keeps old rows, not WAL. Without pg_read_all_stats, only the process
# ID and the xid of another role's session are visible.
_HOLDERS: Final = """
SELECT * FROM (
    SELECT 'transaction', '', a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
           extract(epoch FROM a.xact_start)::float8, extract(epoch FROM a.query_start)::float8,
           a.backend_xid, pg_catalog.age(a.backend_xid), NULL::bigint
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_catalog.pg_backend_pid()
      AND coalesce(a.xact_start < pg_catalog.statement_timestamp() - pg_catalog.make_interval(secs => $2), true)
    ORDER BY pg_catalog.age(a.backend_xid) DESC LIMIT 5
) AS t
UNION ALL
SELECT * FROM (
    SELECT 'prepared', p.gid, 0, p.owner::text, '', p.database::text, extract(epoch FROM p.prepared)::float8, NULL::float8,
           p.transaction, pg_catalog.age(p.transaction), NULL::bigint
    FROM pg_catalog.pg_prepared_xacts AS p
    WHERE p.prepared < pg_catalog.statement_timestamp() - pg_catalog.make_interval(secs => $2)
    ORDER BY p.prepared LIMIT 5
) AS p
UNION ALL
SELECT * FROM (
    SELECT 'slot', s.slot_name::text, coalesce(s.active_pid, 0), '', coalesce(s.database::text, ''),
           CASE WHEN s.temporary THEN 'temporary' WHEN s.active THEN 'active' ELSE 'inactive' END, NULL::float8, NULL::float8,
           NULL::xid, pg_catalog.age(coalesce(s.xmin, s.catalog_xmin)),
           pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                                           ELSE pg_catalog.pg_current_wal_flush_lsn() END, s.restart_lsn)::bigint AS held
    FROM pg_catalog.pg_replication_slots AS s WHERE s.slot_name <> $1 ORDER BY held DESC NULLS LAST LIMIT 3
) AS s WHERE s.held > $3
"""


async def read_clock(sql: asyncpg.Connection, timeout_s: float) -> tuple[float, int]:
    """Return the server's Unix time in seconds, and the end of its WAL. Raises WalgateError."""
    with classified_errors("reading the server's end of WAL"):
        row = await sql.fetchrow(CLOCK_QUERY, timeout=timeout_s)
    return float(row[0]), int(row[1])


async def retention_causes(sql: asyncpg.Connection, slot: str) -> tuple[WalRetentionCause, ...]:
    """Return the transactions and other slots that retain WAL. Raises WalgateError."""
    with classified_errors("querying what keeps the slot's restart_lsn from advancing"):
        rows = await sql.fetch(_HOLDERS, slot, OLD_S, _HELD_LEAST)
    return tuple(_cause(row) for row in rows)


def with_least_ages(
    causes: tuple[WalRetentionCause, ...], before: tuple[WalRetentionCause, ...], now: float
) -> tuple[WalRetentionCause, ...]:
    """Return the causes with an age for each open transaction whose begin the role may not see: it
    counts from when the transaction was first seen. `before` are the causes of the last reading,
    and `now` is the server's Unix time in seconds."""
    first_seen = {(cause.pid, cause.xid): cause.since for cause in before if cause.age_is_at_least}
    return tuple(
        replace(cause, since=first_seen.get((cause.pid, cause.xid), now), age_is_at_least=True)
        if cause.kind == "transaction" and cause.since is None
        else cause
        for cause in causes
    )


def _cause(row: asyncpg.Record) -> WalRetentionCause:
    kind, name, pid, user, application, state, since, query_since, xid, xmin_age, held = row
    return WalRetentionCause(
        kind=kind,
        name=name,
        pid=pid,
        user=user,
        application=application,
        state=state,
        since=since,
        query_since=query_since,
        xid=xid,
        xmin_age=xmin_age,
        retained_bytes=held,
        remedy=_remedy(kind, name, pid, state),
    )


def _remedy(kind: str, name: str, pid: int, state: str) -> str:
    quoted = "'" + name.replace("'", "''") + "'"
    if kind == "prepared":
        return f"if it was forgotten, run COMMIT PREPARED {quoted} or ROLLBACK PREPARED {quoted} in database {state}"
    if kind == "slot" and state == "temporary":
        # REPACK (CONCURRENTLY), a base backup, or the initial copy of a subscription uses it.
        return f"it ends with its session: wait for it, or end the session: SELECT pg_terminate_backend({pid})"
    if kind == "slot":
        return (
            "check that the consumer of this slot is running. If the slot is no longer needed, run "
            f"SELECT pg_drop_replication_slot({quoted})"
        )
    return f"wait for it to end, or end its session, which rolls it back: SELECT pg_terminate_backend({pid})"


async def slot_status(sql: asyncpg.Connection, name: str) -> SlotStatus | None:
    """Return the status of the slot, or None if it does not exist. Raises WalgateError."""
    slot = await slot_facts(sql, name)
    if slot is None:
        return None
    return SlotStatus(
        name,
        slot.active_pid,
        int(slot.restart_lsn or 0),
        int(slot.confirmed_flush_lsn or 0),
        slot.wal_status or "",
        slot.safe_wal_bytes,
        slot.inactive_since,
        slot.sync_state or await _state_by_name(sql, slot),
    )


async def _state_by_name(sql: asyncpg.Connection, slot: SlotFacts) -> str:
    """Return a sync state derived from synchronous_standby_names, for a role that may not see
    pg_stat_replication. Raises WalgateError."""
    if slot.active_pid is None:
        return ""
    with classified_errors("querying synchronous_standby_names"):
        setting = await sql.fetchval("SELECT pg_catalog.current_setting('synchronous_standby_names')")
    return "by name" if names_the_gateway(setting) else ""


def cause_of(blocker: SlotCreationBlocker, now: float) -> WalRetentionCause:
    """Return the cause for a transaction for which the creation of the slot waits. `now` is the
    Unix time in seconds."""
    return WalRetentionCause(
        kind="prepared" if blocker.gid is not None else "transaction",
        name=blocker.gid or "",
        pid=blocker.pid,
        user=blocker.user or "",
        application=blocker.application,
        state=blocker.state,
        since=None if blocker.open_s is None else now - blocker.open_s,
        query_since=None if blocker.statement_s is None else now - blocker.statement_s,
        remedy=remedy(blocker),
        blocks=True,
    )
