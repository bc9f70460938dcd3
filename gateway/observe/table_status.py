"""What the status tells of tables: their rates, their snapshots, and which are in quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SAMPLE_S: Final = 5.0
LISTED_TABLES: Final = 100


@dataclass(frozen=True, slots=True)
class QuarantinedTable:
    """Its changes are counted and left out, from the transaction that commits at `since_lsn` on."""

    table: str
    reason: str
    since_lsn: int


@dataclass(frozen=True, slots=True)
class TableSnapshotStatus:
    """A table that is being read, or is to be. `stale_rows`: read and left out, since the stream
    had changed them."""

    table: str
    status: str
    purpose: str
    rows: int
    chunks: int
    stale_rows: int


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """`left`: tables that are not done, of which the first LISTED_TABLES are in `tables`."""

    paused: bool = False
    left: int = 0
    tables: tuple[TableSnapshotStatus, ...] = ()


class Rates:
    """How fast counts grow: over the last one to two times SAMPLE_S. Two samples are kept, for
    10,000 topics are many."""

    def __init__(self) -> None:
        self._newer: tuple[float, Mapping[str, int]] | None = None
        self._older: tuple[float, Mapping[str, int]] | None = None

    def is_due(self, now: float) -> bool:
        """Another sample."""
        return self._newer is None or now - self._newer[0] >= SAMPLE_S

    def sample(self, now: float, counts: Mapping[str, int]) -> None:
        """Whenever somebody has time; `counts` is not changed any more."""
        if self.is_due(now):
            self._older, self._newer = self._newer or (now, counts), (now, counts)

    def per_s(self, now: float, name: str, count: int) -> float:
        """Of one that was not there: from 0 on."""
        if self._older is None or now <= self._older[0]:
            return 0.0
        began, counts = self._older
        return max(count - counts.get(name, 0), 0) / (now - began)
