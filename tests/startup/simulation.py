"""A model of everything that the judgement looks at, and random schedules of every step and fault.

Two gateways run the real start (`gateway.startup.start`) and the real checks against a model of a
primary with a standby, a broker and a registry. A schedule picks who moves next: between two steps
of one gateway anything may happen, so that slow registries, paused processes and lost races need no
code of their own. At the end the faults stop, and everything is let through.

    never two that deliver        commit LSNs in Kafka rise strictly, and each commit is there once
    never a false loss            exit code 78 only where the world has lost something
    never a state without a way on, always progress      some gateway streams, and everything is delivered

`broken` takes one cure out; the schedules must then find a violation.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any, Final

from gateway.errors import DataGap, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.startup.facts import Expected, Facts, ServerFacts, SlotFacts, Stored, SystemIdentity
from gateway.startup.periodic_check import check_held, check_running
from gateway.startup.position_changes import accept_gap
from gateway.startup.position_checks import check_first_start, check_prefix, check_progress
from gateway.startup.repeated_failure import CERTAIN_TIMES, DecodingFailed, ServerCrashed, counted_again, from_record
from gateway.startup.server_notices import LeftOut, NoticeKind, Reported, kind_of
from gateway.startup.start import (
    BeginEpoch,
    CreateSlot,
    DropSlot,
    Fence,
    Identify,
    LoadFacts,
    LookAtPositions,
    PrepareKafka,
    ProveFence,
    ReadPositions,
    Record,
    Step,
    Steps,
    TimelineHistory,
    WriteIntent,
    start,
)
from gateway.transactions.position import Position
from schemas.lsn import Lsn
from tests.startup.facts import ORDERS, PUBLICATION

CURES: Final = ("notice", "order", "control records", "position fence", "count", "place", "passed", "record", "durable")
"""The first four are of bugs that were found by running: a standby that is down, two gateways that
start together, a first start that was interrupted, a gateway that comes back and writes an older
position. The others are of a place in the WAL that fails again and again: its count, that it is
counted for one resume LSN alone, that a stream that gets past the place is no failure of it, that a
new process goes on with the count of the one before, and that the count is at what is durable, not at
what was closed."""

_EXPECTED: Final = Expected("s", ("p",))
_PUBLICATIONS: Final = {"p": replace(PUBLICATION, relations=(ORDERS,))}


@cache
def _server_facts(timeline: int, end: int) -> ServerFacts:
    return ServerFacts("71", timeline, "shop", 5, 180006, "logical", Lsn(end), "UTF8", 60.0)


@cache
def _slot_facts(holder: int | None, confirmed: int) -> SlotFacts:
    pid = None if holder is None else holder + 1000
    lsn = Lsn(confirmed)
    return SlotFacts("s", "pgoutput", "logical", "shop", pid, Lsn(0), lsn, "reserved", None, False, failover=False)


@dataclass(frozen=True, slots=True)
class StandbyNotice:
    sqlstate: str = "55000"
    file: str = "slot.c"
    routine: str = "StandbySlotsHaveCaughtup"


@dataclass(slots=True)
class Slot:
    confirmed: int
    persisted: int
    holder: int | None = None


@dataclass(slots=True)
class World:
    """`commits`: LSNs of commits on the timeline of now. `lost`: what was really lost; `delivered`:
    commit LSNs in Kafka."""

    rng: random.Random
    broken: str = ""
    exactly_once: bool = True
    timeline: int = 1
    server: int = 0  # grows with each crash and promotion
    left_at: dict[int, int] = field(default_factory=dict)
    end: int = 100
    commits: list[int] = field(default_factory=list)
    slot: Slot | None = None
    standby_up: bool = True
    replayed: int = 100
    standby_confirmed: int | None = None
    published: bool = True
    gaps: list[int] = field(default_factory=list)  # commits that were not published
    owner: int = 0  # the newest producer of the transactional id
    positions: list[tuple[int, Position]] = field(default_factory=list)  # with the producer's number
    first: int | None = None  # where the slot began: commits before it are not sent
    marker_records: int = 0
    marker_controls: int = 0
    open_transaction: int | None = None  # the producer whose Kafka transaction is open
    delivered: list[int] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    moment: int = 0
    kafka_up: bool = True
    registry_up: bool = True
    gap: tuple[int, int] | None = None  # what an operator gave up: from where on, and up to where
    poison: dict[int, str] = field(default_factory=dict)  # commits that the server cannot send, and how it fails
    crashes: dict[int, int] = field(default_factory=dict)  # of the server, at each of them
    killing: int = 0  # so many WAL senders are killed that have sent everything
    anew: int = 0  # so often a gateway begins to count crashes
    processes: int = 0  # so many have been started again
    passed: dict[int, int] = field(default_factory=dict)  # failures at commits that were sent in the end
    passing: int = 0  # so many attempts fail by themselves, and then no more

    # -- what the steps of a start see and do

    def facts(self) -> Facts:
        self.moment += 1
        slot = None if self.slot is None else _slot_facts(self.slot.holder, self.slot.confirmed)
        publications = _PUBLICATIONS if self.published else {}
        return Facts(_server_facts(self.timeline, self.end), slot, publications, self.moment)

    def stored(self) -> Stored:
        self._demand_kafka()
        self.moment += 1
        used = self.marker_records > 0 or (self.broken == "control records" and self.marker_controls > 0)
        newest: dict[bytes, Position] = {}
        for _, position in self.positions:
            newest[position.key] = position
        return Stored(newest, used, self.moment)

    def fence(self) -> int:
        self._demand_kafka()
        self.owner += 1
        if self.open_transaction is not None:
            self.open_transaction = None
            self.marker_controls += 1
        return self.owner

    def begin(self, producer: int) -> None:
        """A Kafka transaction is open until its commit, or until the next fence aborts it."""
        self._demand_kafka()
        if producer == self.owner:
            self.open_transaction = producer

    def commit(self, producer: int, position: Position | None, markers: int = 0) -> None:
        self._demand_kafka()
        is_fenced = producer != self.owner
        if is_fenced and (self.exactly_once or self.broken != "position fence"):
            raise Retry("fenced by a newer producer")
        self.open_transaction = None
        self.marker_controls += 1
        self.marker_records += markers
        if position is not None:
            self.positions.append((producer, position))
            if position.state == "ACTIVE" and (self.first is None or position.resume_lsn < self.first):
                self.first = position.resume_lsn

    def create_slot(self) -> Lsn:
        if self.slot is not None:
            raise Retry("the slot exists")
        self.slot = Slot(self.end, self.end)
        return Lsn(self.end)

    def history(self) -> str:
        return "".join(f"{timeline}\t{Lsn(left_at)}\tpromoted\n" for timeline, left_at in self.left_at.items())

    def _demand_kafka(self) -> None:
        if not self.kafka_up:
            raise Retry("the broker does not answer")

    @property
    def now(self) -> str:
        return f"{self.moment:09}"

    def has_recorded(self, cause: str, resume_lsn: int) -> bool:
        """A repeated_failure is counted in the newest position."""
        failed = self.positions[-1][1].failed_place
        return failed is not None and (failed.cause, failed.resume_lsn) == (cause, resume_lsn)

    # -- the source, and faults

    def write(self) -> None:
        self.end += self.rng.randrange(1, 9)
        self.commits.append(self.end)
        if not self.published:
            self.gaps.append(self.end)
        self.end += 1

    def write_poison(self) -> None:
        """A row that a row filter fails for, or that crashes the server; it never passes."""
        self.write()
        self.poison[self.commits[-1]] = self.rng.choice(("22012", "crash"))

    def meet(self, lsn: int) -> str:
        """How the server fails to send the commit at `lsn`; "": it does not."""
        if self.passing and lsn not in self.poison and self.passed.get(lsn, 0) < CERTAIN_TIMES - 1:
            self.passing -= 1
            self.passed[lsn] = self.passed.get(lsn, 0) + 1
            return "42P01"
        how = self.poison.get(lsn, "")
        if how == "crash":
            self.crashes[lsn] = self.crashes.get(lsn, 0) + 1
            self.crash_server()
        return how

    def replay(self) -> None:
        if self.standby_up:
            self.replayed = self.end
            self.standby_confirmed = None if self.slot is None else self.slot.confirmed

    def release(self) -> None:
        """A WAL sender notices that its client is gone."""
        if self.slot is not None and self.slot.holder is not None and self.slot.holder < 0:
            self.slot.holder = None

    def crash_server(self) -> None:
        """What the slot was told since the last checkpoint is forgotten; connections end."""
        self.server += 1
        if self.slot is not None:
            self.slot.confirmed, self.slot.holder = self.slot.persisted, None

    def checkpoint(self) -> None:
        if self.slot is not None:
            self.slot.persisted = self.slot.confirmed

    def promote(self) -> None:
        """The standby takes over, with all that was sent: synchronized_standby_slots is set."""
        if not self.standby_up or self.standby_confirmed is None:
            return
        self.server += 1
        self.left_at[self.timeline] = self.replayed
        self.timeline += 1
        self.end = self.replayed
        self.commits = [lsn for lsn in self.commits if lsn < self.end]
        self.slot = Slot(self.standby_confirmed, self.standby_confirmed)

    def lose(self, how: str) -> None:
        """Somebody destroys something; only after that may a gateway say so."""
        position = self.positions[-1][1] if self.positions else None
        if position is None or position.state != "ACTIVE" or self.slot is None or self.slot.holder is not None:
            return
        if how == "slot dropped":
            self.slot = None
        elif how == "slot advanced" and self.end > position.resume_lsn:
            self.slot.confirmed = self.slot.persisted = self.end
        elif how == "markers deleted":
            self.marker_records = self.marker_controls = 0
        else:
            return
        self.lost.add(how)


class Gateway:
    """One process: starts, streams, is killed, starts again. Ends for good with exit code 78."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.reported: Reported | None = None
        self.verdict: StopForOperator | None = None
        self.failures = self.waiting = 0
        self.forget()

    def forget(self) -> None:
        """Killed: what PostgreSQL and Kafka hold for it stays until they notice."""
        slot = self.world.slot
        if slot is not None and slot.holder == self.number:
            slot.holder = -1
        self.steps: Steps | None = None
        self.answer: Any = None
        self.position: Position | None = None
        self.producer = self.server = self.resume_lsn = 0
        self.before: Facts | None = None
        self.end_at_start = 0
        self.received: list[int] = []
        self.sent_to = 0

    def kill(self) -> None:
        self.forget()
        self.reported = None
        self.world.processes += 1
        self.failures = self.waiting = 0

    def restart(self) -> None:
        """A supervisor starts the process again after exit code 78."""
        if _is_repeated_failure(self.verdict):
            self.kill()
            self.verdict = None

    @property
    def is_streaming(self) -> bool:
        return self.position is not None

    def move(self) -> None:
        """One step, or one action of the stream."""
        if self.verdict is not None:
            return
        if self.waiting:
            self.waiting -= 1
            return
        try:
            if self.position is not None:
                self._stream()
            else:
                self._start()
        except (Retry, RetrySlowly):
            self.forget()
            self.failures = min(self.failures + 1, 4)
            self.waiting = self.world.rng.randrange(1 << self.failures)  # backoff with jitter
        except StopForOperator as error:
            self.forget()
            self.verdict = error

    def _start(self) -> None:
        if self.steps is None:
            make = _old_start if self.world.broken == "order" else start
            self.steps = make(_EXPECTED, _fresh, reported=self.reported)
            self.answer = None
            self.server = self.world.server
        try:
            step = self.steps.send(self.answer)
        except StopIteration as end:
            self._start_replication(end.value)
            return
        self.answer = self._carry_out(step)

    def _demand_server(self) -> None:
        """A promotion and a crash end the connections of the session."""
        if self.server != self.world.server:
            raise Retry("the connection to PostgreSQL is gone")

    def _carry_out(self, step: Step) -> Any:
        world = self.world
        if isinstance(step, (LoadFacts, DropSlot, CreateSlot, Identify, TimelineHistory)):
            self._demand_server()
        match step:
            case LoadFacts():
                facts = world.facts()
                self.before = facts
                return facts
            case PrepareKafka():
                if not (world.kafka_up and world.registry_up):
                    raise Retry("not there")
            case Fence():
                self.producer = world.fence()
            case ReadPositions() | LookAtPositions():
                return world.stored()
            case ProveFence():
                world.commit(self.producer, None)
            case WriteIntent(position) | BeginEpoch(position):
                world.begin(self.producer)
                if world.rng.random() < 0.1:
                    raise Retry("killed within the Kafka transaction")
                world.commit(self.producer, position, markers=1 if position.epoch else 0)
            case Record(position, markers, _):
                world.begin(self.producer)
                if world.rng.random() < 0.1:
                    raise Retry("killed within the Kafka transaction")
                world.commit(self.producer, position, markers=len(markers))
                world.gap = (markers[0].marker_lsn, position.resume_lsn)
            case DropSlot():
                world.slot = None
            case CreateSlot():
                return world.create_slot()
            case Identify():
                return SystemIdentity("71", world.timeline, Lsn(world.end), "shop")
            case TimelineHistory():
                return world.history()
        return None

    def _start_replication(self, position: Position) -> None:
        self._demand_server()
        slot = self.world.slot
        if slot is None or slot.holder is not None:
            raise Retry("not there, or in use")
        slot.holder = self.number
        check_held(self.world.facts().slot, position.resume_lsn)
        self.steps, self.position = None, position
        if self.world.broken != "record":
            self.reported = from_record(position) or self.reported
        self.resume_lsn = int(position.resume_lsn)
        self.received, self.sent_to = [], max(position.resume_lsn, slot.confirmed)
        self.end_at_start = self.world.end
        if isinstance(self.reported, LeftOut):
            self.reported = None

    def _stream(self) -> None:
        world = self.world
        assert self.position is not None
        assert self.before is not None
        connected = world.slot is not None and world.slot.holder == self.number
        action = world.rng.random()
        if not connected:
            if action < 0.5:
                raise Retry("the connection is gone")
        elif action < 0.1:
            expected = replace(_EXPECTED, timeline=self.position.timeline, backend_pid=self.number + 1000)
            check_running(self.before, world.facts(), expected).raise_errors()
            return
        elif action < 0.5:
            self._receive()
            return
        self._deliver()

    def _receive(self) -> None:
        """With synchronized_standby_slots the server sends only what the standby has, and warns
        while it is down."""
        world = self.world
        if not world.standby_up:
            notice = StandbyNotice()
            if world.broken == "notice" and notice.sqlstate == "55000":
                raise DataGap("a publication is gone")
            assert kind_of(notice) is NoticeKind.STANDBY
            return
        for lsn in world.commits:
            if self.sent_to < lsn <= world.replayed:
                if lsn in world.gaps:
                    self.reported = LeftOut("skipped", ends_stream=False)
                    world.lost.add("left out")
                    raise Retry("changes were left out")
                failure = world.meet(lsn)
                if failure:
                    self._fail_at(failure, lsn)
                self.received.append(lsn)
                self.sent_to = lsn
        if world.killing and not self.received and world.replayed >= world.end:
            world.killing -= 1
            world.crash_server()
            self._crash_beyond()

    def _crash_beyond(self) -> None:
        """Somebody kills the WAL sender when it has sent everything: the crash is of no place."""
        has_passed = self.world.broken != "passed"
        crash = ServerCrashed("killed")
        self.world.anew += 1
        self.reported = counted_again(self.reported, crash, self.resume_lsn, self.world.now, has_passed=has_passed)
        raise Retry("the connection is gone")

    def _fail_at(self, how: str, lsn: int) -> None:
        """What was received is delivered first; where it is not, it is sent again by the next
        session. At every other place, a crash is faster than Kafka."""
        world = self.world
        has_passed = self.sent_to >= self.end_at_start
        closed_lsn = self.received[-1] + 1 if self.received else self.resume_lsn
        if self.received and how != "crash":
            self._deliver()
            raise Retry("everything committed before it is delivered first")
        if lsn % 2:
            with suppress(Retry):
                self._deliver()
        assert self.position is not None
        resume_lsn = closed_lsn if world.broken == "durable" else int(self.position.resume_lsn)
        if world.broken == "place" and self.reported is not None:
            resume_lsn = getattr(self.reported, "resume_lsn", resume_lsn)
        now = ServerCrashed("gone") if how == "crash" else DecodingFailed("no", how, Lsn(lsn))
        counted: Any = counted_again(self.reported, now, resume_lsn, world.now, has_passed=has_passed)
        if world.broken == "place":
            counted = replace(counted, resume_lsn=self.resume_lsn)
        is_recorded = world.has_recorded(now.cause, resume_lsn) and not has_passed
        world.anew += how == "crash" and counted.times == 1 and not is_recorded
        if world.broken == "count":
            counted = replace(counted, times=1)
        self.reported = counted
        if lsn in world.poison and counted.times >= counted.certain_times:
            world.lost.add("cannot be sent")
        raise Retry("the server cannot send the change")

    def _deliver(self) -> None:
        world = self.world
        if not self.received or self.position is None:
            return
        last = self.received[-1]
        position = replace(self.position, resume_lsn=Lsn(last + 1), last_commit_lsn=Lsn(last))
        world.begin(self.producer)
        world.commit(self.producer, position, markers=len(self.received))
        world.delivered.extend(self.received)
        self.received = []
        self.position = position
        if world.slot is not None and world.slot.holder == self.number and world.rng.random() < 0.7:
            world.slot.confirmed = max(world.slot.confirmed, position.resume_lsn)


