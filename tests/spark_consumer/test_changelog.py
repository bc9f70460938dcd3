"""The changelog and what is special about relations without key or columns, in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from schemas.description import ReplicaIdentity
from spark_consumer.changelog import Changelog
from spark_consumer.mirror import pictures
from spark_consumer.mirror.batch import Mirror
from spark_consumer.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))
NOTES = relation("notes", {"text": TEXT}, (), ReplicaIdentity.NOTHING)
NOTHING = relation("nothing", {}, (), ReplicaIdentity.NOTHING)


def feed(feeder: Feeder) -> list[Table]:
    items, notes, nothing = feeder.table(ITEMS), feeder.table(NOTES), feeder.table(NOTHING)
    for number in range(3):
        transaction = feeder.begin()
        transaction.insert(items, {"id": number, "name": f"name {number}"})
        transaction.insert(notes, {"text": "a"})
        transaction.insert(nothing, {})
        transaction.commit()
    last = feeder.begin()
    last.update(items, items.rows[0,], {"id": 7, "name": None})
    last.truncate(notes, nothing)
    last.insert(nothing, {})
    last.commit()
    feeder.kafka_commit()
    return [items, notes, nothing]


def positions(frame: DataFrame) -> list[tuple[int, int, str]]:
    return sorted((row.commit_lsn, row.ordinal, row.op) for row in frame.collect())


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_changelog_has_every_change_once_though_its_batch_runs_twice(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    format: str,  # noqa: A002 - the option's name
) -> None:
    tables = feed(feeder)
    for _ in range(2):
        changelog = Changelog(str(tmp_path), format, SchemaCache(Registry({"url": feeder.registry_url})))
        changelog.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    for table in tables:
        found = spark.read.format(format).load(f"{tmp_path}/tables/public/{table.description.name}")
        assert positions(found) == [(c.commit_lsn, c.ordinal, c.op) for c in feeder.truth if c.table is table]


def test_relations_without_key_or_columns_are_read_and_mirrored(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    _, notes, nothing = feed(feeder)
    for table in (notes, nothing):
        typed = spark.read.format("walgate").options(**feeder.options(table=table.name)).load()
        assert positions(typed) == [(c.commit_lsn, c.ordinal, c.op) for c in feeder.truth if c.table is table]
    mirror = Mirror(str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})))
    mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    logs = pictures.read(spark, str(tmp_path))
    for table in (notes, nothing):
        rows = logs[table.name].orderBy("_commit_lsn", "_ordinal").collect()
        assert [row["_op"] for row in rows] == [change["op"] for change in table.log]
