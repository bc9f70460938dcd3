"""Checks of the slot: whether it is usable, not lost, and not in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.errors import ACCEPT_GAP, DataGap, SlotInUse, StopForOperator
from gateway.startup.facts import Expected, Facts, ServerFacts, SlotFacts
from gateway.startup.findings import Finding, OperatorWarning

PLUGIN: Final = "pgoutput"
LOST_SLOT_HINT: Final = f"changes after the resume LSN can no longer be read: {ACCEPT_GAP}"


def check_holder(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Check that no other process holds the slot. This check comes before any other judgement,
    because the holder may be moving the slot."""
    slot = facts.slot
    if slot is not None and slot.active_pid not in (None, expected.backend_pid):
        yield SlotInUse(
            f"slot {slot.name} is in use by process {slot.active_pid}",
            hint="if that process should not be reading this slot, end its session: SELECT "
            f"pg_terminate_backend({slot.active_pid})",
        )


def check_slot(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Check the slot alone, without any position. A slot that no longer exists is judged with the
    position (position_checks.check_progress)."""
    slot = facts.slot
    if slot is None:
        return
    yield from _kind(slot, facts.server)
    yield from _lost(slot)
    if expected.two_phase and not slot.two_phase:
        yield OperatorWarning(
            f"slot {slot.name} was created without two_phase: the gateway enables it when it starts (before PostgreSQL 18, it "
            "cannot be disabled again)",
            "set source.two_phase = false to leave the slot unchanged",
        )
    if slot.failover is not None and expected.failover != slot.failover:
        there, wanted = (str(value).lower() for value in (slot.failover, expected.failover))
        yield OperatorWarning(
            f"slot {slot.name} has failover = {there}, but source.failover = {wanted}",
            f"to keep it so, set source.failover = {there}. Otherwise stop the gateway, then run psql "
            f"\"dbname={slot.database} replication=database\" -c 'ALTER_REPLICATION_SLOT {slot.name} (FAILOVER {wanted})'",
        )


def _kind(slot: SlotFacts, server: ServerFacts) -> Iterator[Finding]:
    other = "choose another source.slot"
    if slot.slot_type != "logical":
        yield StopForOperator(f"slot {slot.name} is {slot.slot_type}, not logical", hint=other)
        return
    if slot.plugin != PLUGIN:
        yield StopForOperator(f"slot {slot.name} has the output plugin {slot.plugin}, not {PLUGIN}", hint=other)
    if slot.database != server.database:
        yield StopForOperator(
            f"slot {slot.name} belongs to database {slot.database}, not {server.database}", hint=other
        )


def _lost(slot: SlotFacts) -> Iterator[Finding]:
    if slot.invalidation_reason is not None:
        yield DataGap(f"slot {slot.name} has been invalidated: {slot.invalidation_reason}", hint=LOST_SLOT_HINT)
    elif slot.wal_status == "lost":  # before 17, which has no invalidation_reason
        reason = "it conflicted with recovery on a standby" if slot.conflicting else "WAL that it needs was removed"
        yield DataGap(f"slot {slot.name} has been invalidated: {reason}", hint=LOST_SLOT_HINT)
    elif slot.wal_status == "unreserved":
        yield OperatorWarning(
            f"slot {slot.name} is about to be invalidated: the next checkpoint may remove WAL that it needs",
            "if the disk has room for more WAL: ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf()",
        )


def check_retention(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Warn about settings and states that may invalidate the slot while the gateway does not read
    it."""
    server, budget = facts.server, expected.advance_bytes
    if 0 <= server.max_slot_wal_keep_mb << 20 < (budget or 0):
        yield OperatorWarning(
            f"source.wal_budget_bytes is {budget}, but max_slot_wal_keep_size is {server.max_slot_wal_keep_mb} MB: the slot is "
            "invalidated before source.on_wal_budget = advance can advance it",
            f"set source.wal_budget_bytes to less than {server.max_slot_wal_keep_mb << 20}. Or, if the disk has room for more "
            "WAL: ALTER SYSTEM SET max_slot_wal_keep_size = '...'; SELECT pg_reload_conf()",
        )
    elif server.max_slot_wal_keep_mb >= 0:
        yield OperatorWarning(
            f"max_slot_wal_keep_size is {server.max_slot_wal_keep_mb} MB: the slot is invalidated if its "
            "restart_lsn falls further than that behind the end of the WAL, because the gateway is down or slow or because a "
            "transaction stays open",
            "if the disk has room for more WAL, raise the limit: ALTER SYSTEM SET max_slot_wal_keep_size = '...'; "
            "SELECT pg_reload_conf()",
        )
    if server.idle_slot_timeout_s > 0:
        yield OperatorWarning(
            f"idle_replication_slot_timeout is {server.idle_slot_timeout_s:.0f} s: the slot is invalidated if the gateway does "
            "not read it for longer, because it is down or waits, for Kafka for example",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
        )
    if expected.failover and server.version_num >= 170000 and not server.synchronized_standby_slots:
        yield OperatorWarning(
            "failover is on, but synchronized_standby_slots is empty: after a failover Kafka may contain "
            "changes that the new primary never had",
            "ALTER SYSTEM SET synchronized_standby_slots = '<physical slot of the standby>'; SELECT pg_reload_conf()",
        )
    named = (name.strip(' "') for name in server.synchronized_standby_slots.split(","))
    unknown = [name for name in named if name and name not in server.physical_slots]
    if expected.failover and unknown:
        yield OperatorWarning(
            "synchronized_standby_slots names slots that are not physical replication slots of this server: "
            f"{', '.join(unknown)}. PostgreSQL sends no changes until they exist, and their standbys have the WAL",
            "correct the names: ALTER SYSTEM SET synchronized_standby_slots = '...'; SELECT pg_reload_conf(). Or create the slot "
            f"(SELECT pg_create_physical_replication_slot('{unknown[0]}')), and set it as primary_slot_name at the standby",
        )
    if facts.slot is not None and facts.slot.wal_status == "extended":
        yield OperatorWarning(
            f"slot {facts.slot.name} retains more WAL than max_wal_size",
            "check that the gateway is running and keeping up. If it is, run walgate status: it shows what keeps the slot's "
            "restart_lsn from advancing",
        )
