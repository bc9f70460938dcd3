"""TupleData: the columns of one row, as they are on the wire (PostgreSQL manual, 55.9).

Most rows in the gateway are not parsed here: `gateway/values/column_readers.py` reads the same
bytes and writes Avro directly. `read_tuple_data` parses the rows that the column readers refuse,
and rows for callers that need their values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gateway.pgoutput.cursor import Cursor
from gateway.pgoutput.letters import KIND_BINARY, KIND_NULL, KIND_TEXT, KIND_UNCHANGED


class Unchanged(Enum):
    """The type of UNCHANGED, which is its only value."""

    UNCHANGED = "unchanged"


# 'u': "Identifies unchanged TOASTed value (the actual value is not sent)."
UNCHANGED: Final = Unchanged.UNCHANGED


# Values never change, but frozen=True would double the time to create one, by 0.35 us.
@dataclass(slots=True, unsafe_hash=True)
class Text:
    """'t': "Identifies the data as text formatted value." It is in the session's client_encoding,
    UTF-8."""

    value: bytes = field(repr=False)


@dataclass(slots=True, unsafe_hash=True)
class Binary:
    """'b': "Identifies the data as binary formatted value." It is the output of the type's send
    function."""

    value: bytes = field(repr=False)


# None is 'n': "Identifies the data as NULL value." Generated columns are not sent unless published
# (PostgreSQL 18).
TupleValue = Text | Binary | Unchanged | None
TupleData = tuple[TupleValue, ...]

_WITH_VALUE: Final = (KIND_TEXT, KIND_BINARY)
_COUNT_BYTES: Final = 2
_VALUE_HEAD_BYTES: Final = 1 + 4
_LENGTH: Final = struct.Struct("!i").unpack_from


def read_tuple_data(cursor: Cursor, tuple_name: str) -> TupleData:
    """Read the columns of a tuple. `tuple_name` is for errors: "new tuple", "key tuple", "old
    tuple"."""
    count = cursor.read_count(f"number of columns of the {tuple_name}")
    data, position, end = cursor.payload, cursor.position, len(cursor.payload)
    values: list[TupleValue] = []
    for number in range(count):
        kind = data[position] if position < end else -1
        start = position + _VALUE_HEAD_BYTES
        if kind == KIND_NULL:
            values.append(None)
            position += 1
        elif kind == KIND_UNCHANGED:
            values.append(UNCHANGED)
            position += 1
        elif kind in _WITH_VALUE and start <= end:
            position = start + _LENGTH(data, position + 1)[0]
            if not start <= position <= end:
                raise _refused(cursor, start - _VALUE_HEAD_BYTES, f"column {number} of the {tuple_name}")
            values.append((Text if kind == KIND_TEXT else Binary)(data[start:position]))
        else:
            raise _refused(cursor, position, f"column {number} of the {tuple_name}")
    cursor.position = position
    return tuple(values)


def _refused(cursor: Cursor, position: int, column: str) -> Exception:
    """Return the error for the column at `position`."""
    cursor.position = position
    kind = cursor.read_byte(f"kind of {column}")
    if kind not in _WITH_VALUE:
        return cursor.error(f"kind of {column}", position, "one of n u t b", f"0x{kind:02x}")
    length = cursor.read_int32(f"length of {column}")
    if length < 0:
        return cursor.error(f"length of {column}", position + 1, "0 or more", str(length))
    return cursor.error(column, cursor.position, f"{length} bytes", f"{cursor.remaining()} bytes up to the end")


def column_offset(values: TupleData, column: int) -> int:
    """Return the offset of a column's kind byte from the first byte of the tuple's column count."""
    return _COUNT_BYTES + sum(
        _VALUE_HEAD_BYTES + len(value.value) if isinstance(value, Text | Binary) else 1 for value in values[:column]
    )


def walk_columns(data: bytes, position: int) -> Iterator[tuple[int, int, int]]:
    """Yield (kind, start, end) for the value of each column of a tuple; `position` is that of its
    column count. The tuple must have been checked already, since nothing is checked here.
    Requesting more columns than the tuple has yields garbage or raises IndexError."""
    position += _COUNT_BYTES
    while True:
        kind = data[position]
        start = position + _VALUE_HEAD_BYTES
        position = position + 1 if kind in (KIND_NULL, KIND_UNCHANGED) else start + _LENGTH(data, position + 1)[0]
        yield kind, start, position
