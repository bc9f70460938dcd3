"""A typed frame has the columns of the schema in force, which need not be the newest one in the
registry."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from schemas.relation import ReplicaIdentity
from spark_consumer.reader.broker import Broker
from spark_consumer.source import table_columns
from spark_consumer.source.options import parse_options
from spark_consumer.source.rows import decode
from spark_consumer.source.table_columns import table_frame
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Row, Table, relation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))
WITHOUT_NAME = relation("items", {"id": INT8}, ("id",))
RENAMED = relation("items", {"id": INT8, "title": TEXT}, ("id",))
NO_IDENTITY = relation("items", {"id": INT8, "name": TEXT}, (), ReplicaIdentity.NOTHING)


def commit(feeder: Feeder, *rows: tuple[Table, Row]) -> None:
    transaction = feeder.begin()
    for table, row in rows:
        transaction.insert(table, row)
    transaction.commit()
    feeder.kafka_commit()


def roll_back(feeder: Feeder, table: Table, row: Row) -> None:
    """A transaction that was streamed: its records stay in the topic, and no marker commits it."""
    transaction = feeder.begin(streamed=True)
    transaction.insert(table, row)
    transaction.send()
    feeder.kafka_commit()


def columns(feeder: Feeder, part: str = "after") -> list[str]:
    frame = table_frame(parse_options(feeder.options(), streaming=None), TableName("public", "items"))
    kind: Any = frame.schema.field(part).type
    assert isinstance(kind, pa.StructType)
    return [column.name for column in kind]


def test_an_alter_that_was_rolled_back_takes_no_column_away(spark: SparkSession, feeder: Feeder) -> None:
    items = feeder.table(ITEMS)
    commit(feeder, (items, {"id": 1, "name": "a"}))
    roll_back(feeder, feeder.alter(items, WITHOUT_NAME), {"id": 2})
    assert columns(feeder) == ["id", "name"]
    commit(feeder, (items, {"id": 3, "name": "c"}))
    options, expected = feeder.options(), [{"id": 1, "name": "a"}, {"id": 3, "name": "c"}]
    raw = spark.read.format("walgate").options(**options).load()
    typed = spark.read.format("walgate").options(**options, table="public.items").load()
    for frame in (typed, decode(raw, "public.items", options)):
        assert [row["after"].asDict() for row in frame.orderBy("commit_lsn").collect()] == expected


def test_a_version_that_is_used_again_is_in_force_again(feeder: Feeder) -> None:
    items = feeder.table(ITEMS)
    renamed = feeder.alter(items, RENAMED)
    commit(feeder, (items, {"id": 1, "name": "a"}))
    commit(feeder, (renamed, {"id": 2, "title": "b"}))
    assert columns(feeder) == ["id", "title"]
    commit(feeder, (items, {"id": 3, "name": "c"}))
    assert columns(feeder) == ["id", "name"]


def test_the_key_is_there_again_when_the_replica_identity_was_another_for_a_time(feeder: Feeder) -> None:
    items = feeder.table(ITEMS)
    without = feeder.alter(items, NO_IDENTITY)
    commit(feeder, (without, {"id": 1, "name": "a"}))
    assert columns(feeder, "old_key") == []
    commit(feeder, (items, {"id": 2, "name": "b"}))
    assert columns(feeder, "old_key") == ["id"]


def test_a_transaction_with_two_versions_gives_the_columns_of_both(feeder: Feeder) -> None:
    """One of them may have been rolled back to a savepoint."""
    items = feeder.table(ITEMS)
    without_name = feeder.alter(items, WITHOUT_NAME)
    commit(feeder, (items, {"id": 1, "name": "a"}), (without_name, {"id": 2}))
    assert columns(feeder) == ["id", "name"]


def test_a_table_that_the_last_markers_do_not_name_has_its_newest_schema(
    feeder: Feeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    items, other = feeder.table(ITEMS), feeder.table(relation("other", {"id": INT8}, ("id",)))
    feeder.alter(items, RENAMED)
    assert columns(feeder) == ["id", "title"], "no marker at all"
    commit(feeder, (items, {"id": 1, "name": "a"}))
    for number in range(5):
        commit(feeder, (other, {"id": number}))
    assert columns(feeder) == ["id", "name"]
    read, counts = Broker.read, list[int]()

    def counted(broker: Broker, topic: str, partition: int, first: int, last: int) -> Any:
        counts.append(last - first + 1)
        return read(broker, topic, partition, first, last)

    monkeypatch.setattr(Broker, "read", counted)
    assert columns(feeder) == ["id", "name"] and counts == [], "no marker since"
    commit(feeder, (other, {"id": 5}))
    assert columns(feeder) == ["id", "name"] and len(counts) == 1 and counts[0] < 5
    monkeypatch.setattr(table_columns, "_MARKERS_BACK", 4)
    assert columns(feeder) == ["id", "title"]