class Operator(Gateway):
    """Runs `walgate accept-gap` after a verdict, until it comes through; then the gateways start
    again."""

    def __init__(self, world: World, gateways: list[Gateway]) -> None:
        super().__init__(world, len(gateways))
        self.gateways = gateways
        self.is_done = False

    def _start(self) -> None:
        if self.steps is None:
            self.steps = accept_gap(_fresh, _EXPECTED, until_now=True)
            self.answer, self.server = None, self.world.server
        try:
            step = self.steps.send(self.answer)
        except StopIteration:
            self.is_done = True
            self.world.lost.clear()
            for gateway in self.gateways:
                if gateway.verdict is not None:
                    gateway.kill()  # exit code 78 has ended the process
                    gateway.verdict = None
            return
        self.answer = self._carry_out(step)


def _fresh(facts: Facts) -> Position:
    return Position("71", facts.server.timeline, "shop", "s", "cdc", ("p",), "1.0")


def _old_start(
    expected: Expected, fresh_position: Callable[[Facts], Position], *, reported: Reported | None = None
) -> Steps:
    """The order before: position first, then whatever takes long, then the judgement; the gravest
    finding wins."""
    yield LoadFacts()
    yield Fence()
    stored: Stored = yield ReadPositions()
    yield PrepareKafka()
    facts: Facts = yield LoadFacts()
    fresh = fresh_position(facts)
    known = stored.positions.get(fresh.key)
    for finding in check_prefix(stored.positions, fresh, facts):
        if isinstance(finding, WalgateError):
            raise finding
    if known is not None and known.state == "ACTIVE":
        for finding in check_progress(replace(facts, moment=stored.moment - 1), stored, facts, known):
            if isinstance(finding, WalgateError):
                raise finding
        position = known
    else:
        if known is None:
            for finding in check_first_start(stored, fresh, facts, adopt_slot=False):
                if isinstance(finding, WalgateError):
                    raise finding
            yield WriteIntent(fresh)
        resume: Any = (yield CreateSlot()) if facts.slot is None else facts.slot.confirmed_flush_lsn
        position = replace(fresh, resume_lsn=resume)
    if facts.slot is not None and facts.slot.active_pid is not None:
        raise Retry("in use")
    position = replace(position, state="ACTIVE", epoch=position.epoch + 1, timeline=facts.server.timeline)
    yield BeginEpoch(position)
    return position


