"""The changelog and what is special about relations without key or columns, in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from schemas.relation import ReplicaIdentity
from spark_consumer.changelog.writer import Changelog, last_folder
from spark_consumer.errors import MirrorError
from spark_consumer.mirror import versions
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import INT4, INT8, TEXT, Feeder, Table, relation
from tests.spark_consumer.mirrors import merging_mirror
from tests.spark_consumer.queries import run_to_end

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
        feeder.kafka_commit()
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
def test_a_changelog_has_every_change_once_wherever_batches_are_cut(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    format: str,  # noqa: A002 - the option's name
) -> None:
    """A batch that runs again, as after a crash, and one that begins early, as after a new
    checkpoint."""
    tables = feed(feeder)
    for end in (f"lsn:{feeder.truth[3].commit_lsn}", "latest", "latest"):
        changelog = Changelog(str(tmp_path), format, SchemaCache(Registry({"url": feeder.registry_url})))
        changelog.apply(spark.read.format("walgate").options(**feeder.options(endingPosition=end)).load(), 0)
    for table in tables:
        found = spark.read.format(format).load(f"{tmp_path}/tables/public/{table.description.name}")
        assert positions(found) == [(c.commit_lsn, c.ordinal, c.op) for c in feeder.truth if c.table is table]


def test_a_table_that_is_named_later_begins_where_the_checkpoint_stands(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    items, notes = feeder.table(ITEMS), feeder.table(NOTES)
    for tables in ("public.items", "public.items,public.notes"):
        transaction = feeder.begin()
        transaction.insert(items, {"id": len(items.rows), "name": tables})
        transaction.insert(notes, {"text": tables})
        transaction.commit()
        feeder.kafka_commit()
        changelog = Changelog(str(tmp_path), "parquet", SchemaCache(Registry({"url": feeder.registry_url})))
        stream = spark.readStream.format("walgate").options(**feeder.options(tables=tables)).load()
        writer = stream.writeStream.foreachBatch(changelog.apply).option("checkpointLocation", f"{tmp_path}/checkpoint")
        run_to_end(writer)
    folder = f"{tmp_path}/tables/public"
    assert spark.read.parquet(f"{folder}/items").count() == 2
    assert [row.after.text for row in spark.read.parquet(f"{folder}/notes").collect()] == ["public.items,public.notes"]


def test_a_folder_that_was_not_written_to_its_end_does_not_count(spark: SparkSession, tmp_path: Path) -> None:
    assert last_folder(spark, str(tmp_path / "nothing"), 30) == -1
    for lsn in (9, 10, 20):
        (tmp_path / f"batch={lsn}").mkdir()
    (tmp_path / "batch=9" / "_SUCCESS").touch()
    (tmp_path / "batch=10" / "_SUCCESS").touch()
    assert last_folder(spark, str(tmp_path), 20) == 10
    with pytest.raises(MirrorError, match=r"batch=20 has no _SUCCESS file"):
        last_folder(spark, str(tmp_path), 30)


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_column_that_is_widened_stays_readable(
    spark: SparkSession,
    feeder: Feeder,
    tmp_path: Path,
    format: str,  # noqa: A002
) -> None:
    changelog = Changelog(str(tmp_path), format, SchemaCache(Registry({"url": feeder.registry_url})))
    narrow = feeder.table(relation("items", {"id": INT4}, ("id",)))
    wide = feeder.alter(narrow, relation("items", {"id": INT8}, ("id",)))
    start = "earliest"
    for table, number in ((narrow, 1), (wide, 2**40)):
        transaction = feeder.begin()
        transaction.insert(table, {"id": number})
        commit_lsn = transaction.commit()
        feeder.kafka_commit()
        options = feeder.options(startingPosition=start)
        changelog.apply(spark.read.format("walgate").options(**options).load(), 0)
        start = f"lsn:{commit_lsn}"
    location = f"{tmp_path}/tables/public/items"
    reader = spark.read.format(format)
    if format == "parquet":
        reader = reader.schema(spark.read.parquet(f"{location}/batch={commit_lsn}").schema)
    assert sorted(row["after"]["id"] for row in reader.load(location).collect()) == [1, 2**40]
    if format == "delta":
        text = feeder.alter(wide, relation("items", {"id": TEXT}, ("id",)))
        transaction = feeder.begin()
        transaction.insert(text, {"id": "a"})
        transaction.commit()
        feeder.kafka_commit()
        with pytest.raises(MirrorError, match=r"changelog of public\.items .* cannot store a column"):
            changelog.apply(spark.read.format("walgate").options(**feeder.options(startingPosition=start)).load(), 0)


def test_relations_without_key_or_columns_are_read_and_mirrored(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    _, notes, nothing = feed(feeder)
    for table in (notes, nothing):
        typed = spark.read.format("walgate").options(**feeder.options(table=table.name)).load()
        assert positions(typed) == [(c.commit_lsn, c.ordinal, c.op) for c in feeder.truth if c.table is table]
    mirror = merging_mirror(str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})))
    mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    logs = versions.read(spark, str(tmp_path))
    for table in (notes, nothing):
        rows = logs[table.name].orderBy("_commit_lsn", "_ordinal").collect()
        assert [row["_op"] for row in rows] == [change["op"] for change in table.log]
