"""`python -m bench.watched_gateway run`: `walgate run` that measures the CPU time of its monitor,
and of the counting of records.

The event loop is asyncio's, in which each callback, including those of connections, runs in the
context that requested it. A line is written to $BENCH_SPENT_PATH each second: Unix time, CPU
seconds of the main thread for the monitor, and for the counts.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import uvloop

from gateway.cli.main import app
from gateway.observe.status_board import StatusBoard
from gateway.runtime.monitor import Monitor

INTERVAL_S = 1.0
SPENT_PATH = "BENCH_SPENT_PATH"
_monitored = ContextVar("monitored", default=False)
_spent_ns = {"monitor": 0, "counts": 0}


def _timed(name: str, call: Any) -> Any:
    def timed(*arguments: Any) -> Any:
        begun = time.thread_time_ns()
        try:
            return call(*arguments)
        finally:
            _spent_ns[name] += time.thread_time_ns() - begun

    return timed


def _count_callbacks() -> None:
    handles: Any = asyncio.Handle
    plain = handles._run
    timed = _timed("monitor", plain)

    def run(handle: Any) -> None:
        (timed if handle._context.get(_monitored) else plain)(handle)

    handles._run = run


def _count_monitor(path: Path) -> None:
    monitors: Any = Monitor
    plain = monitors.run

    async def run(monitor: Monitor) -> None:
        writing = asyncio.create_task(_write(path))
        _monitored.set(True)
        try:
            await plain(monitor)
        finally:
            writing.cancel()

    monitors.run = run


async def _write(path: Path) -> None:
    with path.open("w", buffering=1) as file:
        while True:
            print(time.time(), *(spent / 1e9 for spent in _spent_ns.values()), file=file)
            await asyncio.sleep(INTERVAL_S)


def main() -> None:
    _count_callbacks()
    _count_monitor(Path(os.environ[SPENT_PATH]))
    StatusBoard.count = _timed("counts", StatusBoard.count)  # type: ignore[method-assign]
    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]
    app()


if __name__ == "__main__":
    main()
