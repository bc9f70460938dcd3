"""Checks of the server: can it be read, and is it the one that the position belongs to?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.judgement.facts import Expected, Facts
from gateway.judgement.findings import Finding, OperatorWarning
from gateway.judgement.timeline import check_timeline
from gateway.operate.errors import RetrySlowly, StopForOperator

OLDEST_VERSION_NUM: Final = 140000
NEWEST_VERSION: Final = 18


def check_server(facts: Facts, expected: Expected) -> Iterator[Finding]:
    server = facts.server
    major = server.version_num // 10000
    if server.version_num < OLDEST_VERSION_NUM:
        yield StopForOperator(f"PostgreSQL {major} is too old", hint="use PostgreSQL 14 or newer")
    if major > NEWEST_VERSION:
        yield OperatorWarning(
            f"PostgreSQL {major} is newer than the versions that this gateway supports", "install a newer gateway"
        )
    if server.wal_level != "logical":
        yield RetrySlowly(
            f"wal_level is {server.wal_level}", hint="ALTER SYSTEM SET wal_level = logical; then restart the server"
        )
    if server.encoding == "SQL_ASCII":
        yield StopForOperator(
            f"database {server.database} has the encoding SQL_ASCII: the encoding of its text is unknown",
            hint="move the tables to a database with ENCODING 'UTF8'",
        )
    for wanted, since, name in ((expected.two_phase, 150000, "two_phase"), (expected.failover, 170000, "failover")):
        if wanted and server.version_num < since:
            yield StopForOperator(
                f"{name} needs PostgreSQL {since // 10000} or newer, this is {major}", hint=f"set source.{name} = false"
            )
    if expected.two_phase and server.max_prepared_transactions == 0:
        yield OperatorWarning(
            "two_phase is on, but max_prepared_transactions is 0: no transaction can be prepared",
            "ALTER SYSTEM SET max_prepared_transactions = 10; then restart the server",
        )


def check_slot_capacity(facts: Facts) -> Iterator[Finding]:
    """Before the slot is created."""
    server = facts.server
    if server.used_slots >= server.max_replication_slots:
        yield RetrySlowly(
            f"all {server.max_replication_slots} replication slots are in use",
            hint=f"ALTER SYSTEM SET max_replication_slots = {server.used_slots + 5}; then restart the server. "
            "Or drop an unused one: SELECT pg_drop_replication_slot('...')",
        )


def check_sender_capacity(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Before the stream, when our WAL sender does not count yet."""
    server = facts.server
    if server.used_senders >= server.max_wal_senders:
        yield RetrySlowly(
            f"all {server.max_wal_senders} WAL senders are in use",
            hint=f"ALTER SYSTEM SET max_wal_senders = {server.used_senders + 5}; then restart the server",
        )


def check_identity(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """LSNs of another server or database mean nothing here."""
    server = facts.server
    if expected.system_identifier not in (None, server.system_identifier):
        yield StopForOperator(
            f"this is a different server: its system identifier is {server.system_identifier}, but the "
            f"position belongs to {expected.system_identifier}",
            hint="point source.dsn to the server that the position belongs to",
        )
    if expected.database not in (None, server.database):
        yield StopForOperator(
            f"this is database {server.database}, but the position belongs to {expected.database}",
            hint="point source.dsn to the database that the position belongs to",
        )
    if not server.in_recovery:
        yield from check_timeline(server.timeline, expected.timeline)
