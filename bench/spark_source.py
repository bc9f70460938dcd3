"""Changes per second of the data source, for all tables raw and one table typed, with a real Kafka:
`python -m bench.spark_source`.

Writes transactions with the tests' feeder (fastavro, slow; not measured), reads them into Spark's
noop sink, and prints one line of JSON for each read. The first read of each kind warms up the JVM
and the workers. `cpu_us_per_change` is the CPU time of the JVM and all workers, which is not
affected by other load on the computer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from gateway.local import Kafka, Registry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.jobs.session import local_session
from tests.spark_consumer.feeder import INT8, NUMERIC, NUMERIC_12_2, TEXT, TIMESTAMPTZ, Feeder, relation

ACCOUNTS = relation(
    "accounts",
    {
        "id": INT8,
        "owner": TEXT,
        "city": TEXT,
        "balance": (NUMERIC, NUMERIC_12_2),
        "opened_at": TIMESTAMPTZ,
        "note": TEXT,
    },
    ("id",),
)


def feed(feeder: Feeder, changes: int, of_transaction: int) -> None:
    """Write transactions of equal size; a record has about 130 bytes."""
    from datetime import UTC, datetime
    from decimal import Decimal

    accounts = feeder.table(ACCOUNTS)
    opened = datetime(2026, 1, 1, tzinfo=UTC)
    for start in range(0, changes, of_transaction):
        transaction = feeder.begin()
        for number in range(start, min(start + of_transaction, changes)):
            row = {"id": number, "owner": f"owner {number}", "city": "Konstanz", "balance": Decimal("12.50")}
            transaction.insert(accounts, {**row, "opened_at": opened, "note": "a note of some length"})
        transaction.commit()
        feeder.kafka_commit()
        feeder.truth.clear()


def measure(spark: Any, options: dict[str, str], changes: int, name: str, rounds: int) -> None:
    jvm = jvm_pid(spark)
    for turn in range(rounds):
        began, cpu_began = time.perf_counter(), cpu_seconds(jvm)
        spark.read.format("walgate").options(**options).load().write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - began
        figures = {
            "read": name,
            "round": turn,
            "seconds": round(seconds, 2),
            "changes_per_s": round(changes / seconds),
            "cpu_us_per_change": round((cpu_seconds(jvm) - cpu_began) / changes * 1e6, 2),
        }
        print(json.dumps(figures), flush=True)


def jvm_pid(spark: Any) -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its living descendants, from /proc (proc(5)). Workers
    that have ended count as children of their parent."""
    ticks, parents, times = os.sysconf("SC_CLK_TCK"), {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            times[int(folder.name)] = sum(map(int, fields[11:15])) / ticks
    family, found = {pid}, {pid}
    while found:
        found = {child for child, parent in parents.items() if parent in found}
        family |= found
    return sum(times.get(member, 0.0) for member in family)


async def main(changes: int, of_transaction: int, rounds: int) -> None:
    async with Kafka() as kafka, Registry() as registry:
        feeder = await asyncio.to_thread(Feeder, kafka.bootstrap_servers, registry.url, f"b{uuid4().hex[:8]}")
        await asyncio.to_thread(feed, feeder, changes, of_transaction)
        spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2)
        measure(spark, feeder.options(), changes, "all tables, raw", rounds)
        measure(spark, feeder.options(table="public.accounts"), changes, "one table, typed", rounds)
        spark.stop()
        await asyncio.to_thread(feeder.close)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--of-transaction", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.changes, arguments.of_transaction, arguments.rounds))
