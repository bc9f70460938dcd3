"""Time from commit to readable in a version of a mirror: `python -m bench.spark_freshness`.

pgbench updates rows of --tables tables of --rows rows, one in each of --rate transactions per
second, through a real gateway; a mirror appends, and merges concurrently. The tables of the mirror
are filled before, without Kafka. A change is readable once the Delta commit of its batch exists:
versions.read shows it from then on. Its commit time is PostgreSQL's, on the same computer's clock.
In the end the newest version must equal PostgreSQL's tables. Prints a line of JSON for each batch
and merge (--verbose), one for each half of the time, and one for all. The first --warm-up seconds
do not count: Java compiles, and the first merge compares the keys of every table, since the mirror
does not know how it was filled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from bisect import bisect_left
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench import walgate
from bench.latency import SLOT
from bench.scene import Scene, drop_slot, run_program
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from schemas.lsn import format_lsn
from spark_consumer.jobs.session import local_session
from spark_consumer.mirror import changes, versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.delta import delta_table
from spark_consumer.mirror.delta.delta_write import write_once
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName

CLIENTS = 2
_TABLE = "create table bench{0} (id bigint primary key, counter bigint, note text) with (fillfactor = 70)"
_ROWS = "insert into bench{0} select n, 0, 'a note of some length for row ' || n from generate_series(1, {1}) n"
_SCRIPT = "\\set id random(1, {1})\nupdate bench{0} set counter = counter + 1 where id = :id;\n"
_COLUMNS = (
    "id",
    "0L counter",
    "concat('a note of some length for row ', id) note",
    "cast(null as map<string,string>) _special",
)


def lateness(commits: list[tuple[int, float]], visible: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return (commit time, seconds late) of each change, from `commits`: (commit LSN, commit time)
    of changes, and `visible`: (last commit LSN, time) of batches."""
    ends = [lsn for lsn, _ in visible]
    return [(at, visible[bisect_left(ends, lsn)][1] - at) for lsn, at in commits]


def figures(late: list[tuple[float, float]]) -> dict[str, float]:
    ordered = sorted(seconds for _, seconds in late)
    shares = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}
    found = {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2) for name, share in shares.items()
    }
    return {"count": len(ordered), **found, "most_s": round(ordered[-1], 2)}


def fill(spark: Any, folder: str, table_count: int, rows: int) -> None:
    for number in range(table_count):
        values = spark.range(1, rows + 1).selectExpr(*_COLUMNS)
        location = table_path(folder, TableName("public", f"bench{number}"))
        properties = delta_table.properties(values.columns, deletion_vectors=True)
        write_once(values, location, "append", 0, properties=properties)


async def write(scene: Scene, database: str, rate: int, seconds: float, table_count: int, rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="walgate-bench-") as folder:
        scripts = []
        for number in range(table_count):
            script = Path(folder) / f"update{number}.sql"
            script.write_text(_SCRIPT.format(number, rows))
            scripts += ["-f", str(script)]
        common = ("-n", "-M", "prepared", "-c", str(CLIENTS), "-R", str(rate), "-T", str(round(seconds)))
        await run_program(scene.parts.postgres, "pgbench", *common, *scripts, database)


def compare(spark: Any, folder: str, wanted: list[tuple[int, int]]) -> float:
    """Check the newest version against the wanted counts and sums. Return the seconds it takes to
    open it and sum up its first table."""
    began = time.perf_counter()
    version = versions.read(spark, folder)
    seconds = 0.0
    for number, facts in enumerate(wanted):
        row = version[f"public.bench{number}"].selectExpr("count(*)", "sum(counter)").collect()[0]
        seconds = seconds or time.perf_counter() - began
        if (row[0], row[1]) != facts:
            raise SystemExit(f"bench{number} has {tuple(row)} instead of {facts}")
    return seconds


