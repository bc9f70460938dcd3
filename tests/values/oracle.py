"""PostgreSQL as the judge of what a stock Avro reader got: rows through a real slot, decoded by
fastavro, cast back.

The server compares `(what was read)::type::text` with `column::text`: nothing that the text shows
may differ, also where `=` would not tell (1.0 and 1.00, -0 and 0) or where a type has no `=` at
all.
"""

from __future__ import annotations

import io
import json
import struct
from dataclasses import dataclass, field
from datetime import date, datetime
from datetime import time as clock
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import fastavro

from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.pgoutput.decode import decode
from gateway.pgoutput.relation import Relation, Type
from gateway.relations.describe import describe
from gateway.relations.type_catalog import PRIMARY_KEY_QUERY, TYPES_QUERY, read_types
from schemas.change_schema import change_schema, key_schema
from schemas.relation import RelationDescription
from schemas.topic_names import avro_name
from schemas.wire_format import FRAME_BYTES

SESSION = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "TimeZone": "UTC",
}
"""What docs/types.md says of PostgreSQL's text: the settings of replication sessions."""

VALUE_SCHEMA_ID, KEY_SCHEMA_ID = 1, 2
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """A record as the gateway would send it, and what fastavro read from it."""

    kind: str
    key: bytes | None
    value: bytes
    event: Event
    key_event: Event | None
    description: RelationDescription


@dataclass(slots=True)
class Stream:
    """Turns the messages of a slot into records, as the gateway does: Relation -> catalog -> schema
    -> encoder."""

    connection: asyncpg.Connection
    slot: str
    publication: str
    context: TransactionContext = field(
        default_factory=lambda: TransactionContext(700, -1, 1, 0x10, 1_700_000_000_000_000, None)
    )

    async def start(self) -> None:
        for name, value in SESSION.items():
            await self.connection.execute("SELECT set_config($1, $2, false)", name, value)
        await self.connection.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", self.slot)

    async def peek(self, *, binary: bool, **options: str) -> list[Record]:
        """Records of everything that waits in the slot; it is still there afterwards."""
        return await self._records("pg_logical_slot_peek_binary_changes", binary, options)

    async def take(self, *, binary: bool, **options: str) -> list[Record]:
        return await self._records("pg_logical_slot_get_binary_changes", binary, options)

    async def forget(self) -> None:
        """Leave behind what waits in the slot."""
        await self.connection.execute("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", self.slot)

    async def both(self) -> tuple[list[Record], list[Record]]:
        """(text, binary) of what waits in the slot."""
        return await self.peek(binary=False), await self.take(binary=True)

    async def _records(self, function: str, binary: bool, options: dict[str, str]) -> list[Record]:
        given = {"proto_version": "1", "publication_names": self.publication, "binary": str(binary).lower(), **options}
        flat = [item for pair in given.items() for item in pair]
        rows = await self.connection.fetch(
            f"SELECT lsn - '0/0'::pg_lsn, data FROM {function}($1, NULL, NULL, VARIADIC $2::text[])", self.slot, flat
        )
        return await self._encode([(int(lsn), bytes(data)) for lsn, data in rows])

    async def _encode(self, messages: list[tuple[int, bytes]]) -> list[Record]:
        encoders: dict[int, tuple[RelationDescription, RowEncoder, Any, Any]] = {}
        announced: dict[int, tuple[str, str]] = {}
        records: list[Record] = []
        ordinal = 0
        for lsn, data in messages:
            letter = chr(data[0])
            if letter == "R":
                relation = decode(data, in_stream=False, protocol_version=1)
                assert isinstance(relation, Relation)
                encoders[relation.relation_oid] = await self._announce(relation, announced)
            elif letter == "Y":
                message = decode(data, in_stream=False, protocol_version=1)
                assert isinstance(message, Type)
                announced[message.type_oid] = (message.namespace, message.name)
            elif letter in "IUD":
                (oid,) = struct.unpack_from("!I", data, 1)
                # Bytes around the message, as in a full read buffer: the encoder must keep to its
                # own.
                padded = b"\xff" * 7 + data + b"n\0\0"
                for kind, key, value in _encoded(
                    encoders[oid][1], letter, padded, len(data), self.context, lsn, ordinal
                ):
                    records.append(_read(kind, key, value, *encoders[oid]))
                ordinal += 1
            elif letter == "T":
                for (oid,) in struct.iter_unpack("!I", data[6:]):
                    value = encoders[oid][1].truncate(self.context, lsn, ordinal)
                    records.append(_read("T", None, value, *encoders[oid]))
                    ordinal += 1
        return records

    async def _announce(
        self, relation: Relation, announced: dict[int, tuple[str, str]]
    ) -> tuple[RelationDescription, RowEncoder, Any, Any]:
        oids = sorted({column.type_oid for column in relation.columns})
        facts = read_types([tuple(row) for row in await self.connection.fetch(TYPES_QUERY, oids)])
        primary_key = [row[0] for row in await self.connection.fetch(PRIMARY_KEY_QUERY, relation.relation_oid)]
        description = describe(relation, facts, primary_key, announced)
        key = key_schema(description, "cdc")
        encoder = RowEncoder(description, VALUE_SCHEMA_ID, None if key is None else KEY_SCHEMA_ID)
        # Through JSON, as a reader gets it from a registry.
        schema = fastavro.parse_schema(json.loads(json.dumps(change_schema(description, "cdc"))))
        return description, encoder, schema, None if key is None else fastavro.parse_schema(key)


