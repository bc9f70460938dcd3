"""Readers of columns. In one call, a reader goes from a column's place in the tuple to its Avro
bytes.

A reader takes the data, the position of the column's kind byte and the list to append to; it
returns the position of the next column. It appends the same number of parts for every value and for
NULL; for most types this number is 1. Joining the row's parts costs 0.02 us for each part, and a
concatenation here 0.05 us.

A column in TupleData (manual 55.9) is the kind 'n', or the kind 't' or 'b' with a 4-byte length and
the value. For 7 everyday columns in binary form, a reader for each type takes 1.9 us; slicing each
value first and passing it to an encoder takes 2.2 us. Numbers are read by librt (mypyc's library).
This takes 0.02 us for each, while struct takes 0.06 us; if this module is compiled, it takes a few
instructions.

A column that is neither NULL nor of the reader's kind raises SlowPathNeeded; the row is then
encoded again on the slow path. Nothing is checked against the end of the data here: the caller
checks that the last column ends exactly at the end of the row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Final

from librt.strings import read_i32_be

from gateway.pgoutput.letters import KIND_NULL
from gateway.values.special_values import NotRenderable, UnrepresentableValue, check_text
from schemas.varint import HALF, SOME_SMALL, encode_some_long

Parts = list[bytes]
Reader = Callable[[bytes, int, Parts], int]
Encode = Callable[[bytes], bytes]
"""Encodes a value, given without its length, as Avro bytes with union branch 1. Raises
UnrepresentableValue."""
Render = Callable[[bytes], bytes]
"""Renders a binary value as the text that the server would have sent."""

AVRO_NULL: Final = b"\0"
NOTHING: Final = b""
"""An empty part, which a reader appends to reach its fixed number of parts."""
UNSIGNED: Final = 0xFFFFFFFF
"""The mask that makes lengths unsigned: a negative length then points beyond the end of every
row."""


class SlowPathNeeded(Exception):
    """The fast path cannot take a row. Usually a column has a kind that the reader does not expect:
    UNCHANGED, or text instead of binary."""


NOT_PLAIN: Final = (
    UnrepresentableValue,
    SlowPathNeeded,
    NotRenderable,
    ValueError,
    IndexError,
    OverflowError,
    struct.error,
)
"""The errors of readers and codecs after which a row is parsed, and encoded or refused, on the slow
path."""


def some_bytes(value: bytes) -> bytes:
    """Return branch 1, the length and the value, for Avro bytes and for strings that are known to
    be UTF-8."""
    length = len(value)
    return (SOME_SMALL[length] if length < HALF else encode_some_long(length)) + value


def some_text(value: bytes) -> bytes:
    """Return branch 1, the length and the value, for strings. Raises UnrepresentableValue if the
    value is not UTF-8."""
    if not value.isascii():
        check_text(value)
    length = len(value)
    return (SOME_SMALL[length] if length < HALF else encode_some_long(length)) + value


def read_with(encode: Encode, kind: int) -> Reader:
    """Return the reader of a type that has no faster reader."""

    def read(data: bytes, position: int, parts: Parts) -> int:
        if data[position] == kind:
            length: int = read_i32_be(data, position + 1)
            start = position + 5
            end = start + (length & UNSIGNED)
            parts.append(encode(data[start:end]))
            return end
        if data[position] == KIND_NULL:
            parts.append(AVRO_NULL)
            return position + 1
        raise SlowPathNeeded

    return read


@cache
def read_bytes(kind: int, is_text: bool) -> Reader:
    """Return a reader for values that become Avro by adding only their length: text, if it is
    UTF-8, and bytea in binary form. The reader appends two parts.

    Checking for bytes above 127 takes 0.02 us, and decoding text that has such bytes 0.1 us. A
    UnicodeDecodeError leads to the slow path just as UnrepresentableValue does.
    """

    def read(data: bytes, position: int, parts: Parts) -> int:
        if data[position] == kind:
            length: int = read_i32_be(data, position + 1)
            start = position + 5
            if 0 <= length < HALF:
                end = start + length
                parts.append(SOME_SMALL[length])
            else:
                end = start + (length & UNSIGNED)
                parts.append(encode_some_long(end - start))
            value = data[start:end]
            if is_text and not value.isascii():
                value.decode()
            parts.append(value)
            return end
        if data[position] == KIND_NULL:
            parts.append(AVRO_NULL)
            parts.append(NOTHING)
            return position + 1
        raise SlowPathNeeded

    return read


def read_bytes_side_by_side(kind: int, is_text: bool, count: int) -> Reader:
    one = read_bytes(kind, False)
    columns = (None,) * count

    def read(data: bytes, position: int, parts: Parts) -> int:
        first, first_part = position, len(parts)
        for _ in columns:
            if data[position] == kind:
                length: int = read_i32_be(data, position + 1)
                if 0 <= length < HALF:
                    start = position + 5
                    position = start + length
                    parts.append(SOME_SMALL[length])
                    parts.append(data[start:position])
                    continue
            position = one(data, position, parts)
        if is_text and not data[first:position].isascii():  # a byte of a length above 127 only causes a needless check
            for value in parts[first_part + 1 :: 2]:
                if not value.isascii():
                    value.decode()
        return position

    return read


def always_unusual(data: bytes, position: int, parts: Parts) -> int:
    """Read a column whose wire form has no decoder: NULL is read, and any value raises
    SlowPathNeeded."""
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        return position + 1
    raise SlowPathNeeded
