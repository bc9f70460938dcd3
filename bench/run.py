"""A measured run of a contestant."""

from __future__ import annotations

from dataclasses import dataclass

ROWS_IN_A_TURN = 100


@dataclass(frozen=True, slots=True)
class Turns:
    """A backlog of `rows` rows in one table, followed by as many in many tables, one transaction in
    each of them in turn."""

    rows: int
    table_count: int
    one_table_rows_per_s: float
    many_tables_s: float
    later_rounds_rows_per_s: float
    """The rate without the first round, which registers the schemas of each table."""

    @property
    def ratio_to_one_table(self) -> float:
        """The ratio including the first round."""
        return self.rows / self.many_tables_s / self.one_table_rows_per_s

    @property
    def later_ratio_to_one_table(self) -> float:
        """The ratio without the first round."""
        return self.later_rounds_rows_per_s / self.one_table_rows_per_s

    @property
    def ms_per_new_table(self) -> float:
        """Time per table in the first round, beyond that of its rows."""
        first_rows = self.table_count * ROWS_IN_A_TURN
        later_rounds_s = (self.rows - first_rows) / self.later_rounds_rows_per_s
        first_round_s = self.many_tables_s - later_rounds_s
        return (first_round_s - first_rows / self.one_table_rows_per_s) / self.table_count * 1000


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of a run. CPU times are those of the named processes, in seconds; `other_cpu_s`
    is the rest of the computer: if it is large, the run was disturbed, and CPU times are more
    reliable than rates."""

    rows: int
    took_s: float
    gateway_cpu_s: float = 0.0
    walsender_cpu_s: float = 0.0
    broker_cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    peak_rss_mb: float = 0.0
    threads_cpu_s: float = 0.0
    """CPU time of all the gateway's threads but the first, which serve its observers; part of
    `gateway_cpu_s`."""
    turns: Turns | None = None

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.took_s

    def us_per_row(self, cpu_s: float) -> float:
        return cpu_s / self.rows * 1e6
