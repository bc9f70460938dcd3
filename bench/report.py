"""Figures of several runs -> a table, a plot, and one JSON object a workload run.

Ratios are taken within one repetition, where the contestants ran one after the other, and then their median: what the
computer did beside them weighs the same on both sides of a ratio, more or less.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.large import Large
from bench.latency import Latency
from bench.run import Run

FLOORS = {"walgate": "floor", "walgate_text": "floor_text", "walgate_compiled": "floor"}
"""Which floor a contestant is held against."""


@dataclass
class Drained:
    """All runs of one workload: contestant -> one run a repetition."""

    workload: str
    title: str
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def add(self, contestant: str, run: Run) -> None:
        self.runs.setdefault(contestant, []).append(run)

    def rate(self, contestant: str) -> float:
        return median(run.rows_per_s for run in self.runs[contestant])

    def ratio(self, contestant: str, other: str) -> float | None:
        """Median of the repetitions' ratios of rates."""
        if contestant not in self.runs or other not in self.runs:
            return None
        pairs = zip(self.runs[contestant], self.runs[other], strict=False)
        return median(one.rows_per_s / two.rows_per_s for one, two in pairs)

    def cpu_us(self, contestant: str, part: str) -> float:
        """Of `gateway`, `walsender` or `broker`, a row."""
        return median(run.us_per_row(getattr(run, f"{part}_cpu_s")) for run in self.runs[contestant])

    def peak_rss_mb(self, contestant: str) -> float:
        return max(run.peak_rss_mb for run in self.runs[contestant])

    def as_json(self) -> dict[str, Any]:
        ours = [name for name in self.runs if name in FLOORS]
        return {
            "workload": self.workload,
            "title": self.title,
            "rows": next(iter(self.runs.values()))[0].rows,
            "repeat": max(map(len, self.runs.values())),
            "rows_per_s": {name: round(self.rate(name)) for name in self.runs},
            "ratio_to_floor": {name: _rounded(self.ratio(name, FLOORS[name])) for name in ours},
            "ratio_to_debezium": {name: _rounded(self.ratio(name, "debezium")) for name in ours},
            "gateway_cpu_us_per_row": {name: round(self.cpu_us(name, "gateway"), 2) for name in ours},
            "walsender_cpu_us_per_row": {name: round(self.cpu_us(name, "walsender"), 2) for name in self.runs},
            "broker_cpu_us_per_row": {name: round(self.cpu_us(name, "broker"), 2) for name in ours},
            "peak_rss_mb": {name: round(self.peak_rss_mb(name)) for name in self.runs if not name.startswith("floor")},
            "other_cpu_s": {name: round(median(r.other_cpu_s for r in runs), 1) for name, runs in self.runs.items()},
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


def print_large(console: Console, name: str, large: Large) -> None:
    table = Table("", "", title=f"W3: one transaction of {large.rows:,} rows, live ({name})")
    table.add_row("INSERT took", f"{large.insert_s:.1f} s")
    table.add_row("first row readable, from COMMIT", f"{large.first_readable_s:+.1f} s")
    table.add_row("last row readable, from COMMIT", f"{large.last_readable_s:+.1f} s")
    table.add_row("gateway CPU a row", f"{large.gateway_cpu_us_per_row:.2f} us")
    table.add_row("peak memory", f"{large.peak_rss_mb:.0f} MB")
    table.add_row("spilled / streamed by PostgreSQL", f"{large.spill_bytes:,} / {large.stream_bytes:,} bytes")
    console.print(table)


def large_json(name: str, large: Large) -> dict[str, Any]:
    return {
        "workload": "W3",
        "contestant": name,
        "rows": large.rows,
        "rows_per_s": {name: round(large.rows_per_s)},
        "insert_s": round(large.insert_s, 2),
        "first_readable_after_commit_s": round(large.first_readable_s, 2),
        "last_readable_after_commit_s": round(large.last_readable_s, 2),
        "gateway_cpu_us_per_row": {name: round(large.gateway_cpu_us_per_row, 2)},
        "peak_rss_mb": {name: round(large.peak_rss_mb)},
        "spill_bytes": large.spill_bytes,
        "stream_bytes": large.stream_bytes,
    }


def print_latencies(console: Console, latencies: dict[str, Latency]) -> None:
    table = Table(
        "", "tx/s", "p50 ms", "p95 ms", "p99 ms", "gateway us/tx", "peak MB", title="L: commit to a consumer's poll"
    )
    for name, one in latencies.items():
        figures = (one.p50_ms, one.p95_ms, one.p99_ms)
        table.add_row(
            name, str(one.rate), *(f"{ms:.1f}" for ms in figures), f"{one.gateway_cpu_us:.0f}", f"{one.peak_rss_mb:.0f}"
        )
    console.print(table)


def latency_json(name: str, latency: Latency) -> dict[str, Any]:
    return {
        "workload": "L",
        "contestant": name,
        "transactions_per_s": latency.rate,
        "rows": latency.count,
        "latency_ms": {
            "p50": round(latency.p50_ms, 1),
            "p95": round(latency.p95_ms, 1),
            "p99": round(latency.p99_ms, 1),
        },
        "gateway_cpu_us_per_row": {name: round(latency.gateway_cpu_us, 1)},
        "peak_rss_mb": {name: round(latency.peak_rss_mb)},
    }


def write_plot(path: Path, drained: list[Drained]) -> None:
    """Bars of the rates, as SVG."""
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
    """The last line of the output: one object a workload run."""
    print(json.dumps(objects), flush=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
