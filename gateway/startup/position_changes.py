"""Changes to a slot's position that the operator decides on: the steps of `walgate skip`,
`readmit`, `accept-gap` and `adopt`. Like start.py, this module is pure.

    skip, readmit    look -> prepare Kafka -> look at the positions, judge -> fence -> read the
                     positions -> look, judge -> record. A refusal before the fence does not disturb
                     a gateway that is running.
    accept-gap       look -> prepare Kafka -> look at the positions -> fence -> look -> read the
                     positions -> look, judge; if the slot is unusable, drop it and create it ->
                     record. If interrupted after the drop, the next run finds no slot, or a new
                     one, and records a gap too. Refused at the first look while a gateway holds the
                     slot.
    adopt            look -> prepare Kafka -> fence -> read the positions -> look, judge -> record.
                     A former server's transactional id is fenced too. Refused at the first look
                     while a gateway or connector holds the slot, or if a connector's offset cannot
                     belong to it.

A gateway that has released WAL (wal_release.py) takes the steps of accept-gap itself.

If the database was renamed, skip, readmit and accept-gap first record the position under the new
name. So the position is found again if accept-gap is interrupted after it has dropped the slot.

The fence ends the session of a running gateway, which starts again from the position that is
recorded here. A command that is itself fenced records nothing. So a position is only ever replaced
by one that was derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any

from gateway.errors import NEW_PREFIX, DataGap, Retry, RetrySlowly, StopForOperator
from gateway.events.marker_encoder import Marker
from gateway.startup.connect_offset import DebeziumOffset
from gateway.startup.facts import Expected, Facts, Stored
from gateway.startup.findings import Finding, report_of
from gateway.startup.position_checks import (
    adoption_obstacle,
    after_rename,
    check_not_ahead,
    check_offset,
    check_prefix,
    check_set_back,
    position_before_rename,
    set_back_lsn,
)
from gateway.startup.publication_checks import check_publications
from gateway.startup.server_checks import check_left_behind, check_slot_capacity
from gateway.startup.slot_checks import check_holder, check_slot
from gateway.startup.start import (
    CreateSlot,
    DropSlot,
    Fence,
    FenceFormer,
    FindWritten,
    LoadFacts,
    LookAtPositions,
    PrepareKafka,
    ReadPositions,
    Record,
    Step,
    Steps,
    record_set_back,
    refuse_other_prefix,
)
from gateway.transactions.position import Gap, Position
from schemas.lsn import Lsn
from schemas.topic_names import POSITION_TOPIC, parse_relation

FreshPosition = Callable[[Facts], Position]


def skip(fresh_position: FreshPosition, commit_lsn: Lsn) -> Steps:
    """Make the next start leave out the transaction that commits (or was prepared) at `commit_lsn`.
    Return the new position."""
    return (yield from _changed(fresh_position, lambda position, facts: _skipping(position, facts, commit_lsn)))


def readmit(fresh_position: FreshPosition, table: str) -> Steps:
    """End the quarantine of `table`, as `parse_relation` reads it: its changes are written again,
    from the next transaction on. Return the new position."""
    return (yield from _changed(fresh_position, lambda position, _: _readmitting(position, table)))


def _skipping(position: Position, facts: Facts, commit_lsn: Lsn) -> Record:
    if commit_lsn < position.resume_lsn:
        raise StopForOperator(
            f"skip: the transaction that commits at {commit_lsn} has already been delivered: the resume LSN is "
            f"{position.resume_lsn}",
            hint="use the commit LSN from the gateway's error message",
        )
    if commit_lsn >= facts.server.flush_lsn:
        raise StopForOperator(
            f"skip: nothing has been committed at {commit_lsn} yet: the WAL ends at {facts.server.flush_lsn}",
            hint="use the commit LSN from the gateway's error message",
        )
    return Record(replace(position, skip_lsn=commit_lsn))


def _readmitting(position: Position, table: str) -> Record:
    name = parse_relation(table)
    rest = tuple(each for each in position.quarantined if (each.namespace, each.name) != name)
    if len(rest) == len(position.quarantined):
        names = ", ".join(each.full_name for each in position.quarantined) or "none"
        raise StopForOperator(f"readmit: {table} is not in quarantine", hint=f"tables in quarantine: {names}")
    position = replace(position, quarantined=rest, epoch=position.epoch + 1)
    return Record(position, (Marker("EPOCH", 0, position.resume_lsn, detail=f"readmitted {table}"),))


def accept_gap(
    fresh_position: FreshPosition, expected: Expected, *, until_now: bool = False, released: str | None = None
) -> Steps:
    """Record a gap after a loss: a position from which the stream goes on, and a GAP marker if the
    dialect has markers. Return the new position.

    Without `until_now`, this is done only if the loss is proven, by the catalog or by the newest
    marker; with it, everything that the slot still holds is given up. `released` is the reason why
    the gateway itself advanced the slot (wal_release.py); any other loss is then left for the start
    to judge.
    """
    facts: Facts = yield LoadFacts()
    check_use = check_holder if released is not None else _check_stopped
    _raise((*check_use(facts, expected), *check_publications(facts, expected)))
    yield PrepareKafka()
    yield from refuse_other_prefix(fresh_position(facts))
    yield Fence()
    before: Facts = yield LoadFacts()
    stored: Stored = yield ReadPositions()
    after: Facts = yield LoadFacts()
    _raise(check_holder(after, expected))
    position = yield from _position_of(stored, fresh_position(after), after)
    if after.server.timeline <= position.timeline:  # a start judges a promotion, with the history of the timelines
        yield from record_set_back(after, position)
    _raise(_unacceptable(stored, after, position, expected, until_now=until_now))
    reason = _proven_gap(before, stored, after, position, expected)
    slot = after.slot
    first_lsn = position.resume_lsn
    if released is None and stored.lacks_markers_of(position):
        assert stored.newest_commit_lsn is not None
        first_lsn = stored.newest_commit_lsn
        position = replace(position, marked_lsn=first_lsn)
        reason = reason or f"Kafka had lost the markers after the commit at {first_lsn}"
    if released is not None:
        if reason is None or slot is None or _is_lost(after, expected):
            return position
        reason = released
    if until_now:
        reason = reason or "the operator discarded all earlier changes"
    if reason is None:
        raise StopForOperator(
            f"accept-gap: all changes that were committed after the resume LSN {position.resume_lsn} can still be read through "
            f"slot {position.slot}",
            hint="start the gateway. If it stops again, follow the hint of its error message. Run walgate accept-gap --until-now "
            "only if that hint says so: the command discards all committed changes that have not been delivered",
        )
    if slot is None or until_now or _is_lost(after, expected):
        # The creation of a slot waits until every open or prepared transaction has ended.
        position, resume_lsn = replace(position, prepared=()), (yield from _new_slot(after))
    else:
        resume_lsn = max(slot.confirmed_flush_lsn or Lsn(0), position.resume_lsn)
    marker = Marker("GAP", 0, first_lsn, end_lsn=resume_lsn, detail=reason)
    position = replace(
        position,
        resume_lsn=resume_lsn,
        content_lsn=resume_lsn,
        timeline=after.server.timeline,
        skip_lsn=Lsn(0),
        epoch=position.epoch + 1,
        gap=Gap(first_lsn, resume_lsn, reason),
        set_back_lsn=Lsn(0),
    )
    yield Record(position, (marker,))
    return position


def _new_slot(facts: Facts) -> Generator[Step, Any, Lsn]:
    """Create the slot, after dropping the one that exists. Return the LSN at which it begins."""
    if facts.slot is not None:
        yield DropSlot()
    else:
        _raise(check_slot_capacity(facts))
    created: Lsn = yield CreateSlot()
    return created


def _unacceptable(
    stored: Stored, facts: Facts, position: Position, expected: Expected, *, until_now: bool
) -> Iterator[Finding]:
    """Yield the errors that keep a gap from being accepted. With `until_now`, a server on an
    earlier timeline counts as restored, if the DSN names no other host that may be the primary."""
    yield from (finding for finding in check_slot(facts, expected) if not isinstance(finding, DataGap))
    if not (until_now and expected.is_only_host):
        yield from check_left_behind(facts, replace(expected, timeline=position.timeline))
    if not stored.marker_topic_used:
        yield StopForOperator(
            f"accept-gap: the marker topic of topic prefix {position.prefix!r} is empty: it was deleted and recreated",
            hint=NEW_PREFIX,
        )
    if facts.server.in_recovery:
        yield RetrySlowly("accept-gap: this server is a standby", hint="point source.dsn to the primary")
    elif position.resume_lsn > facts.server.flush_lsn:
        yield StopForOperator(
            f"accept-gap: the server's WAL ends at {facts.server.flush_lsn}, before the resume LSN "
            f"{position.resume_lsn}: if the gap were accepted now, LSNs that consumers have already seen would repeat",
            hint="either run the command again when the WAL has passed the resume LSN (to advance the WAL, run a statement that "
            "writes to the database, then SELECT pg_switch_wal(), which switches to the next segment; repeat if necessary), or "
            + NEW_PREFIX,
        )
    elif not until_now:
        yield from check_set_back(facts, position)
        confirmed = None if facts.slot is None else facts.slot.confirmed_flush_lsn
        if confirmed and confirmed > position.resume_lsn and stored.sends_twice_from(confirmed, position):
            yield StopForOperator(
                f"accept-gap: slot {position.slot} would send the transactions from {confirmed} to {stored.newest_commit_lsn} "
                "a second time",
                hint=NEW_PREFIX,
            )


def _is_lost(facts: Facts, expected: Expected) -> bool:
    return any(isinstance(finding, DataGap) for finding in check_slot(facts, expected))


def _proven_gap(before: Facts, stored: Stored, after: Facts, position: Position, expected: Expected) -> str | None:
    """Return the reason why changes of the slot are lost, or None if the facts do not prove a loss.
    The facts were read in the order of rule 2 (see `__init__.py`)."""
    if after.slot is None:
        return f"slot {position.slot} no longer existed"
    for finding in check_slot(after, expected):
        if isinstance(finding, DataGap):
            return finding.message
    confirmed = None if before.slot is None else before.slot.confirmed_flush_lsn
    if confirmed is not None and confirmed > position.resume_lsn:
        if stored.lacks_positions_after(position):
            return f"Kafka had lost the newest records of {POSITION_TOPIC}"
        return f"slot {position.slot} was advanced to {confirmed} by another process, or was recreated"
    lsn = set_back_lsn(after, position)
    if lsn is not None:
        return f"the server was in an earlier state: its WAL ended at {lsn}"
    return None


def adopt(fresh_position: FreshPosition, expected: Expected, from_system: str) -> Steps:
    """Move the position from the old system identifier to the new one, after pg_upgrade has
    preserved the slot. Return the new position."""
    facts: Facts = yield LoadFacts()
    _raise((*_check_stopped(facts, expected), *check_publications(facts, expected)))
    yield PrepareKafka()
    yield Fence()
    yield FenceFormer(from_system)
    stored: Stored = yield ReadPositions()
    facts = yield LoadFacts()
    _raise((*check_holder(facts, expected), *check_slot(facts, expected)))
    fresh = fresh_position(facts)
    former = replace(fresh, system_identifier=from_system)
    known = stored.positions.get(former.key)
    if known is None or known.state != "ACTIVE":
        raise StopForOperator(
            f"adopt: no resume LSN is stored for slot {fresh.slot} of {fresh.database} with the system identifier "
            f"{from_system}",
            hint="start the gateway: if the slot has already been adopted, it continues. Otherwise its error message names "
            "the system identifier to adopt from",
        )
    if fresh.key in stored.positions:
        raise StopForOperator(
            f"adopt: slot {fresh.slot} of this server already has a resume LSN",
            hint="start the gateway: it continues from that LSN",
        )
    obstacle = adoption_obstacle(known, fresh, facts)
    if obstacle is not None:
        raise StopForOperator(
            f"adopt: {obstacle}",
            hint="first check source.dsn. If it points to the wrong server, correct it and run the command again. Otherwise "
            + NEW_PREFIX,
        )
    assert facts.slot is not None and facts.slot.confirmed_flush_lsn is not None
    position = replace(
        known,
        system_identifier=fresh.system_identifier,
        timeline=facts.server.timeline,
        resume_lsn=facts.slot.confirmed_flush_lsn,
        content_lsn=facts.slot.confirmed_flush_lsn,
        epoch=known.epoch + 1,
    )
    marker = Marker("EPOCH", 0, position.resume_lsn, detail=f"adopted from system identifier {from_system}")
    yield Record(position, (marker,), forgets=known.key)
    return position


def adopt_from_debezium(fresh_position: FreshPosition, expected: Expected, offset: DebeziumOffset) -> Steps:
    """Take over the slot and the offset of a stopped Debezium connector. Return the new position.

    A connector writes events in commit order, and `offset.lsn` is the LSN of an event or the end of
    a transaction. Therefore everything that it has not written commits after `offset.lsn`, except
    for the rest of the transaction in which it stopped: that transaction is read again, without the
    rows up to `offset.lsn`.
    """
    facts: Facts = yield LoadFacts()
    _raise((*_check_stopped(facts, expected), *check_publications(facts, expected), *check_offset(offset, facts)))
    yield PrepareKafka()
    yield Fence()
    stored: Stored = yield ReadPositions()
    facts = yield LoadFacts()
    _raise((*check_holder(facts, expected), *check_slot(facts, expected)))
    fresh = fresh_position(facts)
    _raise(check_prefix(stored.positions, fresh, facts))
    if fresh.key in stored.positions:
        raise StopForOperator(
            f"adopt: slot {fresh.slot} already has a resume LSN: it was adopted before, or a gateway has read it",
            hint="if walgate adopt has been run for this slot, start the gateway. Otherwise use a new source.slot and a new "
            "kafka.prefix",
        )
    _raise((*check_offset(offset, facts), *check_not_ahead(offset, facts)))
    offset = yield FindWritten(offset)
    assert facts.slot is not None and facts.slot.confirmed_flush_lsn is not None
    resume_lsn = facts.slot.confirmed_flush_lsn
    if not offset.of_snapshot:
        resume_lsn = max(resume_lsn, offset.commit_lsn)
    position = replace(
        fresh,
        state="ACTIVE",
        resume_lsn=resume_lsn,
        content_lsn=facts.server.flush_lsn,  # the connector wrote nothing later, nor of a later commit
        last_commit_lsn=Lsn(max(offset.commit_lsn - 1, 0)),  # the next commit may begin where that one ends
        written_xid=offset.written_xid,
        written_lsn=offset.lsn if offset.written_xid else Lsn(0),
    )
    yield Record(position)
    return position


def _check_stopped(facts: Facts, expected: Expected) -> Iterator[Finding]:
    """Check, as check_holder does, that no process holds the slot, with a hint for an operator who
    may not know that the gateway has to be stopped."""
    for finding in check_holder(facts, expected):
        assert facts.slot is not None
        yield Retry(
            finding.message,
            hint="stop the gateway or the connector that reads this slot. If that process has ended but its session remains, "
            f"end the session: SELECT pg_terminate_backend({facts.slot.active_pid}). Then run the command again",
        )


def _raise(findings: Iterable[Finding]) -> None:
    report_of(findings).raise_errors()


def _changed(fresh_position: FreshPosition, change: Callable[[Position, Facts], Record]) -> Steps:
    """Try `change` with positions that may be outdated, then apply it to the positions that are
    read after the fence."""
    yield LoadFacts()
    yield PrepareKafka()
    stored: Stored = yield LookAtPositions()
    facts: Facts = yield LoadFacts()
    change(_find(stored, fresh_position(facts), facts)[0], facts)
    yield Fence()
    stored = yield ReadPositions()
    facts = yield LoadFacts()
    position = yield from _position_of(stored, fresh_position(facts), facts)
    record = change(position, facts)
    yield record
    return record.position


def _position_of(stored: Stored, fresh: Position, facts: Facts) -> Steps:
    position, former = _find(stored, fresh, facts)
    if former is not None:
        yield Record(position, forgets=former.key)
    return position


def _find(stored: Stored, fresh: Position, facts: Facts) -> tuple[Position, Position | None]:
    """Return the slot's position and, if the database was renamed, the position that is recorded
    under the former name."""
    former = position_before_rename(stored, fresh, facts)
    if former is not None:
        stored = after_rename(stored, former, fresh)
    position = stored.positions.get(fresh.key)
    if position is None or position.state != "ACTIVE":
        raise StopForOperator(
            f"no resume LSN is stored for slot {fresh.slot} of {fresh.database} (system identifier "
            f"{fresh.system_identifier})",
            hint="run this command with the same source.dsn, source.slot and kafka.bootstrap_servers as the gateway",
        )
    if position.prefix != fresh.prefix:
        raise StopForOperator(
            f"changes of slot {fresh.slot} are written with the topic prefix {position.prefix!r}, but kafka.prefix is "
            f"{fresh.prefix!r}",
            hint="use the gateway's own configuration",
        )
    return position, former
