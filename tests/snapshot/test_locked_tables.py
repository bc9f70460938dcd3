"""A table or partition that someone has locked keeps no other one from being read, even if both
have row filters."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene
from tests.snapshot.test_holes import command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

NAMES = ("held", "free", "open")
PARTITIONED = """
CREATE TABLE public.parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE public.low PARTITION OF public.parted FOR VALUES FROM (0) TO (10);
CREATE TABLE public.high PARTITION OF public.parted FOR VALUES FROM (10) TO (30);
INSERT INTO public.parted SELECT generate_series(1, 20)
"""


async def test_a_locked_table_with_a_row_filter_is_named_and_the_others_are_read(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """They have begun before: a table that begins later waits for the transaction with the lock."""
    settings = {"snapshot__mode": "on_command"}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        for name in NAMES:
            await scene.sql.execute(
                f"CREATE TABLE public.{name} (id int PRIMARY KEY); INSERT INTO public.{name} SELECT generate_series(1, 20)"
            )
        await scene.sql.execute(PARTITIONED)
        await scene.sql.execute(
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.held WHERE (id > 5), public.free WHERE (id > 5), public.open, "
            "public.parted WITH (publish_via_partition_root)"
        )
        await scene.gateway.streaming()
        await command(scene, "pause")
        await command(scene, "start")
        await scene.gateway.logged('"tables_begun"')
        await scene.delivered()
        await scene.gateway.kill()
        other = await database.connect()
        lock = other.transaction()
        await lock.start()
        await other.execute("LOCK TABLE public.held, public.low IN ACCESS EXCLUSIVE MODE")
        await scene.gateway.streaming()
        await command(scene, "resume")
        await scene.gateway.logged('"table_read"', times=2)
        assert {event["table"] for event in scene.gateway.events("table_read")} == {"public.free", "public.open"}
        await scene.gateway.logged('"tables_locked"', times=2)
        assert scene.gateway.events("tables_locked")[-1]["tables"] == ["public.held"]
        await scene.gateway.logged("55P03")
        locked = [event for event in scene.gateway.events("table_unreadable") if "55P03" in event["reason"]]
        assert {event["table"] for event in locked} == {"public.parted"} and "pg_locks" in locked[0]["hint"]
        await lock.rollback()
        await scene.snapshot_done()
        assert not scene.gateway.events("restarting")
        filtered = "SELECT * FROM public.{} WHERE id > 5"
        queries = {f"public.{name}": filtered.format(name) for name in NAMES[:2]}
        whole = {f"public.{name}": f"SELECT * FROM public.{name}" for name in ("open", "parted")}
        await scene.judge({**queries, **whole}, keyless=())
        assert await scene.gateway.stop() == 0
