"""The numpy decoder against fastavro: random schemas, random rows, and every kind of damage."""

from __future__ import annotations

import contextlib
import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import fastavro
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_consumer.columnar import nested
from spark_consumer.columnar.cursor import Cursor
from spark_consumer.columnar.scalars import time_text
from spark_consumer.columnar.schema import RecordDecoder
from spark_consumer.errors import MalformedRecord, UnsupportedSchema

FRAMING = b"\x00\x00\x00\x00\x07"
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - timestamps without zone
LONGS = st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.datetimes()


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    return digits.map(
        lambda number: Decimal(number).scaleb(-scale) if abs(number) < 10**28 else Decimal(f"{number}e-{scale}")
    )


def decimal_type(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


FEW_RECORDS = st.sampled_from([0, 4, 64])

SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", LONGS),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text()),
    ("bytes", st.binary()),
    (decimal_type(12, 2), decimals(12, 2)),
    (decimal_type(38, 0), decimals(38, 0)),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    (
        {"type": "long", "logicalType": "time-micros"},
        st.integers(0, 86_399_999_999).map(lambda us: (EPOCH + timedelta(microseconds=us)).time()),
    ),
    ({"type": "long", "logicalType": "timestamp-micros"}, MOMENTS.map(lambda at: at.replace(tzinfo=UTC))),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, MOMENTS),
    ({"type": "string", "logicalType": "uuid"}, st.uuids(version=4)),
    ({"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}, st.sampled_from(["RED", "GREEN"])),
    ({"type": "fixed", "name": "Six", "size": 6}, st.binary(min_size=6, max_size=6)),
]


def named_apart(schema: Any, suffix: str) -> Any:
    if isinstance(schema, dict) and "name" in schema:
        return {**schema, "name": f"{schema['name']}{suffix}"}
    return schema


@st.composite
def record_and_rows(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A record schema of our kinds (optional, array, map, nested record over the scalars) and up to
    12 rows of it."""
    fields: list[dict[str, Any]] = []
    values: dict[str, st.SearchStrategy[Any]] = {}
    for place, (schema, strategy) in enumerate(draw(st.lists(st.sampled_from(SCALARS), min_size=1, max_size=6))):
        schema = named_apart(schema, str(place))
        shape = draw(st.sampled_from(["plain", "optional", "optional last", "array", "map", "record"]))
        if shape == "optional":
            schema, strategy = ["null", schema], st.none() | strategy
        elif shape == "optional last":
            schema, strategy = [schema, "null"], st.none() | strategy
        elif shape == "array":
            schema = ["null", {"type": "array", "items": ["null", schema]}]
            strategy = st.none() | st.lists(st.none() | strategy, max_size=4)
        elif shape == "map":
            schema, strategy = (
                {"type": "map", "values": schema},
                st.dictionaries(st.text(max_size=3), strategy, max_size=3),
            )
        elif shape == "record":
            inner = {"type": "record", "name": f"Inner{place}", "fields": [{"name": "x", "type": ["null", schema]}]}
            schema, strategy = ["null", inner], st.none() | st.fixed_dictionaries({"x": st.none() | strategy})
        fields.append({"name": f"f{place}", "type": schema})
        values[f"f{place}"] = strategy
    rows = draw(st.lists(st.fixed_dictionaries(values), max_size=12))
    return {"type": "record", "name": "Test", "namespace": "of.walgate", "fields": fields}, rows


def encode(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row, strict=True)
    return FRAMING + out.getvalue()


def decode(schema: dict[str, Any], values: list[bytes], few_records: int = 64) -> list[dict[str, Any]]:
    """`few_records`: the number of arrays below which their items are located one by one."""
    with patch.object(nested, "_FEW_RECORDS", few_records):
        columns = RecordDecoder(schema).decode(pa.array(values, pa.binary()), skip=5)
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(column.to_pylist() for column in columns.values()), strict=True)
    ]


def as_arrow_says(value: Any) -> Any:
    """fastavro's value in the form that our Arrow columns give back."""
    from datetime import time
    from uuid import UUID

    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, time):
        midnight = datetime.combine(date(1970, 1, 1), value) - EPOCH
        return time_text(midnight // timedelta(microseconds=1))
    if isinstance(value, list):
        return [as_arrow_says(item) for item in value]
    if isinstance(value, dict):
        return {name: as_arrow_says(item) for name, item in value.items()}
    return value


def maps_as_dicts(decoded: Any, like: Any) -> Any:
    """Arrow gives maps as lists of pairs."""
    if isinstance(like, dict) and isinstance(decoded, list):
        decoded = dict(decoded)
    if isinstance(like, dict):
        return {name: maps_as_dicts(item, like.get(name)) for name, item in decoded.items()}
    if isinstance(like, list):
        return [maps_as_dicts(item, other) for item, other in zip(decoded, like, strict=True)]
    return decoded


@settings(max_examples=300, deadline=None)
@given(record_and_rows(), FEW_RECORDS)
def test_any_record_decodes_as_fastavro_decodes_it(
    given_: tuple[dict[str, Any], list[dict[str, Any]]], few_records: int
) -> None:
    schema, rows = given_
    values = [encode(schema, row) for row in rows]
    parsed = fastavro.parse_schema(schema)
    expected = [as_arrow_says(fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None)) for value in values]
    decoded = decode(schema, values, few_records)
    assert [maps_as_dicts(row, other) for row, other in zip(decoded, expected, strict=True)] == expected


@settings(max_examples=100, deadline=None)
@given(record_and_rows(), FEW_RECORDS, st.data())
def test_a_truncated_record_raises(
    given_: tuple[dict[str, Any], list[dict[str, Any]]], few_records: int, data: st.DataObject
) -> None:
    schema, rows = given_
    values = [encode(schema, row) for row in rows]
    cuttable = [place for place, value in enumerate(values) if len(value) > 5]
    assume(cuttable)
    place = data.draw(st.sampled_from(cuttable))
    values[place] = values[place][: data.draw(st.integers(5, len(values[place]) - 1))]
    with pytest.raises(MalformedRecord) as caught:
        decode(schema, values, few_records)
    assert caught.value.record == place


@settings(max_examples=100, deadline=None)
@given(record_and_rows(), st.binary(min_size=1, max_size=12), st.data())
def test_extra_bytes_raise(
    given_: tuple[dict[str, Any], list[dict[str, Any]]], extra: bytes, data: st.DataObject
) -> None:
    schema, rows = given_
    assume(rows)
    values = [encode(schema, row) for row in rows]
    place = data.draw(st.integers(0, len(values) - 1))
    values[place] += extra
    with pytest.raises(MalformedRecord) as caught:
        decode(schema, values)
    assert caught.value.record == place


@settings(max_examples=300, deadline=None)
@given(record_and_rows(), st.lists(st.binary(max_size=60), min_size=1, max_size=5), FEW_RECORDS)
def test_arbitrary_bytes_never_raise_anything_but_the_documented_error(
    given_: tuple[dict[str, Any], list[dict[str, Any]]], rubbish: list[bytes], few_records: int
) -> None:
    with contextlib.suppress(MalformedRecord):
        decode(given_[0], [FRAMING + value for value in rubbish], few_records)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SCALARS), st.lists(st.binary(max_size=60), min_size=1, max_size=5))
