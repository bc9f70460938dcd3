"""Exceptions by which an encoder reports that a value does not fit its column's Avro type, and the
text that is sent instead."""

from __future__ import annotations

NOT_UTF8 = "\0\\x"
"""The beginning of a text that stands for bytes which are not UTF-8 (`special_text`)."""


class UnrepresentableValue(Exception):
    """No Avro value that common readers can hold represents this value: it is infinity, NaN, or a
    year outside 1 to 9999. The row has null in its place, and has PostgreSQL's text in `special`
    (gateway/events/row_encoder_slow.py; for Debezium, gateway/debezium/row_encoder.py). Such values
    are rare, hence an exception."""


def check_text(value: bytes) -> None:
    """Raise UnrepresentableValue if the text is not UTF-8. The server checks what clients send. It
    does not check the results of functions written in C, of a binary-coercible cast from bytea, or
    (before PostgreSQL 16) of a cast from "char". Nor does it check values when it sends them, since
    client_encoding is the database's encoding."""
    try:
        value.decode()
    except UnicodeDecodeError:
        raise UnrepresentableValue from None


def special_text(text: bytes) -> bytes:
    """Return PostgreSQL's text as an Avro string. Text that is not UTF-8 becomes a zero character,
    `\\x` and the bytes in hexadecimal. No text of PostgreSQL contains a zero character, so the
    result cannot be mistaken for such a text, and different keys remain different."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return (NOT_UTF8 + text.hex()).encode()
    return text


class NotRenderable(Exception):
    """The binary value is of a type that has no renderer, or that was altered since its facts were
    read: only the server can write its text."""
