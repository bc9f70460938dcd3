"""Blocks are ranges of rows where the access method of a table is heap. Any other table is read at
once, key or not."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene
from tests.support.delivered import read_delivered

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROW_COUNT = 2000
SETUP = f"""
CREATE FUNCTION public.other_handler(internal) RETURNS table_am_handler LANGUAGE internal AS 'heap_tableam_handler';
CREATE ACCESS METHOD other TYPE TABLE HANDLER public.other_handler;
CREATE TABLE public.heap (id int PRIMARY KEY, n int, t text);
CREATE TABLE public.other (id int PRIMARY KEY, n int, t text) USING other;
CREATE TABLE public.part (id int PRIMARY KEY, n int, t text) PARTITION BY RANGE (id);
CREATE TABLE public.part_heap PARTITION OF public.part FOR VALUES FROM (0) TO (1000);
CREATE TABLE public.part_other PARTITION OF public.part FOR VALUES FROM (1000) TO (100000) USING other;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.heap, public.other, public.part WITH (publish_via_partition_root = true);
"""
TABLES = ("heap", "other", "part")


async def test_a_table_of_another_access_method_is_read_at_once(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    settings = {"snapshot__chunk_bytes": 8192, "snapshot__rows_per_s": ROW_COUNT}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute(SETUP)
        for table in TABLES:
            rows = f"SELECT i, i, repeat('t', 100) FROM generate_series(1, {ROW_COUNT}) i"
            await scene.sql.execute(f"INSERT INTO public.{table} {rows}")
        await scene.gateway.streaming()
        await scene.gateway.logged('"tables_begun"')
        for key in range(1, 1000, 25):
            for table in TABLES:
                await scene.sql.execute(f"UPDATE public.{table} SET n = -n WHERE id = {key}")
        await scene.snapshot_done()
        await scene.judge({f"public.{table}": f"SELECT * FROM public.{table}" for table in TABLES}, keyless=())
        delivered = await asyncio.to_thread(read_delivered, kafka.bootstrap_servers, registry.url, topic_prefix)
        commits = [
            marker.value["manifest"]["snapshot"] for marker in delivered.markers if marker.value["kind"] == "COMMIT"
        ]
        counts = Counter(chunk["name"] for chunk in commits if chunk and chunk["row_count"] > ROW_COUNT // 50)
        told = {event["table"] for event in scene.gateway.events("table_read_in_one_transaction")}
        assert told == {"public.other", "public.part"}
        assert counts["heap"] > 10 and counts["other"] == counts["part"] == 1, counts
