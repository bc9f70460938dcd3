"""Figures of several runs as a table, a plot, and one JSON object per workload run.

Ratios are computed within one repetition, in which the contestants ran one after the other; the
figure is their median. Other load on the computer thus affects both sides of a ratio about equally.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table

from bench.large import Large
from bench.latency import Latency
from bench.run import Run, Turns

T = TypeVar("T")

FLOORS = {"walgate": "floor", "walgate_watched": "floor", "walgate_text": "floor_text", "walgate_compiled": "floor"}
"""The floor with which a contestant is compared."""


@dataclass
class Drained:
    """The runs of one workload: contestant -> one run per repetition."""

    workload: str
    title: str
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def add(self, contestant: str, run: Run) -> None:
        self.runs.setdefault(contestant, []).append(run)

    def rate(self, contestant: str) -> float:
        return median(run.rows_per_s for run in self.runs[contestant])

    def ratio(self, contestant: str, other: str) -> float | None:
        """Return the median of the repetitions' ratios of rates."""
        if contestant not in self.runs or other not in self.runs:
            return None
        pairs = zip(self.runs[contestant], self.runs[other], strict=False)
        return median(one.rows_per_s / two.rows_per_s for one, two in pairs)

    def cpu_us(self, contestant: str, part: str) -> float:
        """Return the CPU time per row of `gateway`, `walsender` or `broker`."""
        return median(run.us_per_row(getattr(run, f"{part}_cpu_s")) for run in self.runs[contestant])

    def peak_rss_mb(self, contestant: str) -> float:
        return max(run.peak_rss_mb for run in self.runs[contestant])

    def watching(self) -> dict[str, float] | None:
        """Return the cost of being watched: the difference to the unwatched run of the same
        repetition. `cpu_share` is a share of one core, and `threads_cpu_share` its part that does
        not depend on how long the rows took."""
        plain, watched = (self.runs.get(name) for name in ("walgate", "walgate_watched"))
        if plain is None or watched is None:
            return None
        pairs = list(zip(watched, plain, strict=False))
        return {
            "cpu_us_per_row": median(
                one.us_per_row(one.gateway_cpu_s) - two.us_per_row(two.gateway_cpu_s) for one, two in pairs
            ),
            "cpu_share": median((one.gateway_cpu_s - two.gateway_cpu_s) / one.took_s for one, two in pairs),
            "threads_cpu_share": median((one.threads_cpu_s - two.threads_cpu_s) / one.took_s for one, two in pairs),
            "peak_rss_mb": median(one.peak_rss_mb - two.peak_rss_mb for one, two in pairs),
        }

    def as_json(self) -> dict[str, Any]:
        ours = [name for name in self.runs if name in FLOORS]
        readers = [name for name in self.runs if not name.startswith("floor")]
        return {
            "workload": self.workload,
            "title": self.title,
            "rows": next(iter(self.runs.values()))[0].rows,
            "repeat": max(map(len, self.runs.values())),
            "rows_per_s": {name: round(self.rate(name)) for name in self.runs},
            "ratio_to_floor": {name: _rounded(self.ratio(name, FLOORS[name])) for name in ours},
            "ratio_to_debezium": {name: _rounded(self.ratio(name, "debezium")) for name in ours},
            "gateway_cpu_us_per_row": {name: round(self.cpu_us(name, "gateway"), 2) for name in readers},
            "walsender_cpu_us_per_row": {name: round(self.cpu_us(name, "walsender"), 2) for name in self.runs},
            "broker_cpu_us_per_row": {name: round(self.cpu_us(name, "broker"), 2) for name in readers},
            "peak_rss_mb": {name: round(self.peak_rss_mb(name)) for name in readers},
            "other_cpu_s": {name: round(median(r.other_cpu_s for r in runs), 1) for name, runs in self.runs.items()},
            **self._turns_json(),
            **self._watching_json(),
        }

    def _watching_json(self) -> dict[str, Any]:
        found = self.watching()
        return {} if found is None else {"watching": {name: round(value, 4) for name, value in found.items()}}

    def _turns(self) -> dict[str, list[Turns]]:
        found = {name: [run.turns for run in runs if run.turns is not None] for name, runs in self.runs.items()}
        return {name: turns for name, turns in found.items() if turns}

    def _turns_json(self) -> dict[str, Any]:
        """Return the ratios of many tables to one; {} for other workloads."""
        figures: dict[str, Callable[[Turns], float]] = {
            "one_table_rows_per_s": lambda turns: turns.one_table_rows_per_s,
            "ratio_to_one_table": lambda turns: turns.ratio_to_one_table,
            "later_ratio_to_one_table": lambda turns: turns.later_ratio_to_one_table,
            "ms_per_new_table": lambda turns: turns.ms_per_new_table,
        }
        found = self._turns()
        if not found:
            return {}
        return {
            key: {name: round(median(map(figure, turns)), 2) for name, turns in found.items()}
            for key, figure in figures.items()
        }

    def print(self, console: Console) -> None:
        columns = (
            "",
            "rows/s",
            "of floor",
            "of Debezium",
            "gateway us",
            "walsender us",
            "broker us",
            "peak MB",
            "other CPU",
        )
        table = Table(*columns, title=f"{self.workload}: {self.title}")
        for name, runs in self.runs.items():
            table.add_row(
                name,
                f"{self.rate(name):,.0f}",
                _ratio(self.ratio(name, FLOORS[name]) if name in FLOORS else None),
                _ratio(self.ratio(name, "debezium") if name in FLOORS else None),
                *(f"{self.cpu_us(name, part):.2f}" for part in ("gateway", "walsender", "broker")),
                f"{self.peak_rss_mb(name):.0f}",
                f"{median(run.other_cpu_s / run.took_s for run in runs):.0%}",
            )
        console.print(table)
        more = self.watching()
        if more is not None:
            console.print(
                f"being watched: {more['cpu_us_per_row']:+.2f} us for each row, {more['cpu_share']:+.1%} of a core, of which"
                f" {more['threads_cpu_share']:.2%} in the threads that answer; {more['peak_rss_mb']:+.1f} MB at most",
                highlight=False,
            )
        for name, turns in self._turns().items():
            console.print(
                f"{name}: {median(each.ratio_to_one_table for each in turns):.2f} of one table's rate with the first"
                f" round, {median(each.later_ratio_to_one_table for each in turns):.2f} in later rounds,"
                f" {median(each.ms_per_new_table for each in turns):.1f} ms for each new table",
                highlight=False,
            )


