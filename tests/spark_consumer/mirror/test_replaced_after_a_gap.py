"""A gap that is accepted, and the snapshots that repair it, in a mirror as `walgate mirror` runs it
by default."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession

from gateway.local import Kafka, Registry
from spark_consumer.mirror import versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry as SchemaRegistry
from spark_consumer.reader.registry import SchemaCache
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.slots import until_free
from tests.support.written import walgate

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WAIT_S = 120
TABLES = ("public.items", "public.others", "public.calls")
SETUP = """
CREATE TABLE public.items (id int PRIMARY KEY, v text);
CREATE TABLE public.others (region int, code text, n int, PRIMARY KEY (region, code));
CREATE TABLE public.calls (page text, seconds int);
ALTER TABLE public.calls REPLICA IDENTITY FULL;
INSERT INTO public.items SELECT n, 'first' FROM generate_series(1, 50) n;
INSERT INTO public.others SELECT n % 3, 'code ' || n, n FROM generate_series(1, 50) n;
INSERT INTO public.calls SELECT 'page ' || n, n FROM generate_series(1, 5) n;
CREATE PUBLICATION walgate FOR ALL TABLES;
"""
LOST = """
DELETE FROM public.items WHERE id IN (3, 30, 50);
UPDATE public.items SET v = 'lost' WHERE id = 7;
INSERT INTO public.items VALUES (51, 'lost');
DELETE FROM public.others WHERE region = 1;
DELETE FROM public.calls WHERE seconds = 2;
"""


@dataclass
class Scene:
    sql: asyncpg.Connection
    gateway: GatewayProcess
    spark: SparkSession
    path: Path
    mirror: AppendingMirror
    reports: list[BatchReport] = field(default_factory=list)

    async def snapshot(self, *words: str) -> None:
        done = len(self.gateway.events("snapshot_done"))
        await walgate(self.gateway, "snapshot", "start", *words)
        await self.gateway.logged('"snapshot_done"', times=done + 1, timeout_s=WAIT_S)

    async def merged(self) -> versions.MirrorVersion:
        """The mirror behind everything that was committed before."""
        lsn = await self.sql.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        await self.sql.execute("UPDATE public.items SET v = v || '.' WHERE id = 1")
        async with asyncio.timeout(WAIT_S):
            while max((report.commit_lsn for report in self.reports if not report.is_merge), default=0) <= lsn:
                await asyncio.sleep(0.1)
            self.mirror._merges.thread.want(at_once=True)
            while max((report.commit_lsn for report in self.reports if report.is_merge), default=0) <= lsn:
                await asyncio.sleep(0.1)
        return await asyncio.to_thread(versions.read, self.spark, str(self.path))

    async def is_equal(self, version: versions.MirrorVersion, name: str) -> bool:
        """By value, of each row."""
        truth = sorted(tuple(row) for row in await self.sql.fetch(f"SELECT * FROM {name}"))
        rows = await asyncio.to_thread(version[name].drop("_special").toArrow)
        return sorted(tuple(row.values()) for row in rows.to_pylist()) == truth

    def notes(self) -> list[str]:
        return [note for report in self.reports for note in report.notes]


@asynccontextmanager
async def open_scene(
    spark: SparkSession, database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path
) -> AsyncIterator[Scene]:
    settings: dict[str, object] = {
        "source__dsn": database.dsn,
        "source__slot": f"slot_{prefix}",
        "source__publications": "walgate",
        "source__check_interval_s": 1,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "registry__url": registry.url,
        "snapshot__mode": "initial",
    }
    reports: list[BatchReport] = []
    mirror = AppendingMirror(str(folder / "mirror"), SchemaCache(SchemaRegistry({"url": registry.url})), reports.append)
    gateway = GatewayProcess(folder / "gateway.log", settings)
    scene = Scene(await database.connect(), gateway, spark, folder / "mirror", mirror, reports)
    await scene.sql.execute(SETUP)
    query: Any = None
    try:
        await gateway.streaming()
        await gateway.logged('"snapshot_done"', timeout_s=WAIT_S)
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "registry.url": registry.url,
            "prefix": prefix,
            "includeMarkers": "true",
        }
        frame = spark.readStream.format("walgate").options(**options).load()
        writer = frame.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", f"{scene.path}/checkpoint")
        query = writer.trigger(processingTime="0 seconds").start()
        yield scene
        assert query.exception() is None
    except BaseException:
        print(gateway.log_tail(40), *reports[-20:], query and query.exception(), sep="\n")
        raise
    finally:
        if query is not None:
            await asyncio.to_thread(query.stop)
        await asyncio.to_thread(mirror.stop)
        await gateway.end()


async def test_rows_that_went_in_a_gap_go_from_the_mirror_with_the_end_of_each_snapshot(
    spark: SparkSession, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Of one table, the last of its snapshot; then of all; and a verification finds them all, and
    all equal."""
    async with open_scene(spark, database, kafka, registry, topic_prefix, tmp_path) as scene:
        before = await scene.merged()
        assert not before.stale and set(before) == set(TABLES)
        await scene.gateway.kill()
        await scene.sql.execute(LOST)
        slot = str(scene.gateway.settings["source__slot"])
        await until_free(scene.sql, slot)
        await scene.sql.execute("SELECT pg_drop_replication_slot($1)", slot)
        await walgate(scene.gateway, "accept-gap")
        await scene.gateway.streaming()
        assert set((await scene.merged()).stale) == set(TABLES)

        await scene.snapshot("public.items")
        version = await scene.merged()
        assert await scene.is_equal(version, "public.items")
        assert set(version.stale) == {"public.others", "public.calls"}

        await scene.snapshot()
        version = await scene.merged()
        assert await scene.is_equal(version, "public.items") and await scene.is_equal(version, "public.others")
        assert not version.stale
        assert not [note for note in scene.notes() if "is over before" in note or "has not read" in note]

        said = await walgate(scene.gateway, "verify", "--mirror", str(scene.path), "--json", "--timeout", str(WAIT_S))
        outcome = json.loads(said[said.index("{") : said.rindex("}") + 1])
        assert outcome["equal"] and not outcome["absent"], outcome
        assert {table["table"] for table in outcome["tables"]} == set(TABLES)
