"""Render composite values from their binary form (`rowtypes.c`, record_send and record_out): a
count, then the type oid, length and value of each attribute."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from gateway.values.column_readers import Render
from gateway.values.special_values import NotRenderable
from gateway.values.text import quoted

_COUNT = struct.Struct("!i").unpack_from
_ATTRIBUTE = struct.Struct("!Ii").unpack_from
_NEEDS_QUOTES = re.compile(rb'["\\(), \t\n\r\v\f]|\A\Z')


def composite_renderer(attributes: Sequence[tuple[int, Render]]) -> Render:
    """Return the renderer of a composite type. `attributes` has the type oid and the renderer of
    each attribute. A type that was altered since its facts were read is not rendered."""

    def render(value: bytes) -> bytes:
        if _COUNT(value)[0] != len(attributes):
            raise NotRenderable("number of attributes")
        place = 4
        texts = []
        for oid, render_attribute in attributes:
            sent_oid, length = _ATTRIBUTE(value, place)
            if sent_oid != oid:
                raise NotRenderable("type of an attribute")
            place += 8
            if length < 0:
                texts.append(b"")
                continue
            texts.append(quoted(render_attribute(value[place : place + length]), _NEEDS_QUOTES))
            place += length
        if place != len(value):
            raise ValueError("composite length")
        return b"(%b)" % b",".join(texts)

    return render
