"""Lag in seconds: the age of the oldest commit that is not durable in Kafka, also while nothing is
connected.

Theory
======

Two sources, of which the first is exact and the second always there:

* The stream. Of each transaction that was received the commit time is known; the oldest of those
  that are not durable yet tells the lag. Where none waits, everything that committed before
  `received_lsn` is durable: pgoutput sends in commit order.
* The end of the server's WAL, read with the server's clock by a connection of its own, several
  times a second: `WalClock`. Whatever had committed when the WAL ended at an LSN lies before that
  LSN. So the newest moment at which the WAL ended before the delivered LSN is one at which nothing
  was owed. The lag counts from there.

What is written to the WAL need not be a commit of a published table (other tables, other databases,
maintenance). Until the stream has passed it nobody can tell, so without a stream the lag is an
upper bound. A heartbeat (`source.heartbeat_interval_s`) is a commit of our own: it counts as
delivered when the position behind it is durable in Kafka, so that the lag tells of the whole way
where nothing else commits. While the server itself is out of reach the lag counts from the last
moment that is known: nobody can tell what commits there.

All moments are the server's clock, as commit times are: our own may be wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

FRESH_S: Final = 0.5
"""A reading of the server that is older says nothing about now: so late is a server noticed that
falls silent."""
MOST_READINGS: Final = 4096
RATE_WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the stream is. `undelivered_since`: commit time (Unix, s) of the oldest transaction
    that was received and is not durable; None: everything before `delivered_lsn` is."""

    received_lsn: int = 0
    delivered_lsn: int = 0
    undelivered_since: float | None = None
    last_commit_lsn: int = 0
    last_commit_time: float | None = None
    """Of the newest commit that is durable in Kafka."""
    marked_lsn: int = 0
    marked_time: float | None = None
    """Of the newest durable commit that has a marker: of others readers hear nothing."""
    undelivered_transactions: int = 0
    """Received, and not durable."""
    heartbeat_time: float | None = None
    """Commit time of the newest heartbeat that the resume LSN in Kafka has passed."""


class WalClock:
    """Where the server's WAL ended at which moment of the server's clock. Written by the event
    loop, read by any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lsns: list[int] = []
        self._times: list[float] = []
        """The last moment at which the WAL ended there."""
        self._first: float | None = None
        self._ahead_s = 0.0
        self._read_at = -FRESH_S * 10
        self._answers = False

    def note(self, lsn: int, server_time: float, clock: float) -> None:
        """A reading: `server_time` (Unix, s) was taken before the WAL's end; `clock` is our
        monotonic time of it."""
        with self._lock:
            self._ahead_s, self._read_at, self._answers = server_time - clock, clock, True
            if self._lsns and lsn < self._lsns[-1]:  # another server
                self._lsns, self._times, self._first = [], [], None
            if self._first is None:
                self._first = server_time
            if self._lsns and lsn == self._lsns[-1]:
                self._times[-1] = server_time
            else:
                self._lsns.append(lsn)
                self._times.append(server_time)
            if len(self._lsns) > MOST_READINGS:
                self._thin_out()

    def lost(self) -> None:
        """The server does not answer any more: its newest reading is old at once."""
        self._answers = False

    def _thin_out(self) -> None:
        """Every other of the older half: what is old may be less exact."""
        half = MOST_READINGS // 2
        self._lsns = self._lsns[:half:2] + self._lsns[half:]
        self._times = self._times[:half:2] + self._times[half:]

    @property
    def lsn(self) -> int:
        """The newest reading; 0: none."""
        with self._lock:
            return self._lsns[-1] if self._lsns else 0

    def age_s(self, clock: float) -> float:
        """Of the newest reading."""
        return clock - self._read_at

    def is_fresh(self, clock: float) -> bool:
        return self._answers and self.age_s(clock) <= FRESH_S

    def now(self, clock: float) -> float | None:
        """The server's time, as far as its clock has been read."""
        return None if self._first is None else clock + self._ahead_s

    def reached_at(self, lsn: int) -> float | None:
        """The newest moment at which the WAL ended at or before `lsn`; None where it was beyond at
        the first reading."""
        with self._lock:
            index = bisect_right(self._lsns, lsn)
            return self._times[index - 1] if index else None

    def first_reading(self) -> float | None:
        return self._first

    def bytes_per_s(self, window_s: float = RATE_WINDOW_S) -> float:
        """How fast the WAL grows, over the last minute."""
        with self._lock:
            if len(self._lsns) < 2:
                return 0.0
            end = self._times[-1]
            start = max(bisect_right(self._times, end - window_s) - 1, 0)
            seconds = end - max(self._times[start], end - window_s)
            return (self._lsns[-1] - self._lsns[start]) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Lag:
    """`seconds` None: not known, the server was never reached. `at_least`: what was delivered
    before this process has read the server is older than its first reading."""

    seconds: float | None
    at_least: bool = False


def lag(wal: WalClock, progress: Progress, clock: float) -> Lag:
    """`clock` is our monotonic time."""
    now = wal.now(clock)
    if now is None:
        return Lag(None)
    if progress.undelivered_since is not None:
        return Lag(max(now - progress.undelivered_since, 0.0))
    if wal.lsn <= progress.delivered_lsn and wal.is_fresh(clock):
        return Lag(0.0)
    known = [moment for moment in (wal.reached_at(progress.delivered_lsn), progress.last_commit_time) if moment]
    if known:
        return Lag(max(now - max(known), 0.0))
    first = wal.first_reading()
    return Lag(max(now - first, 0.0) if first is not None else None, at_least=True)


ReadProgress = Callable[[], Progress]