class Live(Generic[T]):
    """The runs of one live workload: contestant -> one run per repetition."""

    def __init__(self) -> None:
        self.runs: dict[str, list[T]] = {}

    def add(self, contestant: str, run: T) -> None:
        self.runs.setdefault(contestant, []).append(run)

    def each(self, figure: Callable[[T], float], digits: int = 0) -> dict[str, float]:
        """Return the median of one figure for each contestant."""
        return {name: round(median(map(figure, runs)), digits) for name, runs in self.runs.items()}

    def most(self, figure: Callable[[T], float]) -> dict[str, float]:
        return {name: round(max(map(figure, runs))) for name, runs in self.runs.items()}

    def ratios_to_debezium(self, figure: Callable[[T], float]) -> dict[str, float | None]:
        """Return the medians of the repetitions' ratios; null without Debezium."""
        theirs = self.runs.get("debezium")
        return {
            name: None
            if theirs is None
            else round(median(figure(one) / figure(two) for one, two in zip(runs, theirs, strict=False)), 3)
            for name, runs in self.runs.items()
            if name != "debezium"
        }

    def head(self, rows_per_s: Callable[[T], float], cpu_us: Callable[[T], float]) -> dict[str, Any]:
        """Return the part that all JSON objects have."""
        return {
            "repeat": max(map(len, self.runs.values())),
            "rows_per_s": self.each(rows_per_s),
            "ratio_to_floor": dict.fromkeys(name for name in self.runs if name != "debezium"),
            "ratio_to_debezium": self.ratios_to_debezium(rows_per_s),
            "gateway_cpu_us_per_row": self.each(cpu_us, 2),
        }


