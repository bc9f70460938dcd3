from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Retry, WalgateError
from gateway.postgres.standby_status import (
    LEAST_INTERVAL_S,
    LEAVE_AFTER_S,
    ServerSilent,
    StandbyStatus,
    wal_sender_timeout_of,
)
from gateway.runtime.session_memory import SessionEnd, SessionMemory
from schemas.lsn import Lsn


def _nobody() -> None:
    raise AssertionError("no status task is there")


class Wire:
    """A connection that notes what it is told, and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.arrived_at = 1000.0
        self.sent: list[tuple[float, int, int, bool]] = []
        self.failure: WalgateError | None = None
        self.on_reply_request: Callable[[], None] = _nobody

    def send_standby_status(self, received_lsn: int, flush_lsn: int, *, reply_requested: bool = False) -> None:
        self.sent.append((self.now, received_lsn, flush_lsn, reply_requested))

    def silence_s(self) -> float:
        return self.now - self.arrived_at

    def fail(self, error: WalgateError) -> None:
        self.failure = error

    def status(self, resume_lsn: int = 100, wal_sender_timeout_s: float = 60.0) -> StandbyStatus:
        return StandbyStatus(self, Lsn(resume_lsn), wal_sender_timeout_s, clock=lambda: self.now)


def pass_time(wire: Wire, status: StandbyStatus, seconds: float, *, busy: bool = False) -> None:
    """Steps as `run` does, until the time is over or the connection has ended."""
    end = wire.now + seconds
    while wire.failure is None:
        wait_s = status.step()
        if wait_s is None or wire.now + wait_s > end:
            break
        wire.now += wait_s
        if busy:
            wire.arrived_at = wire.now
    wire.now = max(wire.now, end)


def test_first_status_says_where_the_slot_goes_on() -> None:
    wire = Wire()
    wire.status(resume_lsn=77).step()
    assert wire.sent == [(1000.0, 77, 77, False)]


def test_status_is_sent_every_third_of_the_timeout_while_rows_come() -> None:
    wire = Wire()
    pass_time(wire, wire.status(wal_sender_timeout_s=60), 100, busy=True)
    assert [at for at, *_ in wire.sent] == [1000, 1020, 1040, 1060, 1080, 1100]
    assert not any(ask for *_, ask in wire.sent)


def test_flush_lsn_is_what_was_acknowledged_and_not_what_was_received() -> None:
    wire = Wire()
    status = wire.status(resume_lsn=100)
    status.receive(5000)
    status.acknowledge(200)
    status.step()
    assert wire.sent[-1][1:3] == (5000, 200)


def test_acknowledgement_is_sent_soon() -> None:
    wire = Wire()
    status = wire.status()
    status.step()
    status.acknowledge(200)
    pass_time(wire, status, 0.2)
    assert wire.sent[-1] == (1000.0 + LEAST_INTERVAL_S, 200, 200, False)


@given(st.lists(st.tuples(st.sampled_from(["receive", "acknowledge", "ask", "time"]), st.integers(0, 2**64 - 1))))
def test_flush_lsn_never_falls_and_never_passes_what_was_acknowledged(steps: list[tuple[str, int]]) -> None:
    wire = Wire()
    status = wire.status(resume_lsn=100)
    acknowledged = 100
    for action, number in steps:
        match action:
            case "receive":
                status.receive(number)
            case "acknowledge":
                status.acknowledge(number)
                acknowledged = max(acknowledged, number)
            case "ask":
                wire.on_reply_request()
            case _:
                wire.now += number % 7 / 10
                wire.arrived_at = wire.now
        status.step()
        assert wire.sent[-1][2] <= acknowledged
        assert wire.sent[-1][1] >= wire.sent[-1][2]
    flushed = [flush for _, _, flush, _ in wire.sent]
    assert flushed == sorted(flushed)
    assert all(later[0] - earlier[0] >= LEAST_INTERVAL_S * 0.999 for earlier, later in pairwise(wire.sent))


def test_reply_is_sent_at_once_when_the_last_one_is_old() -> None:
    wire = Wire()
    status = wire.status()
    status.step()
    wire.now = wire.arrived_at = 1005.0
    wire.on_reply_request()
    assert [at for at, *_ in wire.sent] == [1000.0, 1005.0]


def test_storm_of_requests_gets_ten_replies_a_second() -> None:
    wire = Wire()
    status = wire.status()
    for _ in range(1000):  # a request each millisecond
        wire.now += 0.001
        wire.arrived_at = wire.now
        wire.on_reply_request()
        status.step()
    assert 9 <= len(wire.sent) <= 11


def ask_after_each_reply(wire: Wire, status: StandbyStatus, seconds: float, acknowledge_each_s: float = 0) -> None:
    """A server that shuts down and waits for a higher flush LSN."""
    end = wire.now + seconds
    acknowledged_at = wire.now
    while wire.now < end and wire.failure is None:
        count = len(wire.sent)
        wait_s = status.step()
        if len(wire.sent) > count:
            wire.arrived_at = wire.now
            wire.on_reply_request()
            continue
        wire.now += wait_s or 0
        if acknowledge_each_s and wire.now - acknowledged_at >= acknowledge_each_s:
            status.acknowledge(status.flush_lsn + 1)
            acknowledged_at = wire.now


def test_server_that_keeps_asking_is_left_after_some_seconds() -> None:
    wire = Wire()
    status = wire.status()
    ask_after_each_reply(wire, status, 60)
    assert isinstance(wire.failure, Retry) and "shutting down" in wire.failure.message
    assert LEAVE_AFTER_S <= wire.now - 1000 < LEAVE_AFTER_S + 0.5


def test_server_that_keeps_asking_is_not_left_while_the_flush_lsn_rises() -> None:
    wire = Wire()
    status = wire.status()
    ask_after_each_reply(wire, status, 30, acknowledge_each_s=1)
    assert wire.failure is None


def test_server_that_asks_now_and_then_is_not_taken_for_stopping() -> None:
    wire = Wire()
    status = wire.status(wal_sender_timeout_s=2)
    for _ in range(30):
        wire.now = wire.arrived_at = wire.now + 1.0
        wire.on_reply_request()
        status.step()
    assert wire.failure is None


def test_silent_server_is_asked_at_half_time_and_given_up_at_the_end() -> None:
    wire = Wire()
    status = wire.status(wal_sender_timeout_s=10)
    pass_time(wire, status, 14.5)
    assert [round(at - 1000, 3) for at, *_, ask in wire.sent if ask] == [7.5, 10.833, 14.167]
    assert wire.failure is None
    given_up_after(wire, status, 1)


def given_up_after(wire: Wire, status: StandbyStatus, seconds: float) -> None:
    pass_time(wire, status, seconds)
    assert isinstance(wire.failure, Retry) and "sent nothing" in wire.failure.message


def test_silent_server_that_answers_is_kept() -> None:
    wire = Wire()
    status = wire.status(wal_sender_timeout_s=10)
    for _ in range(20):
        pass_time(wire, status, 8)
        assert wire.sent[-1][3] or wire.sent[-2][3]
        wire.arrived_at = wire.now
    assert wire.failure is None


def test_process_that_was_stopped_itself_asks_before_it_gives_up() -> None:
    wire = Wire()
    status = wire.status(wal_sender_timeout_s=10)
    status.step()
    wire.now += 100
    status.step()
    assert wire.failure is None and wire.sent[-1][3]
    wire.arrived_at = wire.now
    pass_time(wire, status, 9)
    assert wire.failure is None


def test_short_timeout_of_the_server_does_not_make_us_impatient() -> None:
    wire = Wire()
    pass_time(wire, wire.status(wal_sender_timeout_s=1), 4.9)
    assert wire.failure is None


def test_silence_is_noticed_within_30_seconds_whatever_the_timeout() -> None:
    for timeout_s in (0, 60, 3600):
        wire = Wire()
        pass_time(wire, wire.status(wal_sender_timeout_s=wal_sender_timeout_of(timeout_s)), 31)
        assert isinstance(wire.failure, ServerSilent)


@pytest.mark.parametrize("timeout_s", [5, 20])
def test_a_server_that_reads_once_in_half_of_its_timeout_answers_in_time(timeout_s: float) -> None:
    """WalSndUpdateProgress in walsender.c, while nothing of a transaction is sent: it reads what has
    arrived when half of wal_sender_timeout has passed since it last read."""
    wire = Wire()
    status = wire.status(wal_sender_timeout_s=timeout_s)
    for read_at in range(1, 200):
        pass_time(wire, status, 1000 + read_at * timeout_s / 2 - wire.now)
        if any(ask and wire.arrived_at <= at for at, *_, ask in wire.sent):
            wire.arrived_at = wire.now
    assert wire.failure is None


def test_where_the_server_was_silent_the_next_session_waits_twice_as_long() -> None:
    memory, place = SessionMemory(), Lsn(7)
    limits: list[float] = []
    wire = Wire()
    for _ in range(3):
        wire.arrived_at = wire.now
        limit_s = memory.silence_limit_s(place)
        status = StandbyStatus(wire, place, 20, silence_limit_s=limit_s, clock=lambda: wire.now)
        pass_time(wire, status, 1000)
        failure, wire.failure = wire.failure, None
        assert failure is not None
        memory.ended = SessionEnd(resume_lsn=place)
        failure.change(memory)
        limits.append(status.silence_limit_s)
    assert limits == [30, 60, 120]
    assert memory.silence_limit_s(Lsn(8)) is None


def test_past_the_place_of_a_silence_the_usual_limit_holds() -> None:
    wire = Wire()
    status = StandbyStatus(wire, Lsn(7), 20, silence_limit_s=960, clock=lambda: wire.now)
    pass_time(wire, status, 900)
    failures = [wire.failure]
    wire.arrived_at = wire.now
    status.acknowledge(8)
    pass_time(wire, status, 31)
    failures.append(wire.failure)
    assert [getattr(failure, "silence_limit_s", None) for failure in failures] == [None, 30]


def test_silence_behind_what_was_there_at_the_start_does_not_make_patient() -> None:
    memory = SessionMemory(ended=SessionEnd(resume_lsn=Lsn(7), has_passed=True))
    ServerSilent(30, 30).change(memory)
    assert memory.silence_limit_s(Lsn(7)) is None


async def test_task_wakes_for_an_acknowledgement() -> None:
    wire = Wire()
    told = asyncio.Event()
    status = StandbyStatus(wire, Lsn(1), 60.0)
    send = wire.send_standby_status

    def tell(received_lsn: int, flush_lsn: int, *, reply_requested: bool = False) -> None:
        send(received_lsn, flush_lsn, reply_requested=reply_requested)
        if flush_lsn == 9:
            told.set()

    wire.send_standby_status = tell  # type: ignore[method-assign]
    wire.silence_s = lambda: 0.0  # type: ignore[method-assign]
    task = asyncio.create_task(status.run())
    try:
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
            status.acknowledge(9)
            await told.wait()
    finally:
        task.cancel()


def test_an_idle_server_that_answers_each_question_is_alive_however_late_the_timer() -> None:
    wire = Wire()
    status = wire.status()
    asked = 0
    for _ in range(50):
        status.step()
        if sum(ask for *_, ask in wire.sent) > asked:
            asked += 1
            wire.arrived_at = wire.now + 0.002
        wire.now += 15.2
    assert wire.failure is None
    assert asked > 10
