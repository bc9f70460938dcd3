"""How an encoder says that a value needs more than its column's Avro type."""

from __future__ import annotations


class Special(Exception):
    """The Avro type can not hold the value: the row travels with null there and the text in `special`. Rare, so an exception."""


class NotRenderable(Exception):
    """Binary data of a type that has no renderer, or whose facts have changed since: only the server can write its text."""
