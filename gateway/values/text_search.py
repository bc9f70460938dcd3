"""tsvector: text from binary (`tsvector.c`): count, then for each lexeme a C string, a count of positions, the positions."""

from __future__ import annotations

import struct
from typing import Final

_COUNT = struct.Struct("!i").unpack_from
_POSITION_COUNT = struct.Struct("!H").unpack_from
_WEIGHTS: Final = (b"", b"C", b"B", b"A")


def render_tsvector(value: bytes) -> bytes:
    """`'lexeme':1A,2`; quotes and backslashes are doubled."""
    place = 4
    lexemes = []
    for _ in range(_COUNT(value)[0]):
        end = value.index(0, place)
        text = b"'%b'" % value[place:end].replace(b"\\", b"\\\\").replace(b"'", b"''")
        count: int = _POSITION_COUNT(value, end + 1)[0]
        place = end + 3 + 2 * count
        positions = struct.unpack_from(f"!{count}H", value, end + 3)
        if count:
            text += b":" + b",".join(b"%d%b" % (each & 0x3FFF, _WEIGHTS[each >> 14]) for each in positions)
        lexemes.append(text)
    if place != len(value):
        raise ValueError("bytes after the last lexeme")
    return b" ".join(lexemes)
