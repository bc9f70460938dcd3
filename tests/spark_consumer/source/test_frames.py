"""Rows of one version of a table in the columns of another: every value as it was, or an error."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_consumer.errors import UnsupportedSchema
from spark_consumer.source.frames import STRINGS, project
from tests.conftest import Database

NUMBERS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    (pa.decimal128(38, 10), st.decimals(-(10**9), 10**9, places=10)),
]


def row_of(values: list[Any], written: pa.DataType) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.array(values, written)], names=["v"])


def read_as(values: list[Any], written: pa.DataType, target: pa.DataType, *, drops_misfits: bool = False) -> list[Any]:
    row = project(row_of(values, written), pa.struct([("v", target)]), drops_misfits=drops_misfits)
    return [item["v"] for item in row.to_pylist()]


@pytest.mark.parametrize(
    ("written", "value", "target"),
    [
        (pa.float64(), 0.1234567890123, pa.float32()),
        (pa.float64(), 1e300, pa.float32()),
        (pa.float64(), 0.125, pa.decimal128(12, 2)),
        (pa.decimal128(12, 2), Decimal("1.25"), pa.decimal128(12, 1)),
        (pa.decimal128(38, 10), Decimal("0.1000000001"), pa.float32()),
        (pa.timestamp("us"), datetime(2026, 1, 31, 12), pa.date32()),  # noqa: DTZ001 - a timestamp without zone
        (pa.timestamp("us"), datetime(2026, 1, 31), pa.timestamp("us", "UTC")),  # noqa: DTZ001
        (pa.date32(), date(2026, 1, 31), pa.int32()),
        (pa.bool_(), True, pa.int32()),
        (pa.string(), "012", pa.int32()),
        (pa.binary(), b"text", pa.string()),
        (pa.int64(), 2**31, pa.int32()),
        (pa.int64(), 1000, pa.decimal128(4, 1)),
        (pa.int64(), 2**53 + 1, pa.float64()),
        (pa.list_(pa.float64()), [None, 0.1], pa.list_(pa.float32())),
        (pa.int32(), 1, pa.list_(pa.int32())),
    ],
)
def test_a_value_that_would_change_is_refused(written: pa.DataType, value: Any, target: pa.DataType) -> None:
    with pytest.raises(UnsupportedSchema, match="column 'v' was written as"):
        read_as([None, value], written, target)


@pytest.mark.parametrize(
    ("written", "value", "target", "found"),
    [
        (pa.int32(), -7, pa.int64(), -7),
        (pa.int64(), 7, pa.int32(), 7),
        (pa.float32(), float("inf"), pa.float64(), float("inf")),
        (pa.decimal128(12, 2), Decimal("1.25"), pa.decimal128(14, 2), Decimal("1.25")),
        (pa.decimal128(12, 2), Decimal("1.25"), pa.string(), "1.25"),
        (pa.decimal128(20, 10), Decimal("0E-10"), pa.string(), "0.0000000000"),
        (pa.list_(pa.decimal128(20, 10)), [Decimal("-1E-10"), None], STRINGS, ["-0.0000000001", None]),
        (pa.string(), "0.0000000001", pa.decimal128(20, 10), Decimal("1E-10")),
        (pa.int32(), 12, pa.string(), "12"),
        (pa.int64(), 5, pa.decimal128(12, 2), Decimal("5.00")),
        (pa.decimal128(12, 2), Decimal("5.00"), pa.int64(), 5),
        (pa.list_(pa.int64()), [5], pa.list_(pa.field("element", pa.decimal128(4, 1))), [Decimal("5.0")]),
        (pa.timestamp("us"), datetime(2026, 1, 31), pa.date32(), date(2026, 1, 31)),  # noqa: DTZ001
        (pa.list_(pa.int32()), [1, None], pa.list_(pa.field("element", pa.int64())), [1, None]),
    ],
)
def test_a_value_that_fits_is_carried_over(written: pa.DataType, value: Any, target: pa.DataType, found: Any) -> None:
    assert read_as([value, None], written, target) == [found, None]


async def test_a_decimal_is_carried_over_as_the_text_that_postgresql_has_after_alter_column_type(
    database: Database,
) -> None:
    connection = await database.connect()
    for precision, scale in ((20, 10), (38, 38), (9, 0), (12, 7)):
        least, most = Decimal(f"1E-{scale}"), Decimal(f"{'9' * precision}E-{scale}")
        values = [0 * least, least, -least, 12 * least, most, most.copy_negate(), None]
        await connection.execute(f"CREATE TABLE t (n int, v numeric({precision}, {scale}))")
        await connection.executemany("INSERT INTO t VALUES ($1, $2)", list(enumerate(values)))
        await connection.execute("ALTER TABLE t ALTER v TYPE numeric")
        texts = [row["v"] for row in await connection.fetch("SELECT v::text FROM t ORDER BY n")]
        await connection.execute("DROP TABLE t")
        written = pa.decimal128(precision, scale)
        assert read_as(values, written, pa.string()) == texts
        assert read_as([values], pa.list_(written), STRINGS) == [texts]


@pytest.mark.parametrize("nested", [False, True])
def test_nan_is_carried_over(nested: bool) -> None:
    types = (pa.list_(pa.float32()), pa.list_(pa.float64())) if nested else (pa.float32(), pa.float64())
    value = float("nan")
    (found,) = read_as([[value] if nested else value], *types)
    assert str(found) == ("[nan]" if nested else "nan")


@given(
    st.sampled_from([pa.int64(), pa.decimal128(12, 4), pa.float64(), pa.binary(), pa.list_(pa.int64()), pa.date32()]),
    st.lists(st.none() | st.sampled_from(["a", "7", "012", "-1.5000", "99999999999", "2026-01-31", ""]), max_size=9),
)
def test_only_a_value_that_does_not_fit_is_dropped(target: pa.DataType, values: list[str | None]) -> None:
    found = read_as(values, pa.string(), target, drops_misfits=True)
    assert found == [fitting(value, pa.string(), target) for value in values]


def fitting(value: Any, written: pa.DataType, target: pa.DataType) -> Any:
    """What becomes of a value that is read alone; None if it does not fit."""
    try:
        return read_as([value], written, target)[0]
    except UnsupportedSchema:
        return None


def test_lists_of_which_one_does_not_fit_are_kept() -> None:
    lists = [[1, None], [2**31, 2], None, [], [-5]]
    found = read_as(lists, pa.list_(pa.int64()), pa.list_(pa.field("element", pa.int32())), drops_misfits=True)
    assert found == [[1, None], None, None, [], [-5]]


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.data())
def test_a_number_is_equal_to_what_was_written(
    written: tuple[pa.DataType, Any], target: tuple[pa.DataType, Any], data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.none() | written[1] | st.integers(-9, 9).map(as_in(written[0])), max_size=3))
    numbers = [value for value in values if value is not None]
    assume(numbers)
    types = written[0], target[0]
    if all(is_exact(value, target[0]) for value in numbers) and all(abs(value) <= largest(*types) for value in numbers):
        assert read_as(values, written[0], target[0]) == values
    else:
        with pytest.raises(UnsupportedSchema):
            read_as(values, written[0], target[0])


def as_in(written: pa.DataType) -> Callable[[int], Any]:
    """A small number as a value of the type."""
    if pa.types.is_decimal(written):
        return Decimal
    return float if pa.types.is_floating(written) else int


def is_exact(value: Any, target: pa.DataType) -> bool:
    """By Python's own arithmetic: whether the type has this number."""
    if isinstance(value, float) and math.isinf(value):
        return bool(pa.types.is_floating(target))
    exact = Fraction(value)
    if pa.types.is_decimal(target):
        units = exact * 10**target.scale
        return bool(units.denominator == 1 and abs(units) < 10**target.precision)
    if pa.types.is_integer(target):
        limit = 1 << (target.bit_width - 1)
        return bool(exact.denominator == 1 and -limit <= exact < limit)
    layout = "<f" if target == pa.float32() else "<d"
    try:
        return Fraction(*struct.unpack(layout, struct.pack(layout, exact))) == exact
    except OverflowError:
        return False


def largest(*types: pa.DataType) -> float:
    """Arrow refuses whole numbers that are not all in a floating-point type. A float is never
    carried over to a decimal, nor the other way: 0.1 is not the same number in both."""
    floats = [each for each in types if pa.types.is_floating(each)]
    if len(floats) != 1:
        return math.inf
    if any(pa.types.is_decimal(each) for each in types):
        return -1
    return float(2**24 if floats == [pa.float32()] else 2**53)
