"""The workload through PostgreSQL, the state machine and the encoders, without Kafka: what Walgate
would write."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import fastavro

from gateway.config.debezium import DebeziumSettings
from gateway.debezium.envelope_schema import (
    MESSAGE_KEY,
    TRANSACTION_KEY,
    TRANSACTION_VALUE,
    message_schema,
)
from gateway.debezium.record_writer import DebeziumTopics, DebeziumWriter
from gateway.debezium.registrar import DebeziumRelations
from gateway.debezium.source_block import SourceNames
from gateway.errors import StopForOperator
from gateway.events.errors import NeedsOptional
from gateway.pgoutput.decode import decode
from gateway.pgoutput.letters import RELATION, ROW_MESSAGES
from gateway.pgoutput.relation import Relation
from gateway.relations.describe import describe
from gateway.relations.type_catalog import TYPES_QUERY, read_types
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.transaction import MessageSelection
from schemas.topic_names import debezium_topic
from schemas.wire_format import frame
from tests.values.oracle import SESSION

PREFIX = "d"
NOW_NS = 1_790_000_000_123_456_789


@dataclass(frozen=True, slots=True)
class Record:
    """Decoded by fastavro; `value` None: a tombstone."""

    topic: str
    key: dict[str, Any] | None
    value: dict[str, Any] | None
    key_schema: Any = None
    value_schema: Any = None


def without_times(schema: Any) -> Any:
    """A copy without logical types but decimals: Python has no date before year 1."""
    if isinstance(schema, list):
        return [without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: without_times(each) for name, each in schema.items() if name != "logicalType" or each == "decimal"}


@dataclass(slots=True)
class Schemas:
    """A registry of one test."""

    known: list[Any] = field(default_factory=list)
    parsed: dict[int, Any] = field(default_factory=dict)

    def register(self, schema: Any) -> int:
        if schema not in self.known:
            self.known.append(schema)
        return self.known.index(schema) + 1

    def decode(self, payload: bytes | None) -> tuple[Any, Any]:
        """(schema, value)"""
        if payload is None:
            return None, None
        schema_id = int.from_bytes(payload[1:5], "big")
        schema = self.known[schema_id - 1]
        if schema_id not in self.parsed:
            self.parsed[schema_id] = fastavro.parse_schema(without_times(schema))
        stream = io.BytesIO(payload[5:])
        value = fastavro.schemaless_reader(stream, self.parsed[schema_id], None)
        assert not stream.read(1), "bytes after the record"
        return schema, value


@dataclass(slots=True)
class Sink:
    """Keeps what is appended."""

    topic: str
    records: list[tuple[str, bytes | None, bytes | None]]

    def append_hashed(self, key: bytes | None, value: bytes | None) -> None:
        self.records.append((self.topic, key, value))

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        self.append_hashed(key, value)
        return True

    def too_large(self, what: str, size: int) -> StopForOperator:
        raise AssertionError(what)


async def encoded(
    sql: asyncpg.Connection, slot: str, publication: str, options: DebeziumSettings, *, binary: bool
) -> list[Record]:
    """What waits in the slot, as records. It is still there afterwards."""
    schemas, records = await framed(sql, slot, publication, options, binary=binary)
    return [_record(schemas, *each) for each in records]


async def framed(
    sql: asyncpg.Connection, slot: str, publication: str, options: DebeziumSettings, *, binary: bool
) -> tuple[Schemas, list[tuple[str, bytes | None, bytes | None]]]:
    """The same as (topic, key, value) in Avro. As in a gateway, a field without a value becomes
    optional in a new session."""
    optional: set[tuple[int, str]] = set()
    while True:
        try:
            return await _session(sql, slot, publication, options, optional, binary=binary)
        except NeedsOptional as error:
            optional.add(error.field)


async def _session(
    sql: asyncpg.Connection,
    slot: str,
    publication: str,
    options: DebeziumSettings,
    optional: set[tuple[int, str]],
    *,
    binary: bool,
) -> tuple[Schemas, list[tuple[str, bytes | None, bytes | None]]]:
    for name, value in SESSION.items():
        await sql.execute("select set_config($1, $2, false)", name, value)
    asked: Mapping[str, str] = {
        "proto_version": "1",
        "publication_names": publication,
        "binary": str(binary).lower(),
        "messages": "true",
    }
    messages = await sql.fetch(
        "select lsn - '0/0'::pg_lsn, data from pg_logical_slot_peek_binary_changes($1, null, null, variadic $2::text[])",
        slot,
        [item for pair in asked.items() for item in pair],
    )
    ((database,),) = await sql.fetch("select current_database()")
    schemas, records = Schemas(), list[tuple[str, bytes | None, bytes | None]]()
    writer = _writer(schemas, records, options, database)
    relations = DebeziumRelations(sql, writer, options, optional)
    machine = TransactionMachine(
        epoch=1,
        resume_lsn=0,
        last_commit_lsn=0,
        prepared=(),
        writer=writer,
        messages=MessageSelection(lambda message: None),
    )
    for lsn, payload in messages:
        data = bytes(payload)
        if data[0] in ROW_MESSAGES:
            padded = b"\xff" * 7 + data + b"n\0\0"
            machine.change(padded, 7, 7 + len(data), int(lsn))
            continue
        message = decode(data, in_stream=False, protocol_version=1)
        if data[0] == RELATION:
            assert isinstance(message, Relation)
            await _announce(sql, message, relations, schemas, records, machine)
        else:
            machine.receive(message, int(lsn))
    return schemas, records


def _record(schemas: Schemas, topic: str, key: bytes | None, value: bytes | None) -> Record:
    key_schema, decoded_key = schemas.decode(key)
    value_schema, decoded = schemas.decode(value)
    return Record(topic, decoded_key, decoded, key_schema, value_schema)


def _writer(
    schemas: Schemas,
    records: list[tuple[str, bytes | None, bytes | None]],
    options: DebeziumSettings,
    database: str,
) -> DebeziumWriter:
    frames = [
        frame(schemas.register(each))
        for each in (MESSAGE_KEY, message_schema(options), TRANSACTION_KEY, TRANSACTION_VALUE)
    ]
    topics = DebeziumTopics(
        Sink(f"{PREFIX}.message", records), frames[0], frames[1],
        Sink(f"{PREFIX}.transaction", records), frames[2], frames[3],
    )  # fmt: skip
    return DebeziumWriter(
        epoch=1,
        last_commit_lsn=0,
        names=SourceNames("0.0.0", PREFIX, database),
        topics=topics,
        options=options,
        clock_ns=lambda: NOW_NS,
    )


async def _announce(
    sql: asyncpg.Connection,
    message: Relation,
    relations: DebeziumRelations,
    schemas: Schemas,
    records: list[tuple[str, bytes | None, bytes | None]],
    machine: TransactionMachine,
) -> None:
    oids = sorted({column.type_oid for column in message.columns})
    description = describe(message, read_types(await sql.fetch(TYPES_QUERY, oids)))
    topic = debezium_topic(PREFIX, message.namespace, message.name)
    no_registry: Any = None  # it is asked for keys that the catalog no longer has
    relation = await relations.relation(description, no_registry, topic)
    value, key = relations.schemas_of(relation, topic)
    sink: Any = Sink(topic, records)
    key_id = None if key is None else schemas.register(key)
    version = relations.version(relation, schemas.register(value), key_id, sink)
    machine.announce(message.relation_oid, None, version)
