"""How an encoder says that a value needs more than its column's Avro type."""

from __future__ import annotations


class UnrepresentableValue(Exception):
    """The Avro type cannot hold the value: the row travels with null there and the text in
    `special`. Rare, so an exception."""


def check_text(value: bytes) -> None:
    """Special where the text is not UTF-8. The server checks what clients send, but not what a
    function written in C makes, nor what a binary-coercible cast from bytea lets through, nor
    (before 16) a cast from "char"; and it does not look again when it sends, as client_encoding is
    the database's."""
    try:
        value.decode()
    except UnicodeDecodeError:
        raise UnrepresentableValue from None


def special_text(text: bytes) -> bytes:
    """PostgreSQL's text as an Avro string: itself, or where it is not UTF-8 its bytes in
    hexadecimal behind `\\x` and a zero character. No text of PostgreSQL holds a zero character, so
    that this is never taken for one, and two keys stay two."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return b"\0\\x" + text.hex().encode()
    return text


class NotRenderable(Exception):
    """Binary data of a type that has no renderer, or whose facts have changed since: only the
    server can write its text."""
