"""The program `python -m bench`, which measures each workload with each contestant."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import debezium, floor, large, latency, report, snapshot, walgate
from bench.large import Large
from bench.latency import Latency
from bench.run import Run
from bench.scene import Scene
from bench.workloads import BACKLOGS, LARGE_ROWS
from gateway.local.artifacts import fetched

CONTESTANTS = (
    *("floor", "walgate", "walgate_watched", "walgate_compiled", "floor_text", "walgate_text"),
    *("walgate_whole", "walgate_debezium", "walgate_debezium_compiled", "debezium"),
)
WORKLOADS = (*sorted([*BACKLOGS, "W3"]), "L", "S", "SL")
LATENCY_RATES = (500, 2000)
LATENCY_S = 30.0


async def _drain(scene: Scene, name: str, arguments: argparse.Namespace, console: Console) -> report.Drained:
    """Drain the workload with each contestant in turn, `--repeat` times."""
    backlog = BACKLOGS[name]
    console.print(f"{name}: {backlog.title}: making {backlog.changes(arguments.scale):,} changes", highlight=False)
    drained = report.Drained(name, backlog.title)
    async with scene.backlog(backlog, arguments.scale) as backlogged:
        for repetition in range(-arguments.warm_up, arguments.repeat):
            for contestant in arguments.contestants:
                binary = not contestant.endswith("_text")
                if contestant.startswith("floor"):
                    run = await floor.drain(backlogged, binary=binary)
                elif contestant == "debezium":
                    run = await debezium.drain(backlogged)
                else:
                    compiled = arguments.compiled if contestant.endswith("_compiled") else None
                    watched = contestant == "walgate_watched"
                    more = _settings(contestant)
                    run = await walgate.drain(backlogged, binary=binary, compiled=compiled, more=more, watched=watched)
                _count(drained, contestant, run, repetition, console)
    drained.print(console)
    return drained


def _count(drained: report.Drained, contestant: str, run: Run, repetition: int, console: Console) -> None:
    """Print a run, and add it to the others unless it only warmed up (a negative repetition)."""
    if repetition >= 0:
        drained.add(contestant, run)
    aside = "" if repetition >= 0 else ", not counted"
    console.print(f"  {contestant}: {run.rows_per_s:,.0f} rows/s{aside}", highlight=False)


def _settings(contestant: str) -> dict[str, str]:
    if contestant.startswith("walgate_debezium"):
        return walgate.DEBEZIUM
    return walgate.WHOLE if contestant == "walgate_whole" else {}


async def _large(scene: Scene, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    live = report.Live[Large]()
    rows = round(LARGE_ROWS * arguments.scale)
    for _ in range(arguments.repeat):
        for name, compiled in _builds(arguments):
            live.add(name, await large.measure(scene, rows, compiled=compiled))
        if "debezium" in arguments.contestants:
            live.add("debezium", await large.measure_debezium(scene, rows))
    report.print_large(console, live)
    return report.large_json(live)


async def _snapshot(scene: Scene, arguments: argparse.Namespace, console: Console) -> report.Drained:
    """Read one table with each contestant in turn, `--repeat` times."""
    rows = round(snapshot.ROWS * arguments.scale)
    console.print(f"S: {snapshot.TITLE}: making {rows:,} rows", highlight=False)
    drained = report.Drained("S", snapshot.TITLE)
    contestants = [name for name in arguments.contestants if name in _READERS]
    async with snapshot.filled(scene, rows) as (database, sql):
        for repetition in range(-arguments.warm_up, arguments.repeat):
            for contestant in contestants:
                if contestant == "floor":
                    run = await snapshot.floor(sql, rows)
                elif contestant == "debezium":
                    run = await snapshot.fill_by_debezium(scene, sql, rows)
                else:
                    binary, compiled = not contestant.endswith("_text"), contestant == "walgate_compiled"
                    build = arguments.compiled if compiled else None
                    run = await snapshot.fill(scene, database, sql, rows, binary=binary, compiled=build)
                _count(drained, contestant, run, repetition, console)
    drained.print(console)
    return drained


_READERS = ("floor", "walgate", "walgate_compiled", "walgate_text", "debezium")


async def _snapshot_latency(scene: Scene, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    live = report.Live[Latency]()
    rows = round(snapshot.ROWS * arguments.scale)
    for _ in range(arguments.repeat):
        for name, compiled in _builds(arguments):
            live.add(name, await snapshot.live(scene, rows, arguments.seconds, compiled=compiled))
    report.print_latency(console, snapshot.LIVE_RATE, live)
    return {**report.latency_json(snapshot.LIVE_RATE, live), "workload": "SL", "title": "L while a table is read"}


async def _latency(scene: Scene, rate: int, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    live = report.Live[Latency]()
    for _ in range(arguments.repeat):
        for name, compiled in _builds(arguments):
            for delivery in ("exactly_once", "at_least_once"):
                more = {"WALGATE_KAFKA__DELIVERY": delivery}
                run = await latency.measure(scene, rate, arguments.seconds, compiled=compiled, more=more)
                live.add(f"{name} {delivery}", run)
        for name in ("walgate_whole", "walgate_debezium"):
            if name in arguments.contestants:
                live.add(name, await latency.measure(scene, rate, arguments.seconds, more=_settings(name)))
        if "debezium" in arguments.contestants:
            live.add("debezium", await latency.measure_debezium(scene, rate, arguments.seconds))
    report.print_latency(console, rate, live)
    return report.latency_json(rate, live)


def _builds(arguments: argparse.Namespace) -> list[tuple[str, Path | None]]:
    builds = {"walgate": None, "walgate_compiled": arguments.compiled}
    return [(name, builds[name]) for name in builds if name in arguments.contestants]


async def _measure(arguments: argparse.Namespace) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=120)
    objects: list[dict[str, Any]] = []
    drained: list[report.Drained] = []
    if "debezium" in arguments.contestants:
        await fetched(debezium.ARTIFACTS)
    async with Scene() as scene:
        for name in arguments.only:
            if name == "W3":
                objects.append(await _large(scene, arguments, console))
            elif name == "S":
                drained.append(await _snapshot(scene, arguments, console))
                objects.append(drained[-1].as_json())
            elif name == "SL":
                objects.append(await _snapshot_latency(scene, arguments, console))
            elif name == "L":
                objects += [await _latency(scene, rate, arguments, console) for rate in LATENCY_RATES]
            else:
                drained.append(await _drain(scene, name, arguments, console))
                objects.append(drained[-1].as_json())
    report.write_plot(arguments.plot, drained)
    report.print_json(objects)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description="Measure the gateway against the walsender's own pace.")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--repeat", type=int, default=3, help="repetitions; figures are their median")
    parser.add_argument("--warm-up", type=int, default=0, help="repetitions before, not counted: a new broker compiles")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the workloads' sizes")
    parser.add_argument("--seconds", type=float, default=LATENCY_S, help="of each latency run after its warm-up")
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, default=["floor", "walgate", "floor_text", "walgate_text"]
    )
    parser.add_argument("--compiled", type=Path, help="folder of a compiled build; adds walgate_compiled")
    parser.add_argument("--plot", type=Path, default=Path("bench.svg"))
    arguments = parser.parse_args()
    if arguments.compiled is not None and "walgate_compiled" not in arguments.contestants:
        arguments.contestants.insert(2, "walgate_compiled")
    asyncio.run(_until_interrupted(arguments))


async def _until_interrupted(arguments: argparse.Namespace) -> None:
    """Run until Ctrl-C, which ends the servers, and then the process: its threads may wait for
    records that will never be sent."""
    try:
        await _measure(arguments)
    except asyncio.CancelledError:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(128 + signal.SIGINT)
