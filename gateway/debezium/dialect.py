"""Debezium's dialect in a session: the implementation of Dialect in gateway/runtime/dialect.py."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from importlib.metadata import version as package_version

import asyncpg

from gateway.config.debezium import DebeziumSettings
from gateway.config.settings import Settings
from gateway.debezium.envelope_schema import MESSAGE_KEY, TRANSACTION_KEY, TRANSACTION_VALUE, Schema, message_schema
from gateway.debezium.find_written import find_written
from gateway.debezium.json_sink import JsonSink
from gateway.debezium.key_checks import check_keys
from gateway.debezium.record_writer import DebeziumTopics, DebeziumWriter, KeyedSink
from gateway.debezium.registrar import DebeziumRelations
from gateway.debezium.source_block import SourceNames
from gateway.kafka.batches import BatchWriter, TopicSink
from gateway.kafka.fixed_topics import FixedSchemas, message_sink
from gateway.kafka.topics import Topics
from gateway.postgres.connection import sql_session
from gateway.postgres.credentials import Credentials
from gateway.startup.connect_offset import DebeziumOffset
from gateway.transactions.position import Position
from gateway.transactions.record_writer import RecordWriter
from schemas.records import POSITION
from schemas.registry_client import RegistryClient
from schemas.relation import RelationDescription
from schemas.topic_names import POSITION_TOPIC, key_subject, message_topic, transaction_topic, value_subject
from schemas.wire_format import frame


class DebeziumDialect:
    """Debezium's record format."""

    has_markers = False
    records_exclusions = False
    writes_before_commit = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._prefix = settings.kafka.prefix
        self._options = settings.debezium

    def is_used(self, positions: Collection[Position], fresh: Position, topics_are_used: bool) -> bool:
        """Return whether a position is stored for the slot and the prefix. Topics that are in use
        do not count, because a connector may have written to them."""
        return any(
            (position.system_identifier, position.slot, position.prefix)
            == (fresh.system_identifier, fresh.slot, fresh.prefix)
            for position in positions
        )

    async def register_fixed_schemas(self, registry: RegistryClient) -> FixedSchemas:
        transactions, messages = transaction_topic(self._prefix), message_topic(self._prefix)
        return FixedSchemas(
            await registry.register(value_subject(transactions), TRANSACTION_VALUE),
            await registry.register(value_subject(POSITION_TOPIC), POSITION),
            await registry.register(value_subject(messages), message_schema(self._options)),
            await registry.register(key_subject(transactions), TRANSACTION_KEY),
            await registry.register(key_subject(messages), MESSAGE_KEY),
        )

    async def find_written(
        self,
        registry: RegistryClient,
        relations: Mapping[str, RelationDescription],
        offset: DebeziumOffset,
        login: Credentials,
    ) -> DebeziumOffset:
        async with sql_session(login) as sql:
            described = DebeziumRelations(sql, None, self._options, set())
            may_change = self._settings.schemas.on_incompatible == "register"
            await check_keys(registry, described, relations, may_change=may_change)
        return await find_written(self._settings, registry, relations, offset, login)

    def record_writer(
        self, position: Position, topics: Topics, writer: BatchWriter, schemas: FixedSchemas
    ) -> RecordWriter:
        return DebeziumWriter(
            epoch=position.epoch,
            last_commit_lsn=position.last_commit_lsn,
            names=SourceNames(package_version("walgate"), position.prefix, position.database),
            topics=debezium_topics(self._prefix, topics, writer, schemas, self._options),
            options=self._options,
            clock_ns=time.time_ns,
            written=(position.written_xid, position.written_lsn),
        )

    def relations(
        self, sql: asyncpg.Connection, writer: RecordWriter, optional: set[tuple[int, str]]
    ) -> DebeziumRelations:
        assert isinstance(writer, DebeziumWriter)
        follows_columns = bool(self._settings.columns.rules)
        return DebeziumRelations(sql, writer, self._options, optional, reads_attributes=follows_columns)


def debezium_topics(
    prefix: str, topics: Topics, writer: BatchWriter, schemas: FixedSchemas, options: DebeziumSettings
) -> DebeziumTopics:
    """Return the topics of Debezium's dialect. Call it after `open_message_topic`, which creates
    one of them."""
    messages = _with_format(message_sink(prefix, topics, writer), MESSAGE_KEY, message_schema(options), options)
    frames = frame(schemas.message_key), frame(schemas.message)
    if not options.provide_transaction_metadata:
        return DebeziumTopics(messages, *frames)
    topic = transaction_topic(prefix)
    sink = writer.sink(topic, topics.partition_count(topic), "BEGIN and END")
    transactions = _with_format(sink, TRANSACTION_KEY, TRANSACTION_VALUE, options)
    return DebeziumTopics(messages, *frames, transactions, frame(schemas.transaction_key), frame(schemas.transaction))


def _with_format(sink: TopicSink, key: Schema, value: Schema, options: DebeziumSettings) -> KeyedSink:
    if options.format == "avro":
        return sink
    return JsonSink(sink, key, value, with_schema=options.format_schemas_enable)
