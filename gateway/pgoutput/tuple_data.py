"""TupleData: the columns of one row, as they are on the wire (PostgreSQL manual, 55.9).

The gateway's row path does not come through here: `gateway/events` walks the same bytes and writes Avro at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gateway.pgoutput.cursor import Cursor


class Unchanged(Enum):
    """The type of UNCHANGED, which is its one value."""

    UNCHANGED = "unchanged"


# 'u': "Identifies unchanged TOASTed value (the actual value is not sent)."
UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Text:
    """'t': "Identifies the data as text formatted value." In the session's client_encoding, UTF-8."""

    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """'b': "Identifies the data as binary formatted value." What the type's send function gives."""

    value: bytes = field(repr=False)


# None is 'n': "Identifies the data as NULL value." Generated columns are not sent unless published (PostgreSQL 18).
TupleValue = Text | Binary | Unchanged | None
TupleData = tuple[TupleValue, ...]

_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"


def read_tuple_data(cursor: Cursor, tuple_name: str) -> TupleData:
    """`tuple_name` is for errors: "new tuple", "key tuple", "old tuple"."""
    count = cursor.read_count(f"number of columns of the {tuple_name}")
    return tuple([_read_value(cursor, f"column {number} of the {tuple_name}") for number in range(count)])


def _read_value(cursor: Cursor, column: str) -> TupleValue:
    kind = cursor.read_byte(f"kind of {column}")
    if kind == _TEXT:
        return Text(cursor.read_bytes(column))
    if kind == _BINARY:
        return Binary(cursor.read_bytes(column))
    if kind == _NULL:
        return None
    if kind == _UNCHANGED:
        return UNCHANGED
    raise cursor.error(f"kind of {column}", cursor.position - 1, "one of n u t b", f"0x{kind:02x}")
