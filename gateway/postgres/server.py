"""Facts about the server and the database, read with one query for all versions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gateway.postgres.classify_errors import DRIVER_ERRORS, classified_errors, classify_exception
from gateway.postgres.publication import PublicationLoader, publication_facts
from gateway.postgres.slot import slot_facts
from gateway.startup.facts import Facts, ServerFacts
from schemas.lsn import Lsn

# These are read from pg_settings, because current_setting returns no unit. Names that a version
# lacks are absent from the result.
_SETTINGS: Final = (
    "server_version_num",
    "wal_level",
    "effective_wal_level",
    "wal_sender_timeout",
    "max_wal_senders",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_prepared_transactions",
    "idle_replication_slot_timeout",
    "synchronized_standby_slots",
    "synchronous_standby_names",
)
_TIMELINE_IN_HEX: Final = "pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)"
TIMELINE: Final = f"('x' || {_TIMELINE_IN_HEX})::bit(32)::int"
"""An SQL expression: the timeline of a primary."""
# REPACK (CONCURRENTLY) of PostgreSQL 19 has slots of its own (max_repack_replication_slots), in the
# same view. A standby cannot name its current WAL file, and after a promotion pg_control_checkpoint
# shows the old timeline until the next checkpoint. A timeline from there is good enough for a first
# position, but not for a comparison.
SERVER_QUERY: Final = f"""
SELECT jsonb_build_object(
    'system_identifier', (pg_catalog.pg_control_system()).system_identifier::text,
    'timeline', CASE WHEN r.in_recovery THEN (pg_catalog.pg_control_checkpoint()).timeline_id
                     ELSE {TIMELINE} END,
    'flush_lsn', CASE WHEN r.in_recovery THEN pg_catalog.pg_last_wal_replay_lsn()
                      ELSE pg_catalog.pg_current_wal_flush_lsn() END,
    'in_recovery', r.in_recovery,
    'database', d.datname,
    'database_oid', d.oid::bigint,
    'encoding', pg_catalog.pg_encoding_to_char(d.encoding),
    'used_slots', (SELECT count(*) FROM pg_catalog.pg_replication_slots AS s
                   WHERE s.plugin IS DISTINCT FROM 'pgrepack'),
    'physical_slots', (SELECT jsonb_agg(s.slot_name ORDER BY s.slot_name)
                       FROM pg_catalog.pg_replication_slots AS s WHERE s.slot_type = 'physical'),
    'used_senders', (SELECT count(*) FROM pg_catalog.pg_stat_replication),
    'settings', (SELECT jsonb_object_agg(s.name, jsonb_build_array(s.setting, s.unit))
                 FROM pg_catalog.pg_settings AS s WHERE s.name = ANY ($1::text[])))
