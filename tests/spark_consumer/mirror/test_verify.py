"""`walgate verify` on a mirror that goes on while its source changes: it finds what was damaged,
that alone, and mends it."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from delta.tables import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from gateway.local import Kafka, Registry
from spark_consumer.mirror import versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.delta.delta_write import despite_conflicts
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry as SchemaRegistry
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.tables import TableName
from tests.conftest import Database
from tests.support.gateway_process import DEFAULTS, GatewayProcess, environment_of

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(3000)]

STALL_S = 300
"""Neither gateway nor mirror may do nothing for so long; how long all of it takes, depends on the
computer."""

STOCK = TableName("public", "stock")
PUBLICATION = "verify_test"
SETUP = """
CREATE TABLE public.stock (id int PRIMARY KEY, n int, word text, price numeric(12, 2), at timestamptz, big text);
INSERT INTO public.stock SELECT i, i, 'word ' || i, i / 7.0, '2026-01-01Z', CASE WHEN i % 100 = 0 THEN repeat('b', 3000) END
FROM generate_series(1, {rows}) i;
CREATE TABLE public.visits (page text, seconds float8);
ALTER TABLE public.visits REPLICA IDENTITY FULL;
INSERT INTO public.visits SELECT 'page ' || i % 10, i % 7 FROM generate_series(1, 300) i;
CREATE PUBLICATION verify_test FOR TABLE public.stock, public.visits;
"""
DAMAGED = 50
CHANGED, MISSING = 20, 15
"""The rest is surplus."""


@dataclass
class Scene:
    sql: asyncpg.Connection
    spark: SparkSession
    path: Path
    settings: dict[str, object]
    row_count: int
    reports: list[BatchReport] = field(default_factory=list)

    async def verify(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, what it prints, and what it says on the way."""
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "gateway.cli.main",
                "verify",
                "--mirror",
                str(self.path),
                "--json",
                "--timeout",
                str(STALL_S),
                *words,
            ),
            env=environment_of({**DEFAULTS, **self.settings}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, said = await process.communicate()
        assert process.returncode is not None
        print(said.decode())
        return process.returncode, json.loads(out or b"{}"), said.decode()

    def damaged_keys(self) -> list[int]:
        """Rows that the load leaves alone: else it would mend them."""
        return [key for key in range(1, self.row_count) if not is_changed(key)]

    def damage(self) -> Counter[tuple[str, int, tuple[str, ...]]]:
        """By somebody else's hands; what is wrong then."""
        keys = random.Random(3).sample(self.damaged_keys(), CHANGED + MISSING)
        changed, missing = keys[:CHANGED], keys[CHANGED:]
        surplus = [10_000_000 + number for number in range(DAMAGED - CHANGED - MISSING)]
        session, location = self.spark.newSession(), table_path(str(self.path), STOCK)
        columns = ("n", "word", "price", "at", "big")
        wrong: Counter[tuple[str, int, tuple[str, ...]]] = Counter()
        values: dict[str, str | Column] = {}
        for place, name in enumerate(columns):
            own = changed[place :: len(columns)]
            value = f.lit(None) if name in ("word", "at") else f.lit("-1")
            values[name] = f.when(f.col("id").isin(own), value).otherwise(f.col(name))
            wrong.update(("CHANGED", key, (name,)) for key in own)
        table = DeltaTable.forPath(session, location)
        despite_conflicts(lambda: table.update(f.col("id").isin(changed), values))
        despite_conflicts(lambda: table.delete(f.col("id").isin(missing)))
        wrong.update(("MISSING", key, ()) for key in missing)
        schema = session.read.format("delta").load(location).schema
        rows = [tuple({"id": key, "n": 1}.get(name) for name in schema.names) for key in surplus]
        session.createDataFrame(rows, schema).write.format("delta").mode("append").save(location)
        wrong.update(("SURPLUS", key, ()) for key in surplus)
        return wrong

    async def caught_up(self) -> None:
        lsn = await self.sql.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        await self.sql.execute("UPDATE public.stock SET n = n + 1 WHERE id = 1")
        while (seen := self._reached_lsn()) <= lsn:
            async with asyncio.timeout(STALL_S):
                while self._reached_lsn() == seen:
                    await asyncio.sleep(0.1)

    async def is_equal(self) -> None:
        """By value, of each row."""
        await self.caught_up()
        version = await asyncio.to_thread(versions.read, self.spark, str(self.path))
        held = await asyncio.to_thread(version["public.stock"].drop("_special").toArrow)
        rows = await self.sql.fetch("SELECT * FROM public.stock")
        there = {row["id"]: tuple(row.values()) for row in held.to_pylist()}
        assert there == {row["id"]: tuple(row.values()) for row in rows}
        print(f"{len(rows)} rows, {len(self.reports)} batches and merges")

    def _reached_lsn(self) -> int:
        return max((report.commit_lsn for report in self.reports), default=0)


def is_changed(key: int) -> bool:
    return key % 5 != 0


def found_keys(outcome: dict[str, Any]) -> Counter[tuple[str, int, tuple[str, ...]]]:
    (stock,) = [table for table in outcome["tables"] if table["table"] == "public.stock"]
    return Counter((each["kind"], json.loads(each["key"])["id"], tuple(each["columns"])) for each in stock["keys"])


@asynccontextmanager
async def load(database: Database, row_count: int) -> AsyncIterator[None]:
    """Two sessions that insert, update and delete rows, and move their keys."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(_change(database, row_count, seed, stop)) for seed in range(2)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def _change(database: Database, row_count: int, seed: int, stop: asyncio.Event) -> None:
    sql, generator = await database.connect(), random.Random(seed)
    while not stop.is_set():
        key = generator.randrange(1, row_count)
        key += not is_changed(key)
        moved = row_count + generator.randrange(row_count)
        statement = generator.choice(
            [
                f"UPDATE public.stock SET n = n + 1 WHERE id BETWEEN {key} AND {key + 20} AND id % 5 <> 0",
                f"UPDATE public.stock SET word = word || '!' WHERE id = {key}",
                f"DELETE FROM public.stock WHERE id = {key}",
                f"INSERT INTO public.stock VALUES ({moved}, 1, 'new', NULL, now())",
                f"UPDATE public.stock SET id = {moved} WHERE id = {key}",
                "INSERT INTO public.visits VALUES ('page 1', 1.5)",
                "DELETE FROM public.visits WHERE ctid = (SELECT min(ctid) FROM public.visits)",
            ]
        )
        with suppress(asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError):
            await sql.execute(statement)
        await asyncio.sleep(generator.uniform(0, 0.03))


@asynccontextmanager
async def open_scene(
    spark: SparkSession,
    database: Database,
    kafka: Kafka,
    registry: Registry,
    prefix: str,
    folder: Path,
    rows: int,
    *,
    under_load: bool = False,
) -> AsyncIterator[Scene]:
    """`under_load`: the tables change from before the snapshot until the mirror has it, which
    appends first and merges later."""
    settings: dict[str, object] = {
        "source__dsn": database.dsn,
        "source__slot": f"slot_{prefix}",
        "source__publications": PUBLICATION,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "kafka__replication_factor": 1,
        "registry__url": registry.url,
        "snapshot__mode": "initial",
    }
    gateway = GatewayProcess(folder / "gateway.log", settings)
    scene = Scene(await database.connect(), spark, folder / "mirror", settings, rows)
    await scene.sql.execute(SETUP.format(rows=rows))
    changes = AsyncExitStack()
    if under_load:
        await changes.enter_async_context(load(database, rows))
    query: Any = None
    try:
        await gateway.streaming()
        await gateway.logged('"snapshot_done"', timeout_s=STALL_S)
        schemas = SchemaCache(SchemaRegistry({"url": registry.url}))
        every_s = None if under_load else 0.0
        mirror = AppendingMirror(str(scene.path), schemas, scene.reports.append, merge_every_s=every_s)
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "registry.url": registry.url,
            "prefix": prefix,
            "includeMarkers": "true",
            "maxChangesPerTrigger": "50000",
        }
        frame = spark.readStream.format("walgate").options(**options).load()
        writer = frame.writeStream.foreachBatch(mirror.apply).option(
            "checkpointLocation", str(scene.path / "checkpoint")
        )
        query = writer.trigger(processingTime="0 seconds").start()
        await scene.caught_up()
        await changes.aclose()
        yield scene
        assert query.exception() is None
    except BaseException:
        print(gateway.log_tail(40))
        print(None if query is None else query.exception())
        raise
    finally:
        await changes.aclose()
        if query is not None:
            await asyncio.to_thread(query.stop)
            await asyncio.to_thread(mirror.stop)
        await gateway.end()


async def test_what_was_damaged_is_found_and_mended_while_the_source_changes(
    spark: SparkSession, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with (
        open_scene(spark, database, kafka, registry, topic_prefix, tmp_path, 3_000) as scene,
        load(database, scene.row_count),
    ):
        wrong = await asyncio.to_thread(scene.damage)
        code, outcome, said = await scene.verify("--repair")
        assert code == 0 and outcome["equal"], outcome
        assert found_keys(outcome) == wrong
        stock, visits = sorted(outcome["tables"], key=lambda table: str(table["table"]))
        assert (stock["changed"], stock["missing"], stock["surplus"]) == (CHANGED, MISSING, DAMAGED - CHANGED - MISSING)
        assert stock["repaired"] and not visits["repaired"]
        assert visits["row_count"] > 200 and not visits["changed"] + visits["missing"] + visits["surplus"]
        assert "public.stock: equal" in said


async def test_differences_among_half_a_million_rows_are_found_and_mended_under_load(
    spark: SparkSession, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """And none where there is none; the mirror is the source in the end, by value."""
    async with open_scene(spark, database, kafka, registry, topic_prefix, tmp_path, 500_000) as scene:
        async with load(database, scene.row_count):
            code, outcome, _ = await scene.verify()
            assert code == 0 and outcome["equal"] and outcome["row_count"] > 450_000, outcome
            wrong = await asyncio.to_thread(scene.damage)
            code, outcome, _ = await scene.verify("--table", "stock")
            assert code == 1 and not outcome["equal"] and found_keys(outcome) == wrong
            code, outcome, _ = await scene.verify("--table", "public.s*", "--repair")
            assert code == 0 and found_keys(outcome) == wrong
        await scene.is_equal()


@pytest.mark.parametrize("rows", [20_000, 2_000_000])
async def test_rows_that_change_while_they_are_read_are_those_of_the_source(
    rows: int,
    spark: SparkSession,
    database: Database,
    kafka: Kafka,
    registry: Registry,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    async with open_scene(spark, database, kafka, registry, topic_prefix, tmp_path, rows, under_load=True) as scene:
        await scene.is_equal()
        assert sum(report.changes for report in scene.reports) > rows
