"""Latency from commit to visible in Spark's sink, at a constant rate of one-row transactions:
`python -m bench.spark_latency`.

pgbench writes through a real gateway; a streaming query with the default trigger reads. There are
two sinks:

* rows: `foreachBatch` over the typed frame of one table brings the rows to the driver, as a custom
  job would.
* parquet: the changelog that `walgate consume` writes; a change is visible once the batch's files
  of typed changes are complete.

Each record's commit time is PostgreSQL's, on the same computer's clock; its latency is the time
from then until its batch is visible. Prints one line of JSON for each sink; the first --warm-up
seconds do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from bench import walgate
from bench.cost import cpu_s, peak_rss_mb
from bench.latency import SLOT, database_of, summary, write
from bench.scene import Scene
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.changelog.writer import Changelog
from spark_consumer.jobs.session import local_session
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry, SchemaCache

TABLE = "public.bench"
Seen = list[tuple[float, float]]  # (commit time, seconds late)


class RowsSink:
    def __init__(self) -> None:
        self.options = {"table": TABLE}
        self._batches: list[tuple[float, list[Any]]] = []

    def apply(self, frame: DataFrame, _: int) -> None:
        times = frame.select("commit_time", "op", "after").toArrow()["commit_time"].to_pylist()
        self._batches.append((time.time(), times))

    def seen(self) -> Seen:
        return [(at.timestamp(), now - at.timestamp()) for now, times in self._batches for at in times]


class ParquetSink:
    def __init__(self, folder: Path, registry: str) -> None:
        self.options = {"tables": TABLE}
        self._folder = folder
        self._visible: dict[int, float] = {}
        changelog = Changelog(str(folder), "parquet", SchemaCache(Registry({"url": registry})), self._note)
        self.apply: Callable[[DataFrame, int], None] = changelog.apply

    def _note(self, report: BatchReport) -> None:
        self._visible[report.commit_lsn] = time.time()

    def seen(self) -> Seen:
        found: Seen = []
        for commit_lsn, now in self._visible.items():
            for file in (self._folder / "tables/public/bench" / f"batch={commit_lsn}").glob("*.parquet"):
                times = pq.ParquetFile(file).read(columns=["commit_time"])["commit_time"].to_pylist()
                found += [(at.timestamp(), now - at.timestamp()) for at in times]
        return found


async def measure(spark: Any, scene: Scene, name: str, rate: int, seconds: float, warm_up_s: float) -> None:
    parts = scene.parts
    with tempfile.TemporaryDirectory() as folder:
        sink = RowsSink() if name == "rows" else ParquetSink(Path(folder) / "changes", parts.registry.url)
        async with (
            database_of(scene) as (database, sql),
            walgate.running(
                parts, parts.postgres.database_dsn(database), SLOT, more={"WALGATE_SOURCE__ADOPT_SLOT": "false"}
            ) as gateway,
        ):
            await sql.execute("insert into bench (note) values ('the topic and its schema')")
            options = {**walgate.reader_options(parts, gateway), **sink.options}
            await walgate.past(sql, gateway, await sql.fetchval("select (pg_current_wal_lsn() - 1)::text"))
            frame = spark.readStream.format("walgate").options(**options).load()
            writer = frame.writeStream.foreachBatch(sink.apply).option("checkpointLocation", f"{folder}/checkpoint")
            query = await asyncio.to_thread(writer.start)
            pid, began_cpu_s = gateway.process.pid, cpu_s(gateway.process.pid)
            await write(scene, database, rate, warm_up_s + seconds)
            count = await sql.fetchval("select count(*) from bench")
            await asyncio.to_thread(query.processAllAvailable)
            while len(seen := await asyncio.to_thread(sink.seen)) < count:
                if query.exception() is not None:
                    raise RuntimeError(str(query.exception()))
                await asyncio.sleep(0.2)
            await asyncio.to_thread(query.stop)
            assert len(seen) == count, f"{len(seen)} changes of {count} transactions"
            facts = asdict(summary(rate, seen, seconds, cpu_s(pid) - began_cpu_s, peak_rss_mb(pid)))
    rounded = {key: round(facts[key], 1) for key in ("count", "p50_ms", "p95_ms", "p99_ms")}
    print(json.dumps({"sink": name, "transactions_per_s": rate, **rounded}), flush=True)


async def main(rate: int, seconds: float, warm_up_s: float, sinks: list[str]) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2)
    async with Scene() as scene:
        for name in sinks:
            await measure(spark, scene, name, rate, seconds, warm_up_s)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=30.0)
    parser.add_argument("--sinks", nargs="+", choices=["rows", "parquet"], default=["rows", "parquet"])
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rate, arguments.seconds, arguments.warm_up, arguments.sinks))
