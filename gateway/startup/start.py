"""The steps of a start, in the order that makes its judgements true. Pure: the caller carries each
step out and sends the answer.

    look -> prepare Kafka -> look -> fence -> look -> read positions -> look, judge
         -> first start: intent -> slot;  prefix and slot as they were: nothing
         -> replication connection: the same server?  -> new epoch

Whatever may take long (topics, registry) comes before the fence, so that a stand-by never fences a
gateway only to wait. Behind the fence the slot is looked at before the position is read, and the
end of the WAL after it. Each write that follows fails if another gateway has taken over meanwhile.
The intent (state INTENT, epoch 0) is durable before the slot is created, so a slot that is found
beside an intent is ours, and a crash between any two steps repairs itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.errors import DataGap, Retry, StopForOperator
from gateway.events.marker import Marker
from gateway.startup.connect_offset import DebeziumOffset
from gateway.startup.facts import Expected, Facts, Stored, SystemIdentity
from gateway.startup.findings import Finding, OperatorWarning, Report, report_of
from gateway.startup.position_checks import (
    after_rename,
    check_first_start,
    check_prefix,
    check_progress,
    position_before_rename,
)
from gateway.startup.publication_checks import check_excluded, check_publications
from gateway.startup.server_checks import check_left_behind, check_sender_capacity, check_server, check_slot_capacity
from gateway.startup.server_notices import LeftOut, Reported, judge_reported
from gateway.startup.slot_checks import check_holder, check_retention, check_slot
from gateway.startup.synchronous_standby import check_synchronous
from gateway.startup.timeline_checks import check_promotion, check_timeline
from gateway.transactions.position import Position
from gateway.transactions.transaction import Quarantined


@dataclass(frozen=True, slots=True)
class LoadFacts:
    """PostgreSQL's catalog -> Facts."""


@dataclass(frozen=True, slots=True)
class PrepareKafka:
    """Own topics exist, the registry answers -> None."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Take the producer's transactional id: earlier gateways of the slot can commit nothing from
    here on -> None."""


@dataclass(frozen=True, slots=True)
class ReadPositions:
    """The use of the marker topic first, then the position topic to its end -> Stored. The schemas
    of markers and positions are registered then: a registry that does not know what our position
    was written with is another one."""


@dataclass(frozen=True, slots=True)
class LookAtPositions:
    """Of a repair, as ReadPositions but not behind the fence: what it shows may have changed since
    -> Stored."""


@dataclass(frozen=True, slots=True)
class ProveFence:
    """Commit a Kafka transaction that changes nothing -> None. Raises Retry where another gateway
    has taken over."""


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """Make a position of state INTENT durable -> None."""

    position: Position


@dataclass(frozen=True, slots=True)
class CreateSlot:
    """-> Lsn, the slot's consistent point. Raises Retry where it exists already."""


@dataclass(frozen=True, slots=True)
class Identify:
    """Open the replication connection: who answers there? -> SystemIdentity."""


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """-> str, the history file of the timeline, from the replication connection."""

    timeline: int


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Make the position durable together with its EPOCH marker -> None. `forgets`: key of a
    position that ends with it."""

    position: Position
    forgets: bytes | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Of a repair: make the position durable together with markers -> None. `forgets`: key of a
    position that ends with it."""

    position: Position
    markers: tuple[Marker, ...] = ()
    forgets: bytes | None = None


@dataclass(frozen=True, slots=True)
class FindWritten:
    """Of a repair: the offset behind what the connector's topics hold -> DebeziumOffset."""

    offset: DebeziumOffset


@dataclass(frozen=True, slots=True)
class DropSlot:
    """Of a repair -> None."""


