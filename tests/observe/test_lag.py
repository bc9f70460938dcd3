"""Lag from a clock that is moved by hand: true while the stream runs, while it does not, and while
nobody answers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.lag import FRESH_S, MOST_READINGS, Lag, Progress, WalClock, lag
from gateway.runtime.monitor import READ_INTERVAL_S

AHEAD_S = 1_000_000.0
"""The server's clock, before ours."""
TRUE_S = 0.5


def near(seconds: float) -> float:
    found: Any = pytest.approx(seconds)
    return cast(float, found)


def readings(*found: tuple[float, int]) -> WalClock:
    """(our clock, the WAL's end)."""
    wal = WalClock()
    for clock, lsn in found:
        wal.note(lsn, AHEAD_S + clock, clock)
    return wal


def test_nothing_is_known_of_a_server_that_was_never_reached() -> None:
    assert lag(WalClock(), Progress(delivered_lsn=100), 5.0) == Lag(None)


def test_the_oldest_commit_that_waits_tells_the_lag_by_the_servers_clock() -> None:
    wal = readings((0.0, 100), (10.0, 500))
    waits = Progress(received_lsn=500, delivered_lsn=100, undelivered_since=AHEAD_S + 7.5)
    assert lag(wal, waits, 10.1) == Lag(near(2.6))


def test_where_everything_is_delivered_there_is_no_lag() -> None:
    assert lag(readings((0.0, 100), (10.0, 500)), Progress(delivered_lsn=500), 10.2) == Lag(0.0)


def test_without_a_stream_it_counts_from_the_last_moment_at_which_nothing_was_owed() -> None:
    wal = readings((0.0, 100), (1.0, 100), (1.2, 101), (1.4, 200))
    for clock in (2.0, 60.0, 3600.0):
        wal.note(200, AHEAD_S + clock, clock)
        assert lag(wal, Progress(delivered_lsn=100), clock) == Lag(near(clock - 1.0))


def test_it_goes_on_while_the_server_does_not_answer() -> None:
    wal = readings((0.0, 100), (1.0, 200))
    assert lag(wal, Progress(delivered_lsn=200), 31.0) == Lag(near(30.0))


def test_a_server_that_was_lost_says_nothing_about_now() -> None:
    wal = readings((0.0, 100), (1.0, 200))
    wal.lost()
    assert lag(wal, Progress(delivered_lsn=200), 1.1) == Lag(near(0.1))
    wal.note(200, AHEAD_S + 1.2, 1.2)
    assert lag(wal, Progress(delivered_lsn=200), 1.3) == Lag(0.0)


@dataclass(frozen=True)
class Outage:
    """Commits at these moments, LSN 1 for the first; each is durable in Kafka `delay_s` later,
    until `ends_at`. From then on the server is out of reach: it closes its connections, or falls
    silent."""

    commits: tuple[float, ...]
    readings: tuple[float, ...]
    delay_s: float
    ends_at: float
    closes: bool

    def committed(self, moment: float) -> int:
        return sum(commit <= moment for commit in self.commits)

    def durable(self, moment: float) -> int:
        return self.committed(min(moment, self.ends_at) - self.delay_s)

    def owed_since(self, moment: float) -> float | None:
        """The truth, by commit times."""
        return next(iter(self.commits[self.durable(moment) : self.committed(moment)]), None)

    def progress(self, moment: float) -> Progress:
        received, durable = self.committed(min(moment, self.ends_at)), self.durable(moment)
        if durable == received:
            return Progress(received, received)
        return Progress(received, durable, undelivered_since=AHEAD_S + self.commits[durable])

    def told(self, moment: float) -> float:
        wal = readings(*((at, self.committed(at)) for at in self.readings if at <= min(moment, self.ends_at)))
        if self.closes and moment >= self.ends_at:
            wal.lost()
        found = lag(wal, self.progress(moment), moment).seconds
        assert found is not None
        return found


def moments(count: int, least: float, most: float) -> st.SearchStrategy[tuple[float, ...]]:
    steps = st.lists(st.floats(least, most), min_size=count, max_size=count)
    return steps.map(lambda found: tuple(accumulate(found)))


outages = st.builds(
    Outage,
    moments(30, 0.01, 1.0),
    moments(60, READ_INTERVAL_S, FRESH_S - 0.1).map(lambda found: (0.0, *found)),
    st.floats(0.0, 5.0),
    st.floats(0.5, 12.0),
    st.booleans(),
)


@given(outages, st.lists(st.floats(0.0, 25.0), min_size=1))
def test_the_lag_is_within_half_a_second_of_the_commit_times(outage: Outage, asked: list[float]) -> None:
    for moment in asked:
        since = outage.owed_since(moment)
        truth = 0.0 if since is None else moment - since
        unknown_s = max(moment - outage.ends_at, 0.0)  # what commits there nobody can know
        assert truth - TRUE_S <= outage.told(moment) <= max(truth, unknown_s) + TRUE_S


def test_what_was_owed_before_the_first_reading_is_at_least_as_old() -> None:
    wal = readings((5.0, 1000))
    assert lag(wal, Progress(delivered_lsn=10), 25.0) == Lag(near(20.0), at_least=True)
    known = Progress(delivered_lsn=10, last_commit_time=AHEAD_S - 3.0)
    assert lag(wal, known, 25.0) == Lag(near(28.0))


def test_another_server_begins_again() -> None:
    wal = readings((0.0, 5000), (1.0, 100))
    assert (wal.lsn, wal.reached_at(100), wal.reached_at(99)) == (100, AHEAD_S + 1.0, None)


def test_a_day_without_a_stream_is_remembered_in_little_room() -> None:
    wal = readings(*((number * 0.2, 100 + number) for number in range(20 * MOST_READINGS)))
    last = 20 * MOST_READINGS - 1
    assert wal.reached_at(100 + last) == AHEAD_S + last * 0.2
    recent = last - MOST_READINGS // 3
    assert wal.reached_at(100 + recent) == pytest.approx(AHEAD_S + recent * 0.2, abs=0.5)
    assert wal.reached_at(100) == AHEAD_S
