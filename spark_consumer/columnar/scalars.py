"""Decoders of Avro's scalar types. A decoder takes a cursor, rows and their count, and returns one
Arrow array."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumer.columnar.arrays import booleans, numbers, strings
from spark_consumer.columnar.cursor import Bytes, Cursor, Longs, Rows, gather
from spark_consumer.columnar.skip import Skip, skip_fixed, skip_span, skip_varint
from spark_consumer.errors import MalformedRecord, UnsupportedSchema

Decode: TypeAlias = Callable[[Cursor, Rows, int], pa.Array]


@dataclass(frozen=True, slots=True)
class Decoder:
    """The decoder of one Avro type: the Arrow type of the result, and the function that decodes
    values. `skip` is None for records, arrays and maps, which are never items of an array from
    PostgreSQL."""

    arrow_type: pa.DataType
    decode: Decode
    skip: Skip | None = None


# Spark's own Arrow types: microseconds, in UTC if the Avro type is an instant.
_INTEGERS: dict[tuple[str, str | None], pa.DataType] = {
    ("int", None): pa.int32(),
    ("int", "date"): pa.date32(),
    ("long", None): pa.int64(),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}


def integer_decoder(name: str, logical: str | None) -> Decoder:
    """Return a decoder of int or long, including dates and times. An unknown logical type is read
    as its base type, as Avro requires."""
    if (name, logical) == ("long", "time-micros"):
        return Decoder(pa.string(), _decode_time, skip_varint)
    arrow_type = _INTEGERS.get((name, logical)) or _INTEGERS[name, None]

    def decode(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
        values: Any = cursor.varint(rows)
        if name == "int":
            narrow = values.astype(np.int32)
            if (narrow != values).any():
                raise MalformedRecord("an int does not fit into 32 bits")
            values = narrow
        return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(np.ascontiguousarray(values))])

    return Decoder(arrow_type, decode, skip_varint)


_DAY_US = 86_400_000_000


def _decode_time(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
    """Decode time-micros to PostgreSQL's text ('04:05:06.5', '24:00:00'): Spark 4.2 and Delta have
    no time type that holds 24:00."""
    micros = cursor.varint(rows)
    if count and (int(micros.min()) < 0 or int(micros.max()) > _DAY_US):
        raise MalformedRecord("a time of day is not between 00:00 and 24:00")
    return strings([time_text(value) for value in micros.tolist()])


def time_text(micros: int) -> str:
    """Return PostgreSQL's text of a time of day, which is given in microseconds since midnight."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def bytes_decoder(arrow_type: pa.DataType) -> Decoder:
    """Return a decoder of string (checked to be UTF-8) or bytes."""
    is_text = pa.types.is_string(arrow_type)

    def decode(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
        start, length = cursor.span(rows)
        data, offsets = gather(cursor.buffer, start, length)
        array = pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        if is_text:
            _validate(array, "a string is not UTF-8")
        return array

    return Decoder(arrow_type, decode, skip_span)


def _validate(array: pa.Array, message: str) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise MalformedRecord(message) from None


def decimal_decoder(schema: Mapping[str, Any]) -> Decoder:
    """Return a decoder of bytes or fixed with the logicalType decimal and up to 38 digits."""
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    if not 1 <= precision <= 38:
        raise UnsupportedSchema(f"decimal with a precision of {precision}: Spark supports at most 38")
    arrow_type = pa.decimal128(precision, scale)
    size = int(schema["size"]) if schema["type"] == "fixed" else None

    def decode(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
        if size is not None:
            little = _little_endian(cursor.fixed(rows, size))
        else:
            little = _spans_little_endian(cursor, *cursor.span(rows))
        array = pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(little)])
        _validate(array, f"a decimal has more than {precision} digits")
        return array

    return Decoder(arrow_type, decode, skip_span if size is None else skip_fixed(size))


def _spans_little_endian(cursor: Cursor, start: Longs, length: Longs) -> Bytes:
    result = np.zeros((len(length), 16), np.uint8)
    for size in np.unique(length).tolist():
        if size:
            chosen = np.flatnonzero(length == size)
            result[chosen] = _little_endian(cursor.buffer[start[chosen][:, None] + np.arange(size)])
    return result


def _little_endian(big: Bytes) -> Bytes:
    """Convert big-endian two's complement (records, n) to little-endian (records, 16)."""
    size = big.shape[1]
    if size > 16:
        sign = np.where(big[:, size - 16] >= 128, 255, 0)
        if (big[:, : size - 16] != sign[:, None]).any():
            raise MalformedRecord("a decimal has more than 128 bits")
        big = big[:, size - 16 :]
    result = np.empty((len(big), 16), np.uint8)
    width = big.shape[1]
    result[:, :width] = big[:, ::-1]
    result[:, width:] = np.where(big[:, :1] >= 128, 255, 0)
    return result


def without_exponents(texts: pa.Array) -> pa.Array:
    """Convert decimals from Arrow's text form to PostgreSQL's, which has no exponent: 0.0000000001,
    not 1E-10."""
    has_exponent = pc.match_substring(texts, "E")
    found = texts.filter(has_exponent).to_pylist()
    if not found:
        return texts
    return pc.replace_with_mask(texts, has_exponent, strings([format(Decimal(text), "f") for text in found]))


def fixed_decoder(size: int) -> Decoder:
    """Return a decoder of fixed. Its result is binary, since Spark has no binary type of fixed
    length."""

    def decode(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
        data = np.ascontiguousarray(cursor.fixed(rows, size))
        offsets = np.arange(count + 1, dtype=np.int32) * size
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])

    return Decoder(pa.binary(), decode, skip_fixed(size))


def enum_decoder(symbols: list[str]) -> Decoder:
    words = strings(symbols)

    def decode(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
        index = cursor.varint(rows)
        if count and (int(index.min()) < 0 or int(index.max()) >= len(symbols)):
            raise MalformedRecord(f"the symbol index of an enum is not below {len(symbols)}")
        return words.take(numbers(index))

    return Decoder(pa.string(), decode, skip_varint)


def _decode_boolean(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
    value = cursor.fixed(rows, 1)[:, 0]
    if count and int(value.max()) > 1:
        raise MalformedRecord("a boolean is neither 0 nor 1")
    return booleans(value != 0)


def _decode_double(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
    return numbers(np.ascontiguousarray(cursor.fixed(rows, 8)).view("<f8")[:, 0])


def _decode_float(cursor: Cursor, rows: Rows, count: int) -> pa.Array:
    return numbers(np.ascontiguousarray(cursor.fixed(rows, 4)).view("<f4")[:, 0])


BOOLEAN = Decoder(pa.bool_(), _decode_boolean, skip_fixed(1))
DOUBLE = Decoder(pa.float64(), _decode_double, skip_fixed(8))
FLOAT = Decoder(pa.float32(), _decode_float, skip_fixed(4))
STRING = bytes_decoder(pa.string())
BYTES = bytes_decoder(pa.binary())
