"""What a mirror costs beside a plain Delta MERGE: `python -m bench.spark_mirror`.

Two equal Delta tables of --rows rows, with deletion vectors or without. Of each round's --changes updates, which lie in Kafka,
one batch goes into the first as a mirror (read, counted, decoded, folded, merged, the picture recorded); then a MERGE of the
same rows, which lie ready in Parquet, goes into the second, as a person writes it. In the end both must be equal. Prints one
line of JSON for each, and at last the ratio of the medians, of time and of CPU time (JVM, Python workers, this process); the
first two rounds warm up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from statistics import median
from typing import Any
from uuid import uuid4

from delta.tables import DeltaTable

from bench.spark_source import ACCOUNTS, cpu_seconds, jvm_pid
from gateway.local import Kafka
from gateway.local import Registry as LocalRegistry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.jobs.session import local_session
from spark_consumer.mirror import target
from spark_consumer.mirror.batch import Mirror
from spark_consumer.mirror.layout import table_path
from spark_consumer.mirror.merge import write_once
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import Feeder, Table

OPENED = datetime(2026, 1, 1, tzinfo=UTC)


def make_rows(spark: Any, location: str, rows: int, *, deletion_vectors: bool) -> None:
    """As a mirror leaves them, with the mark that it has taken in something."""
    values = spark.range(rows).selectExpr(
        "id", "concat('owner ', id) owner", "'Konstanz' city", "cast(12.5 as decimal(12,2)) balance",
        "timestamp'2026-01-01 00:00:00' opened_at", "'a note of some length' note", "cast(null as map<string,string>) _special",
    )  # fmt: skip
    properties = target.properties(values.columns, deletion_vectors=deletion_vectors)
    write_once(values, location, "append", 0, properties=properties)


def changed_rows(spark: Any, changes: int, rows: int, turn: int) -> Any:
    """What `feed` makes of the rows."""
    return spark.range(changes).selectExpr(
        f"id * {rows // changes} + {turn} id", f"concat('owner ', id * {rows // changes} + {turn}) owner", "'Konstanz' city",
        "cast(12.5 as decimal(12,2)) balance", "timestamp'2026-01-01 00:00:00' opened_at", f"'changed {turn}' note",
        "cast(null as map<string,string>) _special",
    )  # fmt: skip


def feed(feeder: Feeder, accounts: Table, changes: int, rows: int, turn: int) -> None:
    """Updates of every n-th row."""
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
    """Seconds, and seconds of CPU time."""
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


def run(kafka: str, registry: str, rows: int, changes: int, rounds: int, deletion_vectors: bool) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2)
    feeder = Feeder(kafka, registry, f"b{uuid4().hex[:8]}")
    accounts = feeder.table(ACCOUNTS)
    schemas = SchemaCache(Registry({"url": registry}))
    with tempfile.TemporaryDirectory() as folder:
        location, plain_location = table_path(folder, TableName("public", "accounts")), f"{folder}/plain"
        make_rows(spark, location, rows, deletion_vectors=deletion_vectors)
        make_rows(spark, plain_location, rows, deletion_vectors=deletion_vectors)
        mirror = Mirror(folder, schemas)
        times: dict[str, list[tuple[float, float]]] = {"mirror batch": [], "plain MERGE": []}
        for turn in range(rounds):
            feed(feeder, accounts, changes, rows, turn)
            start = "earliest" if mirror.last is None else f"lsn:{mirror.last.commit_lsn}"
            raw = spark.read.format("walgate").options(**feeder.options(startingPosition=start)).load()
            source = f"{folder}/source{turn}"
            changed_rows(spark, changes, rows, turn).write.parquet(source)
            works = {
                "mirror batch": partial(mirror.apply, raw, turn),
                "plain MERGE": partial(plain_merge, spark, plain_location, source),
            }
            for name, work in works.items():
                times[name].append(clock(spark, name, turn, work))
        mirrored, plain = (spark.read.format("delta").load(place) for place in (location, plain_location))
        mirrored, plain = mirrored.drop("_special"), plain.drop("_special")
        if mirrored.count() != rows or mirrored.exceptAll(plain).count():
            raise SystemExit("the two tables are not equal")
        warm = {name: [median(column) for column in zip(*found[2:], strict=True)] for name, found in times.items()}
        ratios = [ours / theirs for ours, theirs in zip(*warm.values(), strict=True)]
        facts = {"changes": changes, "rows": rows, "mirror_s": round(warm["mirror batch"][0], 2)}
        print(json.dumps({**facts, "ratio": round(ratios[0], 2), "cpu_ratio": round(ratios[1], 2)}), flush=True)
    spark.stop()
    feeder.close()


async def main(rows: int, changes: int, rounds: int, deletion_vectors: bool) -> None:
    async with Kafka() as kafka, LocalRegistry() as registry:
        await asyncio.to_thread(run, kafka.bootstrap_servers, registry.url, rows, changes, rounds, deletion_vectors)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--deletion-vectors", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rows, arguments.changes, arguments.rounds, arguments.deletion_vectors))
