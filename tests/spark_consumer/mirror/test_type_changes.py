"""Columns whose types change in ways that values do not survive: changes from before and after are in
one merge, and rows that are there cannot be cast."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from schemas.change_schema import change_schema
from spark_consumer.errors import MirrorError
from spark_consumer.mirror import slice_contents, versions
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.slice_contents import TablePart
from spark_consumer.mirror.tables.table_schema import TableSchema
from spark_consumer.mirror.tables.type_changes import change_of_types, misfits
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import (
    DATE,
    FLOAT8,
    INT4,
    INT8,
    NUMERIC,
    NUMERIC_12_2,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    Feeder,
)
from tests.spark_consumer.mirror.test_mirror import run_mirror
from tests.spark_consumer.mirror.test_replica_identity import commit
from tests.spark_consumer.mirror.test_uncastable_rows import TEXT_ARRAY, Facts, described, of, row, values
from tests.spark_consumer.mirrors import Story, merged_rows, play, waiting_mirror

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

NAME = TableName("public", "t")
NUMERIC_12_4 = (12 << 16 | 4) + 4
NUMERIC_14_4 = (14 << 16 | 4) + 4
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def shape(facts: Facts, **more: Any) -> TableSchema:
    return TableSchema.of(change_schema(of(facts, **more), "cdc"))


def notes(reports: list[BatchReport]) -> str:
    return "; ".join(note for report in reports for note in report.notes)


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        (INT4, INT8, True),
        (INT8, INT4, False),
        (INT8, (NUMERIC, NUMERIC_12_2), False),
        (INT4, (NUMERIC, NUMERIC_12_2), True),
        ((NUMERIC, NUMERIC_12_2), (NUMERIC, NUMERIC_14_4), True),
        ((NUMERIC, NUMERIC_12_2), (NUMERIC, NUMERIC_12_4), False),
        ((NUMERIC, NUMERIC_12_4), (NUMERIC, NUMERIC_12_2), False),
        (TEXT, INT8, False),
        (INT8, TEXT, True),
        ((NUMERIC, NUMERIC_12_2), TEXT, False),
        (TEXT, TEXT_ARRAY, False),
        (TIMESTAMP, TIMESTAMPTZ, False),
        (FLOAT8, FLOAT8, True),
    ],
)
def test_a_type_holds_all_values_of_another_one_or_it_does_not(before: Facts, after: Facts, fits: bool) -> None:
    assert misfits([shape(before), shape(after)], shape(after)) == ([] if fits else ["v"])
    assert not misfits([shape(before, oid=1)], shape(after)), "of another relation, it is another column"


@pytest.mark.parametrize(
    ("types", "places", "cut"),
    [
        ([INT4, INT8], [(10, 0), (20, 0)], None),
        ([TEXT, INT8], [(10, 0), (20, 0)], 20),
        ([TEXT, INT8], [(10, 0), (10, 1)], None),
        ([INT4, INT8, DATE], [(10, 0), (20, 0), (30, 0)], 20),
        ([TEXT, INT8, INT4], [(10, 0), (10, 1), (30, 0)], 30),
    ],
    ids=["widened", "changed", "in one transaction", "widened first", "again"],
)
def test_a_batch_is_cut_where_a_type_changes(
    types: list[Facts], places: list[tuple[int, int]], cut: int | None
) -> None:
    shapes = dict(enumerate(map(shape, types)))
    part = TablePart(NAME, 1, 1, list(shapes), len(types) - 1, None, places[0][0], places[-1][0])
    assert change_of_types(part, dict(enumerate(places)), shapes) == cut


def test_a_type_that_changes_in_a_relation_that_was_made_anew_is_found_too() -> None:
    shapes = {0: shape(INT4, key=("v",)), 1: shape(TEXT, key=("v",), oid=1), 2: shape(INT8, key=("v",), oid=1)}
    part = TablePart(NAME, 1, 1, [0, 1, 2], 2, None, 10, 30)
    assert change_of_types(part, {0: (10, 0), 1: (20, 0), 2: (30, 0)}, shapes) == 30


def test_a_key_that_gets_another_type_within_a_transaction_is_refused() -> None:
    shapes = dict(enumerate(shape(facts, key=("v",)) for facts in (TEXT, INT8)))
    part = TablePart(NAME, 1, 1, [0, 1], 1, None, 10, 10)
    with pytest.raises(MirrorError, match=r"public\.t .* 'v', a column of its key, within one transaction, at 0/A"):
        change_of_types(part, {0: (10, 0), 1: (10, 1)}, shapes)


@pytest.fixture(params=[slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
def fold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are folded in this process, or by Spark."""
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", request.param)


