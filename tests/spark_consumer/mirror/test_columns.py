"""Columns by attnum, without Spark: what of an old record is in the columns of a newer version."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from schemas.change_schema import MOST_DEFAULT_BYTES, change_schema
from schemas.relation import ColumnDescription, MissingValue, RelationDescription, TypeFacts
from schemas.topic_names import avro_name
from schemas.wire_format import frame
from spark_consumer.mirror.fold.replica_identity import keys_of
from spark_consumer.mirror.tables.columns import (
    OLD_ROW,
    change_of_columns,
    decode_records,
    doubts_of,
    missing_values,
    texts_of,
)
from spark_consumer.mirror.tables.table_schema import TableSchema
from tests.spark_consumer.feeder import INT4, INT8, NUMERIC, NUMERIC_12_2, TEXT, TIMESTAMP, relation

SEVEN = MissingValue(b"\2\x0e")
Column = (
    tuple[TypeFacts | tuple[TypeFacts, int], int | None] | tuple[TypeFacts | tuple[TypeFacts, int], int, MissingValue]
)


def version(**columns: Column) -> RelationDescription:
    """Columns with their types, attnums and missing values; `id` is the key."""
    plain = relation("t", {name: told[0] for name, told in columns.items()}, ("id",))
    numbered = tuple(_numbered(column, *columns[column.name][1:]) for column in plain.columns)
    return replace(plain, columns=numbered)


def _numbered(column: ColumnDescription, number: Any, missing: Any = None) -> ColumnDescription:
    return replace(column, attnum=number, missing=missing)


def schema(description: RelationDescription) -> dict[str, Any]:
    return json.loads(json.dumps(change_schema(description, "cdc")))  # type: ignore[no-any-return]


def shape(description: RelationDescription) -> TableSchema:
    return TableSchema.of(schema(description))


def change(
    old: RelationDescription, new: RelationDescription
) -> tuple[dict[str, str | None], set[str], tuple[str, ...]]:
    before, after = shape(old), shape(new)
    found = change_of_columns(before, after, missing_values([before, after]))
    return dict(found.sources), set(found.fills), found.by_name


def test_a_default_that_the_present_type_cannot_hold_is_not_filled_in() -> None:
    """The type was changed after the column had been added."""
    added = version(id=(INT8, 1), a=(TEXT, 2), b=(TEXT, 3), c=(INT4, 4, SEVEN))
    before, after = shape(FIRST), shape(version(id=(INT8, 1), a=(TEXT, 2), b=(TEXT, 3), c=(TIMESTAMP, 4)))
    found = change_of_columns(before, after, missing_values([before, shape(added), after]))
    assert (found.unfilled, dict(found.fills)) == (("c",), {})
    assert "c. Existing rows have null there" in doubts_of(before, after, found)


FIRST = version(id=(INT8, 1), a=(TEXT, 2), b=(TEXT, 3))


@pytest.mark.parametrize(
    ("new", "sources", "fills", "is_plain"),
    [
        (FIRST, {"id": "id", "a": "a", "b": "b"}, set(), True),
        (version(id=(INT8, 1), z=(TEXT, 2), b=(TEXT, 3)), {"id": "id", "z": "a", "b": "b"}, set(), False),
        (version(id=(INT8, 1), b=(TEXT, 2), a=(TEXT, 3)), {"id": "id", "b": "a", "a": "b"}, set(), False),
        (version(id=(INT8, 1), b=(TEXT, 3), a=(TEXT, 4)), {"id": "id", "b": "b", "a": None}, set(), False),
        (version(id=(INT8, 1), b=(TEXT, 3)), {"id": "id", "b": "b"}, set(), True),
        (
            version(id=(INT8, 1), a=(TEXT, 2), b=(TEXT, 3), c=(INT4, 4)),
            {"id": "id", "a": "a", "b": "b", "c": None},
            set(),
            True,
        ),
        (
            version(id=(INT8, 1), a=(TEXT, 2), b=(TEXT, 3), c=(INT4, 4, SEVEN)),
            {"id": "id", "a": "a", "b": "b", "c": None},
            {"c"},
            False,
        ),
    ],
    ids=["same", "renamed", "swapped", "replaced", "dropped", "added", "added with a default"],
)
def test_columns_are_followed_by_number(
    new: RelationDescription, sources: dict[str, str | None], fills: set[str], is_plain: bool
) -> None:
    assert change(FIRST, new) == (sources, fills, ())
    before, after = shape(FIRST), shape(new)
    found = change_of_columns(before, after, missing_values([after]))
    assert found.is_plain(before.columns) is is_plain


def test_without_numbers_columns_are_told_by_name() -> None:
    old = version(id=(INT8, None), a=(TEXT, None), b=(TEXT, None))
    new = version(id=(INT8, 1), b=(TEXT, 2), c=(INT4, 4, SEVEN))
    assert change(old, new) == ({"id": "id", "b": "b", "c": None}, set(), ("c", "a"))
    assert change(old, FIRST) == ({"id": "id", "a": "a", "b": "b"}, set(), ())  # another gateway, and nothing else
    assert change(FIRST, old) == ({"id": "id", "a": "a", "b": "b"}, set(), ())
    partly = version(id=(INT8, 1), a=(TEXT, 2), b=(TEXT, 3), c=(INT4, None))
    assert change(FIRST, partly) == ({"id": "id", "a": "a", "b": "b", "c": None}, set(), ("c",))


def test_another_relation_has_nothing_of_the_former_one() -> None:
    found, fills, by_name = change(FIRST, replace(FIRST, oid=FIRST.oid + 1))
    assert (found, fills, by_name) == ({"id": "id", "a": "a", "b": "b"}, set(), ())


def test_a_value_that_the_server_forgot_is_known_from_another_version() -> None:
    told = version(id=(INT8, 1), c=(INT4, 2, SEVEN))
    forgot = version(id=(INT8, 1), c=(INT4, 2))
    first = shape(version(id=(INT8, 1)))
    found = change_of_columns(first, shape(forgot), missing_values([shape(told), shape(forgot)]))
    assert set(found.fills) == {"c"}


def test_what_is_not_told_is_said() -> None:
    wider = version(id=(INT8, 1), a=(INT8, 2), b=(TEXT, 3))
    before, after = shape(FIRST), shape(wider)
    assert "type was changed: a." in doubts_of(before, after, change_of_columns(before, after, {}))
    large = MissingValue(bytes(MOST_DEFAULT_BYTES + 1))
    filled = shape(version(id=(INT8, 1), a=(TEXT, 2), b=(TEXT, 3), c=(TEXT, 4, large), d=(INT4, 5, SEVEN)))
    found = change_of_columns(before, filled, missing_values([filled]))
    assert "too large to be in the schema: c." in doubts_of(before, filled, found) and set(found.fills) == {"d"}
    old = shape(version(id=(INT8, None)))
    assert "numbers are unknown: a, b." in doubts_of(old, before, change_of_columns(old, before, {}))
    assert doubts_of(before, before, change_of_columns(before, before, {})) == ""


def test_the_key_is_one_whatever_it_is_called() -> None:
    renamed = replace(FIRST, columns=(replace(FIRST.columns[0], name="pk"), *FIRST.columns[1:]))
    key_of = keys_of({1: shape(FIRST), 2: shape(renamed)})
    assert key_of(1) == key_of(2)
    unnumbered = version(id=(INT8, None))
    key_of = keys_of({1: shape(FIRST), 2: shape(unnumbered)})
    assert key_of(1) == key_of(2) == ("id",)


def record(description: RelationDescription, **facts: Any) -> bytes:
    parsed = fastavro.parse_schema(change_schema(description, "cdc"))
    whole = {
        "op": "UPDATE", "xid": 1, "subxid": -1, "epoch": 1, "change_lsn": 1, "ordinal": 0, "commit_lsn": 1, "commit_time": None,
        "origin": None, "key_change": False, "old_key": None, "before": None, "after": None, "unchanged": [], "special": {},
        **facts,
    }  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, whole)
    return frame(1) + out.getvalue()


def test_of_a_dropped_column_an_old_record_has_no_entry() -> None:
    old = version(**{"id": (INT8, 1), "a": (TEXT, 2), "gone": (TEXT, 3), "before.x": (TEXT, 4)})
    new = version(**{"id": (INT8, 1), "a": (TEXT, 2), "before.x": (TEXT, 4)})
    schemas = {1: (schema(old), shape(old)), 2: (schema(new), shape(new))}
    row = {"id": 1, "a": None, "gone": None, avro_name("before.x"): None}
    special = {"a": "inf", "gone": "inf", "before.gone": "inf"}
    values = [
        record(old, after=row, unchanged=["gone"]),
        record(old, after=row, unchanged=["a", "before.a", "gone", avro_name("before.x")]),
        record(old, before=row, after=row, special=special),
        record(old, after=row),
    ]
    _, _, after, unchanged, texts = decode_records(
        schemas[2][1], pa.array(values, pa.binary()), texts_of(schemas, 2)[1]
    )
    assert set(after.to_pylist()[0]) == {"id", "a", "before.x"}
    assert unchanged.to_pylist() == [[], ["a", f"{OLD_ROW}a", "before.x"], [], []]
    assert texts.to_pylist() == [[], [], [("a", "inf")], []]


def test_an_old_record_has_the_names_and_values_of_the_newest_version() -> None:
    price = (NUMERIC, NUMERIC_12_2)
    old = version(id=(INT8, 1), a=(TEXT, 2), b=(price, 3), gone=(TEXT, 4))
    new = version(
        pk=(INT8, 1),
        b=(TEXT, 2),
        a=(price, 3),
        gone=(TEXT, 5),
        c=(INT4, 6, SEVEN),
        n=(price, 7, MissingValue(b"\0", "NaN")),
    )
    new = replace(new, columns=(replace(new.columns[0], identity=True), *new.columns[1:]))
    schemas = {1: (schema(old), shape(old)), 2: (schema(new), shape(new))}
    texts = texts_of(schemas, 2)
    row = {"id": 1, "a": None, "b": None, "gone": "x"}
    value = record(
        old,
        old_key={"id": 1},
        before=row,
        after={**row, "id": 2},
        unchanged=["a", "gone", "before.gone"],
        special={"b": "NaN", "before.b": "inf", "gone": "inf", "before.gone": "inf"},
    )
    nothing = record(old, op="TRUNCATE")
    old_key, before, after, unchanged, special = decode_records(
        schemas[2][1], pa.array([value, nothing], pa.binary()), texts[1]
    )
    filled = {"pk": 2, "b": None, "a": None, "gone": None, "c": 7, "n": None}
    assert after.to_pylist() == [filled, None]
    assert before.to_pylist() == [{**filled, "pk": 1}, None]
    assert old_key.to_pylist() == [{"pk": 1}, None]
    assert unchanged.to_pylist() == [["b"], []]
    texts_of_row = {"a": "NaN", f"{OLD_ROW}a": "inf", "n": "NaN", f"{OLD_ROW}n": "NaN"}
    assert [dict(entries) for entries in special.to_pylist()] == [texts_of_row, {}]
