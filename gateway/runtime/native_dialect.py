"""Walgate's own dialect in a session: schemas and encoders of relations, and the fixed schemas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.errors import InternalError
from gateway.events.logical_message import encode_logical_message
from gateway.events.missing_values import with_attributes
from gateway.events.row_encoder import RowEncoder
from gateway.kafka.batches import BatchWriter, TopicSink
from gateway.kafka.fixed_topics import FixedSchemas, message_sink
from gateway.kafka.topics import Name, Topics, topic_of_another
from gateway.postgres.credentials import Credentials
from gateway.relations.attributes import Attribute, attribute_numbers, needs_earlier
from gateway.schema_errors import register_both
from gateway.startup.connect_offset import DebeziumOffset
from gateway.transactions.native_record_writer import EventVersion, EventWriter
from gateway.transactions.position import Position
from gateway.transactions.record_writer import RecordWriter, RelationVersion
from gateway.transactions.transaction import MessageTopic
from schemas.change_schema import Schema, change_schema, key_schema
from schemas.compatibility import incompatible_columns
from schemas.errors import IncompatibleSchema
from schemas.records import LOGICAL_MESSAGE, POSITION, TRANSACTION_MARKER
from schemas.registry_client import RegistryClient
from schemas.relation import Kind, MissingValue, RelationDescription
from schemas.schema_metadata import (
    recorded_attributes,
    recorded_column_types,
    recorded_oid,
    recorded_relation,
    recorded_types,
)
from schemas.topic_names import POSITION_TOPIC, key_subject, message_topic, transaction_topic, value_subject
from schemas.wire_format import frame

log = structlog.get_logger()


class NativeRelation:
    """A described relation, which becomes an EventVersion after its schemas have been
    registered."""

    def __init__(self, description: RelationDescription, prefix: str, attributes: Sequence[Attribute] = ()) -> None:
        self.description = description
        self._prefix = prefix
        self._attributes = attributes
        self._schema_ids: tuple[int, int | None] = (0, None)

    @property
    def key(self) -> Sequence[int]:
        return [index for index, column in enumerate(self.description.columns) if column.identity]

    @property
    def identifies_rows(self) -> bool:
        return bool(self.key)

    async def register(self, registry: RegistryClient, topic: str, in_use: RelationDescription | None) -> None:
        try:
            self._schema_ids = await self._register(registry, topic, in_use)
        except IncompatibleSchema as error:
            recorded = await registry.latest(value_subject(topic)) or {}
            if in_use is None and recorded_oid(recorded) not in (None, self.description.oid):
                log.warning(
                    "table_recreated",
                    relation=self.description.qualified_name,
                    relation_oid=self.description.oid,
                    former_oid=recorded_oid(recorded),
                    note=error.message,
                )
                self._schema_ids = await self._register_regardless(registry, topic)
                return
            if in_use is None and self._is_before(recorded, await registry.latest(key_subject(topic)) or {}):
                log.info("earlier_columns", relation=self.description.qualified_name, note=error.message)
                self._schema_ids = await self._register_regardless(registry, topic)
                return
            as_first_met = _with_types_as_first_met(self.description, recorded)
            if as_first_met is None:
                raise
            self.description = as_first_met
            self._schema_ids = await self._register(registry, topic, in_use)

    async def _register(
        self, registry: RegistryClient, topic: str, in_use: RelationDescription | None
    ) -> tuple[int, int | None]:
        """Register the schemas of the value and of the key. If no description is in use, they are
        compared with the newest schemas in the registry."""
        return await register_both(
            registry,
            topic,
            change_schema(self.description, self._prefix),
            key_schema(self.description, self._prefix),
            None if in_use is None else change_schema(in_use, self._prefix),
            None if in_use is None else key_schema(in_use, self._prefix),
        )

    def _is_before(self, newest: Schema, newest_key: Schema) -> bool:
        """Return whether the relation is older than the newest schemas, which a snapshot or an
        earlier session has registered. Then these can read its rows, and each column whose newer
        values it cannot read has the newest schema's type in the catalog, too."""
        value, key = change_schema(self.description, self._prefix), key_schema(self.description, self._prefix) or {}
        if incompatible_columns(value, newest) or incompatible_columns(key, newest_key):
            return False
        changes = [*incompatible_columns(newest, value), *incompatible_columns(newest_key, key)]
        changed = {change.column for change in changes}
        present = {each.number: (each.type_oid, each.typmod) for each in self._attributes if each.name is not None}
        recorded = recorded_column_types(newest)
        columns = [column for column in self.description.columns if column.name in changed]
        return bool(columns) and all(
            column.attnum in present
            and present[column.attnum] == recorded.get(column.attnum)
            and present[column.attnum] != (column.facts.oid, column.typmod)
            for column in columns
        )

    async def _register_regardless(self, registry: RegistryClient, topic: str) -> tuple[int, int | None]:
        """Register the schemas of a table that has the name of a former one, but another oid, or of
        rows from before the newest schema. They need not read what was written with the newest. The
        key comes first: if the gateway crashes before the value's schema is registered, the newest
        one still shows which case this is."""
        key = key_schema(self.description, self._prefix)
        key_schema_id = None
        if key is not None:
            key_schema_id = await registry.register(key_subject(topic), key, regardless=True)
        value = change_schema(self.description, self._prefix)
        return await registry.register(value_subject(topic), value, regardless=True), key_schema_id

    def version(self, sink: TopicSink) -> RelationVersion:
        description = self.description
        value_schema_id, key_schema_id = self._schema_ids
        encoder = RowEncoder(description, value_schema_id, key_schema_id)
        return EventVersion(description.qualified_name, value_schema_id, encoder, sink)


