"""Skip one value of one record: return the position after the value. This is used for long arrays,
whose items can only be located one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from spark_consumer.columnar.cursor import Cursor, Longs
from spark_consumer.errors import MalformedRecord

Skip: TypeAlias = Callable[[memoryview, int], int]


def skip_varint(data: memoryview, position: int) -> int:
    while data[position] & 0x80:
        position += 1
    return position + 1


def skip_span(data: memoryview, position: int) -> int:
    """Skip a length-prefixed value."""
    zigzag, shift = 0, 0
    while (byte := data[position]) & 0x80:
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        if shift > 63:
            raise MalformedRecord("a varint has more than 10 bytes")
    zigzag |= byte << shift
    if zigzag & 1:
        raise MalformedRecord("a length is negative")
    return position + 1 + (zigzag >> 1)


def skip_fixed(width: int) -> Skip:
    return lambda _, position: position + width


def skip_optional(inner: Skip, value_branch: int) -> Skip:
    """Return a Skip for a union with null. `value_branch`: the index of the value's type in the
    union."""
    value, null = (2, 0) if value_branch else (0, 2)  # zigzag

    def skip(data: memoryview, position: int) -> int:
        branch = data[position]
        if branch == value:
            return inner(data, position + 1)
        if branch != null:
            raise MalformedRecord("the branch index of a union is neither 0 nor 1")
        return position + 1

    return skip


def items_of(cursor: Cursor, records: Longs, sizes: Longs, skips: list[Skip]) -> Cursor:
    """Return a cursor with one position for each of the next items of these records, `sizes` of
    each, and move `cursor` behind these items. An item is skipped by calling all `skips` in
    turn."""
    starts: list[int] = []
    for record, size in zip(records.tolist(), sizes.tolist(), strict=True):
        places = _item_places(cursor, record, size, skips)
        cursor.positions[record] = places.pop()
        starts += places
    return Cursor(cursor.buffer, np.array(starts, np.int64), np.repeat(cursor.ends[records], sizes))


def _item_places(cursor: Cursor, record: int, size: int, skips: list[Skip]) -> list[int]:
    """Return the positions of the next items of a record, followed by the position after the last
    item."""
    data, end = cursor.buffer.data, int(cursor.ends[record])
    place = int(cursor.positions[record])
    places = [place]
    try:
        for _ in range(size):
            for skip in skips:
                place = skip(data, place)
            places.append(place)
    except IndexError:
        place = end + 1
    if place > end:
        raise MalformedRecord("a record ends before its last field")
    return places
