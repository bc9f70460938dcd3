"""Protect columns whose values must not leave the process unchanged, according to the rules of the
settings.

A rule replaces the column's encoders and readers, so that the value is removed before a record is
encoded, both in text and in binary form. Columns without a rule are not affected. Hash and truncate
work on PostgreSQL's text: both forms of a value give the same result, and equal values in two
columns give the same hash.
"""

from __future__ import annotations

import hmac
from typing import Final

from librt.strings import read_i32_be

from gateway.pgoutput.letters import KIND_BINARY, KIND_NULL, KIND_TEXT, KIND_UNCHANGED
from gateway.values.column_codec import Codec, rendered
from gateway.values.column_readers import AVRO_NULL, UNSIGNED, Encode, Parts, always_unusual, read_with, some_bytes
from gateway.values.renderers import renderer
from schemas.relation import Protect, Protection, TypeFacts

_NO_VALUE: Final = (KIND_NULL, KIND_UNCHANGED)


def protected_codec(facts: TypeFacts, protection: Protection) -> Codec:
    """Return the encoders of a column under a rule; `facts` describes its type, or the base type of
    a domain. The encoders raise the exceptions of renderers, never UnrepresentableValue: nothing
    may be put into `special`, which holds whole values."""
    if protection.is_hidden:
        read = _read_over if protection.action is Protect.DROP else _read_null
        return Codec(_encode_null, _encode_null, None, read, read)
    from_text = _hash(protection.hash_key) if protection.action is Protect.HASH else _truncate(protection.length)
    render = renderer(facts)
    from_binary = None if render is None else rendered(render, from_text)
    read_binary = always_unusual if from_binary is None else read_with(from_binary, KIND_BINARY)
    return Codec(from_text, from_binary, None, read_with(from_text, KIND_TEXT), read_binary)


def _hash(key: bytes) -> Encode:
    def encode(value: bytes) -> bytes:
        return some_bytes(hmac.digest(key, value, "sha256").hex().encode())

    return encode


def _truncate(length: int) -> Encode:
    def encode(value: bytes) -> bytes:
        return some_bytes(value.decode("utf-8", "replace")[:length].encode())

    return encode


def _encode_null(_: bytes) -> bytes:
    return AVRO_NULL


def _read_over(data: bytes, position: int, _: Parts) -> int:
    if data[position] in _NO_VALUE:
        return position + 1
    length: int = read_i32_be(data, position + 1)
    return position + 5 + (length & UNSIGNED)


def _read_null(data: bytes, position: int, parts: Parts) -> int:
    parts.append(AVRO_NULL)
    return _read_over(data, position, parts)
