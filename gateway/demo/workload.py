"""The shop's workload: buyers are active all the time, the scenes are spread over it, and one big
import runs concurrently."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import asyncpg

from gateway.demo.buyers import IDS_PER_BUYER, IDS_PER_RUN, Buyer, Connection, Tally
from gateway.demo.scenes import BULK_ROWS, FIRST_ID, SCENES, Stage, big_import

TABLES = ("customers", "orders", "items", "payments", "carts", "visits")
OLD_ROWS = 200_000
SCENE_COUNT = len(SCENES) + 1
BUYER_COUNT = 4
TRANSACTIONS_PER_S = 120
_BIG_IMPORT_AT = 0.15  # of the workload's time
_FLOW_TIMEOUT_S = 60.0


async def create_shop(dsn: str) -> None:
    """Create the tables, empty, and the publication."""
    await _execute(dsn, "shop.sql")


async def fill_shop(dsn: str) -> None:
    """Insert `OLD_ROWS` rows before the gateway starts."""
    await _execute(dsn, "old_rows.sql")


async def _execute(dsn: str, name: str) -> None:
    connection = await connect(dsn)
    try:
        await connection.execute((Path(__file__).parent / name).read_text())
    finally:
        await connection.close()


async def run_workload(
    dsn: str | None,
    tally: Tally,
    *,
    seconds: float,
    seed: int,
    run: int = 0,
    transactions_per_s: float = TRANSACTIONS_PER_S,
) -> None:
    """Run the workload until the time is over and every scene has been played; the first failure
    ends everything.

    The rows of each buyer and scene depend only on the seed; the number of the buyers' transactions
    depends on the time. A shop that is opened again needs another `run`. Without a `dsn`, libpq's
    variables give the database.
    """
    started_at = asyncio.get_running_loop().time()
    first_id = run * IDS_PER_RUN
    scenes_done = asyncio.Event()
    connections = [await connect(dsn) for _ in range(BUYER_COUNT + 2)]
    try:
        async with asyncio.TaskGroup() as group:
            for number, connection in enumerate(connections[:BUYER_COUNT], start=1):
                buyer = Buyer(
                    connection, random.Random(f"{seed}/{run}/buyer {number}"), first_id + number * IDS_PER_BUYER
                )
                interval_s = BUYER_COUNT / transactions_per_s
                group.create_task(_buy(buyer, tally, interval_s, started_at + seconds, scenes_done))
            stage, import_stage = (
                Stage(connection, random.Random(f"{seed}/{run}/{name}"), tally, first_id + FIRST_ID)
                for name, connection in zip(("scenes", "import"), connections[BUYER_COUNT:], strict=True)
            )
            import_stage.last_id += IDS_PER_BUYER
            imported = group.create_task(_import(import_stage, started_at + seconds * _BIG_IMPORT_AT))
            await _play(stage, started_at, seconds)
            await imported
            scenes_done.set()
    finally:
        await asyncio.gather(*(connection.close(timeout=2) for connection in connections), return_exceptions=True)


async def _buy(buyer: Buyer, tally: Tally, interval_s: float, end_at: float, scenes_done: asyncio.Event) -> None:
    clock = asyncio.get_running_loop().time
    next_at = clock()
    while clock() < end_at or not scenes_done.is_set():
        await buyer.buy(tally)
        # A buyer that had to wait (for DDL or the CPU) makes up for one second at most.
        next_at = max(next_at + interval_s, clock() - 1)
        await asyncio.sleep(next_at - clock())


async def _play(stage: Stage, started_at: float, seconds: float) -> None:
    for index, (name, scene) in enumerate(SCENES, start=1):
        await _sleep_until(started_at + seconds * index / (len(SCENES) + 1))
        await scene(stage)
        stage.tally.done.append(name)


async def _import(stage: Stage, start_at: float) -> None:
    await _sleep_until(start_at)
    await big_import(stage)
    stage.tally.done.append(f"one transaction of {BULK_ROWS:,} rows")


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(moment - asyncio.get_running_loop().time())


async def connect(dsn: str | None) -> Connection:
    return await asyncpg.connect(
        dsn, command_timeout=_FLOW_TIMEOUT_S, server_settings={"application_name": "walgate demo"}
    )
