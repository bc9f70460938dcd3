"""Rows that are in a table and cannot be cast to the type that a column gets: they stop no merge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from schemas.relation import RelationDescription, ReplicaIdentity, TypeFacts
from spark_consumer.mirror import versions
from spark_consumer.mirror.local.dump import newest
from tests.spark_consumer.feeder import INT4, INT4_ARRAY, INT8, TEXT, Feeder, relation
from tests.spark_consumer.mirror.test_mirror import run_mirror
from tests.spark_consumer.mirror.test_replica_identity import commit, dumped

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TEXT_ARRAY = TypeFacts(1009, "pg_catalog", "_text", INT4_ARRAY.kind, element=TEXT)
Facts = TypeFacts | tuple[TypeFacts, int]


def described(columns: dict[str, Facts], key: tuple[str, ...] = ("id",), oid: int = 0) -> RelationDescription:
    """The table `t`: a number `id`, and these columns."""
    identity = ReplicaIdentity.DEFAULT if key else ReplicaIdentity.FULL
    made = relation("t", {"id": INT8, **columns}, key, identity)
    numbered = tuple(replace(column, attnum=number) for number, column in enumerate(made.columns, 1))
    return replace(made, columns=numbered, oid=made.oid + oid)


def of(facts: Facts, key: tuple[str, ...] = ("id",), oid: int = 0) -> RelationDescription:
    """The table `t (id, v)`, whose column v has this type."""
    return described({"v": facts}, key, oid)


def row(number: int, value: Any) -> dict[str, Any]:
    return {"id": number, "v": value}


def values(spark: SparkSession, path: Path) -> dict[int, Any]:
    return {each["id"]: each["v"] for each in versions.read(spark, str(path))["public.t"].toArrow().to_pylist()}


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_log_of_a_truncated_relation_does_not_stop_the_next_one(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, at_once: bool
) -> None:
    """Columns of another relation are other columns: their values are not cast."""
    first = feeder.table(of(TEXT, ()))
    commit(feeder, first, (None, row(1, "abc")), (None, row(2, "7")))
    run_mirror(spark, feeder, tmp_path)
    made = feeder.begin()
    made.truncate(first)
    made.commit()
    feeder.kafka_commit()
    if not at_once:
        run_mirror(spark, feeder, tmp_path)
    second = feeder.alter(first, of(INT4, (), 1))
    commit(feeder, second, (None, row(3, 1)))
    run_mirror(spark, feeder, tmp_path)
    assert dumped(tmp_path) == [("3", "1")]
    (found,) = newest(tmp_path)
    held = pa.concat_tables(found.files.batches())
    assert sorted(held["v"].to_pylist(), key=str) == [1, None, None, None]


def test_an_emptied_table_may_be_made_anew_with_a_type_that_nothing_can_be_cast_to(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    first = feeder.table(of(TEXT))
    commit(feeder, first, (None, row(1, "abc")))
    commit(feeder, first, (row(1, "abc"), None))
    run_mirror(spark, feeder, tmp_path)
    commit(feeder, feeder.alter(first, of(TEXT_ARRAY, oid=1)), (None, row(2, ["a"])))
    run_mirror(spark, feeder, tmp_path)
    assert values(spark, tmp_path) == {2: ["a"]}


def test_a_renamed_column_of_another_type_is_cast_or_null(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    """Renamed columns take another way than columns that keep their names."""
    first = feeder.table(of(TEXT))
    commit(feeder, first, (None, row(1, "abc")), (None, row(2, "7")))
    run_mirror(spark, feeder, tmp_path)
    description = of(INT8)
    columns = description.columns[0], replace(description.columns[1], name="w")
    second = feeder.alter(first, replace(description, columns=columns))
    commit(feeder, second, (None, {"id": 3, "w": 1}))
    run_mirror(spark, feeder, tmp_path)
    found = versions.read(spark, str(tmp_path))["public.t"].toArrow().to_pylist()
    assert {each["id"]: each["w"] for each in found} == {1: None, 2: 7, 3: 1}
