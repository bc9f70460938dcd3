"""`python -m bench.watched --scale 4`: the cost of being watched under load, by the clocks of the
threads.

A difference of whole runs would be lost in their noise. Prometheus scrapes every 15 s, `walgate
status --watch` requests every 2 s, and one live page is open. The cost is the sum of three parts:
all threads but the first, the monitor's callbacks, and the counting of records.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import walgate
from bench.cost import cpu_s, other_threads_cpu_s, peak_rss_mb
from bench.scene import Backlogged, Scene
from bench.watched_gateway import SPENT_PATH
from bench.watching import HEARTBEAT_S, watching
from bench.workloads import BACKLOGS
from gateway.local.ports import free_port

SCRAPE_S = 15.0
SETTLED_S = 2.0
"""Seconds after the start until imports, connections and schemas are done."""


def spent(path: Path) -> tuple[float, ...]:
    """Return the figures of the last complete line."""
    *_, last = path.read_text().rpartition("\n")[0].splitlines()
    return tuple(map(float, last.split()))


async def measure(backlogged: Backlogged, folder: Path) -> dict[str, Any]:
    sql, port, path = await backlogged.connect(), free_port(), folder / "spent"
    settings = {
        "WALGATE_HTTP__PORT": str(port),
        "WALGATE_SOURCE__HEARTBEAT_INTERVAL_S": str(HEARTBEAT_S),
        SPENT_PATH: str(path),
    }
    async with backlogged.slot_copy(sql) as slot:
        running = walgate.running(backlogged.parts, backlogged.dsn, slot, module="bench.watched_gateway", more=settings)
        async with running as gateway, watching(port, SCRAPE_S) as watched:
            pid = gateway.process.pid
            await asyncio.sleep(SETTLED_S)
            before, threads, process = spent(path), other_threads_cpu_s(pid), cpu_s(pid)
            await walgate.past(sql, gateway, backlogged.last_lsn)
            after, threads, process = spent(path), other_threads_cpu_s(pid) - threads, cpu_s(pid) - process
            took_s, rss_mb = after[0] - before[0], peak_rss_mb(pid)
            streamed_s = time.time() - gateway.streams_since_s
    await sql.close()
    shares = {
        "threads": threads / took_s,
        "monitor": (after[1] - before[1]) / took_s,
        "counts": (after[2] - before[2]) / took_s,
    }
    return {
        "rows_per_s": round(backlogged.changes / streamed_s),
        "seconds": round(took_s, 1),
        "core_percent": {
            name: round(100 * share, 3) for name, share in {**shares, "all": sum(shares.values())}.items()
        },
        "gateway_core_percent": round(100 * process / took_s, 1),
        "peak_rss_mb": round(rss_mb, 1),
        "watched": vars(watched),
        "load_average": os.getloadavg()[0],
    }


async def main(scale: float, repeat: int) -> None:
    async with Scene() as scene, scene.backlog(BACKLOGS["W1"], scale) as backlogged:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(repeat):
                print(json.dumps(await measure(backlogged, Path(folder))), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("bench.watched")
    parser.add_argument("--scale", type=float, default=4.0, help="share of W1's million rows")
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.scale, arguments.repeat))
