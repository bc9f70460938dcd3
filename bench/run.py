"""One measured run of one contestant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """CPU times are those of the processes named, in seconds; `other_cpu_s` is the rest of the computer: when it is large
    the run was disturbed, and rates say less than CPU times."""

    rows: int
    took_s: float
    gateway_cpu_s: float = 0.0
    walsender_cpu_s: float = 0.0
    broker_cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    peak_rss_mb: float = 0.0

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.took_s

    def us_per_row(self, cpu_s: float) -> float:
        return cpu_s / self.rows * 1e6
