"""The steps of a start, in the order that makes its judgements valid. The caller carries out each
step and sends the answer.

    look -> prepare Kafka -> look at the positions -> look -> fence -> look -> read positions
         -> look, judge
         -> first start: write the intent, look at the positions again, create the slot
            later starts, with the same prefix and slot: nothing
         -> replication connection: the same server? -> new epoch

Whatever may take long (topics, registry) comes before the fence, so that a standby gateway never
fences the active one only to wait. After the fence, the slot is read before the position, and the
end of the WAL after it. Each write that follows fails if another gateway has taken over meanwhile.
The intent (state INTENT, epoch 0) is durable before the slot is created. So a slot that is found
together with an intent was created by this gateway, and a crash between any two steps repairs
itself.

Gateways of two slots do not fence each other. If they start for the first time with one prefix,
both may find it unused. So each looks again after its own intent: the one whose intent comes later
sees the other's, and stops. If each sees the other's, both stop. A refused intent is withdrawn,
unless a slot was created for it, so that it does not keep the other gateway from the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.errors import DataGap, Retry, StopForOperator
from gateway.events.marker_encoder import Marker
from gateway.startup.connect_offset import DebeziumOffset
from gateway.startup.facts import Expected, Facts, Stored, SystemIdentity
from gateway.startup.findings import Finding, OperatorWarning, Report, report_of
from gateway.startup.position_checks import (
    after_rename,
    check_first_start,
    check_own_prefix,
    check_prefix,
    check_progress,
    position_before_rename,
    set_back_lsn,
)
from gateway.startup.publication_checks import check_excluded, check_publications
from gateway.startup.repeated_failure import to_record
from gateway.startup.server_checks import check_left_behind, check_sender_capacity, check_server, check_slot_capacity
from gateway.startup.server_notices import LeftOut, Reported, judge_reported
from gateway.startup.slot_checks import check_holder, check_retention, check_slot
from gateway.startup.synchronous_standby import check_synchronous
from gateway.startup.timeline_checks import check_promotion, check_timeline, parse_history, position_at_fork
from gateway.transactions.position import Position
from gateway.transactions.transaction import Quarantined
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """Read PostgreSQL's catalog -> Facts."""


@dataclass(frozen=True, slots=True)
class PrepareKafka:
    """Make sure that the gateway's own topics exist and the registry answers -> None."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Take the producer's transactional id, after which earlier gateways of the slot can commit
    nothing -> None."""


@dataclass(frozen=True, slots=True)
class ReadPositions:
    """Read whether the marker topic is used, then the position topic to its end -> Stored. The
    schemas of markers and positions are registered afterwards: a registry that does not know the
    schema of the slot's position is a different one."""


@dataclass(frozen=True, slots=True)
class LookAtPositions:
    """Read the positions as ReadPositions does, but without schemas -> Stored. The positions of
    gateways that this one has not fenced may change at any time. Without `waits`, those that follow
    a Kafka transaction that is still open are left out, perhaps one that the fence will abort."""

    waits: bool = True


@dataclass(frozen=True, slots=True)
class ProveFence:
    """Commit a Kafka transaction that changes nothing -> None. Raises Retry if another gateway has
    taken over."""


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """Make a position of state INTENT durable -> None."""

    position: Position


@dataclass(frozen=True, slots=True)
class WithdrawIntent:
    """Delete a position of state INTENT -> None."""

    position: Position


@dataclass(frozen=True, slots=True)
class CreateSlot:
    """Create the slot -> Lsn, its consistent point. Raises Retry if it exists already."""


@dataclass(frozen=True, slots=True)
class Identify:
    """Open the replication connection and identify the server there -> SystemIdentity."""


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """Read the history file of the timeline over the replication connection -> str."""

    timeline: int


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Make the position durable together with the epoch's marker, if the dialect has one -> None.
    `forgets` is the key of a position that is deleted with it."""

    position: Position
    forgets: bytes | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Make the position durable, together with the markers if the dialect has any -> None. Raises
    Retry if another gateway has taken over. `forgets` is the key of a position that is deleted with
    it."""

    position: Position
    markers: tuple[Marker, ...] = ()
    forgets: bytes | None = None


@dataclass(frozen=True, slots=True)
class FindWritten:
    """Find the offset after everything that the connector's topics hold -> DebeziumOffset. A step
    of `walgate adopt` only."""

    offset: DebeziumOffset


@dataclass(frozen=True, slots=True)
class DropSlot:
    """Drop the slot -> None. A step of position changes only."""


