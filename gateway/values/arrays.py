"""Encode and render arrays. One-dimensional arrays with lower bound 1 are Avro arrays; all others
are special values.

The text form (`arrayfuncs.c`, array_out) is `{1,NULL,"a b"}`, preceded by `[2:3]=` if a lower bound
is not 1. The binary form (array_send) begins with the number of dimensions, a has-nulls flag and
the element oid. The size and lower bound of each dimension follow, then the elements with their
lengths, -1 for NULL.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from gateway.values.column_readers import AVRO_NULL, Encode, Render
from gateway.values.special_values import NotRenderable, UnrepresentableValue
from schemas.varint import encode_some_long

_HEADER = struct.Struct("!iiI").unpack_from
_DIMENSION = struct.Struct("!ii").unpack_from
_LENGTH = struct.Struct("!i").unpack_from
_EMPTY: Final = b"\2\0"
_MAX_DIMENSIONS: Final = 6
_SPACES: Final = b" \t\n\r\v\f"
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def array_from_text(encode_element: Encode, delimiter: str) -> Encode:
    """Return the encoder of an array's text form. `encode_element` returns an element with branch 1
    of its own union with null."""
    mark = re.escape(delimiter.encode())
    element = re.compile(rb'(?:"((?:[^"\\]|\\.)*)"|([^"{}\\' + mark + rb"]+))(" + mark + rb"|\}\Z)", re.DOTALL)

    def encode(value: bytes) -> bytes:
        if value == b"{}":
            return _EMPTY
        if value[:1] != b"{" or value[1:2] == b"{":
            raise UnrepresentableValue  # `[2:3]={...}`, or more dimensions
        parts = []
        place = 1
        while place < len(value):
            match = element.match(value, place)
            if match is None:
                raise ValueError("array text")
            quoted, plain, _ = match.groups()
            if plain == b"NULL":
                parts.append(AVRO_NULL)
            else:
                parts.append(encode_element(plain if quoted is None else _ESCAPE.sub(rb"\1", quoted)))
            place = match.end()
        return b"".join([encode_some_long(len(parts)), *parts, AVRO_NULL])

    return encode


def array_from_binary(encode_element: Encode, element_oid: int) -> Encode:
    def encode(value: bytes) -> bytes:
        dimensions, _, oid = _HEADER(value)
        if oid != element_oid:
            raise NotRenderable("element type")
        if dimensions == 0:
            _end_at(value, 12)
            return _EMPTY
        if dimensions != 1:
            raise UnrepresentableValue
        count, lower_bound = _DIMENSION(value, 12)
        if lower_bound != 1:
            raise UnrepresentableValue
        parts = [encode_some_long(count)]
        parts += [AVRO_NULL if element is None else encode_element(element) for element in _elements(value, 20, count)]
        parts.append(AVRO_NULL)
        return b"".join(parts)

    return encode


def _elements(value: bytes, place: int, count: int) -> Iterator[bytes | None]:
    """Yield the elements from `place` on. The last one must end where the value ends."""
    for _ in range(count):
        length: int = _LENGTH(value, place)[0]
        place += 4
        if length < 0:
            yield None
        else:
            yield value[place : place + length]
            place += length
    _end_at(value, place)


def _end_at(value: bytes, place: int) -> None:
    if place != len(value):
        raise ValueError("array length")


def array_renderer(render_element: Render, element_oid: int, delimiter: str) -> Render:
    mark = delimiter.encode()
    needs_quotes = re.compile(rb'["\\{}' + re.escape(mark) + re.escape(_SPACES) + rb"]|\A\Z|\A[Nn][Uu][Ll][Ll]\Z")

    def written(element: bytes | None) -> bytes:
        if element is None:
            return b"NULL"
        text = render_element(element)
        if needs_quotes.search(text) is None:
            return text
        return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')

    def render(value: bytes) -> bytes:
        dimensions, _, oid = _HEADER(value)
        if oid != element_oid or not 0 <= dimensions <= _MAX_DIMENSIONS:
            raise NotRenderable("element type")
        if dimensions == 0:
            _end_at(value, 12)
            return b"{}"
        bounds = [_DIMENSION(value, 12 + 8 * dimension) for dimension in range(dimensions)]
        count = 1
        for size, _ in bounds:
            count *= size
        texts = [written(element) for element in _elements(value, 12 + 8 * dimensions, count)]
        for size, _ in reversed(bounds):
            texts = [b"{%b}" % mark.join(texts[at : at + size]) for at in range(0, len(texts), size)]
        if all(lower == 1 for _, lower in bounds):
            return texts[0]
        return b"".join(b"[%d:%d]" % (lower, lower + size - 1) for size, lower in bounds) + b"=" + texts[0]

    return render
