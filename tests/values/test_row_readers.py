"""What the row encoder builds on: how many parts a reader appends, and that runs are made where
neighbours allow it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.build import is_compiled
from gateway.pgoutput.tuple_data import TupleValue
from gateway.values.column_codec import codec
from gateway.values.column_readers import Reader
from gateway.values.row_readers import RowReaders
from schemas.avro_types import column_type
from tests.events.rows import ALL, BYTEA, INT2, INT4, INT8, TEXT, ColumnKind, facts, wire_row
from tests.pgoutput.writer import write_tuple_data

COLUMN_COUNT_BYTES = 2


def reader_of(kind: ColumnKind, *, binary: bool) -> Reader:
    known = codec(column_type(facts(kind.oid, kind.type), kind.typmod))
    return known.read_binary if binary else known.read_text


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.type)
@given(data=st.data())
def test_a_reader_appends_as_many_parts_for_a_value_as_for_null(
    kind: ColumnKind, binary: bool, data: st.DataObject
) -> None:
    read = reader_of(kind, binary=binary)
    parts: list[bytes] = []
    wire = column(*wire_row((kind,), (data.draw(kind.values),), binary=binary))
    assert read(wire, 0, parts) == len(wire)
    assert (len(parts),) == tuple(map(len, RowReaders([read]).nulls))


def column(value: TupleValue) -> bytes:
    return write_tuple_data((value,))[COLUMN_COUNT_BYTES:]


@pytest.mark.parametrize(
    ("kinds", "binary", "runs"),
    [
        ([TEXT] * 4 + [INT4] + [BYTEA] * 4, True, 3),
        ([TEXT] * 3 + [INT4] + [TEXT] * 4, False, 3 + 1 + 1),
        ([INT4] * 5 + [INT8] * 4 + [INT2] * 4, True, 5 + 4 + 4 if is_compiled() else 3),
        ([INT4] * 3 + [INT8] * 4, False, 7),
    ],
    ids=["bytes", "three", "integers", "integers in text"],
)
def test_four_neighbours_of_one_type_are_read_in_one_call(kinds: list[ColumnKind], binary: bool, runs: int) -> None:
    readers = RowReaders(reader_of(kind, binary=binary) for kind in kinds)
    assert len(readers.columns) == len(kinds)
    assert len(readers.runs) == runs


def test_the_parts_of_a_column_are_found_by_its_index() -> None:
    kinds = (INT4, TEXT, INT4, TEXT)
    readers = RowReaders(reader_of(kind, binary=True) for kind in kinds)
    values: tuple[Any, ...] = (7, "a", 8, "b")
    parts: list[bytes] = []
    wire = write_tuple_data(wire_row(kinds, values, binary=True))
    place = COLUMN_COUNT_BYTES
    for read in readers.runs:
        place = read(wire, place, parts)
    assert b"".join(parts[part] for part in readers.parts_of([3, 0])) == b"\2\2b" + b"\2\x0e"
