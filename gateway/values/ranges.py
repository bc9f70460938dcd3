"""Render ranges and multiranges from their binary form (`rangetypes.c`, `multirangetypes.c`).

A range is a byte of flags, then the bounds that it has, each with its length; a multirange is a
count, then ranges with their lengths.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from gateway.values.column_readers import Render
from gateway.values.text import quoted

_LENGTH = struct.Struct("!i").unpack_from
_EMPTY: Final = 0x01
_LOWER_INCLUSIVE: Final = 0x02
_UPPER_INCLUSIVE: Final = 0x04
_LOWER_INFINITE: Final = 0x08
_UPPER_INFINITE: Final = 0x10
_NEEDS_QUOTES = re.compile(rb'["\\()\[\], \t\n\r\v\f]|\A\Z')


def range_renderer(render_bound: Render) -> Render:
    def bound(value: bytes, place: int, is_infinite: bool) -> tuple[bytes, int]:
        if is_infinite:
            return b"", place
        end = place + 4 + _LENGTH(value, place)[0]
        return quoted(render_bound(value[place + 4 : end]), _NEEDS_QUOTES), end

    def render(value: bytes) -> bytes:
        flags = value[0]
        if flags & _EMPTY and len(value) == 1:
            return b"empty"
        lower, place = bound(value, 1, bool(flags & _LOWER_INFINITE))
        upper, place = bound(value, place, bool(flags & _UPPER_INFINITE))
        if place != len(value):
            raise ValueError("range length")
        opening = b"[" if flags & _LOWER_INCLUSIVE else b"("
        return opening + lower + b"," + upper + (b"]" if flags & _UPPER_INCLUSIVE else b")")

    return render


def multirange_renderer(render_range: Render) -> Render:
    def render(value: bytes) -> bytes:
        place = 4
        ranges = []
        for _ in range(_LENGTH(value)[0]):
            end = place + 4 + _LENGTH(value, place)[0]
            ranges.append(render_range(value[place + 4 : end]))
            place = end
        if place != len(value):
            raise ValueError("multirange length")
        return b"{%b}" % b",".join(ranges)

    return render