# Of each column: type and value before, type and value after, and what becomes of the value before.
CHANGES: dict[str, tuple[Facts, Any, Facts, Any, Any]] = {
    "zone": (TIMESTAMP, NOON.replace(tzinfo=None), TIMESTAMPTZ, datetime(2026, 1, 2, tzinfo=UTC), NOON),
    "number": (TEXT, "7", INT8, 8, 7),
    "no_number": (TEXT, "a", INT8, 8, None),
    "scale": ((NUMERIC, NUMERIC_12_4), Decimal("1.2345"), (NUMERIC, NUMERIC_12_2), Decimal("2.50"), Decimal("1.23")),
    "list": (TEXT, "a,b", TEXT_ARRAY, ["c"], None),
    "day": (TEXT, "31/01/2026", DATE, date(2026, 1, 31), None),
    "narrow": (INT8, 1 << 40, INT4, 8, None),
}


def changes_before_and_after_a_change_of_type_may_be_in_one_merge(
    feeder: Feeder, path: Path, key: tuple[str, ...]
) -> Story:
    old, value, new, later, cast = ({name: each[place] for name, each in CHANGES.items()} for place in range(5))
    first = feeder.table(described(old, key, name="changed"))
    commit(feeder, first, (None, {"id": 1, **value}))
    yield
    commit(feeder, first, (None, {"id": 2, **value}))
    second = feeder.alter(first, described(new, key, name="changed"))
    commit(feeder, second, (None, {"id": 3, **later}))
    reports = yield
    found = {each["id"]: {name: each[name] for name in CHANGES} for each in merged_rows(path)[first.name]}
    assert found == {1: cast, 2: cast, 3: later}
    said = f"the type was changed: {', '.join(CHANGES)}. Values of existing rows were cast, or are null"
    assert said in notes(reports)


def what_a_transaction_wrote_before_it_changed_a_type_is_null_if_it_does_not_fit(
    feeder: Feeder, path: Path, key: tuple[str, ...]
) -> Story:
    first = feeder.table(of(TEXT, key, name="within"))
    second = feeder.alter(first, of(INT8, key, name="within"))
    made = feeder.begin()
    made.insert(first, row(1, "a"))
    made.insert(first, row(3, "5"))
    made.insert(second, row(2, 7))
    made.commit()
    feeder.kafka_commit()
    reports = yield
    assert values(path, first) == {1: None, 2: 7, 3: 5}
    assert "the type was changed within a transaction: v" in notes(reports)


def chunks_of_a_verify_are_compared_by_the_types_that_they_were_read_with(feeder: Feeder) -> Story:
    first = feeder.table(of(TEXT, name="verified"))
    commit(feeder, first, *((None, row(number, value)) for number, value in enumerate("a57")))
    yield
    feeder.bound("SNAPSHOT_BEGIN", first, "VERIFY")
    feeder.chunk(first, [row(0, "a"), row(1, "5")], "VERIFY")
    feeder.chunk(feeder.alter(first, of(INT8, name="verified")), [row(2, 7)], "VERIFY")
    feeder.bound("SNAPSHOT_END", first, "VERIFY", rows=3)
    feeder.kafka_commit()
    reports = yield
    assert f"the snapshot of {first.name} ended (VERIFY)" in notes(reports)
    assert sum(report.differences for report in reports) == 0


@pytest.mark.usefixtures("fold")
@pytest.mark.parametrize("key", [("id",), pytest.param((), marks=pytest.mark.long)], ids=["rows", "log"])
def test_changes_of_both_types_are_merged_and_compared(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, key: tuple[str, ...]
) -> None:
    play(
        lambda: run_mirror(spark, feeder, tmp_path, includeMarkers="true"),
        changes_before_and_after_a_change_of_type_may_be_in_one_merge(feeder, tmp_path, key),
        what_a_transaction_wrote_before_it_changed_a_type_is_null_if_it_does_not_fit(feeder, tmp_path, key),
        chunks_of_a_verify_are_compared_by_the_types_that_they_were_read_with(feeder),
    )


@pytest.mark.long  # the second merge of the test above compares what a version shows before it
def test_a_version_shows_changes_before_and_after_a_change_of_type(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """A merge has not seen them yet."""
    first = feeder.table(of(TEXT))
    commit(feeder, first, (None, row(1, "a")))
    run_mirror(spark, feeder, tmp_path)
    commit(feeder, first, (None, row(2, "5")))
    commit(feeder, feeder.alter(first, of(INT8)), (None, row(3, 7)))
    mirror = waiting_mirror(str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})))
    mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    mirror.finish(spark, merge=False)
    found = versions.read(spark, str(tmp_path))["public.t"].toArrow().to_pylist()
    assert {each["id"]: each["v"] for each in found} == {1: None, 2: 5, 3: 7}