@dataclass(frozen=True, slots=True)
class FenceFormer:
    """Of a repair: take the transactional id that the slot had in a server of another system
    identifier -> None."""

    system_identifier: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Log -> None."""

    warnings: tuple[OperatorWarning, ...]


Step = (
    LoadFacts
    | PrepareKafka
    | Fence
    | ReadPositions
    | LookAtPositions
    | ProveFence
    | WriteIntent
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
    """Returns the position of the new epoch; START_REPLICATION is next. Raises WalgateError.

    `fresh_position`: the position of a slot that was never read. `reported`: what the server said
    in the session before, and `quarantine` what it put into quarantine.
    """
    facts: Facts = yield _LOOK
    yield from _judge((*check_holder(facts, expected), *_before_position(facts, expected, reported)))
    yield PrepareKafka()
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
    known = stored.positions.get(fresh.key)
    yield from _judge_behind_fence(check_prefix(stored.positions, fresh, after))
    if known is not None and known.state == "ACTIVE":
        position = replace(known, publications=fresh.publications, version=fresh.version)
        of_server = _reported(after, position, expected, reported, adopt_slot=adopt_slot)
        yield from _judge_known(before, stored, after, position, expected, of_server)
    else:
        position = yield from _first_start(stored, after, fresh, expected, adopt_slot=adopt_slot, reported=reported)
    timeline = yield from _same_server(after, position)
    position = replace(
        position,
        state="ACTIVE",
        epoch=position.epoch + 1,
        timeline=timeline,
        quarantined=_with(position.quarantined, quarantine, position.resume_lsn),
    )
    yield BeginEpoch(position, None if former is None else former.key)
    return position


def _renamed(former: Position, fresh: Position) -> OperatorWarning:
    return OperatorWarning(
        f"database {former.database} of slot {fresh.slot} was renamed to {fresh.database}", "nothing is lost"
    )


def _with(known: Iterable[Quarantined], more: Iterable[Quarantined], resume_lsn: int) -> tuple[Quarantined, ...]:
    """Of `more`, those of a snapshot have no LSN: they begin where the stream does."""
    more = [each if each.since_lsn else replace(each, since_lsn=resume_lsn) for each in more]
    by_oid = {each.relation_oid: each for each in (*more, *known)}
    return tuple(sorted(by_oid.values(), key=lambda each: (each.since_lsn, each.relation_oid)))


def _before_position(facts: Facts, expected: Expected, reported: Reported | None = None) -> Iterable[Finding]:
    """What can be said without a position. That changes were lost cannot: see rule 3 of the theory.
    Nor is a publication waited for that has been missed already."""
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
    """A verdict that needs an operator is given only by a gateway that still owns the transactional
    id."""
    report = report_of(findings)
    if any(isinstance(error, StopForOperator) for error in report.errors):
        yield ProveFence()
    yield from _judge((*report.warnings, *report.errors))


def _judge_known(
    before: Facts,
    stored: Stored,
    after: Facts,
    position: Position,
    expected: Expected,
    of_server: Iterable[Finding],
) -> Judging:
    expected = replace(expected, timeline=position.timeline)
    left_behind = list(check_left_behind(after, expected))
    # LSNs of a server that a failover left behind are not compared with ours.
    findings = left_behind or [*check_slot(after, expected), *check_progress(before, stored, after, position)]
    yield from _judge_behind_fence((*findings, *of_server))


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
    """The position goes on from a new slot, from one beside our own intent, or from one that is
    adopted."""
    known = stored.positions.get(fresh.key)
    of_server = _reported(facts, fresh, expected, reported, adopt_slot=adopt_slot)
    yield from _judge_behind_fence((*check_slot(facts, expected), *of_server))
    if known is None:
        yield from _judge_behind_fence(check_first_start(stored, fresh, facts, adopt_slot=adopt_slot))
        yield WriteIntent(fresh)
    if facts.slot is None:
        yield from _judge(check_slot_capacity(facts))
        return replace(fresh, resume_lsn=(yield CreateSlot()))
    if facts.slot.confirmed_flush_lsn is None:
        raise Retry(f"slot {fresh.slot} is being created")
    return replace(fresh, resume_lsn=facts.slot.confirmed_flush_lsn)


def _same_server(facts: Facts, position: Position) -> Generator[Step, Any, int]:
    """A DSN may name several hosts, and a server may be promoted: who really sends? Returns its
    timeline."""
    identity: SystemIdentity = yield Identify()
    server = facts.server
    is_other = identity.system_identifier != server.system_identifier
    if is_other or identity.timeline != server.timeline:
        raise Retry("the replication connection and the regular connection reached different servers")
    # A position of epoch 0 stands for nothing that was sent: its timeline is what the server's
    # facts said just now.
    if position.epoch > 0 and identity.timeline != position.timeline:
        yield from _judge(check_timeline(identity.timeline, position.timeline))
        history: str = yield TimelineHistory(identity.timeline)
        findings = check_promotion(position.resume_lsn, position.timeline, identity.timeline, history)
        yield from _judge_behind_fence(findings)
    return identity.timeline


def check_without_position(facts: Facts, expected: Expected) -> Report:
    """What can be said of PostgreSQL alone: for `walgate check`, which looks and changes nothing.
    Whoever uses the slot is probably the gateway itself."""
    holders = (
        OperatorWarning(
            f"{held.message}: if that is the gateway, a second one would wait as a standby gateway",
            held.hint,
        )
        for held in check_holder(facts, expected)
    )
    return report_of((*holders, *_before_position(facts, expected)))
