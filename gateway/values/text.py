"""Encoders and renderers of types whose values are text already, of bytea, bit, uuid and "char",
and of types that are sent as a version byte and text."""

from __future__ import annotations

import re
import struct

from gateway.values.column_readers import some_bytes, some_text
from gateway.values.special_values import NotRenderable

VERSION = 1
"""The version byte that jsonb, jsonpath, ltree, lquery and ltxtquery send before their text."""


def bytea_from_text(value: bytes) -> bytes:
    """Encode a bytea. bytea_output is pinned to hex: `\\x` and two digits for each byte."""
    return some_bytes(bytes.fromhex(value[2:].decode("ascii")))


def render_bytea(value: bytes) -> bytes:
    return b"\\x" + value.hex().encode()


def quoted(text: bytes, needs_quotes: re.Pattern[bytes]) -> bytes:
    """Return a part of a composite or range, in quotes if needed."""
    if needs_quotes.search(text) is None:
        return text
    return b'"%b"' % text.replace(b"\\", b"\\\\").replace(b'"', b'""')


def render_same(value: bytes) -> bytes:
    return value


def render_versioned(value: bytes) -> bytes:
    if value[0] != VERSION:
        raise NotRenderable(f"version byte {value[0]}, expected {VERSION}")
    return value[1:]


def render_uuid(value: bytes) -> bytes:
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()


def uuid_from_binary(value: bytes) -> bytes:
    return some_bytes(render_uuid(value))


def render_char(value: bytes) -> bytes:
    """Render the one-byte type "char" (`char.c`, charout): a zero byte gives an empty string, and a
    byte above 127 an octal escape, as since PostgreSQL 16."""
    byte = value[0] if value else 0
    if byte > 127:
        return b"\\%03o" % byte
    return value if byte else b""


def char_from_text(value: bytes) -> bytes:
    """Encode a "char". Before PostgreSQL 16, the server sends a byte above 127 unchanged, which is
    not valid UTF-8."""
    return some_text(render_char(value) if len(value) == 1 else value)


_LENGTH = struct.Struct("!i").unpack_from


def render_bits(value: bytes) -> bytes:
    length: int = _LENGTH(value)[0]
    if len(value) != 4 + (length + 7) // 8:
        raise ValueError("length of a bit string")
    if not length:
        return b""
    bits = int.from_bytes(value[4:])
    return f"{bits:0{len(value) * 8 - 32}b}"[:length].encode()
