"""The status of tables: the rates of their topics, their snapshots, and the tables in
quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SAMPLE_S: Final = 5.0
LISTED_TABLES: Final = 100


@dataclass(frozen=True, slots=True)
class QuarantinedTable:
    """A table in quarantine: its changes are counted and left out, beginning with the transaction
    that commits at `since_lsn`."""

    table: str
    reason: str
    since_lsn: int


@dataclass(frozen=True, slots=True)
class TableSnapshotStatus:
    """A table that is being read, or will be. `stale_rows` is the number of rows that were read but
    left out, because they had changed in the stream."""

    table: str
    status: str
    purpose: str
    rows: int
    chunks: int
    stale_rows: int


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """State of the snapshots. `left` is the number of unfinished tables, of which the first
    LISTED_TABLES are in `tables`. `unreadable` of them cannot be read until somebody acts."""

    paused: bool = False
    left: int = 0
    tables: tuple[TableSnapshotStatus, ...] = ()
    unreadable: int = 0


class Rates:
    """The rates at which counts grow, over a time between SAMPLE_S and twice SAMPLE_S. Only two
    samples are kept, because there may be 10,000 topics."""

    def __init__(self) -> None:
        self._newer: tuple[float, Mapping[str, int]] | None = None
        self._older: tuple[float, Mapping[str, int]] | None = None

    def is_due(self, now: float) -> bool:
        """Return whether another sample is due."""
        return self._newer is None or now - self._newer[0] >= SAMPLE_S

    def sample(self, now: float, counts: Mapping[str, int]) -> None:
        """Take a sample if one is due. This may be called at any time; `counts` must not change
        afterwards."""
        if self.is_due(now):
            self._older, self._newer = self._newer or (now, counts), (now, counts)

    def per_s(self, now: float, name: str, count: int) -> float:
        """Return the rate per second at which a count grows. A count that is not in the sample is
        taken to begin at 0."""
        if self._older is None or now <= self._older[0]:
            return 0.0
        began, counts = self._older
        return max(count - counts.get(name, 0), 0) / (now - began)
