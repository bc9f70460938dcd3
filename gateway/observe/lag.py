"""The lag in seconds: the age of the oldest commit that is not durable in Kafka. It is known even
while nothing is connected.

Theory
======

There are two sources. The first is exact, and the second is always available:

* The stream. The commit time of each received transaction is known, and the oldest transaction that
  is not durable yet determines the lag. If there is none, everything that committed before
  `received_lsn` is durable, because pgoutput sends transactions in commit order.
* The end of the server's WAL, read together with the server's clock over a separate connection,
  several times a second (`WalClock`). Everything that had committed when the WAL ended at an LSN
  lies before that LSN. So at the last moment at which the WAL ended at or before the delivered LSN,
  everything was delivered. The lag counts from that moment.

WAL that is written need not contain a commit of a published table (it may come from other tables,
other databases, maintenance). Whether it does is unknown until the stream has passed that WAL, so
without a stream the lag is an upper bound. A heartbeat (`source.heartbeat_interval_s`) is a commit
of the gateway's own: it counts as delivered when a position after it is durable in Kafka. So the
lag measures the whole path even if nothing else commits. While the server itself cannot be reached,
the lag counts from the last known moment, because it is unknown what commits there.

All times are by the server's clock, like commit times, because the clock of the gateway's host may
be wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

FRESH_S: Final = 0.5
"""The age above which a reading says nothing about the present. A server that goes silent is
noticed after this time."""
MOST_READINGS: Final = 4096


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the stream. `undelivered_since` is the commit time (Unix, s) of the oldest
    transaction that was received but is not durable. None means that everything before
    `delivered_lsn` is durable."""

    received_lsn: int = 0
    delivered_lsn: int = 0
    undelivered_since: float | None = None
    last_commit_lsn: int = 0
    last_commit_time: float | None = None
    """Commit time of the newest commit that is durable in Kafka."""
    marked_lsn: int = 0
    marked_time: float | None = None
    """Commit time of the newest durable commit that has a marker. Readers do not see commits
    without a marker."""
    undelivered_transactions: int = 0
    """The number of transactions that were received but are not durable."""
    heartbeat_time: float | None = None
    """Commit time of the newest heartbeat that the resume LSN in Kafka has passed."""


class WalClock:
    """Readings of the end of the server's WAL, with times by the server's clock. The event loop
    writes them, and any thread may read them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lsns: list[int] = []
        self._times: list[float] = []
        """For each LSN, the last moment at which the WAL ended there."""
        self.first_reading: float | None = None
        """The server's time at the first reading, or None before it."""
        self._ahead_s = 0.0
        self._read_at = -FRESH_S * 10
        self._answers = False

    def note(self, lsn: int, server_time: float, clock: float) -> None:
        """Add a reading. `server_time` (Unix, s) was read before the end of the WAL; `clock` is
        this process's monotonic time of the reading."""
        with self._lock:
            self._ahead_s, self._read_at, self._answers = server_time - clock, clock, True
            if self._lsns and lsn < self._lsns[-1]:  # another server
                self._lsns, self._times, self.first_reading = [], [], None
            if self.first_reading is None:
                self.first_reading = server_time
            if self._lsns and lsn == self._lsns[-1]:
                self._times[-1] = server_time
            else:
                self._lsns.append(lsn)
                self._times.append(server_time)
            if len(self._lsns) > MOST_READINGS:
                self._thin_out()

    def lost(self) -> None:
        """Record that the server no longer answers, so that the newest reading is outdated at
        once."""
        self._answers = False

    def _thin_out(self) -> None:
        """Remove every other reading of the older half; old readings may be less exact."""
        half = MOST_READINGS // 2
        self._lsns = self._lsns[:half:2] + self._lsns[half:]
        self._times = self._times[:half:2] + self._times[half:]

    @property
    def lsn(self) -> int:
        """The LSN of the newest reading, or 0 if there is none."""
        with self._lock:
            return self._lsns[-1] if self._lsns else 0

    def age_s(self, clock: float) -> float:
        """Return the age of the newest reading."""
        return clock - self._read_at

    def is_fresh(self, clock: float) -> bool:
        return self._answers and self.age_s(clock) <= FRESH_S

    def now(self, clock: float) -> float | None:
        """Return the server's time, extrapolated from the newest reading, or None before the first
        reading."""
        return None if self.first_reading is None else clock + self._ahead_s

    def reached_at(self, lsn: int) -> float | None:
        """Return the last moment at which the WAL ended at or before `lsn`, or None if it already
        ended after `lsn` at the first reading."""
        with self._lock:
            index = bisect_right(self._lsns, lsn)
            return self._times[index - 1] if index else None


@dataclass(frozen=True, slots=True)
class Lag:
    """A lag. `seconds` is None if the lag is unknown because the server was never reached.
    `at_least` means that the true lag may be greater, because it began before this process first
    reached the server."""

    seconds: float | None
    at_least: bool = False


def lag(wal: WalClock, progress: Progress, clock: float) -> Lag:
    """Return the lag at `clock`, this process's monotonic time."""
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
    first = wal.first_reading
    return Lag(max(now - first, 0.0) if first is not None else None, at_least=True)


ReadProgress = Callable[[], Progress]
