"""Which changes of a column's type old events survive."""

from __future__ import annotations

import pytest

from schemas.change_schema import change_schema, key_schema
from schemas.compatibility import TypeChange, added_columns, incompatible_columns
from schemas.records import POSITION, TRANSACTION_MARKER
from schemas.relation import ColumnDescription
from tests.schemas.relations import array_of, built_in, column, numeric_typmod, relation


def numeric(precision: int, scale: int) -> ColumnDescription:
    return column("c", "numeric", numeric_typmod(precision, scale))


def changes(old: ColumnDescription, new: ColumnDescription) -> list[TypeChange]:
    return incompatible_columns(change_schema(relation(old), "cdc"), change_schema(relation(new), "cdc"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (column("c", "int2"), column("c", "int4")),
        (column("c", "int4"), column("c", "int8")),
        (column("c", "int4"), column("c", "float8")),
        (column("c", "float4"), column("c", "float8")),
        (column("c", "varchar", 14), column("c", "text")),
        (column("c", "uuid"), column("c", "text")),
        (column("c", "date"), column("d", "int4")),
        (numeric(10, 2), numeric(12, 2)),
        (column("c", array_of(built_in("int4"))), column("c", array_of(built_in("int8")))),
    ],
)
def test_old_events_stay_readable(old: ColumnDescription, new: ColumnDescription) -> None:
    assert changes(old, new) == []


def test_what_an_earlier_version_lacks_is_named_to_be_looked_for() -> None:
    first, second, third = (
        change_schema(relation(column("id", "int8", key=True), *more), "cdc")
        for more in ([column("c", "date")], [], [column("c", "int4"), column("d", "int4")])
    )
    added = added_columns(second, third)
    assert added == {("Row", "c"), ("Row", "d")}
    assert [change.column for change in incompatible_columns(first, third, added)] == ["c"]
    assert incompatible_columns(first, third, {("Row", "d")}) == []
    assert added_columns(first, second) == added_columns(POSITION, TRANSACTION_MARKER) == frozenset()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (column("c", "text"), column("c", "int4"), ("text (string)", "int4 (int)")),
        (column("c", "int8"), column("c", "int4"), ("int8 (long)", "int4 (int)")),
        (column("c", "int8"), column("c", "float8"), ("int8 (long)", "float8 (double)")),
        (column("c", "int4"), column("c", "float4"), ("int4 (int)", "float4 (float)")),
        (column("c", "text"), column("c", "uuid"), ("text (string)", "uuid (uuid)")),
        (column("c", "text"), column("c", "bytea"), ("text (string)", "bytea (bytes)")),
        (column("c", "timestamp"), column("c", "timestamptz"),
         ("timestamp (local-timestamp-micros)", "timestamptz (timestamp-micros)")),
        (column("c", "date"), column("c", "int4"), ("date (date)", "int4 (int)")),
        (numeric(10, 2), numeric(12, 4), ("numeric (decimal(10,2))", "numeric (decimal(12,4))")),
        (numeric(12, 2), numeric(10, 2), ("numeric (decimal(12,2))", "numeric (decimal(10,2))")),
        (numeric(12, 2), column("c", "numeric"), ("numeric (decimal(12,2))", "numeric (string)")),
        (column("c", "int4"), column("c", array_of(built_in("int4"))), ("int4 (int)", "_int4 (array of int)")),
    ],
)  # fmt: skip
def test_old_events_would_be_misread(old: ColumnDescription, new: ColumnDescription, named: tuple[str, str]) -> None:
    assert changes(old, new) == [TypeChange("c", *named)]


def test_columns_may_come_and_go_and_change_their_part_in_the_key() -> None:
    old = relation(column("id", "int8", key=True), column("gone", "text"))
    new = relation(column("id", "int8"), column("code", "int4", key=True), column("more", "bool"))
    assert incompatible_columns(change_schema(old, "cdc"), change_schema(new, "cdc")) == []
    old_key, new_key = key_schema(old, "cdc"), key_schema(new, "cdc")
    assert old_key is not None
    assert new_key is not None
    assert incompatible_columns(old_key, new_key) == []


def test_a_key_column_of_another_type_is_named() -> None:
    old = key_schema(relation(column("my id", "int8", key=True)), "cdc")
    new = key_schema(relation(column("my id", "text", key=True)), "cdc")
    assert old is not None
    assert new is not None
    assert incompatible_columns(old, new) == [TypeChange("my id", "long", "string")]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (["null", "string"], "string", [TypeChange("c", "string or null", "string, not null")]),
        (["string", "null"], "string", [TypeChange("c", "string or null", "string, not null")]),
        ("string", ["null", "string"], []),
        ("string", ["string", "null"], []),
        (["null", "string"], ["string", "null"], []),
        (["string", "null"], ["null", "long"], [TypeChange("c", "string", "long")]),
        (["null", "int"], ["long", "null"], []),
    ],
)
def test_a_key_in_debeziums_format_may_be_nullable(old: object, new: object, found: list[TypeChange]) -> None:
    before, after = (
        {"type": "record", "name": "Key", "fields": [{"name": "c", "type": type_}]} for type_ in (old, new)
    )
    assert incompatible_columns(before, after) == found


def test_the_fixed_records_are_left_to_the_registry() -> None:
    assert incompatible_columns(POSITION, TRANSACTION_MARKER) == []
