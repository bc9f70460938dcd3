"""Render geometric types from their binary form (`geo_ops.c`). Every number is a float8, written as
`float8out` writes it."""

from __future__ import annotations

import struct

from gateway.values.floats import render_float8

_COUNT = struct.Struct("!i").unpack_from


def _numbers(value: bytes) -> list[bytes]:
    if len(value) % 8:
        raise ValueError("length of a geometric value")
    return [render_float8(value[at : at + 8]) for at in range(0, len(value), 8)]


def render_points(value: bytes) -> bytes:
    """Render a point, a box, or any number of points: `(1,2),(3,4)`."""
    numbers = _numbers(value)
    if len(numbers) % 2:
        raise ValueError("a point without its second number")
    return b",".join(b"(%b,%b)" % pair for pair in zip(numbers[::2], numbers[1::2], strict=True))


def render_lseg(value: bytes) -> bytes:
    return b"[%b]" % render_points(value)


def render_line(value: bytes) -> bytes:
    return b"{%b}" % b",".join(_numbers(value))


def render_circle(value: bytes) -> bytes:
    x, y, radius = _numbers(value)
    return b"<(%b,%b),%b>" % (x, y, radius)


def render_path(value: bytes) -> bytes:
    """Render a path, which is sent as a byte (whether it is closed), the number of points as int32,
    and the points."""
    _check_count(value, 1)
    return (b"(%b)" if value[0] else b"[%b]") % render_points(value[5:])


def render_polygon(value: bytes) -> bytes:
    """Render a polygon, which is sent as the number of points as int32, and the points."""
    _check_count(value, 0)
    return b"(%b)" % render_points(value[4:])


def _check_count(value: bytes, place: int) -> None:
    if len(value) - place - 4 != _COUNT(value, place)[0] * 16:
        raise ValueError("number of points")
