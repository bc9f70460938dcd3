"""What a batch over many tables costs a mirror: `python -m bench.spark_tables`.

Each round changes one row in each of --tables tables. One batch takes them in, by a mirror that merges every batch and by another
that appends it, and merges then. In the end both must be equal. Prints one line of JSON for each, and at last the medians and
their ratio, of time and of CPU time (JVM, Python workers, this process); the first two rounds warm up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from functools import partial
from statistics import median
from typing import Any
from uuid import uuid4

from bench.spark_mirror import clock
from gateway.local import Kafka
from gateway.local import Registry as LocalRegistry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.jobs.session import local_session
from spark_consumer.mirror import pictures
from spark_consumer.mirror.appending import AppendingMirror
from spark_consumer.mirror.batch import Mirror
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation

MERGED, APPENDED, MERGE, READ = "batch, merged", "batch, appended", "its merge", "a picture of all"
LATER = 1e9


def change(feeder: Feeder, tables: list[Table], turn: int, rows: int) -> None:
    """The first time all rows, then one in each table."""
    transaction = feeder.begin()
    for table in tables:
        if turn:
            old = table.rows[turn % rows,]
            transaction.update(table, old, {**old, "note": f"changed {turn}"})
        else:
            for number in range(rows):
                transaction.insert(table, {"id": number, "note": "a note"})
    transaction.commit()
    feeder.kafka_commit()


def run(kafka: str, registry: str, count: int, rows: int, rounds: int) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2)
    feeder = Feeder(kafka, registry, f"b{uuid4().hex[:8]}")
    tables = [feeder.table(relation(f"table_{number}", {"id": INT8, "note": TEXT}, ("id",))) for number in range(count)]
    schemas = SchemaCache(Registry({"url": registry}))
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        plain = Mirror(f"{folder}/merged", schemas)
        appending = AppendingMirror(f"{folder}/appended", schemas, merge_every_s=LATER)
        for turn in range(rounds + 1):
            start = "earliest" if plain.last is None else f"lsn:{plain.last.commit_lsn}"
            change(feeder, tables, turn, rows)
            raw = spark.read.format("walgate").options(**feeder.options(startingPosition=start)).load()
            works: dict[str, Any] = {
                MERGED: partial(plain.apply, raw, turn),
                APPENDED: partial(appending.apply, raw, turn),
                READ: partial(read, spark, f"{folder}/appended"),
                MERGE: partial(appending.finish, spark, merge=True),
            }
            for name, work in works.items():
                times.setdefault(name, []).append(clock(spark, name, turn, work))
        merged, appended = (pictures.read(spark, f"{folder}/{name}") for name in ("merged", "appended"))
        if any(merged[name].exceptAll(appended[name]).count() for name in merged) or len(merged) != count:
            raise SystemExit("the two mirrors are not equal")
    warm = {
        name: [round(median(column), 2) for column in zip(*found[2:], strict=True)] for name, found in times.items()
    }
    ratios = [round(ours / theirs, 3) for ours, theirs in zip(warm[APPENDED], warm[MERGED], strict=True)]
    print(json.dumps({"tables": count, **warm, "ratio": ratios[0], "cpu_ratio": ratios[1]}), flush=True)
    spark.stop()
    feeder.close()


def read(spark: Any, path: str) -> None:
    for frame in pictures.read(spark, path).values():
        frame.select("id").where("id < 0").schema  # noqa: B018 - analyses it, as a reader's first step does


async def main(tables: int, rows: int, rounds: int) -> None:
    async with Kafka() as kafka, LocalRegistry() as registry:
        await asyncio.to_thread(run, kafka.bootstrap_servers, registry.url, tables, rows, rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.tables, arguments.rows, arguments.rounds))
