"""Relations and rows for the encoder's tests: a value as Python knows it, in both wire forms, and
what the event must say."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.pgoutput.tuple_data import Binary, Text, TupleValue
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts

PG_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """A type with its values and how the server writes them."""

    oid: int
    type: str
    typmod: int
    values: SearchStrategy[Any]
    text: Callable[[Any], bytes]
    binary: Callable[[Any], bytes]


def facts(oid: int, name: str) -> TypeFacts:
    return TypeFacts(oid, "pg_catalog", name, Kind.BASE)


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def numeric_binary(value: Decimal) -> bytes:
    """numeric_send, digit by digit: base 10,000, no zero digits at either end."""
    sign, decimal_digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    unscaled = int("".join(map(str, decimal_digits))) * 10 ** max(exponent, 0)
    padding = -scale % 4
    unscaled *= 10**padding
    digits: list[int] = []
    while unscaled:
        unscaled, digit = divmod(unscaled, 10000)
        digits.insert(0, digit)
    weight = len(digits) - 1 - (scale + padding) // 4
    while digits and not digits[-1]:
        digits.pop()
    if not digits:
        weight = 0
    return struct.pack(f"!HhHH{len(digits)}H", len(digits), weight, 0x4000 if sign and digits else 0, scale, *digits)


def _micros(value: datetime) -> int:
    delta = value - PG_EPOCH
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


def _timestamp_text(value: datetime) -> bytes:
    fraction = f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
    return f"{value.year:04d}-{value:%m-%d %H:%M:%S}{fraction}+00".encode()


def _decimals(precision: int, scale: int) -> SearchStrategy[Decimal]:
    """Without -128, -32768, ...: fastavro writes them with one byte more than they need."""
    limit = 10**precision - 1
    longer = {-(1 << bits) for bits in range(7, limit.bit_length(), 8)}
    return (
        st.integers(-limit, limit)
        .filter(lambda unscaled: unscaled not in longer)
        .map(lambda unscaled: Decimal(f"{unscaled}e-{scale}"))
    )


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30) | st.integers(
    8190, 8194
).map("x".__mul__)
INT8 = ColumnKind(20, "int8", -1, st.integers(-(2**63), 2**63 - 1), lambda v: b"%d" % v, struct.Struct("!q").pack)
INT4 = ColumnKind(23, "int4", -1, st.integers(-(2**31), 2**31 - 1), lambda v: b"%d" % v, struct.Struct("!i").pack)
INT2 = ColumnKind(21, "int2", -1, st.integers(-(2**15), 2**15 - 1), lambda v: b"%d" % v, struct.Struct("!h").pack)
TEXT = ColumnKind(25, "text", -1, _text, str.encode, str.encode)
BOOL = ColumnKind(16, "bool", -1, st.booleans(), lambda v: b"t" if v else b"f", lambda v: b"\1" if v else b"\0")
NUMERIC = ColumnKind(
    1700, "numeric", numeric_typmod(12, 2), _decimals(12, 2), lambda v: f"{v:.2f}".encode(), numeric_binary
)
FLOAT8 = ColumnKind(
    701,
    "float8",
    -1,
    st.floats(allow_nan=False),
    lambda v: repr(v).replace("inf", "Infinity").encode(),
    struct.Struct("!d").pack,
)
BYTEA = ColumnKind(17, "bytea", -1, st.binary(max_size=30), lambda v: b"\\x" + v.hex().encode(), lambda v: v)
DATE = ColumnKind(
    1082, "date", -1, st.dates(), lambda v: v.isoformat().encode(),
    lambda v: struct.pack("!i", (v - date(2000, 1, 1)).days),
)  # fmt: skip
TIMESTAMPTZ = ColumnKind(
    1184,
    "timestamptz",
    -1,
    st.datetimes(timezones=st.just(UTC)),
    _timestamp_text,
    lambda v: struct.pack("!q", _micros(v)),
)
EVERYDAY = (INT8, INT4, TEXT, NUMERIC, TIMESTAMPTZ, BOOL, TEXT)
WIDE = (INT8, *[INT4] * 5, *[INT2] * 4, *[INT8] * 4, TIMESTAMPTZ, *[BOOL] * 6, *[TEXT] * 5, INT4, *[BYTEA, TEXT] * 2)
"""Types side by side, which are read in runs."""
ALL = (INT8, INT4, INT2, TEXT, BOOL, NUMERIC, FLOAT8, BYTEA, DATE, TIMESTAMPTZ)


def relation(
    kinds: tuple[ColumnKind, ...] = EVERYDAY,
    identity: tuple[int, ...] = (0,),
    replica_identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
) -> RelationDescription:
    """Columns c0, c1, ... of these kinds; `identity`: indexes of the identity columns."""
    columns = tuple(
        ColumnDescription(f"c{index}", facts(kind.oid, kind.type), kind.typmod, index in identity)
        for index, kind in enumerate(kinds)
    )
    return RelationDescription(16400, "public", "shop orders", replica_identity, columns)


def wire_row(kinds: tuple[ColumnKind, ...], values: tuple[Any, ...], *, binary: bool) -> tuple[TupleValue, ...]:
    """Python values in a wire form."""
    return tuple(
        None if value is None else Binary(kind.binary(value)) if binary else Text(kind.text(value))
        for kind, value in zip(kinds, values, strict=True)
    )


def rows(kinds: tuple[ColumnKind, ...]) -> SearchStrategy[tuple[Any, ...]]:
    """Half of them without a NULL."""
    return st.tuples(*(kind.values for kind in kinds)) | st.tuples(*(kind.values | st.none() for kind in kinds))


def avro_row(description: RelationDescription, values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip((column.name for column in description.columns), values, strict=True))


def avro_bytes(parsed_schema: Any, value: Any) -> bytes:
    """As fastavro writes it."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, parsed_schema, value)
    return stream.getvalue()
