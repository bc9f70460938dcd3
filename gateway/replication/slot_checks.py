"""Checks of the slot: ours to read, not lost, and where our position says."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.operate.errors import DataGap, Retry, RetrySlowly, StopForOperator
from gateway.replication.facts import NEW_START, Caution, Expected, Facts, Finding
from gateway.replication.server import ServerFacts
from gateway.replication.slot import PLUGIN, SlotFacts


def check_slot(facts: Facts, expected: Expected) -> Iterator[Finding]:
    slot = facts.slot
    if slot is None:
        if expected.resume_lsn is not None:
            yield DataGap(
                f"slot {expected.slot} does not exist, but there is a position ({expected.resume_lsn}): "
                "changes since then can not be read any more",
                hint="has it been dropped, or is this a new primary without failover slots? Start anew: new slot, new copies",
            )
        return
    if expected.resume_lsn is None and not (expected.adopt_slot or expected.slot_made):
        yield StopForOperator(
            f"slot {slot.name} exists, but no position of it is known: it may be another program's",
            hint="set source.adopt_slot = true to go on where the slot is, or choose another source.slot",
        )
    yield from _slot_kind(slot, facts.server)
    yield from _slot_lost(slot)
    if slot.active_pid is not None and slot.active_pid != expected.backend_pid:
        yield Retry(
            f"slot {slot.name} is in use by process {slot.active_pid}",
            hint=f"another gateway? SELECT pg_terminate_backend({slot.active_pid}) ends that reader",
        )
    if expected.two_phase and not slot.two_phase:
        yield Caution(
            f"slot {slot.name} was made without two_phase: the start switches it on for good",
            "set source.two_phase = false to leave it as it is",
        )
    if slot.failover is not None and expected.failover != slot.failover:
        yield Caution(
            f"slot {slot.name} has failover = {str(slot.failover).lower()}, the setting says otherwise",
            f"ALTER_REPLICATION_SLOT {slot.name} (FAILOVER {str(expected.failover).lower()}) over a replication connection",
        )


def _slot_kind(slot: SlotFacts, server: ServerFacts) -> Iterator[Finding]:
    other = f"choose another source.slot, or drop it: SELECT pg_drop_replication_slot('{slot.name}')"
    if slot.slot_type != "logical":
        yield StopForOperator(f"slot {slot.name} is {slot.slot_type}, not logical", hint=other)
        return
    if slot.plugin != PLUGIN:
        yield StopForOperator(f"slot {slot.name} has the output plugin {slot.plugin}, not {PLUGIN}", hint=other)
    if slot.database != server.database:
        yield StopForOperator(f"slot {slot.name} is of database {slot.database}, not {server.database}", hint=other)
    if slot.temporary:
        yield StopForOperator(f"slot {slot.name} is temporary: it ends with the session that made it", hint=other)
    if slot.synced and server.in_recovery:
        yield RetrySlowly(
            f"slot {slot.name} is a copy on a standby, it can be read after a promotion only",
            hint="point source.dsn to the primary (target_session_attrs=primary)",
        )


def _slot_lost(slot: SlotFacts) -> Iterator[Finding]:
    if slot.invalidation_reason is not None:
        yield DataGap(f"slot {slot.name} is invalid: {slot.invalidation_reason}", hint=NEW_START)
    elif slot.wal_status == "lost":
        yield DataGap(f"slot {slot.name} is lost: WAL that it needs has been removed", hint=NEW_START)
    elif slot.conflicting:
        yield DataGap(f"slot {slot.name} is invalid: it conflicted with recovery on a standby", hint=NEW_START)
    elif slot.wal_status == "unreserved":
        yield Caution(
            f"slot {slot.name} is about to be lost: the next checkpoint may remove WAL that it needs",
            "ALTER SYSTEM SET max_slot_wal_keep_size = -1; SELECT pg_reload_conf()",
        )


def check_confirmed(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """The server accepts it in silence, and goes on at the slot's own position."""
    slot, resume_lsn = facts.slot, expected.resume_lsn
    confirmed = None if slot is None else slot.confirmed_flush_lsn
    if slot is not None and confirmed is not None and resume_lsn is not None and confirmed > resume_lsn:
        yield DataGap(
            f"slot {slot.name} is confirmed up to {confirmed}, our position is {resume_lsn}: {confirmed - resume_lsn} bytes "
            "of WAL were read by somebody else, or the slot was dropped and made again",
            hint=NEW_START,
        )


def check_end_of_wal(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """The server accepts it in silence, and sends nothing for ever. Only before the stream: while it runs our position moves
    on after the facts were read, and WAL is not set back under a walsender."""
    resume_lsn = expected.resume_lsn
    if facts.slot is not None and resume_lsn is not None and resume_lsn > facts.server.flush_lsn:
        behind = f"our position {resume_lsn} lies behind the end of the WAL, {facts.server.flush_lsn}"
        if facts.server.in_recovery:
            yield RetrySlowly(f"{behind}: this standby has not replayed it yet")
        else:
            yield DataGap(
                f"{behind}: the server was set back, Kafka holds changes that it does not know",
                hint="has it been restored from a backup, or promoted with a loss? Start anew: new slot, prefix and copies",
            )


def check_retention(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """What may take the slot away while the gateway stands still."""
    server = facts.server
    if server.max_slot_wal_keep_mb >= 0:
        yield Caution(
            f"max_slot_wal_keep_size is {server.max_slot_wal_keep_mb} MB: the slot is lost when the gateway is further behind",
            "ALTER SYSTEM SET max_slot_wal_keep_size = -1 if the disk can hold more",
        )
    if server.idle_slot_timeout_s > 0:
        yield Caution(
            f"idle_replication_slot_timeout is {server.idle_slot_timeout_s:.0f} s: the slot is lost when we stand longer",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0",
        )
    if expected.failover and server.version_num >= 170000 and not server.synchronized_standby_slots:
        yield Caution(
            "failover is on, but synchronized_standby_slots is empty: after a failover Kafka may hold changes that the "
            "new primary never had",
            "ALTER SYSTEM SET synchronized_standby_slots = '<physical slot of the standby>'",
        )
    if facts.slot is not None and facts.slot.wal_status == "extended":
        yield Caution(f"slot {facts.slot.name} holds back more WAL than max_wal_size", "is the gateway fast enough?")