@dataclass(frozen=True, slots=True)
class FenceFormer:
    """Take the transactional id that the slot had on a server with another system identifier ->
    None. A step of `walgate adopt` only."""

    system_identifier: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Log warnings -> None."""

    warnings: tuple[OperatorWarning, ...]


Step = (
    LoadFacts
    | PrepareKafka
    | Fence
    | ReadPositions
    | LookAtPositions
    | ProveFence
    | WriteIntent
    | WithdrawIntent
    | CreateSlot
    | Identify
    | TimelineHistory
    | BeginEpoch
    | Record
    | FindWritten
    | DropSlot
    | FenceFormer
    | Warn
)
Steps = Generator[Step, Any, Position]
Judging = Generator[Step, Any, None]

_LOOK: Final = LoadFacts()


def start(
    expected: Expected,
    fresh_position: Callable[[Facts], Position],
    *,
    adopt_slot: bool = False,
    reported: Reported | None = None,
    quarantine: Iterable[Quarantined] = (),
) -> Steps:
    """Yield the steps of a start, up to START_REPLICATION, and return the position of the new
    epoch. Raises WalgateError.

    `fresh_position` makes the position of a slot that was never read. `reported` is what the server
    reported in the previous session, and `quarantine` are the tables that the previous session put
    into quarantine.
    """
    facts: Facts = yield _LOOK
    yield from _judge((*check_holder(facts, expected), *_before_position(facts, expected, reported)))
    yield PrepareKafka()
    yield from refuse_other_prefix(fresh_position(facts))
    facts = yield _LOOK
    yield from _judge(check_holder(facts, expected))
    yield Fence()
    before: Facts = yield _LOOK
    stored: Stored = yield ReadPositions()
    after: Facts = yield _LOOK
    yield from _judge(check_holder(after, expected))
    fresh = fresh_position(after)
    former = position_before_rename(stored, fresh, after)
    if former is not None:
        stored = after_rename(stored, former, fresh)
        yield Warn((_renamed(former, fresh),))
    known, history = stored.positions.get(fresh.key), None
    is_interrupted = known is not None and (known.state, known.prefix) == ("INTENT", fresh.prefix)
    yield from _judge_prefix(stored, fresh, after, withdraws=is_interrupted and after.slot is None)
    if known is not None and known.state == "ACTIVE":
        history = yield from _history_since(after, known)
        position = replace(known, publications=fresh.publications, version=fresh.version)
        if history is not None:
            position = position_at_fork(position, parse_history(history).get(position.timeline))
        of_server = _reported(after, position, expected, reported, adopt_slot=adopt_slot)
        yield from _judge_known(before, stored, after, position, expected, of_server, former)
    else:
        position = yield from _first_start(stored, after, fresh, expected, adopt_slot=adopt_slot, reported=reported)
    timeline = yield from _same_server(after, position, history)
    position = replace(
        position,
        state="ACTIVE",
        epoch=position.epoch + 1,
        timeline=timeline,
        quarantined=_with(position.quarantined, quarantine, position.resume_lsn),
        failed_place=to_record(reported, position),
        set_back_lsn=Lsn(0),
    )
    yield BeginEpoch(position, None if former is None else former.key)
    return position


def _renamed(former: Position, fresh: Position) -> OperatorWarning:
    return OperatorWarning(
        f"database {former.database} of slot {fresh.slot} was renamed to {fresh.database}", "nothing is lost"
    )


def _with(known: Iterable[Quarantined], more: Iterable[Quarantined], resume_lsn: int) -> tuple[Quarantined, ...]:
    """Return the tables of both, sorted by LSN. Tables in `more` that a snapshot put into
    quarantine have no LSN, and get the resume LSN."""
    more = [each if each.since_lsn else replace(each, since_lsn=resume_lsn) for each in more]
    by_oid = {each.relation_oid: each for each in (*more, *known)}
    return tuple(sorted(by_oid.values(), key=lambda each: (each.since_lsn, each.relation_oid)))


def _before_position(facts: Facts, expected: Expected, reported: Reported | None = None) -> Iterable[Finding]:
    """Run the checks that need no position. A loss of changes is not judged here (rule 3 of the
    theory). Publications are not checked, and so not waited for, if the server has reported that
    one was missing."""
    for check in (check_server, check_sender_capacity, check_slot, check_retention, check_synchronous):
        yield from (finding for finding in check(facts, expected) if not isinstance(finding, DataGap))
    if not isinstance(reported, LeftOut):
        yield from check_publications(facts, expected)
    yield from check_excluded(facts, expected)


def _judge(findings: Iterable[Finding]) -> Judging:
    report = report_of(findings)
    if report.warnings:
        yield Warn(report.warnings)
    report.raise_errors()


def _judge_behind_fence(findings: Iterable[Finding]) -> Judging:
    """Raise an error that needs the operator only if this gateway still owns the transactional
    id."""
    report = report_of(findings)
    if any(isinstance(error, StopForOperator) for error in report.errors):
        yield ProveFence()
    yield from _judge((*report.warnings, *report.errors))


def refuse_other_prefix(fresh: Position) -> Judging:
    """Refuse a prefix that is not the slot's before anything is fenced: the slot may be that of a
    gateway that runs, and this server a copy of its server."""
    stored: Stored = yield LookAtPositions(waits=False)
    known = stored.positions.get(fresh.key)
    if known is not None and known.state == "ACTIVE":
        yield from _judge(check_own_prefix(known, fresh))


def _judge_prefix(stored: Stored, fresh: Position, facts: Facts, *, withdraws: bool) -> Judging:
    """Check the prefix. If it is refused, the intent is withdrawn if `withdraws` is true."""
    try:
        yield from _judge_behind_fence(check_prefix(stored.positions, fresh, facts))
    except StopForOperator:
        if withdraws:
            yield WithdrawIntent(fresh)
        raise


def _judge_known(
    before: Facts,
    stored: Stored,
    after: Facts,
    position: Position,
    expected: Expected,
    of_server: Iterable[Finding],
    former: Position | None,
) -> Judging:
    expected = replace(expected, timeline=position.timeline)
    yield from record_set_back(after, position, former)
    left_behind = list(check_left_behind(after, expected))
    # LSNs of an old primary are not comparable with the position.
    findings = left_behind or [*check_slot(after, expected), *check_progress(before, stored, after, position)]
    yield from _judge_behind_fence((*findings, *of_server))


def record_set_back(facts: Facts, position: Position, former: Position | None = None) -> Judging:
    """Record that the server was set back, before the start stops: the next start may come when the
    server's WAL has passed the resume LSN. `former` is the position before a rename."""
    lsn = set_back_lsn(facts, position)
    if lsn is not None and lsn > position.set_back_lsn:
        yield Record(replace(position, set_back_lsn=lsn), forgets=None if former is None else former.key)


