"""An endless workload: `python -m gateway.demo.load`, for a database with the shop's tables
(shop.sql), given by libpq's variables.

Each round plays all scenes, and deletes the rows that the import of the round before inserted, so
that the shop does not grow without limit. For a health check, `walgate-load` in the folder for
temporary files is touched after each commit.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

from gateway.demo.buyers import IDS_PER_RUN, Tally
from gateway.demo.scenes import forget_imports
from gateway.demo.workload import connect, run_workload

ROUND_S = 600.0
TRANSACTIONS_PER_S = 20.0
_BEAT_S = 1.0
_BEAT = Path(tempfile.gettempdir()) / "walgate-load"
_LAST_RUN = f"SELECT coalesce(max(id), 0) / {IDS_PER_RUN} FROM customers"


async def load() -> None:
    connection = await connect(None)
    first_run = await connection.fetchval(_LAST_RUN) + 1
    tally = Tally()
    beat = asyncio.create_task(_beat(tally))
    try:
        for run in itertools.count(first_run):
            await forget_imports(connection)
            await run_workload(None, tally, seconds=ROUND_S, seed=1, run=run, transactions_per_s=TRANSACTIONS_PER_S)
    finally:
        beat.cancel()
        await connection.close(timeout=2)


async def _beat(tally: Tally) -> None:
    """Touch a file whenever the shop has committed something."""
    seen = -1
    while True:
        if tally.transactions != seen:
            seen = tally.transactions
            _BEAT.touch()
        await asyncio.sleep(_BEAT_S)


if __name__ == "__main__":
    asyncio.run(load())
