"""Exceptions by which an encoder reports that a value does not fit its column's Avro type, and the
text that is sent instead."""

from __future__ import annotations


class UnrepresentableValue(Exception):
    """The value has no Avro value that common readers can hold: infinity, NaN, a year outside 1 to
    9999. The row has null there and PostgreSQL's text in `special`
    (gateway/events/row_encoder_slow.py; for Debezium gateway/debezium/row_encoder.py). This is
    rare, hence an exception."""


def check_text(value: bytes) -> None:
    """Raise UnrepresentableValue if the text is not UTF-8. The server checks what clients send, but
    not the results of functions written in C, of a binary-coercible cast from bytea, or (before 16)
    of a cast from "char"; and it does not check again when it sends, as client_encoding is the
    database's encoding."""
    try:
        value.decode()
    except UnicodeDecodeError:
        raise UnrepresentableValue from None


def special_text(text: bytes) -> bytes:
    """Return PostgreSQL's text as an Avro string: unchanged, or if it is not UTF-8, a zero
    character, `\\x` and its bytes in hexadecimal. No text of PostgreSQL contains a zero character,
    so the result cannot be mistaken for one, and different keys remain different."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return b"\0\\x" + text.hex().encode()
    return text


class NotRenderable(Exception):
    """The binary value is of a type that has no renderer, or whose facts have changed since: only
    the server can write its text."""