async def main(arguments: argparse.Namespace) -> None:
    spark = local_session("bench", java_home=spark_java_home(), jars=jars("delta"), cores=2, lasting=True)
    table_count, rows, warm_up_s = arguments.tables, arguments.rows, arguments.warm_up
    tables = ";".join(_TABLE.format(number) for number in range(table_count))
    visible: list[tuple[int, float]] = []

    def report(made: BatchReport) -> None:
        if not made.is_merge:
            visible.append((made.commit_lsn, time.time()))
        if arguments.verbose:
            facts = {"merge": made.is_merge, "seconds": round(made.seconds, 2), "changes": made.changes}
            print(json.dumps({**facts, "lsn": format_lsn(made.commit_lsn), "notes": made.notes}), flush=True)

    async with AsyncExitStack() as stack:
        scene = await stack.enter_async_context(Scene())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="walgate-bench-"))
        database = await stack.enter_async_context(scene.database(tables))
        sql = await scene.parts.postgres.connect(database)
        stack.push_async_callback(sql.close)
        for number in range(table_count):
            await sql.execute(_ROWS.format(number, rows))
        await sql.execute("vacuum analyze")
        await asyncio.to_thread(fill, spark, folder, table_count, rows)
        stack.push_async_callback(drop_slot, sql, SLOT)
        settings = {
            "WALGATE_SOURCE__ADOPT_SLOT": "false",
            "WALGATE_KAFKA__COMMIT_INTERVAL_MS": str(arguments.commit_interval_ms),
        }
        dsn = scene.parts.postgres.database_dsn(database)
        gateway = await stack.enter_async_context(
            walgate.running(scene.parts, dsn, SLOT, compiled=arguments.compiled, more=settings)
        )
        await sql.execute("update bench0 set counter = counter where id = 1")
        await walgate.past(sql, gateway, await sql.fetchval("select (pg_current_wal_lsn() - 1)::text"))
        options = walgate.reader_options(scene.parts, gateway)
        schemas = SchemaCache(Registry({"url": options["registry.url"]}))
        mirror = AppendingMirror(folder, schemas, report, merge_every_s=arguments.merge_every)
        frame = spark.readStream.format("walgate").options(**options).load()
        writer = frame.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", f"{folder}/checkpoint")
        query = await asyncio.to_thread(writer.start)
        began = time.time()
        await write(scene, database, arguments.rate, warm_up_s + arguments.seconds, table_count, rows)
        ended = time.time()
        await asyncio.to_thread(query.processAllAvailable)
        await asyncio.to_thread(query.stop)
        mirror.stop()
        wanted = [
            tuple(await sql.fetchrow(f"select count(*), sum(counter)::bigint from bench{number}"))
            for number in range(table_count)
        ]
        read_s = await asyncio.to_thread(compare, spark, folder, wanted)
        kept = changes.pinned(spark, folder)
        assert kept is not None
        found = await asyncio.to_thread(kept.selectExpr("commit_lsn", "unix_micros(commit_time) at").toArrow)
        commits = [(row["commit_lsn"], row["at"] / 1e6) for row in found.to_pylist()]
        late = [(at, seconds) for at, seconds in lateness(commits, visible) if at >= began + warm_up_s]
        middle = (began + warm_up_s + ended) / 2
        for name, half in (
            ("first half", [one for one in late if one[0] < middle]),
            ("second half", [one for one in late if one[0] >= middle]),
            ("all", late),
        ):
            print(json.dumps({"what": name, "rate": round(len(late) / arguments.seconds), **figures(half)}), flush=True)
        print(json.dumps({"tables": table_count, "rows": rows, "a version, one table summed up, s": round(read_s, 2)}))
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--warm-up", type=float, default=150.0)
    parser.add_argument("--commit-interval-ms", type=int, default=20, help="of the gateway's Kafka transactions")
    parser.add_argument("--compiled", type=Path, help="folder of a compiled build of the gateway, as its image has it")
    parser.add_argument("--merge-every", type=float, help="default: that of walgate mirror")
    parser.add_argument("--verbose", action="store_true")
    asyncio.run(main(parser.parse_args()))