def print_large(console: Console, live: Live[Large]) -> None:
    rows = next(iter(live.runs.values()))[0].rows
    table = Table("", *live.runs, title=f"W3: one transaction of {rows:,} rows, live")

    def line(label: str, figure: Callable[[Large], float], form: str) -> None:
        table.add_row(label, *(form.format(value) for value in live.each(figure, 3).values()))

    line("INSERT took", lambda run: run.insert_s, "{:.1f} s")
    line("first row readable, from COMMIT", lambda run: run.first_readable_s, "{:+.1f} s")
    line("last row readable, from COMMIT", lambda run: run.last_readable_s, "{:+.1f} s")
    line("CPU a row", lambda run: run.cpu_us_per_row, "{:.2f} us")
    line("peak memory", lambda run: run.peak_rss_mb, "{:.0f} MB")
    line("spilled by PostgreSQL", lambda run: run.spill_bytes, "{:,.0f} bytes")
    line("streamed by PostgreSQL", lambda run: run.stream_bytes, "{:,.0f} bytes")
    console.print(table)


def large_json(live: Live[Large]) -> dict[str, Any]:
    return {
        "workload": "W3",
        "title": "one transaction, live",
        "rows": next(iter(live.runs.values()))[0].rows,
        **live.head(lambda run: run.rows_per_s, lambda run: run.cpu_us_per_row),
        "peak_rss_mb": live.most(lambda run: run.peak_rss_mb),
        "insert_s": live.each(lambda run: run.insert_s, 2),
        "first_readable_after_commit_s": live.each(lambda run: run.first_readable_s, 2),
        "last_readable_after_commit_s": live.each(lambda run: run.last_readable_s, 2),
        "last_readable_ratio_to_debezium": live.ratios_to_debezium(lambda run: run.last_readable_s),
        "spill_bytes": live.each(lambda run: run.spill_bytes),
        "stream_bytes": live.each(lambda run: run.stream_bytes),
    }


def print_latency(console: Console, rate: int, live: Live[Latency]) -> None:
    title = f"L: commit to a consumer's poll at {rate:,} transactions/s"
    table = Table("", "p50 ms", "p95 ms", "p99 ms", "CPU us/tx", "peak MB", title=title)
    columns = (
        live.each(lambda run: run.p50_ms, 1),
        live.each(lambda run: run.p95_ms, 1),
        live.each(lambda run: run.p99_ms, 1),
        live.each(lambda run: run.cpu_us),
        live.most(lambda run: run.peak_rss_mb),
    )
    for name in live.runs:
        table.add_row(name, *(f"{column[name]:,}" for column in columns))
    console.print(table)


def latency_json(rate: int, live: Live[Latency]) -> dict[str, Any]:
    p50, p95, p99 = (live.each(figure, 1) for figure in _PERCENTILES)
    return {
        "workload": "L",
        "title": "commit to a consumer's poll",
        "transactions_per_s": rate,
        "rows": min(run.count for runs in live.runs.values() for run in runs),
        **live.head(lambda run: run.rows_per_s, lambda run: run.cpu_us),
        "peak_rss_mb": live.most(lambda run: run.peak_rss_mb),
        "latency_ms": {name: {"p50": p50[name], "p95": p95[name], "p99": p99[name]} for name in live.runs},
        "p50_ratio_to_debezium": live.ratios_to_debezium(lambda run: run.p50_ms),
    }


_PERCENTILES: tuple[Callable[[Latency], float], ...] = (
    lambda run: run.p50_ms,
    lambda run: run.p95_ms,
    lambda run: run.p99_ms,
)


def write_plot(path: Path, drained: list[Drained]) -> None:
    """Write the rates as a bar chart, as SVG."""
    bars = [(f"{one.workload} {name}", one.rate(name), name) for one in drained for name in one.runs]
    if not bars:
        return
    most = max(rate for _, rate, _ in bars)
    lines = []
    for row, (label, rate, name) in enumerate(bars):
        top, width = 10 + 24 * row, 560 * rate / most
        colour = "#999" if name.startswith("floor") else "#c60" if name == "debezium" else "#069"
        lines.append(f'<text x="180" y="{top + 13}" text-anchor="end">{label}</text>')
        lines.append(f'<rect x="190" y="{top}" width="{width:.0f}" height="18" fill="{colour}"/>')
        lines.append(f'<text x="{196 + width:.0f}" y="{top + 13}">{rate:,.0f}/s</text>')
    size = f'width="840" height="{20 + 24 * len(bars)}"'
    content = "\n".join(lines)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{content}\n</svg>\n'
    )


def print_json(objects: list[dict[str, Any]]) -> None:
    """Print the last line of the output, with one object per workload run."""
    print(json.dumps(objects), flush=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