def _reported(
    facts: Facts, position: Position, expected: Expected, reported: Reported | None, *, adopt_slot: bool
) -> Iterable[Finding]:
    if reported is not None:
        error = judge_reported(
            reported,
            resume_lsn=position.resume_lsn,
            may_be_older=adopt_slot and position.last_commit_lsn == 0,
            missing=tuple(name for name in expected.publications if name not in facts.publications),
            slot=position.slot,
        )
        if error is not None:
            yield error


def _first_start(
    stored: Stored,
    facts: Facts,
    fresh: Position,
    expected: Expected,
    *,
    adopt_slot: bool,
    reported: Reported | None,
) -> Steps:
    """Return the position at a new slot, at a slot that belongs to the gateway's own intent, or at
    an adopted slot."""
    known = stored.positions.get(fresh.key)
    of_server = _reported(facts, fresh, expected, reported, adopt_slot=adopt_slot)
    yield from _judge_behind_fence((*check_slot(facts, expected), *of_server))
    if known is None:
        yield from _judge_behind_fence(check_first_start(stored, fresh, facts, adopt_slot=adopt_slot))
        yield WriteIntent(fresh)
        stored = yield LookAtPositions()
        yield from _judge_prefix(stored, fresh, facts, withdraws=True)
    if facts.slot is None:
        yield from _judge(check_slot_capacity(facts))
        return replace(fresh, resume_lsn=(yield CreateSlot()))
    if facts.slot.confirmed_flush_lsn is None:
        raise Retry(f"slot {fresh.slot} is being created")
    return replace(fresh, resume_lsn=facts.slot.confirmed_flush_lsn)


def _history_since(facts: Facts, position: Position) -> Generator[Step, Any, str | None]:
    """Return the history of the server's timeline if the server was promoted since the position was
    stored, otherwise None."""
    if facts.server.in_recovery or facts.server.timeline <= position.timeline:
        return None
    history: str = yield TimelineHistory((yield from _identify(facts)))
    return history


def _identify(facts: Facts) -> Generator[Step, Any, int]:
    """Check that both connections reach the same server, and return its timeline. A DSN may name
    several hosts, and a server may be promoted."""
    identity: SystemIdentity = yield Identify()
    server = facts.server
    is_other = identity.system_identifier != server.system_identifier
    if is_other or identity.timeline != server.timeline:
        raise Retry("the replication connection and the regular connection reached different servers")
    return identity.timeline


def _same_server(facts: Facts, position: Position, history: str | None) -> Generator[Step, Any, int]:
    """Check the server of the replication connection, and return its timeline."""
    if history is not None:
        resume_lsn, last_commit_lsn = position.resume_lsn, position.last_commit_lsn
        if position.content_lsn > resume_lsn:  # a Debezium connector has delivered this much
            resume_lsn, last_commit_lsn = position.content_lsn, Lsn(position.content_lsn - 1)
        timeline = facts.server.timeline
        findings = check_promotion(position.slot, resume_lsn, last_commit_lsn, position.timeline, timeline, history)
        yield from _judge_behind_fence(findings)
        return timeline
    timeline = yield from _identify(facts)
    # With a position of epoch 0, nothing was delivered: its timeline was taken from these facts.
    if position.epoch > 0:
        yield from _judge(check_timeline(timeline, position.timeline))
    return timeline


def check_without_position(facts: Facts, expected: Expected) -> Report:
    """Check PostgreSQL alone, for `walgate check`, which changes nothing. A slot that is in use is
    only a warning, because the gateway itself is probably using it."""
    holders = (
        OperatorWarning(
            f"{held.message}: if that is the gateway, a second one would wait as a standby gateway",
            held.hint,
        )
        for held in check_holder(facts, expected)
    )
    return report_of((*holders, *_before_position(facts, expected)))
