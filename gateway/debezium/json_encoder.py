"""Convert a record of Debezium's dialect from Avro to the JSON that Kafka Connect's JsonConverter
writes, for consumers that do not read Avro.

The Avro bytes are read by functions that are composed once per schema. That takes several times as
long as writing the Avro bytes, but keeps every rule of the dialect in one place: the JSON is
derived from the Avro alone. Bytes and decimals are base64; NaN and infinities are strings, as
Jackson writes them. Keys are partitioned and compacted by their bytes, so texts and numbers also
have Jackson's notation.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from gateway.debezium.column_defaults import shortest_float
from gateway.debezium.connect_json import NamedTypes, connect_json_schema
from schemas.varint import decode_long
from schemas.wire_format import FRAME_BYTES

Write = Callable[[bytes, int, list[str]], int]
"""Appends the value at a position as JSON and returns the position after it."""

_ESCAPE: Final = re.compile(r"\\\\|\\u00[01][0-9a-f]")
"""An escaped backslash, which the text may have before its own `u001b`, or an escaped control
character."""
_PAIRED: Final = re.compile("[\U00010000-\U0010ffff]")
"""A character that has two code units in UTF-16."""
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


class JsonForm:
    """A converter for one schema: called with a framed key or value, it returns the bytes that
    JsonConverter writes. `with_schema` is the converter's schemas.enable."""

    def __init__(self, schema: Any, *, with_schema: bool) -> None:
        self._write = _writer(schema, NamedTypes())
        described = _described(connect_json_schema(schema))
        self._head, self._tail = (f'{{"schema":{described},"payload":', "}") if with_schema else ("", "")

    def __call__(self, framed: bytes) -> bytes:
        parts = [self._head]
        end = self._write(framed, FRAME_BYTES, parts)
        assert end == len(framed), "bytes after the record"
        parts.append(self._tail)
        return "".join(parts).encode()


def _writer(avro: Any, names: NamedTypes) -> Write:
    resolved, is_optional = names.resolve(avro)
    write = _plain_writer(resolved, names)
    return _or_null(write, avro.index("null")) if is_optional else write


def _plain_writer(avro: Any, names: NamedTypes) -> Write:
    match avro["type"] if isinstance(avro, dict) else avro:
        case "record":
            return _struct([(field["name"], _writer(field["type"], names)) for field in avro["fields"]])
        case "array":
            return _blocks("[", _writer(avro["items"], names), "]")
        case "map":
            return _blocks("{", _entry(_writer(avro["values"], names)), "}")
        case primitive:
            return _PRIMITIVES[primitive]


def _or_null(write: Write, null: int) -> Write:
    def write_or_null(data: bytes, position: int, parts: list[str]) -> int:
        if data[position] >> 1 == null:
            parts.append("null")
            return position + 1
        return write(data, position + 1, parts)

    return write_or_null


def _struct(fields: list[tuple[str, Write]]) -> Write:
    named = [(f"{',' if at else '{'}{_text(name)}:", write) for at, (name, write) in enumerate(fields)]
    end = "}" if fields else "{}"

    def write_struct(data: bytes, position: int, parts: list[str]) -> int:
        for name, write in named:
            parts.append(name)
            position = write(data, position, parts)
        parts.append(end)
        return position

    return write_struct


def _blocks(start: str, item: Write, end: str) -> Write:
    """Return the writer of an array or a map, which consists of blocks of items and ends with an
    empty block. The number of items in a block is never negative, because the encoders write blocks
    without their size in bytes."""

    def write_blocks(data: bytes, position: int, parts: list[str]) -> int:
        parts.append(start)
        comma = ""
        count, position = decode_long(data, position)
        while count:
            for _ in range(count):
                parts.append(comma)
                comma = ","
                position = item(data, position, parts)
            count, position = decode_long(data, position)
        parts.append(end)
        return position

    return write_blocks


def _entry(write: Write) -> Write:
    def write_entry(data: bytes, position: int, parts: list[str]) -> int:
        position = _write_string(data, position, parts)
        parts.append(":")
        return write(data, position, parts)

    return write_entry


def _described(value: Any) -> str:
    """Return a part of a schema as JSON."""
    match value:
        case dict():
            return "{" + ",".join(f"{_text(name)}:{_described(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_described, value)) + "]"
        case str():
            return _text(value)
        case float():
            return _number(value, value)
    return json.dumps(value)


def _text(text: str) -> str:
    """Return the text as a JSON string in Jackson's form. It escapes only characters that must be
    escaped and those above U+FFFF, with upper-case hexadecimal digits."""
    quoted = json.dumps(text, ensure_ascii=False)
    if "\\u00" in quoted:
        quoted = _ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), quoted)
    if quoted.isascii() or len(quoted.encode("utf-16-le")) == 2 * len(quoted):  # a pattern takes 9 ns per character
        return quoted
    return _PAIRED.sub(_surrogates, quoted)


def _surrogates(found: re.Match[str]) -> str:
    high, low = divmod(ord(found[0]) - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04X}\\u{0xDC00 + low:04X}"


def _number(value: float, shortest: float) -> str:
    """Return the number in the form of Java's Double.toString and Float.toString, since Java 19.
    `shortest` has the fewest decimal digits from which the type reads `value` back."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else f'"{"-" if value < 0 else ""}Infinity"'
    if 1e-3 <= abs(shortest) < 1e7 or not value:
        return repr(shortest)
    digits, _, exponent = f"{Decimal(repr(shortest)).normalize():E}".partition("E")
    if "." not in digits:  # Java chooses among the numbers of two digits
        digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}E{int(exponent)}"


def _write_long(data: bytes, position: int, parts: list[str]) -> int:
    number, position = decode_long(data, position)
    parts.append(str(number))
    return position


def _write_boolean(data: bytes, position: int, parts: list[str]) -> int:
    parts.append("true" if data[position] else "false")
    return position + 1


def _write_float(data: bytes, position: int, parts: list[str]) -> int:
    (value,) = _FLOAT.unpack_from(data, position)
    parts.append(_number(value, shortest_float(value) if math.isfinite(value) else value))
    return position + 4


def _write_double(data: bytes, position: int, parts: list[str]) -> int:
    (value,) = _DOUBLE.unpack_from(data, position)
    parts.append(_number(value, value))
    return position + 8


def _write_string(data: bytes, position: int, parts: list[str]) -> int:
    length, position = decode_long(data, position)
    parts.append(_text(data[position : position + length].decode()))
    return position + length


def _write_bytes(data: bytes, position: int, parts: list[str]) -> int:
    length, position = decode_long(data, position)
    parts.append(f'"{base64.b64encode(data[position : position + length]).decode()}"')
    return position + length


_PRIMITIVES: Final[dict[str, Write]] = {
    "boolean": _write_boolean,
    "int": _write_long,
    "long": _write_long,
    "float": _write_float,
    "double": _write_double,
    "string": _write_string,
    "bytes": _write_bytes,
}
