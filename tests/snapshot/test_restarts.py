"""A snapshot that is interrupted goes on where it was, whatever ends: the server, the gateway, or
the primary for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import TEST_SETTINGS, Database
from tests.snapshot.load import PUBLICATION, Load, set_up
from tests.snapshot.scene import Scene, open_scene
from tests.startup.test_standby_that_is_down import PRIMARY_SETTINGS, STANDBY_SETTINGS
from tests.support.gateway_process import GatewayProcess

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

ROW_COUNT = 2000
SLOWLY = {"source__two_phase": True, "snapshot__chunk_bytes": 250_000, "snapshot__rows_per_s": 300}
PARTS = f"""
CREATE TABLE public.part (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE public.part_0 PARTITION OF public.part FOR VALUES FROM (0) TO (1000);
CREATE TABLE public.part_1 PARTITION OF public.part FOR VALUES FROM (1000) TO (2000);
INSERT INTO public.part SELECT i, i FROM generate_series(1, 1999) i;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.part WITH (publish_via_partition_root = true);
"""


async def _under_load(database: Database, seed: int, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
    load = Load(database, seed=seed, row_count=ROW_COUNT, pause_s=0.3)
    load.start()
    await action()
    await load.finish()


async def _beginnings(scene: Scene) -> dict[str, int]:
    """Of each table with a key, so far: one without has nothing to go on from."""
    return _keyed((await scene.target()).begin_count)


def _keyed(counts: dict[str, int]) -> dict[str, int]:
    return {topic: count for topic, count in counts.items() if not topic.endswith(".keyless")}


async def _goes_on_to_the_end(
    scene: Scene, gateway: GatewayProcess, before: dict[str, int], *, most_begun_again: int = 0
) -> None:
    """What was begun before the interruption is not begun again."""
    target = await scene.judge()
    assert gateway.events("snapshot_resumed")
    now = _keyed(target.begin_count)
    begun_again = {topic: count for topic, count in now.items() if count > before[topic]}
    print(f"begun: {now}; again: {begun_again}; read: {dict(target.read_count)}; stale: {dict(target.stale_count)}")
    assert len(begun_again) <= most_begun_again, begun_again


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_server_that_restarts(
    mode: Literal["fast", "immediate"], kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with Postgres(18, settings=TEST_SETTINGS) as server:
        database = Database(server, "postgres")
        async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **SLOWLY) as scene:
            await set_up(scene.sql, ROW_COUNT)
            await scene.gateway.streaming()
            await _under_load(database, 3, lambda: scene.in_the_middle(ROW_COUNT // 4))
            before = await _beginnings(scene)
            await server.stop(mode)
            await server.start()
            scene.sql = await database.connect()
            await _under_load(database, 4, lambda: scene.snapshot_done(timeout_s=240))
            await _goes_on_to_the_end(scene, scene.gateway, before)


async def test_rows_that_go_without_an_event_while_the_gateway_is_down(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """They were read and sent: the table begins again, and replaces what was there."""
    settings = {"snapshot__chunk_bytes": 8192, "snapshot__rows_per_s": 300}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute(PARTS)
        await scene.gateway.streaming()
        async with asyncio.timeout(60):
            while not (await scene.target()).read_count:
                await asyncio.sleep(0.1)
        await scene.gateway.kill()
        assert not scene.gateway.events("snapshot_done")
        await scene.sql.execute("ALTER TABLE public.part DETACH PARTITION public.part_0")
        await scene.gateway.streaming()
        await scene.snapshot_done()
        await scene.judge({"public.part": "SELECT * FROM public.part"}, keyless=())


async def test_a_gateway_that_stands_by_takes_over(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **SLOWLY) as scene:
        await set_up(scene.sql, ROW_COUNT)
        await scene.gateway.streaming()
        second = GatewayProcess(tmp_path / "second.log", scene.gateway.settings)
        before: dict[str, int] = {}

        async def take_over() -> None:
            await scene.in_the_middle(ROW_COUNT // 4)
            second.start()
            await second.logged('"restarting"')
            before.update(await _beginnings(scene))
            await scene.gateway.kill()
            await second.logged('"snapshot_done"', timeout_s=240)

        try:
            await _under_load(database, 5, take_over)
            # Whoever takes over does not know the keys of a transaction that was prepared before.
            await _goes_on_to_the_end(scene, second, before, most_begun_again=2)
        finally:
            await second.end()


async def test_a_standby_that_becomes_the_primary(
    kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    settings = {**SLOWLY, "source__failover": True}
    async with Postgres(18, settings=PRIMARY_SETTINGS) as primary:
        standby = Postgres(18, settings=STANDBY_SETTINGS, standby_of=primary)
        old, new = Database(primary, "postgres"), Database(standby, "postgres")
        async with standby, open_scene(old, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
            await scene.sql.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
            await scene.sql.execute("SELECT pg_reload_conf()")
            await set_up(scene.sql, ROW_COUNT)
            await scene.gateway.streaming()
            await _under_load(old, 6, lambda: scene.in_the_middle(ROW_COUNT // 4))
            await _slot_is_synced(standby, scene)
            before = await _beginnings(scene)
            await primary.stop("immediate")
            await scene.gateway.kill()
            scene.sql = await new.connect()
            await scene.sql.execute("SELECT pg_promote()")
            await scene.gateway.streaming(source__dsn=new.dsn)
            await _under_load(new, 7, lambda: scene.snapshot_done(timeout_s=240))
            await _goes_on_to_the_end(scene, scene.gateway, before)


async def _slot_is_synced(standby: Postgres, scene: Scene) -> None:
    """On the standby, as far as a new gateway may need it."""
    sql = await standby.connect()
    query = (
        "SELECT synced AND NOT temporary AND invalidation_reason IS NULL FROM pg_replication_slots WHERE slot_name = $1"
    )
    async with asyncio.timeout(120):
        while not await sql.fetchval(query, scene.gateway.settings["source__slot"]):
            await asyncio.sleep(0.2)
    await sql.close()