FROM (SELECT pg_catalog.pg_is_in_recovery() AS in_recovery) AS r, pg_catalog.pg_database AS d
WHERE d.datname = pg_catalog.current_database()
"""
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "min": 60.0}


def parse_server(row: dict[str, Any]) -> ServerFacts:
    settings: dict[str, tuple[str, str | None]] = row["settings"]

    def number(name: str, default: int) -> int:
        return int(settings[name][0]) if name in settings else default

    def seconds(name: str) -> float:
        return int(settings[name][0]) * _UNIT_S[settings[name][1] or "s"] if name in settings else 0.0

    return ServerFacts(
        # Printed as by IDENTIFY_SYSTEM: SQL has no unsigned type for it.
        system_identifier=str(int(row["system_identifier"]) % (1 << 64)),
        timeline=row["timeline"],
        database=row["database"],
        database_oid=row["database_oid"],
        version_num=number("server_version_num", 0),
        wal_level=settings["wal_level"][0],
        flush_lsn=Lsn.parse(row["flush_lsn"]),
        encoding=row["encoding"],
        wal_sender_timeout_s=seconds("wal_sender_timeout"),
        in_recovery=row["in_recovery"],
        max_replication_slots=number("max_replication_slots", 0),
        used_slots=row["used_slots"],
        max_wal_senders=number("max_wal_senders", 0),
        used_senders=row["used_senders"],
        max_prepared_transactions=number("max_prepared_transactions", 0),
        max_slot_wal_keep_mb=number("max_slot_wal_keep_size", -1),
        idle_slot_timeout_s=seconds("idle_replication_slot_timeout"),
        synchronized_standby_slots=settings.get("synchronized_standby_slots", ("", None))[0],
        effective_wal_level=settings.get("effective_wal_level", ("", None))[0],
        synchronous_standby_names=settings.get("synchronous_standby_names", ("", None))[0],
        physical_slots=tuple(row["physical_slots"] or ()),
    )


async def server_facts(sql: asyncpg.Connection) -> ServerFacts:
    """Return the facts about the server. This needs no privilege but CONNECT. Raises
    WalgateError."""
    with classified_errors("querying the server"):
        row = await sql.fetchval(SERVER_QUERY, list(_SETTINGS))
    return parse_server(json.loads(row))


async def load_facts(
    sql: asyncpg.Connection,
    slot: str,
    publications: Sequence[str] | PublicationLoader,
    moment: int = 0,
    *,
    excluded: Sequence[str] = (),
) -> Facts:
    """Return the facts about publications, slot and server. The server is queried last, because its
    end of WAL must not be older than the slot's LSNs. A `PublicationLoader` is for callers that
    repeat this: its first query costs more. It has its own patterns of excluded tables; otherwise,
    `excluded` has them. Raises WalgateError."""
    if isinstance(publications, PublicationLoader):
        publications_now = await publications.facts(sql)
    else:
        publications_now = await publication_facts(sql, publications, excluded=excluded)
    slot_now = await slot_facts(sql, slot)
    return Facts(await server_facts(sql), slot_now, publications_now, moment)


async def ended_transactions(sql: asyncpg.Connection, prepared: Iterable[int]) -> tuple[frozenset[int], Lsn]:
    """Return the xids of those prepared transactions that have ended, and an LSN before which they
    ended. A transaction leaves the view after its end is on disk, and the LSN is read after that.
    Raises WalgateError."""
    with classified_errors("querying the prepared transactions"):
        rows = await sql.fetch("SELECT p.transaction::text::int8 FROM pg_catalog.pg_prepared_xacts AS p")
    return frozenset(prepared).difference(row[0] for row in rows), (await server_facts(sql)).flush_lsn


# On a primary, the LSN is the end of the WAL that the last crash recovery replayed. It is null if
# the server was shut down cleanly before its last start.
_RECOVERY_QUERY: Final = f"""
SELECT {_TIMELINE_IN_HEX}, pg_catalog.pg_last_wal_replay_lsn()::text
WHERE NOT pg_catalog.pg_is_in_recovery()
"""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The last crash recovery of a server. After a crash, the LSN differs, and the timeline is
    unchanged, whether or not the postmaster was started again (restart_after_crash = off). A
    promotion changes the timeline, so a failover is not taken for a crash. An immediate shutdown
    looks like a crash."""

    timeline: str = ""
    replayed_lsn: str = ""

    def follows_crash_since(self, before: Recovery) -> bool:
        return self.timeline == before.timeline and self.replayed_lsn not in ("", before.replayed_lsn)


async def recovery_of(sql: asyncpg.Connection) -> Recovery:
    """Return the last crash recovery, without values on a standby. This needs no privilege but
    CONNECT; if a managed server lacks these functions, a crash looks like a lost connection. Raises
    WalgateError."""
    try:
        found = await sql.fetchrow(_RECOVERY_QUERY)
    except (asyncpg.FeatureNotSupportedError, asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError):
        return Recovery()
    except DRIVER_ERRORS as error:
        raise classify_exception(error, "querying the server") from error
    return Recovery() if found is None else Recovery(found[0], found[1] or "")
