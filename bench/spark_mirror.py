"""The cost of a mirror compared with a plain Delta MERGE: `python -m bench.spark_mirror`.

For each of --changes there are equal Delta tables of --rows rows, with or without deletion vectors.
Each round's updates, spread over the table, are in Kafka. One mirror merges them after its batch
(read, counted, appended, decoded, folded, merged, the version recorded); another appends them, and
merges then. Last, a hand-written MERGE merges the same rows, prepared in Parquet, into a plain
table. In the end all must be equal. Prints one line of JSON for each, and finally the ratios of the
medians of the two merges to those of the plain one: of time, of CPU time (JVM, Python workers, this
process) and of bytes written (data, deletion vectors and log of the table; for the mirror also its
manifest, one entry per merge). The first two rounds are warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from delta.tables import DeltaTable

from bench.cost import bytes_written, file_sizes
from bench.spark_source import ACCOUNTS, cpu_seconds, jvm_pid
from gateway.local import Kafka
from gateway.local import Registry as LocalRegistry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.jobs.session import local_session
from spark_consumer.jvm import cloned, java_class
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.delta import delta_table
from spark_consumer.mirror.delta.delta_write import write_once
from spark_consumer.mirror.delta.session_settings import COMPACT
from spark_consumer.mirror.paths import table_path
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import Feeder, Table

BATCH, APPEND, MERGE, PLAIN = "mirror batch", "mirror append", "its merge", "plain MERGE"
_NEVER_S = 1e9  # the benchmark calls for merges itself
OPENED = datetime(2026, 1, 1, tzinfo=UTC)


def make_rows(spark: Any, location: str, rows: int, *, deletion_vectors: bool) -> None:
    """Create a table as a mirror leaves it, including the transaction mark of its merges."""
    values = spark.range(rows).selectExpr(
        "id", "concat('owner ', id) owner", "'Konstanz' city", "cast(12.5 as decimal(12,2)) balance",
        "timestamp'2026-01-01 00:00:00' opened_at", "'a note of some length' note", "cast(null as map<string,string>) _special",
    )  # fmt: skip
    properties = delta_table.properties(values.columns, deletion_vectors=deletion_vectors)
    write_once(values, location, "append", 0, properties=properties)


def changed_rows(spark: Any, changes: int, rows: int, turn: int) -> Any:
    """Return the rows that the changes of `feed` result in."""
    return spark.range(changes).selectExpr(
        f"id * {rows // changes} + {turn} id", f"concat('owner ', id * {rows // changes} + {turn}) owner", "'Konstanz' city",
        "cast(12.5 as decimal(12,2)) balance", "timestamp'2026-01-01 00:00:00' opened_at", f"'changed {turn}' note",
        "cast(null as map<string,string>) _special",
    )  # fmt: skip


def feed(feeder: Feeder, accounts: Table, changes: int, rows: int, turn: int) -> None:
    """Write updates of every n-th row to Kafka."""
    step = rows // changes
    for start in range(0, changes, 10_000):
        transaction = feeder.begin()
        for number in range(start, min(start + 10_000, changes)):
            key = number * step + turn
            old = {"id": key, "owner": f"owner {key}", "city": "Konstanz", "balance": Decimal("12.50")}
            row = {**old, "opened_at": OPENED, "note": f"changed {turn}"}
            transaction.update(accounts, row, row)
        transaction.commit()
        feeder.kafka_commit()
        feeder.truth.clear()


def clock(spark: Any, name: str, turn: int, work: Any) -> tuple[float, float]:
    """Return the seconds, and the seconds of CPU time, of the work. Garbage of earlier work is
    collected before."""
    java_class(spark, "java.lang.System").gc()
    pid = jvm_pid(spark)
    began, cpu = time.perf_counter(), cpu_seconds(pid) + time.process_time()
    work()
    seconds, cpu = time.perf_counter() - began, cpu_seconds(pid) + time.process_time() - cpu
    print(json.dumps({"what": name, "round": turn, "seconds": round(seconds, 2), "cpu_s": round(cpu, 1)}), flush=True)
    return seconds, cpu


def plain_merge(spark: Any, location: str, source: str) -> None:
    table = DeltaTable.forPath(spark, location).alias("t")
    merged = table.merge(spark.read.parquet(source).alias("s"), "t.id = s.id")
    merged.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def run(kafka: str, registry: str, rows: int, changes: list[int], rounds: int, deletion_vectors: bool) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2)
    feeder = Feeder(kafka, registry, f"b{uuid4().hex[:8]}")
    accounts = feeder.table(ACCOUNTS)
    schemas = SchemaCache(Registry({"url": registry}))
    with tempfile.TemporaryDirectory() as folder:
        make_rows(spark, f"{folder}/made", rows, deletion_vectors=deletion_vectors)
        for count in changes:
            compare(spark, feeder, accounts, schemas, Path(folder), rows, count, rounds)
    spark.stop()
    feeder.close()


def compare(
    spark: Any,
    feeder: Feeder,
    accounts: Table,
    schemas: SchemaCache,
    folder: Path,
    rows: int,
    changes: int,
    rounds: int,
) -> None:
    merged, appended, plain = (folder / f"{changes} {name}" for name in ("merged", "appended", "plain"))
    tables = [table_path(str(place), TableName("public", "accounts")) for place in (merged, appended)] + [str(plain)]
    for place in tables:
        shutil.copytree(folder / "made", place)
    mirror = AppendingMirror(str(merged), schemas, merge_every_s=0.0)
    appending = AppendingMirror(str(appended), schemas, merge_every_s=_NEVER_S)
    beside = cloned(spark)  # Delta compacts automatically only if that is set
    beside.conf.set(COMPACT, "false")
    start = f"lsn:{feeder.next_lsn()}"
    times: dict[str, list[tuple[float, float, int, int]]] = {}
    for turn in range(rounds):
        feed(feeder, accounts, changes, rows, turn)
        raw = spark.read.format("walgate").options(**feeder.options(startingPosition=start)).load()
        source = f"{folder}/source"
        changed_rows(spark, changes, rows, turn).write.mode("overwrite").parquet(source)
        works: dict[str, tuple[Path, Any]] = {
            BATCH: (merged, partial(mirror.apply, raw, turn)),
            APPEND: (appended, partial(appending.apply, raw, turn)),
            MERGE: (appended, partial(appending.finish, spark, merge=True)),
            PLAIN: (plain, partial(plain_merge, beside, str(plain), source)),
        }
        for name, (written_in, work) in works.items():
            before = file_sizes(written_in)
            seconds, cpu = clock(spark, f"{name}, {changes}", turn, work)
            of_table = bytes_written(written_in / "tables" if written_in != plain else plain, before)
            times.setdefault(name, []).append((seconds, cpu, of_table, bytes_written(written_in, before)))
        start = f"lsn:{mirror.reached_lsn}"
    found = [spark.read.format("delta").load(place).drop("_special") for place in tables]
    if any(frame.count() != rows or frame.exceptAll(found[-1]).count() for frame in found[:-1]):
        raise SystemExit("the tables are not equal")
    warm = {name: [median(column) for column in zip(*found[2:], strict=True)] for name, found in times.items()}
    facts: dict[str, Any] = {"changes": changes, "rows": rows}
    for name, (seconds, cpu, of_table, written) in warm.items():
        facts[name] = {"s": round(seconds, 2), "cpu_s": round(cpu, 2), "table_bytes": of_table, "bytes": written}
        if name in (BATCH, MERGE):
            names = ("ratio", "cpu_ratio", "table_bytes_ratio", "bytes_ratio")
            ratios = (ours / theirs for ours, theirs in zip(warm[name], warm[PLAIN], strict=True))
            facts[name] |= {key: round(ratio, 2) for key, ratio in zip(names, ratios, strict=True)}
    print(json.dumps(facts), flush=True)


async def main(rows: int, changes: list[int], rounds: int, deletion_vectors: bool) -> None:
    async with Kafka() as kafka, LocalRegistry() as registry:
        await asyncio.to_thread(run, kafka.bootstrap_servers, registry.url, rows, changes, rounds, deletion_vectors)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, nargs="+", default=[100, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--deletion-vectors", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rows, arguments.changes, arguments.rounds, arguments.deletion_vectors))
