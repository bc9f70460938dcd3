"""The rate at which a mirror takes in a backlog: `python -m bench.spark_backlog`.

A gateway first writes --changes changes of --tables tables to Kafka: half of them inserts, then an
update of every row, 100 per transaction. The clock runs from the start of the stream, with the
default batch size, to the last merge; then all tables must equal PostgreSQL's. Prints a line of
JSON for each batch and merge, and finally the rate. Spark has been started before, and has merged
some of the same changes in another mirror (--warm-up, unless it is 0).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack
from typing import Any

from bench import walgate
from bench.scene import Scene
from bench.spark_source import cpu_seconds, jvm_pid
from bench.workloads import Backlog
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.jobs.run import facts_of
from spark_consumer.jobs.session import local_session
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName

_COLUMNS = "id bigint primary key, a int, b text, c numeric(12,2), d timestamptz, e bool, f text"
_INSERTS = (
    "insert into bench%s select n, n %% 1000, ''customer '' || n, (n %% 100000) / 100.0,"
    " ''2026-01-01Z''::timestamptz + n * interval ''1 s'', n %% 2 = 0, ''a note of some length for row '' || n"
    " from generate_series(%s, %s) n"
)
_UPDATES = "update bench%s set a = a + 1, d = d + interval ''1 s'' where id between %s and %s"


def backlog_of(table_count: int, changes: int) -> Backlog:
    """Return the workload. Rows are numbered across all tables, 100 of one table after 100 of
    another."""

    def turns(statement: str) -> str:
        return (
            "do $$ begin for i in 1..{count} by 100 loop "
            f"execute format('{statement}', i / 100 % {table_count}, i, i + 99); commit; end loop; end $$"
        )

    return Backlog(
        "B",
        "inserts and updates of tables in turn",
        ";".join(f"create table bench{number} ({_COLUMNS})" for number in range(table_count)),
        (turns(_INSERTS), turns(_UPDATES)),
        "insert into bench0 (id) values (0)",
        changes // 200 * 100,
        changes_per_unit=2,
        table_count=table_count,
    )


def take_in(spark: Any, options: dict[str, str], merge_every: float, folder: str) -> tuple[float, float]:
    """Return the seconds, and the seconds of CPU time, until a mirror in the folder is complete."""
    began = time.perf_counter()

    def report(made: BatchReport) -> None:
        facts = {"at_s": round(time.perf_counter() - began, 1), "merge": made.is_merge}
        known = facts_of(made)
        print(json.dumps({**facts, "changes": made.changes, "seconds": known["seconds"]}), flush=True)

    schemas = SchemaCache(Registry({"url": options["registry.url"]}))
    mirror = AppendingMirror(folder, schemas, report, merge_every_s=merge_every)
    cpu = cpu_seconds(jvm_pid(spark)) + time.process_time()
    writer = spark.readStream.format("walgate").options(**options).load().writeStream.foreachBatch(mirror.apply)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    mirror.finish(spark, merge=True)
    seconds, cpu = time.perf_counter() - began, cpu_seconds(jvm_pid(spark)) + time.process_time() - cpu
    return seconds, cpu


def sums(spark: Any, folder: str, table_count: int) -> list[tuple[int, int]]:
    """Return for each merged table the number of rows and the sum of their changed column."""
    found = []
    for number in range(table_count):
        table = spark.read.format("delta").load(table_path(folder, TableName("public", f"bench{number}")))
        row = table.selectExpr("count(*)", "coalesce(sum(a), 0)").head()
        found.append((int(row[0]), int(row[1])))
    return found


async def main(changes: int, table_count: int, merge_every: float, warm_up: int) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2, lasting=True)
    async with Scene() as scene:
        for count in (warm_up, changes) if warm_up else (changes,):
            backlog = backlog_of(table_count, count)
            async with AsyncExitStack() as stack:
                backlogged = await stack.enter_async_context(scene.backlog(backlog, 1.0))
                sql = await backlogged.connect()
                stack.push_async_callback(sql.close)
                async with (
                    backlogged.slot_copy(sql) as slot,
                    walgate.running(scene.parts, backlogged.dsn, slot) as gateway,
                ):
                    await walgate.past(sql, gateway, backlogged.last_lsn)
                options = walgate.reader_options(scene.parts, gateway)
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="walgate-bench-"))
                seconds, cpu = await asyncio.to_thread(take_in, spark, options, merge_every, folder)
                queries = (f"select count(*), coalesce(sum(a), 0) from bench{number}" for number in range(table_count))
                wanted = [tuple(await sql.fetchrow(query)) for query in queries]
                if await asyncio.to_thread(sums, spark, folder, table_count) != wanted:
                    raise SystemExit("the tables are not those of PostgreSQL")
            facts = {
                "changes": backlog.changes(1.0),
                "tables": table_count,
                "s": round(seconds, 1),
                "cpu_s": round(cpu),
            }
            print(json.dumps({**facts, "changes_per_s": round(backlog.changes(1.0) / seconds)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=5_000_000)
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--merge-every", type=float, default=60.0)
    parser.add_argument("--warm-up", type=int, default=100_000)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.changes, arguments.tables, arguments.merge_every, arguments.warm_up))
