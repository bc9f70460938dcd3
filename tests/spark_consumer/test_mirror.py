"""Mirrors on real parts: after any workload the Delta tables are what the source's tables are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_consumer.mirror import pictures
from spark_consumer.mirror.batch import BatchReport, Mirror
from spark_consumer.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation

ACCOUNTS = relation("accounts", {"id": INT8, "owner": TEXT, "note": TEXT}, ("id",))


def run_mirror(spark: SparkSession, feeder: Feeder, path: Path, **options: str) -> list[BatchReport]:
    """Takes what is there now."""
    reports: list[BatchReport] = []
    mirror = Mirror(str(path), SchemaCache(Registry({"url": feeder.registry_url})), reports.append)
    stream = spark.readStream.format("walgate").options(**feeder.options(**options)).load().writeStream
    query = (
        stream.foreachBatch(mirror.apply).option("checkpointLocation", f"{path}/checkpoint").trigger(availableNow=True)
    )
    query.start().awaitTermination()
    return reports


def mirrored(spark: SparkSession, path: Path, table: Table) -> dict[Any, dict[str, Any]]:
    frame = pictures.read(spark, str(path))[table.name]
    rows = [row.asDict() for row in frame.collect()]
    return {table.key(row): {name: value for name, value in row.items() if name != "_special"} for row in rows}


def test_a_mirror_equals_the_source_after_each_kind_of_change(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    accounts = feeder.table(ACCOUNTS)
    first = feeder.begin()
    for number in range(20):
        first.insert(accounts, {"id": number, "owner": f"owner {number}", "note": "long " * 10})
    first.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(spark, tmp_path, accounts) == accounts.rows
    second = feeder.begin()
    second.update(accounts, accounts.rows[3,], {**accounts.rows[3,], "owner": "changed"}, unchanged=("note",))
    second.update(accounts, accounts.rows[4,], {**accounts.rows[4,], "id": 400}, unchanged=("note",))
    second.update(accounts, accounts.rows[5,], {**accounts.rows[5,], "id": 500, "note": "short"})
    second.delete(accounts, accounts.rows[6,])
    second.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(spark, tmp_path, accounts) == accounts.rows
    third = feeder.begin()
    third.truncate(accounts)
    third.insert(accounts, {"id": 1, "owner": "new", "note": None})
    third.commit()
    feeder.kafka_commit()
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(spark, tmp_path, accounts) == accounts.rows == {(1,): {"id": 1, "owner": "new", "note": None}}