class NativeRelations:
    """The relations of a registrar. Methods raise WalgateError and SchemaError."""

    reads_attributes = True
    registers_schemas = True

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def field_name(self, column: str) -> str:
        return column  # `pg.name` has the name where the field's is another

    async def check_topic(self, registry: RegistryClient, topics: Topics, relation: Name) -> None:
        if topics.is_given(relation):
            topic = topics.of_relation(relation)
            holds = recorded_relation(await registry.latest(value_subject(topic)) or {})
            if holds not in (None, relation):
                raise topic_of_another(topic, relation, holds)

    async def describe(
        self,
        registry: RegistryClient,
        description: RelationDescription,
        topic: str,
        in_use: RelationDescription | None,
        xid: int | None,
        attributes: Sequence[Attribute],
    ) -> NativeRelation:
        """Add attnum and attmissingval to the columns."""
        names = [column.name for column in description.columns]
        known: dict[str, tuple[int, MissingValue | None]] = {}
        if in_use is not None:
            known = {c.name: (c.attnum, c.missing) for c in in_use.columns if c.attnum is not None}
        elif needs_earlier(names, attributes, xid):
            recorded = await registry.latest(value_subject(topic)) or {}
            known = recorded_attributes(recorded) if recorded_oid(recorded) == description.oid else {}
        numbers = {name: number for name, (number, _) in known.items()}
        missing = {} if attributes else dict(known.values())
        numbered = attribute_numbers(names, attributes, xid, numbers)
        described = with_attributes(description, numbered, attributes, missing)
        return NativeRelation(described, self._prefix, attributes)


class NativeDialect:
    """Walgate's own dialect (gateway/runtime/dialect.py)."""

    has_markers = True
    records_exclusions = True
    writes_before_commit = True

    def __init__(self, settings: Settings) -> None:
        self._prefix = settings.kafka.prefix

    def is_used(self, positions: Collection[Position], fresh: Position, topics_are_used: bool) -> bool:
        return topics_are_used

    async def register_fixed_schemas(self, registry: RegistryClient) -> FixedSchemas:
        return FixedSchemas(
            await registry.register(value_subject(transaction_topic(self._prefix)), TRANSACTION_MARKER),
            await registry.register(value_subject(POSITION_TOPIC), POSITION),
            await registry.register(value_subject(message_topic(self._prefix)), LOGICAL_MESSAGE),
        )

    async def find_written(
        self,
        registry: RegistryClient,
        relations: Mapping[str, RelationDescription],
        offset: DebeziumOffset,
        login: Credentials,
    ) -> DebeziumOffset:
        raise InternalError("the topics of a connector cannot be continued in this dialect")

    def record_writer(
        self, position: Position, topics: Topics, writer: BatchWriter, schemas: FixedSchemas
    ) -> RecordWriter:
        encode = partial(encode_logical_message, frame(schemas.message))
        sink = message_sink(self._prefix, topics, writer)
        return EventWriter(position.epoch, MessageTopic(message_topic(self._prefix), schemas.message, encode, sink))

    def relations(
        self, sql: asyncpg.Connection, writer: RecordWriter, optional: set[tuple[int, str]]
    ) -> NativeRelations:
        return NativeRelations(self._prefix)


def _with_types_as_first_met(description: RelationDescription, schema: Schema) -> RelationDescription | None:
    """Return the description with text for the types that are unknown in `schema`, or None if there
    are none. Such a type was created in a transaction that was streamed while in progress, so it
    was unknown then, and its values were sent as text. They remain text."""
    recorded = recorded_types(schema)
    columns = [
        replace(column, facts=recorded[column.facts.oid])
        if column.facts.oid in recorded and recorded[column.facts.oid].kind is Kind.UNKNOWN
        else column
        for column in description.columns
    ]
    if tuple(columns) == description.columns:
        return None
    log.info(
        "types_stay_text",
        relation=description.qualified_name,
        note="with schemas.on_incompatible=register, the columns get their actual types",
    )
    return replace(description, columns=tuple(columns))
