"""Mirrors of tables with odd columns: a key that is NaN, names with dots, columns that go, with
what was not sent of them."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from operator import itemgetter
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from schemas.relation import RelationDescription, ReplicaIdentity
from spark_consumer.mirror import slice_contents
from spark_consumer.mirror.paths import table_path
from spark_consumer.tables import TableName
from tests.schemas.relations import numeric_typmod
from tests.spark_consumer.feeder import FLOAT8, INT8, NUMERIC, NUMERIC_12_2, TEXT, Feeder, Row, Table, relation
from tests.spark_consumer.mirror.test_mirror import ACCOUNTS, mirrored, run_committed, run_mirror
from tests.spark_consumer.mirror.test_replica_identity import commit
from tests.spark_consumer.mirrors import Story, merged_rows, play

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PRICE = (NUMERIC, NUMERIC_12_2)
NUMERIC_20_10 = numeric_typmod(20, 10)


@pytest.fixture(params=[slice_contents.SMALL_CHANGES, pytest.param(0, marks=pytest.mark.long)])
def fold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are folded in this process, or by Spark."""
    monkeypatch.setattr(slice_contents, "SMALL_CHANGES", request.param)


def numbered(description: RelationDescription, *numbers: int) -> RelationDescription:
    """With these attnums."""
    columns = zip(description.columns, numbers, strict=True)
    return replace(description, columns=tuple(replace(column, attnum=number) for column, number in columns))


def a_key_that_is_not_a_number_stays_where_it_is(feeder: Feeder, path: Path) -> Story:
    """NaN is equal to NaN, and -0 to 0, also where every update brings the old row."""
    points = feeder.table(relation("points", {"x": FLOAT8, "n": INT8, "note": TEXT}, ("x", "n"), ReplicaIdentity.FULL))
    rows: list[Row] = [{"x": x, "n": n, "note": "a"} for x in (math.nan, 0.0, 1.5) for n in (1, 2)]
    commit(feeder, points, *((None, row) for row in rows))
    yield
    second = feeder.begin()
    for row in rows[::2]:
        second.update(points, row, {**row, "note": "b"})
        second.update(points, {**row, "note": "b"}, {**row, "x": -row["x"], "note": "c"})
    second.delete(points, rows[1])
    second.commit()
    yield
    found = merged_rows(path)[points.name]
    expected = [("-1.5", 1, "c"), ("0.0", 1, "c"), ("0.0", 2, "a"), ("1.5", 2, "a"), ("nan", 1, "c")]
    assert sorted((repr(row["x"] + 0.0), row["n"], row["note"]) for row in found) == expected


def a_value_that_was_not_sent_and_whose_column_is_dropped_stops_no_merge(feeder: Feeder, path: Path) -> Story:
    old = feeder.table(ACCOUNTS)
    commit(feeder, old, *((None, {"id": number, "owner": "a", "note": "a long one"}) for number in range(3)))
    yield
    second = feeder.begin()
    second.update(old, old.rows[0,], {**old.rows[0,], "owner": "b"}, unchanged=("note",))
    second.update(old, old.rows[1,], {**old.rows[1,], "id": 10}, unchanged=("note",))
    second.commit()
    new = feeder.alter(old, relation("accounts", {"id": INT8, "owner": TEXT}, ("id",)))
    commit(feeder, new, (new.rows[2,], {"id": 2, "owner": "c"}))
    yield
    assert mirrored(path, new) == new.rows
    assert new.rows == {(key,): {"id": key, "owner": owner} for key, owner in ((0, "b"), (10, "a"), (2, "c"))}


