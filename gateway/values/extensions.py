"""Render hstore, and the type vector of pgvector, from their binary form."""

from __future__ import annotations

import struct

from gateway.values.floats import render_float4
from gateway.values.special_values import NotRenderable

_INT4 = struct.Struct("!i").unpack_from
_HEADER = struct.Struct("!hh").unpack_from


def render_hstore(value: bytes) -> bytes:
    """Render an hstore, which is sent as the number of pairs, then the key and the value of each.
    Each of these has its length before it, or -1 for NULL."""
    place = 4
    pairs = []
    for _ in range(_INT4(value)[0]):
        key, place = _string(value, place)
        item, place = _string(value, place)
        pairs.append(b"%b=>%b" % (key, item))
    if place != len(value):
        raise ValueError("bytes after the last pair")
    return b", ".join(pairs)


def _string(value: bytes, place: int) -> tuple[bytes, int]:
    length: int = _INT4(value, place)[0]
    if length < 0:
        return b"NULL", place + 4
    end = place + 4 + length
    return b'"%b"' % value[place + 4 : end].replace(b"\\", b"\\\\").replace(b'"', b'\\"'), end


def render_vector(value: bytes) -> bytes:
    """Render a vector, which is sent as the number of dimensions, an unused word, and float4
    values."""
    dimensions, unused = _HEADER(value)
    if unused or len(value) != 4 + dimensions * 4:
        raise NotRenderable("vector header")
    return b"[%b]" % b",".join(render_float4(value[at : at + 4]) for at in range(4, len(value), 4))
