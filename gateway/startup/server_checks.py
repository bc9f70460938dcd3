"""Checks of the server: whether it can be read, and whether it is an old primary after a
failover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.errors import RetrySlowly, StopForOperator
from gateway.startup.facts import Expected, Facts
from gateway.startup.findings import Finding, OperatorWarning
from gateway.startup.timeline_checks import NotPrimary, check_timeline

OLDEST_VERSION_NUM: Final = 140003
"""The oldest supported release. Earlier ones do not send an unchanged key column that is stored out
of line."""
NEWEST_VERSION: Final = 18
_ADDS_TABLES_SAFELY: Final = {14: 140018, 15: 150013, 16: 160009, 17: 170005}
"""The first releases in which invalidations reach transactions that are open while ALTER
PUBLICATION commits (release notes of May 2025)."""
_FILLS_OLD_ROWS: Final = {15: 150006, 16: 160002}
"""The first releases in which an old row has the constant default of a column that was added after
the row was written, not NULL (release notes of February 2024)."""
_DECODES_AGAIN: Final = "14.19, 15.14, 16.10, 17.6"
_MAY_NOT_DECODE: Final = frozenset({140018, 150013, 160009, 170005})
"""The releases in _ADDS_TABLES_SAFELY, whose correction sends too many invalidations; the releases
in _DECODES_AGAIN do not."""
_CONVERTS_TO_ONE: Final = frozenset({"EUC_JP", "EUC_TW"})
"""Encodings from which PostgreSQL converts several sequences of bytes to one character."""
STANDBYS_FIRST: Final = "(standbys first: their value must not be lower than the primary's)"


def check_server(facts: Facts, expected: Expected) -> Iterator[Finding]:
    server = facts.server
    major = server.version_num // 10000
    if server.in_recovery:
        yield NotPrimary(
            "this server is a read-only standby (or is still being restored): the gateway reads from the primary only",
            hint="point source.dsn to the primary. If several servers may be the primary, name all of them, and add "
            "target_session_attrs=primary",
        )
    elif not server.decodes:
        yield RetrySlowly(
            f"wal_level is {server.wal_level}", hint="ALTER SYSTEM SET wal_level = logical; then restart the server"
        )
    if server.version_num < OLDEST_VERSION_NUM:
        version = f"{major}.{server.version_num % 10000}"
        yield StopForOperator(f"PostgreSQL {version} is too old", hint="use PostgreSQL 14.3 or newer")
    if server.version_num < _ADDS_TABLES_SAFELY.get(major, 0):
        yield OperatorWarning(
            "this version of PostgreSQL may leave out changes to a table, without any notice, if a transaction that has "
            "changed it is open while ALTER PUBLICATION ... ADD TABLE commits",
            f"upgrade to {_DECODES_AGAIN} or newer; until then, add tables as described in docs/tables.md",
        )
    if server.version_num < _FILLS_OLD_ROWS.get(major, 0):
        yield OperatorWarning(
            "this version of PostgreSQL sends NULL instead of a column's default in old rows that were written before the column "
            "was added, of tables with REPLICA IDENTITY FULL. If a row filter uses the column, UPDATEs and DELETEs can be "
            "lost",
            "upgrade to 15.6, 16.2 or newer; until then, rewrite such a table (VACUUM FULL) after ADD COLUMN ... DEFAULT",
        )
    if server.version_num in _MAY_NOT_DECODE:
        yield OperatorWarning(
            "in this version of PostgreSQL, logical decoding can fail with 'invalid memory alloc request size', for example when "
            "DDL commands and many transactions run at the same time",
            f"upgrade to {_DECODES_AGAIN} or newer",
        )
    if major > NEWEST_VERSION:
        yield OperatorWarning(
            f"PostgreSQL {major} is newer than the versions that this gateway was tested with",
            "look for a newer gateway (docs/postgresql-19.md says what is expected to work)",
        )
    if server.encoding == "SQL_ASCII":
        yield StopForOperator(
            f"database {server.database} has the encoding SQL_ASCII: the encoding of its text is unknown",
            hint="move the tables to a database with ENCODING 'UTF8'",
        )
    if server.encoding in _CONVERTS_TO_ONE:
        yield OperatorWarning(
            f"database {server.database} has the encoding {server.encoding}: several of its byte sequences are one character in "
            "UTF-8, and keys that differ only in them become one key",
            "move the tables to a database with ENCODING 'UTF8', if such keys may occur",
        )
    for wanted, since, name in ((expected.two_phase, 150000, "two_phase"), (expected.failover, 170000, "failover")):
        if wanted and server.version_num < since:
            yield StopForOperator(
                f"{name} needs PostgreSQL {since // 10000} or newer; this server is version {major}",
                hint=f"set source.{name} = false",
            )
    if expected.two_phase and server.max_prepared_transactions == 0:
        yield OperatorWarning(
            "two_phase is on, but max_prepared_transactions is 0: no transaction can be prepared",
            "set source.two_phase = false. Or, if applications prepare transactions: ALTER SYSTEM SET "
            f"max_prepared_transactions = 100; then restart the server {STANDBYS_FIRST}",
        )


def check_slot_capacity(facts: Facts) -> Iterator[Finding]:
    """Check that another slot can be created. Call this before the slot is created."""
    server = facts.server
    if server.used_slots >= server.max_replication_slots:
        yield RetrySlowly(
            f"all {server.max_replication_slots} replication slots are in use",
            hint=f"ALTER SYSTEM SET max_replication_slots = {server.used_slots + 5}; then restart the server. "
            "Or drop a slot that is no longer needed: SELECT pg_drop_replication_slot('...')",
        )


def check_sender_capacity(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Check that a WAL sender is free. Call this before the stream begins, because the gateway's
    own WAL sender counts after that."""
    server = facts.server
    if server.used_senders >= server.max_wal_senders:
        yield RetrySlowly(
            f"all {server.max_wal_senders} WAL senders are in use",
            hint=f"ALTER SYSTEM SET max_wal_senders = {server.used_senders + 5}; then restart the server {STANDBYS_FIRST}",
        )


def check_left_behind(facts: Facts, expected: Expected) -> Iterator[Finding]:
    if not facts.server.in_recovery:
        yield from check_timeline(facts.server.timeline, expected.timeline)