def _encoded(
    encoder: RowEncoder, letter: str, data: bytes, length: int, context: TransactionContext, lsn: int, ordinal: int
) -> list[tuple[str, bytes | None, bytes]]:
    place, end = 7 + 5, 7 + length
    if letter == "I":
        return [("I", *encoder.insert(data, place, end, context, lsn, ordinal))]
    if letter == "D":
        return [("D", *encoder.delete(data, place, end, context, lsn, ordinal))]
    key, value, moved = encoder.update(data, place, end, context, lsn, ordinal)
    return ([] if moved is None else [("moved", *moved)]) + [("U", key, value)]


def _read(
    kind: str,
    key: bytes | None,
    value: bytes,
    description: RelationDescription,
    _: RowEncoder,
    schema: Any,
    key_schema: Any,
) -> Record:
    return Record(
        kind, key, value, read_avro(value, schema), None if key is None else read_avro(key, key_schema), description
    )


def read_avro(payload: bytes, schema: Any, reader_schema: Any = None) -> Event:
    """What fastavro makes of a framed record, which must end where the bytes end."""
    stream = io.BytesIO(payload[FRAME_BYTES:])
    event = fastavro.schemaless_reader(stream, schema, reader_schema)
    assert not stream.read(1), "bytes after the record"
    assert isinstance(event, dict)
    return event


def text_of(value: Any, delimiter: str = ",") -> str | None:
    """A decoded Avro value as a literal that PostgreSQL casts to the column's type; `delimiter` is
    that of its arrays."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, list):
        return "{" + delimiter.join("NULL" if item is None else _quoted(str(text_of(item))) for item in value) + "}"
    if isinstance(value, float):
        return repr(value)
    assert isinstance(value, int | date | datetime | clock | UUID), type(value)
    return str(value)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def column_text(event: Event, column: str, image: str = "after", delimiter: str = ",") -> str | None:
    """The column's value as PostgreSQL text: from the row, or from `special`. UNCHANGED must not be
    asked for."""
    name = avro_name(column)
    prefix = "before." if image == "before" else ""
    assert prefix + name not in event["unchanged"], f"{column} was not sent"
    special: str | None = event["special"].get(prefix + name)
    if special is not None:
        assert event[image][name] is None, "a special value is null in its row"
        return special
    return text_of(event[image][name], delimiter)
