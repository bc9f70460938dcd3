"""Truth under load: whatever happens while tables are read, what a reader makes of the topics is
the source."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.failpoints import FAILPOINTS
from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import Load, set_up
from tests.snapshot.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROW_COUNT = 2000
OF_SNAPSHOTS = [name for name in FAILPOINTS if name.startswith(("chunk_", "snapshot_"))]


@pytest.mark.parametrize("binary", ["auto", "off"])
async def test_rows_that_were_there_arrive_while_every_table_changes(
    binary: str, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    settings = {"source__two_phase": True, "source__binary": binary}
    await _fill_under_load(database, kafka, registry, topic_prefix, tmp_path, settings)


async def test_the_oldest_version_does_the_same(
    database_oldest: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    await _fill_under_load(
        database_oldest, kafka, registry, topic_prefix, tmp_path, {"kafka__delivery": "at_least_once"}
    )


async def _fill_under_load(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path, settings: dict[str, object]
) -> None:
    async with open_scene(database, kafka, registry, prefix, folder, **settings) as scene:
        await set_up(scene.sql, ROW_COUNT)
        load = Load(database, seed=1, row_count=ROW_COUNT)
        await scene.gateway.streaming()
        load.start()
        await scene.snapshot_done()
        await load.finish()
        target = await scene.judge()
        assert target.is_whole_done
        print(f"{load.count} transactions; stale: {dict(target.stale_count)}")
        assert await scene.gateway.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_gateway_that_is_killed_goes_on_where_it_was(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """kill -9 at each failpoint of a snapshot, and at random moments."""
    generator = random.Random(7)
    settings = {"source__two_phase": True, "snapshot__chunk_bytes": 250_000, "snapshot__rows_per_s": 2_000}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await set_up(scene.sql, ROW_COUNT)
        load = Load(database, seed=2, row_count=ROW_COUNT, pause_s=0.3)
        load.start()
        for name in OF_SNAPSHOTS:
            await scene.gateway.streaming(f"{name}:kill:{generator.randrange(1, 4)}")
            assert await scene.gateway.wait() == -9
        for _ in range(3):
            await scene.gateway.streaming()
            await asyncio.sleep(generator.uniform(0.0, 2.0))
            await scene.gateway.kill()
        await scene.gateway.streaming(snapshot__rows_per_s=100_000)
        await scene.snapshot_done()
        await load.finish()
        target = await scene.judge()
        begun = sum(target.begin_count.values())
        print(f"{load.count} transactions, {begun} beginnings; stale: {dict(target.stale_count)}")
        assert len(scene.gateway.events("snapshot_resumed")) >= 3
        assert target.begin_count[f"{topic_prefix}.shop.item"] < 4, "it begins again, where it should go on"
