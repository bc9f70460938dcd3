"""A gap within a snapshot, and a snapshot that is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import Scene, open_scene, tables_ahead
from tests.support.delivered import read_delivered
from tests.support.slots import until_free
from tests.support.written import walgate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROW_COUNT = 4000
SLOWLY = {"snapshot__chunk_bytes": 20_000, "snapshot__rows_per_s": 500}
SETUP = f"""
CREATE TABLE public.t (id int PRIMARY KEY, v text);
INSERT INTO public.t SELECT i, repeat('v', 50) FROM generate_series(1, {ROW_COUNT}) i;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.t
"""


async def accept_gap(scene: Scene) -> None:
    """The slot is lost while the gateway is down, and somebody accepts what that costs."""
    slot = str(scene.gateway.settings["source__slot"])
    await until_free(scene.sql, slot)
    await scene.sql.execute("SELECT pg_drop_replication_slot($1)", slot)
    await walgate(scene.gateway, "accept-gap")


async def test_what_was_read_before_a_gap_is_read_again(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Rows of the first chunks change and go within the gap, without an event."""
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **SLOWLY) as scene:
        sql, gateway = scene.sql, scene.gateway
        await sql.execute(SETUP)
        await gateway.streaming()
        await scene.in_the_middle(ROW_COUNT // 4)
        await gateway.kill()
        await sql.execute(
            "UPDATE public.t SET v = 'lost' WHERE id <= 300; DELETE FROM public.t WHERE id BETWEEN 301 AND 400"
        )
        await accept_gap(scene)
        await gateway.streaming(snapshot__rows_per_s=100_000)
        await scene.snapshot_done()
        await scene.judge({"public.t": "SELECT * FROM public.t"}, keyless=())
        assert await gateway.stop() == 0


async def test_rows_of_a_table_that_waits_are_not_kept_when_they_go_within_a_gap(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, source__check_interval_s=1) as scene:
        sql, gateway = scene.sql, scene.gateway
        await sql.execute(f"CREATE TABLE public.t (id int PRIMARY KEY, v text); CREATE PUBLICATION {PUBLICATION}")
        await gateway.streaming()
        async with tables_ahead(scene):
            await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.t, TABLES IN SCHEMA ahead")
            await gateway.logged('"tables_added"')
            await sql.execute("INSERT INTO public.t VALUES (1, 'gone'), (2, 'stays')")
            await scene.delivered()
            assert f"{topic_prefix}.public.t" not in (await scene.target()).begin_count
            await gateway.kill()
        await sql.execute("DELETE FROM public.t WHERE id = 1")
        await accept_gap(scene)
        await gateway.streaming()
        await scene.snapshot_done()
        await scene.judge({"public.t": "SELECT * FROM public.t"}, keyless=())
        assert await gateway.stop() == 0


async def test_a_snapshot_that_is_cancelled_ends_for_its_readers(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **SLOWLY) as scene:
        await scene.sql.execute(SETUP)
        await scene.gateway.streaming()
        await scene.in_the_middle(ROW_COUNT // 4)
        await walgate(scene.gateway, "snapshot", "cancel")
        await scene.gateway.logged('"command"')
        await scene.sql.execute("UPDATE public.t SET v = 'behind' WHERE id = 1")
        await scene.delivered()
        delivered = await asyncio.to_thread(read_delivered, kafka.bootstrap_servers, registry.url, topic_prefix)
        bounds = [
            (marker.value["kind"], marker.value["manifest"]["snapshot"]["relation_oid"] != 0)
            for marker in delivered.markers
            if marker.value["kind"].startswith("SNAPSHOT")
        ]
        assert bounds == [("SNAPSHOT_BEGIN", False), ("SNAPSHOT_BEGIN", True), ("SNAPSHOT_END", False)]
        assert await scene.gateway.stop() == 0