_STANDSTILL: Final = re.compile("cannot send the change at|the server has crashed")
_LOSSES: Final = ("slot dropped", "slot advanced", "markers deleted")


def run(seed: int, broken: str = "", *, with_loss: bool = False, with_poison: bool = False) -> list[str]:
    """One schedule; what was violated. `with_loss`: somebody destroys something on the way;
    `with_poison`: the server cannot send some commits, or fails a few times and then no more."""
    rng = random.Random(seed)
    world = World(rng, broken, exactly_once=broken != "position fence" and rng.random() < 0.7)
    gateways = [Gateway(world, number) for number in range(2)]
    faults: list[Callable[[], None]] = [
        world.crash_server,
        world.checkpoint,
        world.promote,
        lambda: setattr(world, "standby_up", not world.standby_up),
        lambda: setattr(world, "kafka_up", not world.kafka_up),
        lambda: setattr(world, "registry_up", not world.registry_up),
        lambda: rng.choice(gateways).kill(),
        lambda: rng.choice(gateways).forget(),
    ]
    if with_loss:
        faults += [
            lambda: world.lose(rng.choice(_LOSSES)),
            lambda: setattr(world, "published", not world.published),
        ]
    if with_poison:
        faults += [
            world.write_poison,
            lambda: setattr(world, "killing", 2 * CERTAIN_TIMES + 2),
            lambda: setattr(world, "passing", 3 * CERTAIN_TIMES),
        ]
    asleep: int | None = None
    for _ in range(rng.randrange(30, 110)):
        what = rng.random()
        if what < 0.72:
            if rng.random() < 0.05:
                asleep = rng.choice((None, 0, 1))  # SIGSTOP and SIGCONT
            number = rng.randrange(2)
            if number != asleep:
                gateways[number].move()
        elif what < 0.82:
            world.write()
        elif what < 0.9:
            world.replay()
        elif what < 0.95:
            world.release()
        else:
            rng.choice(faults)()
    _let_through(world, gateways)
    if with_poison and any(_is_repeated_failure(gateway.verdict) for gateway in gateways):
        for _ in range(3):
            for gateway in gateways:
                gateway.restart()
            _let_through(world, gateways)
    found = _violations(world, gateways)
    is_over = all(isinstance(gateway.verdict, DataGap) or _is_repeated_failure(gateway.verdict) for gateway in gateways)
    if is_over and "markers deleted" not in world.lost:
        found += _accept(world, gateways)
    return found


