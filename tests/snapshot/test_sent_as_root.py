"""A publication contains partitions, and another one their root with publish_via_partition_root:
PostgreSQL sends all rows as those of the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SETUP = """
CREATE TABLE public.plain (id int PRIMARY KEY); INSERT INTO public.plain VALUES (1);
CREATE TABLE public.big (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE public.low PARTITION OF public.big FOR VALUES FROM (0) TO (10);
CREATE TABLE public.high PARTITION OF public.big FOR VALUES FROM (10) TO (40) PARTITION BY RANGE (id);
CREATE TABLE public.high_1 PARTITION OF public.high FOR VALUES FROM (10) TO (20);
INSERT INTO public.big SELECT i, 0 FROM generate_series(1, 19) i;
CREATE PUBLICATION everything FOR ALL TABLES;
CREATE PUBLICATION middle FOR TABLE public.high WITH (publish_via_partition_root = true);
CREATE PUBLICATION roots FOR TABLE public.big WITH (publish_via_partition_root = true);
"""
BOTH = "everything,middle,roots"
QUERIES = {name: f"SELECT * FROM {name}" for name in ("public.plain", "public.big")}


async def test_only_the_root_is_read(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, source__publications=BOTH) as scene:
        await scene.sql.execute(SETUP)
        await scene.gateway.streaming()
        await scene.snapshot_done()
        await scene.sql.execute("UPDATE public.big SET n = 1")
        target = await scene.judge(QUERIES, keyless=())
        assert {topic.removeprefix(f"{topic_prefix}.") for topic in target.tables} == QUERIES.keys()
        assert target.read_count == {f"{topic_prefix}.public.plain": 1, f"{topic_prefix}.public.big": 19}
        topics = {event["topic"] for event in scene.gateway.events("topic_created")}
        assert topics.isdisjoint(f"{topic_prefix}.public.{name}" for name in ("low", "high", "high_1"))


async def test_partitions_that_were_read_before_are_tables_no_longer(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(
        database, kafka, registry, topic_prefix, tmp_path, source__publications="everything"
    ) as scene:
        await scene.sql.execute(SETUP)
        await scene.gateway.streaming()
        await scene.snapshot_done()
        assert await scene.gateway.stop() == 0
        await scene.gateway.streaming(source__publications=BOTH)
        await scene.snapshot_done(times=2)
        await scene.sql.execute("UPDATE public.big SET n = 1")
        await scene.judge(QUERIES, keyless=())
        assert len({event["table"] for event in scene.gateway.events("table_left")}) == 2
