"""`python -m bench`: see `--help`."""

from __future__ import annotations

import argparse
import asyncio

from bench import floor, walgate
from bench.run import Run
from bench.scene import Scene
from bench.workloads import BACKLOGS


async def _measure(names: list[str], repeat: int, scale: float) -> None:
    async with Scene() as scene:
        for name in names:
            async with scene.backlog(BACKLOGS[name], scale) as backlogged:
                for _ in range(repeat):
                    _show(name, "floor", await floor.drain(backlogged, binary=True))
                    _show(name, "walgate", await walgate.drain(backlogged, binary=True))
                    _show(name, "floor_text", await floor.drain(backlogged, binary=False))
                    _show(name, "walgate_text", await walgate.drain(backlogged, binary=False))


def _show(workload: str, contestant: str, run: Run) -> None:
    print(
        f"{workload} {contestant:16} {run.rows_per_s:9.0f}/s gw {run.us_per_row(run.gateway_cpu_s):6.2f} us/row ws {run.us_per_row(run.walsender_cpu_s):5.2f} br {run.us_per_row(run.broker_cpu_s):5.2f} other {run.other_cpu_s:.1f}s of {run.took_s:.1f}s rss {run.peak_rss_mb:.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", nargs="+", default=sorted(BACKLOGS))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    asyncio.run(_measure(arguments.only, arguments.repeat, arguments.scale))


main()