def _accept(world: World, gateways: list[Gateway]) -> list[str]:
    """From each verdict that changes were lost, and can be marked, there is a way on."""
    operator = Operator(world, gateways)
    for _ in range(800):
        if operator.is_done or operator.verdict is not None:
            break
        operator.move()
        for gateway in gateways:
            gateway.move()
        world.write()
        world.release()
    if not operator.is_done:
        return [f"the gap is not accepted: {operator.verdict and operator.verdict.message}"]
    world.write()
    _let_through(world, gateways)
    return _violations(world, gateways)


def _let_through(world: World, gateways: list[Gateway]) -> None:
    """No more faults. Whoever has not ended goes on, in turn, until everything is delivered."""
    world.kafka_up = world.registry_up = world.standby_up = world.published = True
    for _ in range(800):
        for gateway in gateways:
            gateway.move()
        world.replay()
        world.release()
        if any(gateway.is_streaming for gateway in gateways) and _is_delivered(world) and not world.killing:
            return


def _is_repeated_failure(verdict: StopForOperator | None) -> bool:
    return verdict is not None and bool(_STANDSTILL.search(verdict.message))


def _is_delivered(world: World) -> bool:
    if world.first is None:
        return True
    given_up, end = world.gap or (0, 0)
    wanted = (lsn for lsn in world.commits if lsn >= world.first and not given_up <= lsn < end)
    return set(world.delivered).issuperset(wanted)


def _violations(world: World, gateways: list[Gateway]) -> list[str]:
    found: list[str] = []
    verdicts = [gateway.verdict for gateway in gateways if gateway.verdict is not None]
    if verdicts and not world.lost:
        found.append(f"stopped without a reason: {verdicts[0].message}")
    if world.exactly_once and any(a >= b for a, b in pairwise(world.delivered)):
        found.append("delivered twice, or out of order")
    lsns = [position.resume_lsn for _, position in world.positions if position.state == "ACTIVE"]
    if any(a > b for a, b in pairwise(lsns)):
        found.append("a position went back")
    if not world.lost and not (any(gateway.is_streaming for gateway in gateways) and _is_delivered(world)):
        found.append("no progress although all faults have ended")
    # Each of the gateways may count one crash more than the position has, and each new process causes one.
    most = len(gateways) * CERTAIN_TIMES * world.anew + world.processes
    if any(count > most for count in world.crashes.values()):
        found.append(f"the server crashed {max(world.crashes.values())} times at one place")
    if world.lost and not verdicts and not any(gateway.is_streaming for gateway in gateways):
        found.append(f"neither streaming nor stopped after {world.lost}")
    return found
