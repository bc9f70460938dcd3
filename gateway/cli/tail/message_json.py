"""A pgoutput message -> a JSON object, with the names of the relation and its columns if a
Relation message was seen.

    {"message": "Update", "lsn": "0/1A2B3C8", "relation": "public.orders",
        "new": {"id": "1", "note": null}, "unchanged": ["big"]}

Values are PostgreSQL's text, times ISO 8601 in UTC. A column of an unknown relation is named by its
number, from 1.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, Final

from gateway.errors import WalgateError
from gateway.pgoutput.decode import MESSAGE_NAMES, PgOutputMessage, decode
from gateway.pgoutput.relation import Column, Relation, Type
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.stream import StreamStart, StreamStop
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text, TupleData, TupleValue
from gateway.values.built_in_types import built_in_types
from gateway.values.renderers import renderer
from schemas.lsn import Lsn
from schemas.topic_names import format_relation

Shown = dict[str, Any]

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_INFINITIES: Final = {-(1 << 63): "-infinity", (1 << 63) - 1: "infinity"}
_ROWS: Final = (Insert, Update, Delete)


class MessageRenderer:
    """Decoder of the messages of one stream, in their order, into JSON objects."""

    def __init__(self, protocol_version: int, *, in_stream: bool = False) -> None:
        self._protocol_version = protocol_version
        self._in_stream = in_stream
        self._relations: dict[int, Relation] = {}
        self._types: dict[int, str] = {}

    def show(self, payload: bytes, change_lsn: int | None = None) -> Shown:
        """Return the message as a JSON object. Raises PgOutputError."""
        message = decode(payload, in_stream=self._in_stream, protocol_version=self._protocol_version)
        shown: Shown = {"message": MESSAGE_NAMES[payload[0]]}
        if change_lsn:  # a Relation has none
            shown["lsn"] = str(Lsn(change_lsn))
        if isinstance(message, (StreamStart, StreamStop)):
            self._in_stream = isinstance(message, StreamStart)
        elif isinstance(message, Relation):
            self._relations[message.relation_oid] = message
        elif isinstance(message, Type):
            self._types[message.type_oid] = format_relation(message.namespace, message.name)
        return shown | self._body(message)

    def show_head(self, head: bytes, change_lsn: int, payload_bytes: int) -> Shown:
        """Return what is known of a message that is too large to be kept in memory, from its first
        bytes."""
        return {
            "message": MESSAGE_NAMES.get(head[0], "unknown"),
            "lsn": str(Lsn(change_lsn)),
            "too_large_bytes": payload_bytes,
        }

    def _body(self, message: PgOutputMessage) -> Shown:
        if isinstance(message, _ROWS):
            return self._row(message)
        body: Shown = {}
        if isinstance(message, Relation):
            body["relation"] = format_relation(message.namespace, message.name)
        for field in fields(message):
            if isinstance(message, Relation) and field.name in ("namespace", "name"):
                continue
            value = getattr(message, field.name)
            if field.name == "xid" and value is None:
                continue
            if field.name == "columns":
                body["columns"] = [self._column(column) for column in value]
            elif field.name == "relation_oids":
                body["relations"] = [self._relation_name(oid) for oid in value]
            elif field.name == "content":
                body["content"] = readable(value)
            else:
                body[field.name] = _plain(field.name, value)
        if isinstance(message, Truncate):
            body["relation"] = ", ".join(body["relations"])
        return body

    def _row(self, message: Insert | Update | Delete) -> Shown:
        relation = self._relations.get(message.relation_oid)
        body: Shown = {} if message.xid is None else {"xid": message.xid}
        body["relation"] = self._relation_name(message.relation_oid)
        unchanged: list[str] = []
        for part in ("key", "old", "new"):
            values: TupleData | None = getattr(message, part, None)
            if values is not None:
                body[part] = self._tuple(relation, values, unchanged, keys_only=part == "key")
        if unchanged:
            body["unchanged"] = unchanged
        return body

    def _tuple(self, relation: Relation | None, values: TupleData, unchanged: list[str], *, keys_only: bool) -> Shown:
        known = relation.columns if relation is not None and len(relation.columns) == len(values) else None
        row: Shown = {}
        for number, value in enumerate(values):
            column = None if known is None else known[number]
            if keys_only and column is not None and not column.key:
                continue
            name = str(number + 1) if column is None else column.name
            if value is UNCHANGED:
                unchanged.append(name)
            else:
                row[name] = _value(value, 0 if column is None else column.type_oid)
        return row

    def _relation_name(self, oid: int) -> str:
        relation = self._relations.get(oid)
        return f"oid {oid}" if relation is None else format_relation(relation.namespace, relation.name)

    def _column(self, column: Column) -> Shown:
        shown: Shown = {"name": column.name, "type": self._type_name(column.type_oid)}
        if column.typmod != -1:
            shown["typmod"] = column.typmod
        return shown | ({"key": True} if column.key else {})

    def _type_name(self, oid: int) -> str:
        facts = _built_in().get(oid)
        return facts[0] if facts is not None else self._types.get(oid, f"oid {oid}")


def readable(content: bytes) -> str:
    """Return the text if it is UTF-8, otherwise PostgreSQL's hexadecimal form of bytea."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "\\x" + content.hex()


def _value(value: TupleValue, type_oid: int) -> str | None:
    """Return the value's text; a binary value is converted if its type is built in, otherwise it is
    hexadecimal."""
    if isinstance(value, Text):
        return readable(value.value)
    if not isinstance(value, Binary):
        return None
    facts = _built_in().get(type_oid)
    if facts is not None and facts[1] is not None:
        try:
            return readable(facts[1](value.value))
        except (WalgateError, ValueError, IndexError):
            return "\\x" + value.value.hex()  # not the output of the type's send function
    return "\\x" + value.value.hex()


@cache
def _built_in() -> dict[int, tuple[str, Callable[[bytes], bytes] | None]]:
    """Return name and renderer of built-in types by oid. The renderer is None where the text
    depends on the server: money, and types that print names from the catalog."""
    return {facts.oid: (facts.name, None if facts.outputs else renderer(facts)) for facts in built_in_types()}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Lsn):
        return str(value)
    if name.endswith("_time") and value is not None:
        return _time(value)
    return value


def _time(microseconds: int) -> str:
    """Return the time in ISO 8601, or as a number if the year is beyond Python's datetime."""
    if microseconds in _INFINITIES:
        return _INFINITIES[microseconds]
    try:
        return (_EPOCH + datetime.timedelta(microseconds=microseconds)).isoformat()
    except OverflowError:
        return f"{microseconds} microseconds since 1970"
