"""What a mirror costs beside a plain Delta MERGE: `python -m bench.spark_mirror`.

A Delta table of --rows rows, and a batch of --changes updates of them in Kafka. The batch goes into the mirror (read, counted,
decoded, folded, merged, the picture recorded), then a MERGE that a person would write puts the same rows, which lie ready in
Parquet, into the same table. Prints one line of JSON for each, and their ratio; the first round warms up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

from delta.tables import DeltaTable
from pyspark.sql import functions as f

from bench.spark_source import ACCOUNTS, cpu_seconds, jvm_pid
from gateway.local import Kafka
from gateway.local import Registry as LocalRegistry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.mirror import target
from spark_consumer.mirror.batch import Mirror
from spark_consumer.mirror.layout import table_path
from spark_consumer.mirror.merge import write_once
from spark_consumer.registry import Registry, SchemaCache
from spark_consumer.session import local_session
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import Feeder, Table

OPENED = datetime(2026, 1, 1, tzinfo=UTC)


def make_rows(spark: Any, location: str, rows: int) -> None:
    """As a mirror leaves them, with the mark that it has taken in something."""
    values = spark.range(rows).selectExpr(
        "id", "concat('owner ', id) owner", "'Konstanz' city", "cast(12.5 as decimal(12,2)) balance",
        "timestamp'2026-01-01 00:00:00' opened_at", "'a note of some length' note", "cast(null as map<string,string>) _special",
    )  # fmt: skip
    write_once(values, location, "append", 0, properties=target.PROPERTIES)


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


def clock(spark: Any, name: str, turn: int, work: Any) -> float:
    pid = jvm_pid(spark)
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    work()
    seconds = time.perf_counter() - began
    facts = {"what": name, "round": turn, "seconds": round(seconds, 2), "jvm_cpu_s": round(cpu_seconds(pid) - cpu, 1)}
    print(json.dumps(facts), flush=True)
    return seconds


def plain_merge(spark: Any, location: str, source: str) -> None:
    table = DeltaTable.forPath(spark, location).alias("t")
    merged = table.merge(spark.read.parquet(source).alias("s"), "t.id = s.id")
    merged.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def run(kafka: str, registry: str, rows: int, changes: int, rounds: int) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2)
    feeder = Feeder(kafka, registry, f"b{uuid4().hex[:8]}")
    accounts = feeder.table(ACCOUNTS)
    schemas = SchemaCache(Registry({"url": registry}))
    with tempfile.TemporaryDirectory() as folder:
        location = table_path(folder, TableName("public", "accounts"))
        make_rows(spark, location, rows)
        mirror = Mirror(folder, schemas)
        for turn in range(rounds):
            feed(feeder, accounts, changes, rows, turn)
            raw = spark.read.format("walgate").options(**feeder.options()).load()
            ours = clock(spark, "mirror batch", turn, lambda: mirror.apply(raw, turn))  # noqa: B023 - called at once
            source = str(Path(folder) / f"source{turn}")
            changed = spark.read.format("delta").load(location).where(f.col("note") == f"changed {turn}")
            changed.write.parquet(source)
            plain = clock(spark, "plain MERGE", turn, lambda: plain_merge(spark, location, source))  # noqa: B023
            print(json.dumps({"what": "ratio", "round": turn, "ratio": round(ours / plain, 2)}), flush=True)
    spark.stop()
    feeder.close()


async def main(rows: int, changes: int, rounds: int) -> None:
    async with Kafka() as kafka, LocalRegistry() as registry:
        await asyncio.to_thread(run, kafka.bootstrap_servers, registry.url, rows, changes, rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.rows, arguments.changes, arguments.rounds))
