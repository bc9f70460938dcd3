"""What the benchmark's last line holds, whatever was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.large import Large
from bench.latency import Latency, debezium_commit_time, summary
from bench.run import Run, Turns
from gateway.pgoutput.tuple_data import Text
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts
from tests.debezium.test_dialect import TIME, Dialect, new

COMMON = {
    "workload",
    "title",
    "rows",
    "repeat",
    "rows_per_s",
    "ratio_to_floor",
    "ratio_to_debezium",
    "gateway_cpu_us_per_row",
    "peak_rss_mb",
}


def drained(*, debezium: bool = True) -> report.Drained:
    """Three repetitions of 1,000 rows, the second of them disturbed."""
    made = report.Drained("W1", "inserts")
    for slow in (1, 4, 1):
        made.add("floor", Run(1000, 1.0 * slow))
        made.add(
            "walgate", Run(1000, 2.0 * slow, gateway_cpu_s=0.004 * slow, broker_cpu_s=0.001, peak_rss_mb=50 * slow)
        )
        if debezium:
            made.add("debezium", Run(1000, 10.0 * slow, gateway_cpu_s=0.05, peak_rss_mb=2000))
    return made


def test_the_cost_of_being_watched_is_that_of_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    made = report.Drained("W1", "inserts")
    for slow in (1, 4, 1):
        made.add("walgate", Run(1000, 2.0 * slow, gateway_cpu_s=1.0 * slow, peak_rss_mb=50))
        made.add(
            "walgate_watched",
            Run(1000, 2.0 * slow, gateway_cpu_s=1.02 * slow, peak_rss_mb=52.5, threads_cpu_s=0.01 * slow),
        )
    found = made.as_json()["watching"]
    assert found == {"cpu_us_per_row": 20.0, "cpu_share": 0.01, "threads_cpu_share": 0.005, "peak_rss_mb": 2.5}
    made.print(Console(width=160))
    assert "+1.0% of a core, of which 0.50% in the threads" in capsys.readouterr().out
    assert drained().watching() is None and "watching" not in drained().as_json()


def large(last_s: float, first_s: float = -1.0) -> Large:
    return Large(1000, 2.0, first_s, last_s, 5.0, 90.0, 0, 4096)


def latency(p50_ms: float) -> Latency:
    return Latency(500, 900, p50_ms, 2 * p50_ms, 3 * p50_ms, 80.0, 70.0, 499.0)


def live_large() -> report.Live[Large]:
    live = report.Live[Large]()
    for last_s in (3.0, 2.0, 4.0):
        live.add("walgate", large(last_s))
        live.add("debezium", large(10 * last_s, first_s=1.0))
    return live


def live_latency() -> report.Live[Latency]:
    live = report.Live[Latency]()
    live.add("walgate exactly_once", latency(8.0))
    live.add("debezium", latency(16.0))
    return live


def test_every_workload_has_the_common_keys() -> None:
    objects = [drained().as_json(), report.large_json(live_large()), report.latency_json(500, live_latency())]
    for one in objects:
        assert one.keys() >= COMMON
        assert set(one["gateway_cpu_us_per_row"]) == set(one["peak_rss_mb"])


def test_the_figures_are_medians_and_memory_is_the_most() -> None:
    one = drained().as_json()
    assert one["rows_per_s"] == {"floor": 1000, "walgate": 500, "debezium": 100}
    assert one["ratio_to_floor"] == {"walgate": 0.5}
    assert one["ratio_to_debezium"] == {"walgate": 5.0}
    assert one["gateway_cpu_us_per_row"] == {"walgate": 4.0, "debezium": 50.0}
    assert one["peak_rss_mb"] == {"walgate": 200, "debezium": 2000}


def test_a_ratio_compares_runs_of_one_repetition() -> None:
    made = report.Drained("W1", "inserts")
    for floor_s, walgate_s in ((1.0, 2.0), (8.0, 10.0), (3.0, 3.0)):
        made.add("floor", Run(1000, floor_s))
        made.add("walgate", Run(1000, walgate_s))
    assert made.ratio("walgate", "floor") == pytest.approx(0.8)


def test_without_debezium_its_ratios_are_null() -> None:
    assert drained(debezium=False).as_json()["ratio_to_debezium"] == {"walgate": None}
    live = report.Live[Latency]()
    live.add("walgate exactly_once", latency(8.0))
    assert report.latency_json(500, live)["p50_ratio_to_debezium"] == {"walgate exactly_once": None}


def test_a_large_transaction_is_held_against_debezium_by_its_last_row() -> None:
    one = report.large_json(live_large())
    assert one["last_readable_after_commit_s"] == {"walgate": 3.0, "debezium": 30.0}
    assert one["last_readable_ratio_to_debezium"] == {"walgate": 0.1}
    assert one["first_readable_after_commit_s"] == {"walgate": -1.0, "debezium": 1.0}
    assert one["spill_bytes"] == {"walgate": 0, "debezium": 0}


def test_latency_has_percentiles_for_each_contestant() -> None:
    one = report.latency_json(500, live_latency())
    assert one["latency_ms"]["walgate exactly_once"] == {"p50": 8.0, "p95": 16.0, "p99": 24.0}
    assert one["p50_ratio_to_debezium"] == {"walgate exactly_once": 0.5}


def test_a_latency_leaves_the_warm_up_out() -> None:
    seen = [(at / 100, 1.0 if at < 500 else at / 100_000) for at in range(1000)]
    found = summary(100, seen, 4.0, used_s=0.1, rss_mb=60.0)
    assert (found.count, found.rows_per_s) == (400, 100.0)
    assert found.p50_ms == pytest.approx(8.0, abs=0.02)
    assert found.cpu_us == pytest.approx(100.0)


def test_many_tables_are_held_against_one() -> None:
    turns = Turns(500_000, 1000, one_table_rows_per_s=1e5, many_tables_s=8.0, later_rounds_rows_per_s=1e5)
    made = report.Drained("T1000", "in turn")
    made.add("floor", Run(1_000_001, 6.0))
    made.add("walgate", Run(1_000_001, 13.0, turns=turns))
    one = made.as_json()
    assert one["one_table_rows_per_s"] == {"walgate": 100_000}
    assert one["ratio_to_one_table"] == {"walgate": 0.62}
    assert one["later_ratio_to_one_table"] == {"walgate": 1.0}
    assert one["ms_per_new_table"] == {"walgate": 3.0}


def test_the_last_line_is_a_list_of_objects(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=120)
    drained().print(console)
    report.print_large(console, live_large())
    report.print_latency(console, 500, live_latency())
    report.print_json([drained().as_json()])
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])[0]["workload"] == "W1"
    assert any("debezium" in line and "100" in line for line in lines[:-1])


def test_the_plot_has_a_bar_for_each_contestant(tmp_path: Path) -> None:
    report.write_plot(tmp_path / "bench.svg", [drained()])
    plot = (tmp_path / "bench.svg").read_text()
    assert plot.count("<rect") == 1 + 3
    assert all(label in plot for label in ("W1 floor", "W1 walgate", "W1 debezium", "1,000/s"))


def test_the_commit_time_of_a_row_in_debeziums_dialect_is_found_by_hand() -> None:
    names = ["id", "at", "note"]
    facts = [TypeFacts(20, "pg_catalog", "int8", Kind.BASE), TypeFacts(1184, "pg_catalog", "timestamptz", Kind.BASE)]
    facts.append(TypeFacts(25, "pg_catalog", "text", Kind.BASE))
    columns = tuple(ColumnDescription(name, each, -1, name == "id") for name, each in zip(names, facts, strict=True))
    described = RelationDescription(16400, "public", "bench", ReplicaIdentity.DEFAULT, columns)
    dialect = Dialect(description=described)
    dialect.begin()
    dialect.row(b"I", new(Text(b"700"), Text(b"2026-01-01 00:00:00+00"), Text(b"a row of its own")))
    ((_, _, value),) = dialect.records
    assert value is not None and debezium_commit_time(value) == TIME / 1e6