def a_column_that_comes_back_has_no_special_value_of_the_former_one(
    feeder: Feeder, path: Path, key: tuple[str, ...]
) -> Story:
    """Neither of a row from before, nor of one that came in the batch in which the column went."""
    old = feeder.table(numbered(relation("back", {"id": INT8, "odd": PRICE, "price": PRICE}, key), 1, 2, 3))

    def insert(table: Table, number: int, **special: str) -> None:
        transaction = feeder.begin()
        row = {column.name: None for column in table.description.columns}
        transaction.insert(table, {**row, "id": number}, special=special)
        transaction.commit()

    def special() -> dict[int, dict[str, str]]:
        rows = merged_rows(path)[old.name]
        assert all(row.get("price") is None for row in rows)
        assert key == () or [] not in [row["_special"] for row in rows]
        return {row["id"]: dict(row["_special"] or ()) for row in rows}

    insert(old, 1, price="NaN")
    insert(old, 2, price="NaN", odd="NaN")
    insert(old, 3)
    yield
    insert(old, 4, price="NaN")
    less = feeder.alter(old, numbered(relation("back", {"id": INT8, "odd": PRICE}, key), 1, 2))
    insert(less, 5, odd="NaN")
    yield
    expected = {1: {}, 2: {"odd": "NaN"}, 3: {}, 4: {}, 5: {"odd": "NaN"}}
    assert special() == expected
    more = feeder.alter(less, numbered(old.description, 1, 2, 4))
    insert(more, 6, price="NaN")
    yield
    assert special() == {**expected, 6: {"price": "NaN"}}


def special_values_stay_if_their_column_has_to_make_way(feeder: Feeder, path: Path, key: tuple[str, ...]) -> Story:
    """A column of the source gets its name, and then goes."""
    old = feeder.table(numbered(relation("way", {"id": INT8, "price": PRICE}, key), 1, 2))

    def insert(table: Table, **row: object) -> None:
        transaction = feeder.begin()
        transaction.insert(table, {"price": None, **row}, special={"price": "NaN"})
        transaction.commit()

    def found(*columns: str) -> list[tuple[object, ...]]:
        *plain, special = columns
        rows = merged_rows(path)[old.name]
        return sorted((*(row[name] for name in plain), dict(row[special] or ())) for row in rows)

    insert(old, id=1)
    yield
    nan = {"price": "NaN"}
    assert found("id", "_special") == [(1, nan)]
    more = feeder.alter(old, numbered(relation("way", {"id": INT8, "price": PRICE, "_special": TEXT}, key), 1, 2, 3))
    insert(more, id=2, _special="offer")
    yield
    assert found("id", "_special", "__special") == [(1, None, nan), (2, "offer", nan)]
    less = feeder.alter(more, old.description)
    insert(less, id=3)
    yield
    assert found("id", "_special") == [(1, nan), (2, nan), (3, nan)]


def small_numbers_become_text_in_rows_and_changes_as_in_postgresql(feeder: Feeder, path: Path) -> Story:
    """ALTER COLUMN TYPE numeric: the first rows are in the table by then, the others only in Kafka."""
    old = feeder.table(relation("rates", {"id": INT8, "rate": (NUMERIC, NUMERIC_20_10)}, ("id",)))
    numbers = [Decimal(0), Decimal("1E-10"), Decimal("-0.00000012"), Decimal("1.5")]
    texts = ["0.0000000000", "0.0000000001", "-0.0000001200", "1.5000000000"]
    commit(feeder, old, *((None, {"id": place, "rate": number}) for place, number in enumerate(numbers)))
    yield
    commit(feeder, old, *((None, {"id": 10 + place, "rate": number}) for place, number in enumerate(numbers)))
    new = feeder.alter(old, relation("rates", {"id": INT8, "rate": NUMERIC}, ("id",)))
    commit(feeder, new, (None, {"id": 20, "rate": "1.50"}))
    yield
    rows = sorted(merged_rows(path)[new.name], key=itemgetter("id"))
    assert [row["rate"] for row in rows] == [*texts, *texts, "1.50"]