def test_both_ways_to_read_arrays_refuse_the_same_bytes(
    scalar: tuple[Any, st.SearchStrategy[Any]], rubbish: list[bytes]
) -> None:
    array = {"type": "array", "items": ["null", scalar[0]]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": array}]}
    found: list[Any] = []
    for few_records in (0, 64):
        try:
            found.append(repr(decode(schema, [FRAMING + value for value in rubbish], few_records)))
        except MalformedRecord as problem:
            found.append(problem.record)
    assert found[0] == found[1]


def test_one_long_array_among_short_ones_is_not_read_item_by_item_with_numpy() -> None:
    array = {"type": "array", "items": ["null", "double"]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": array}]}
    rows: list[dict[str, Any]] = [{"x": [1.5] * (number % 4)} for number in range(100)]
    rows[70] = {"x": [None if number % 3 == 0 else float(number) for number in range(20_000)]}
    with patch.object(Cursor, "fixed", autospec=True, side_effect=Cursor.fixed) as move:
        assert decode(schema, [encode(schema, row) for row in rows]) == rows
    assert move.call_count < 10


def test_the_first_of_several_malformed_records_is_the_one_that_is_named() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}
    values = [encode(schema, {"x": "abc"})] * 1000
    values[700] = values[700].replace(b"b", b"\xff")
    values[900] = values[900][:-1]
    with pytest.raises(MalformedRecord, match="UTF-8") as caught:
        decode(schema, values)
    assert caught.value.record == 700


def test_a_value_shorter_than_its_framing_raises() -> None:
    with pytest.raises(MalformedRecord):
        decode({"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}, [b"\x00\x00"])


def test_a_length_beyond_the_record_raises_even_where_the_buffer_goes_on() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}
    honest, greedy = encode(schema, {"x": "abcdef"}), FRAMING + b"\x14a"
    with pytest.raises(MalformedRecord, match="beyond"):
        decode(schema, [greedy, honest])


def test_blocks_with_a_negative_count_and_a_size_are_read() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "array", "items": "int"}}]}
    assert decode(schema, [FRAMING + b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"]) == [{"x": [1, 2, 3]}]


def test_a_named_type_is_known_by_name_at_its_second_use() -> None:
    row = {"type": "record", "name": "Row", "fields": [{"name": "a", "type": ["null", "long"]}]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Row"]}]
    schema = {"type": "record", "name": "Change", "namespace": "cdc.public.t", "fields": fields}
    rows: list[dict[str, Any]] = [{"before": None, "after": {"a": 5}}, {"before": {"a": None}, "after": None}]
    assert decode(schema, [encode(schema, row) for row in rows]) == rows


def test_a_slice_of_an_array_decodes_alone() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}
    values = pa.array([encode(schema, {"x": number}) for number in range(10)], pa.binary())
    assert RecordDecoder(schema).decode(values.slice(3, 4), skip=5)["x"].to_pylist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    "schema", [["null", "int", "string"], {"type": "bytes", "logicalType": "decimal", "precision": 39}, "Unknown"]
)
def test_a_schema_outside_the_subset_is_refused_at_once(schema: Any) -> None:
    with pytest.raises(UnsupportedSchema):
        RecordDecoder({"type": "record", "name": "R", "fields": [{"name": "x", "type": schema}]})
