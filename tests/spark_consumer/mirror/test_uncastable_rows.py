"""Rows that are in a table and cannot be cast to the type that a column gets: they stop no merge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from schemas.relation import RelationDescription, ReplicaIdentity, TypeFacts
from tests.spark_consumer.feeder import INT4, INT4_ARRAY, INT8, TEXT, Feeder, Table, relation
from tests.spark_consumer.mirror.test_mirror import run_mirror
from tests.spark_consumer.mirror.test_replica_identity import commit, dumped
from tests.spark_consumer.mirrors import Story, merged_rows, play

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TEXT_ARRAY = TypeFacts(1009, "pg_catalog", "_text", INT4_ARRAY.kind, element=TEXT)
Facts = TypeFacts | tuple[TypeFacts, int]


def described(
    columns: dict[str, Facts], key: tuple[str, ...] = ("id",), oid: int = 0, name: str = "t"
) -> RelationDescription:
    """A table: a number `id`, and these columns."""
    identity = ReplicaIdentity.DEFAULT if key else ReplicaIdentity.FULL
    made = relation(name, {"id": INT8, **columns}, key, identity)
    numbered = tuple(replace(column, attnum=number) for number, column in enumerate(made.columns, 1))
    return replace(made, columns=numbered, oid=made.oid + oid)


def of(facts: Facts, key: tuple[str, ...] = ("id",), oid: int = 0, name: str = "t") -> RelationDescription:
    """The table `t (id, v)`, or one of another name, whose column v has this type."""
    return described({"v": facts}, key, oid, name)


def row(number: int, value: Any) -> dict[str, Any]:
    return {"id": number, "v": value}


def values(path: Path, table: Table) -> dict[int, Any]:
    return {each["id"]: each["v"] for each in merged_rows(path)[table.name]}


def the_log_of_a_truncated_relation_does_not_stop_the_next_one(feeder: Feeder, path: Path, at_once: bool) -> Story:
    """Columns of another relation are other columns: their values are not cast."""
    first = feeder.table(of(TEXT, (), name="log"))
    commit(feeder, first, (None, row(1, "abc")), (None, row(2, "7")))
    yield
    made = feeder.begin()
    made.truncate(first)
    made.commit()
    if not at_once:
        feeder.kafka_commit()
        yield
    second = feeder.alter(first, of(INT4, (), 1, "log"))
    commit(feeder, second, (None, row(3, 1)))
    yield
    assert dumped(path, first.name) == [("3", "1")]
    assert sorted([each["v"] for each in merged_rows(path)[first.name]], key=str) == [1, None, None, None]


def an_emptied_table_may_be_made_anew_with_a_type_that_nothing_can_be_cast_to(feeder: Feeder, path: Path) -> Story:
    first = feeder.table(of(TEXT, name="anew"))
    commit(feeder, first, (None, row(1, "abc")))
    commit(feeder, first, (row(1, "abc"), None))
    yield
    commit(feeder, feeder.alter(first, of(TEXT_ARRAY, oid=1, name="anew")), (None, row(2, ["a"])))
    yield
    assert values(path, first) == {2: ["a"]}


def a_renamed_column_of_another_type_is_cast_or_null(feeder: Feeder, path: Path) -> Story:
    """Renamed columns take another way than columns that keep their names."""
    first = feeder.table(of(TEXT, name="renamed"))
    commit(feeder, first, (None, row(1, "abc")), (None, row(2, "7")))
    yield
    description = of(INT8, name="renamed")
    columns = description.columns[0], replace(description.columns[1], name="w")
    second = feeder.alter(first, replace(description, columns=columns))
    commit(feeder, second, (None, {"id": 3, "w": 1}))
    yield
    assert {each["id"]: each["w"] for each in merged_rows(path)[first.name]} == {1: None, 2: 7, 3: 1}


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.long)])
def test_rows_that_cannot_be_cast_stop_no_merge(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, at_once: bool
) -> None:
    play(
        lambda: run_mirror(spark, feeder, tmp_path),
        the_log_of_a_truncated_relation_does_not_stop_the_next_one(feeder, tmp_path, at_once),
        an_emptied_table_may_be_made_anew_with_a_type_that_nothing_can_be_cast_to(feeder, tmp_path),
        a_renamed_column_of_another_type_is_cast_or_null(feeder, tmp_path),
    )
