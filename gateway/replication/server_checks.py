"""Checks of the server and of the place: is this where the position is of, and can it be read?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.operate.errors import DataGap, RetrySlowly, StopForOperator
from gateway.replication.facts import Caution, Expected, Facts, Finding
from gateway.replication.options import OLDEST_VERSION_NUM

NEWEST_VERSION: Final = 18


def check_server(facts: Facts, expected: Expected) -> Iterator[Finding]:
    server = facts.server
    major = server.version_num // 10000
    if server.version_num < OLDEST_VERSION_NUM:
        yield StopForOperator(f"PostgreSQL {major} is too old", hint="14 is the oldest that works")
    if major > NEWEST_VERSION:
        yield Caution(f"PostgreSQL {major} is newer than this gateway knows", "look for a newer gateway")
    if server.wal_level != "logical":
        yield StopForOperator(
            f"wal_level is {server.wal_level}", hint="ALTER SYSTEM SET wal_level = logical; then restart the server"
        )
    if server.encoding == "SQL_ASCII":
        yield StopForOperator(
            f"database {server.database} has the encoding SQL_ASCII, so that its text can not be read for sure",
            hint="move it to a database with ENCODING 'UTF8'",
        )
    for wanted, since, name in ((expected.two_phase, 150000, "two_phase"), (expected.failover, 170000, "failover")):
        if wanted and server.version_num < since:
            yield StopForOperator(
                f"{name} needs PostgreSQL {since // 10000} or newer, this is {major}", hint=f"set source.{name} = false"
            )
    if expected.two_phase and server.max_prepared_transactions == 0:
        yield Caution(
            "two_phase is on, but max_prepared_transactions is 0: nothing can be prepared",
            "ALTER SYSTEM SET max_prepared_transactions = 10; then restart the server",
        )


def check_room(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Before the start, when our walsender does not count yet."""
    server = facts.server
    if facts.slot is None and server.used_slots >= server.max_replication_slots:
        yield RetrySlowly(
            f"all {server.max_replication_slots} replication slots are in use",
            hint=f"ALTER SYSTEM SET max_replication_slots = {server.used_slots + 5}; then restart the server. "
            "Or drop one that nobody needs: SELECT pg_drop_replication_slot('...')",
        )
    if expected.backend_pid is None and server.used_senders >= server.max_wal_senders:
        yield RetrySlowly(
            f"all {server.max_wal_senders} WAL senders are in use",
            hint=f"ALTER SYSTEM SET max_wal_senders = {server.used_senders + 5}; then restart the server",
        )


def check_place(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """The position is of one server and one database; LSNs of another mean nothing there."""
    server = facts.server
    if expected.system_identifier not in (None, server.system_identifier):
        yield DataGap(
            f"this is another server: its system identifier is {server.system_identifier}, "
            f"the position is of {expected.system_identifier}",
            hint="point source.dsn to the server that the position is of; for a new server take another slot and prefix",
        )
    if expected.database not in (None, server.database):
        yield DataGap(
            f"this is database {server.database}, the position is of {expected.database}",
            hint="point source.dsn to the database that the position is of",
        )
    if not server.in_recovery:
        yield from check_timeline(server.timeline, expected.timeline)


def check_timeline(timeline: int, expected: int | None) -> Iterator[Finding]:
    """`timeline`: the server's; of a standby only the replication connection knows it."""
    if expected is not None and timeline < expected:
        yield DataGap(
            f"the server is on timeline {timeline}, the position on {expected}: this server was left behind by a failover",
            hint="point source.dsn to the primary of today",
        )