def an_added_column_has_nothing_of_what_an_older_release_left(feeder: Feeder, path: Path, spark: SparkSession) -> Story:
    table = feeder.table(relation("added", {"id": INT8}, ("id",)))
    commit(feeder, table, (None, {"id": 1}))
    yield
    location = table_path(str(path), TableName("public", "added"))
    DeltaTable.forPath(spark, location).update(set={"_special": "map('price', 'NaN')"})
    more = feeder.alter(table, relation("added", {"id": INT8, "price": PRICE}, ("id",)))
    commit(feeder, more, (None, {"id": 2, "price": None}))
    yield
    rows = merged_rows(path)[table.name]
    assert sorted((row["id"], row["price"], row["_special"]) for row in rows) == [(1, None, None), (2, None, None)]


def columns_may_have_names_that_delta_looks_up(feeder: Feeder, path: Path) -> Story:
    """In a new table, and in one whose files have deletion vectors by then."""
    named = feeder.table(relation("named", {"id": INT8, "_metadata": TEXT, "DeletionVectorId": TEXT}, ("id",)))
    rows: list[Row] = [{"id": number, "_metadata": "a", "DeletionVectorId": "b"} for number in range(4)]
    plain = feeder.table(relation("plain", {"id": INT8, "note": TEXT}, ("id",)))
    commit(feeder, named, *((None, row) for row in rows))
    commit(feeder, plain, *((None, {"id": number, "note": "a"}) for number in range(6)))
    yield
    commit(feeder, named, (rows[0], {**rows[0], "_metadata": "c"}), (rows[1], None))
    commit(feeder, plain, (plain.rows[0,], {"id": 0, "note": "b"}), (plain.rows[1,], None))
    yield
    more = feeder.alter(plain, relation("plain", {"id": INT8, "note": TEXT, "_METADATA": TEXT}, ("id",)))
    commit(feeder, named, (rows[2], {**rows[2], "id": 10}))
    commit(feeder, more, (more.rows[2,], {"id": 2, "note": "a", "_METADATA": "c"}), (more.rows[3,], None))
    yield
    commit(feeder, more, (more.rows[4,], None))
    yield
    for table in (named, more):
        assert mirrored(path, table) == table.rows
    assert len(named.rows) == 3 and len(more.rows) == 3


@pytest.mark.usefixtures("fold")
@pytest.mark.parametrize("key", [pytest.param(("id",), id="rows"), pytest.param((), marks=pytest.mark.long, id="log")])
def test_odd_columns_and_their_values_are_as_in_the_source(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, key: tuple[str, ...]
) -> None:
    play(
        lambda: run_committed(spark, feeder, tmp_path),
        a_key_that_is_not_a_number_stays_where_it_is(feeder, tmp_path),
        a_value_that_was_not_sent_and_whose_column_is_dropped_stops_no_merge(feeder, tmp_path),
        a_column_that_comes_back_has_no_special_value_of_the_former_one(feeder, tmp_path, key),
        special_values_stay_if_their_column_has_to_make_way(feeder, tmp_path, key),
        small_numbers_become_text_in_rows_and_changes_as_in_postgresql(feeder, tmp_path),
        an_added_column_has_nothing_of_what_an_older_release_left(feeder, tmp_path, spark),
        columns_may_have_names_that_delta_looks_up(feeder, tmp_path),
    )


@pytest.mark.long
@pytest.mark.usefixtures("fold")
def test_columns_may_begin_with_a_dot(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    dots = feeder.table(relation("dots", {"id": INT8, ".id": INT8, ".note": TEXT}, (".id",)))
    commit(feeder, dots, *((None, {"id": 1, ".id": number, ".note": str(number)}) for number in range(3)))
    run_mirror(spark, feeder, tmp_path)
    zero, one, two = (dots.rows[number,] for number in range(3))
    commit(feeder, dots, (zero, {**zero, "id": 2}), (one, {**one, ".id": 10}), (two, None))
    run_mirror(spark, feeder, tmp_path)
    assert mirrored(tmp_path, dots) == dots.rows
    assert dots.rows == {(0,): {"id": 2, ".id": 0, ".note": "0"}, (10,): {"id": 1, ".id": 10, ".note": "1"}}
