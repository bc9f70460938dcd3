"""The source, a mirror and changelogs on the Spark that is installed: `make spark-versions` has
others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark_consumer.feeder import Feeder
from tests.spark_consumer.queries import stop_behind
from tests.spark_consumer.workload import Workload

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

LIMIT = 40


def test_the_source_gives_what_happened_and_keeps_its_limit_over_restarts(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Read at once, and by queries that are stopped or fail in the middle of a batch."""
    workload = Workload(feeder, 3)
    for _ in range(80):
        workload.step()
    workload.finish()
    raw = spark.read.format("walgate").options(**feeder.options(includeMessages="true")).load()
    truth = [(change.commit_lsn, change.ordinal) for change in feeder.truth]
    assert sorted((row.commit_lsn, row.ordinal) for row in raw.collect()) == truth
    for table in workload.tables:
        typed = spark.read.format("walgate").options(**feeder.options(table=table.name)).load()
        rows = typed.orderBy("commit_lsn", "ordinal").toArrow().to_pylist()
        expected = [change for change in feeder.truth if change.table is table]
        assert [(row["op"], row["after"]) for row in rows] == [
            (change.op, None if change.op == "DELETE" else change.after) for change in expected
        ]
    broken = "this batch is planned and not committed"
    batches: dict[int, list[tuple[int, int]]] = {}

    def keep(frame: DataFrame, number: int) -> None:
        batches[number] = sorted((row.commit_lsn, row.ordinal) for row in frame.collect())
        if len(batches) % 3 == 0 and number not in failed:
            failed.add(number)
            raise RuntimeError(broken)

    failed: set[int] = set()
    options = feeder.options(includeMessages="true", maxChangesPerTrigger=str(LIMIT))
    while sum(map(len, batches.values())) < len(truth):
        stream = spark.readStream.format("walgate").options(**options).load()
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
        enough = len(batches) + 2
        stop_behind(writer, lambda: len(batches) >= enough or sum(map(len, batches.values())) == len(truth), broken)  # noqa: B023
    assert [place for number in sorted(batches) for place in batches[number]] == truth
    largest = max(sum(one.commit_lsn == lsn for one in feeder.truth) for lsn in {lsn for lsn, _ in truth})
    assert failed and len(batches) > 4 and max(map(len, batches.values())) <= max(LIMIT, largest)


async def test_a_mirror_and_changelogs_equal_the_source(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    """Started twice with changes between; each time in several batches, of which `--once` takes
    all. The views that SQL reads are those of versions.register."""
    from spark_consumer.mirror import versions
    from tests.spark_consumer.jobs.test_jobs import run

    workload = await asyncio.to_thread(Workload, feeder, 4)
    mirror, changes, files = (tmp_path / name for name in ("mirror", "delta", "parquet"))
    reports: list[dict[str, Any]] = []
    for _ in range(2):
        for _ in range(40):
            await asyncio.to_thread(workload.step)
        await asyncio.to_thread(workload.finish)
        reports += await run("mirror", feeder, mirror, "--once", "--max-changes", str(LIMIT))
        await run("consume", feeder, changes, "--once", "--format", "delta", "--max-changes", str(LIMIT))
        await run("consume", feeder, files, "--once", "--format", "parquet", "--max-changes", str(LIMIT))
    assert sum("batch" in report for report in reports) > 4
    read = await asyncio.to_thread(versions.register, spark, str(mirror))
    for table in workload.tables:
        expected = [(change.commit_lsn, change.ordinal) for change in feeder.truth if change.table is table]
        for format_, path in (("delta", changes), ("parquet", files)):
            location = f"{path}/tables/{table.name.replace('.', '/')}"
            written = await asyncio.to_thread(spark.read.format(format_).load(location).collect)
            assert sorted((row.commit_lsn, row.ordinal) for row in written) == expected
        if not table.key_columns:
            continue
        rows = (await asyncio.to_thread(read[table.name].toArrow)).to_pylist()
        found = {table.key(row): {name: value for name, value in row.items() if name != "_special"} for row in rows}
        assert found == table.rows
        (counted,) = await asyncio.to_thread(spark.table(table.name.replace(".", "_")).selectExpr("count(*)").collect)
        assert counted[0] == len(table.rows)
