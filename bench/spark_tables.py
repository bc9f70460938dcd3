"""The cost of a batch over many tables in a mirror: `python -m bench.spark_tables`.

Each round changes one row in each of --tables tables. One mirror merges every batch; another
appends it, and merges then. In the end both must be equal. Prints one line of JSON for each, and
finally the medians and their ratio, of time and of CPU time (JVM, Python workers, this process).
The first two rounds are warm-up. With --append-only nothing is merged; a version of some tables
must then have the changes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
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
from spark_consumer.mirror import versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation

MERGED, APPENDED, MERGE, READ = "batch, merged", "batch, appended", "its merge", "a version of all"


def change(feeder: Feeder, tables: list[Table], turn: int, rows: int) -> None:
    """Write all rows the first time, then change one row in each table."""
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


def run(kafka: str, registry: str, count: int, rows: int, rounds: int, append_only: bool) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2)
    feeder = Feeder(kafka, registry, f"b{uuid4().hex[:8]}")
    tables = [feeder.table(relation(f"table_{number}", {"id": INT8, "note": TEXT}, ("id",))) for number in range(count)]
    schemas = SchemaCache(Registry({"url": registry}))
    times: dict[str, list[tuple[float, float]]] = {}
    start = "earliest"
    with tempfile.TemporaryDirectory() as folder:
        plain = AppendingMirror(f"{folder}/merged", schemas, merge_every_s=0.0)
        appending = AppendingMirror(f"{folder}/appended", schemas, merge_every_s=math.inf)
        for turn in range(rounds + 1):
            change(feeder, tables, turn, rows)
            raw = spark.read.format("walgate").options(**feeder.options(startingPosition=start)).load()
            works: dict[str, Any] = {
                MERGED: partial(plain.apply, raw, turn),
                APPENDED: partial(appending.apply, raw, turn),
                READ: partial(read, spark, f"{folder}/appended"),
                MERGE: partial(appending.finish, spark, merge=True),
            }
            for name, work in works.items():
                if name == APPENDED or not append_only:
                    times.setdefault(name, []).append(clock(spark, name, turn, work))
            start = f"lsn:{appending.reached_lsn}"
        if append_only:
            check(spark, f"{folder}/appended", tables)
        else:
            merged, appended = (versions.read(spark, f"{folder}/{name}") for name in ("merged", "appended"))
            if any(merged[name].exceptAll(appended[name]).count() for name in merged) or len(merged) != count:
                raise SystemExit("the two mirrors are not equal")
    warm = {
        name: [round(median(column), 2) for column in zip(*found[2:], strict=True)] for name, found in times.items()
    }
    facts: dict[str, Any] = {"tables": count, **warm}
    if not append_only:
        ratios = [round(ours / theirs, 3) for ours, theirs in zip(warm[APPENDED], warm[MERGED], strict=True)]
        facts |= {"ratio": ratios[0], "cpu_ratio": ratios[1]}
    print(json.dumps(facts), flush=True)
    spark.stop()
    feeder.close()


def check(spark: Any, path: str, tables: list[Table]) -> None:
    """Check some of the tables against all changes that were appended."""
    version = versions.read(spark, path)
    for table in tables[:: max(1, len(tables) // 3)]:
        found = {(row["id"],): row["note"] for row in version[table.name].collect()}
        if found != {key: row["note"] for key, row in table.rows.items()} or len(version) != len(tables):
            raise SystemExit(f"{table.name} is not what was changed")


def read(spark: Any, path: str) -> None:
    for frame in versions.read(spark, path).values():
        frame.select("id").where("id < 0").schema  # noqa: B018 - analyses it, as a reader's first step does


async def main(tables: int, rows: int, rounds: int, append_only: bool) -> None:
    async with Kafka() as kafka, LocalRegistry() as registry:
        await asyncio.to_thread(run, kafka.bootstrap_servers, registry.url, tables, rows, rounds, append_only)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--append-only", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.tables, arguments.rows, arguments.rounds, arguments.append_only))
