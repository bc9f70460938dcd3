"""Relations in Debezium's dialect: their schemas and encoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import structlog

from gateway.config.debezium import DebeziumSettings
from gateway.debezium.column_defaults import as_recorded, with_defaults
from gateway.debezium.envelope_schema import (
    CatalogColumn,
    ConnectRelation,
    NameCollision,
    UnsupportedKey,
    connect_relation,
    envelope_schema,
    field_name,
    key_schema,
    made_optional,
)
from gateway.debezium.json_sink import JsonSink
from gateway.debezium.record_writer import DebeziumWriter, KeyedSink
from gateway.debezium.relation_version import DebeziumVersion
from gateway.debezium.row_encoder import DebeziumEncoder
from gateway.errors import StopForOperator, UnwritableRelation
from gateway.events.row_encoder import RowEncoder
from gateway.kafka.batches import TopicSink
from gateway.kafka.topics import Name, Topics, topic_of_two
from gateway.observe import metrics
from gateway.postgres.classify_errors import classified_errors
from gateway.relations.attributes import Attribute, attribute_numbers
from gateway.relations.type_catalog import COLUMNS_QUERY, KEY_QUERY, read_key
from gateway.schema_errors import register_both
from schemas.errors import IncompatibleSchema
from schemas.registry_client import RegistryClient
from schemas.relation import Protect, RelationDescription, ReplicaIdentity
from schemas.topic_names import key_subject, value_subject

log = structlog.get_logger()


class DebeziumRelation:
    """A described relation, which becomes a DebeziumVersion after its schemas have been
    registered."""

    def __init__(self, relations: DebeziumRelations, relation: ConnectRelation) -> None:
        self.relation = relation
        self._relations = relations
        self._schema_ids: tuple[int, int | None] = (0, 0 if relation.key else None)

    @property
    def description(self) -> RelationDescription:
        return self.relation.description

    @property
    def key(self) -> Sequence[int]:
        return self.relation.key

    @property
    def identifies_rows(self) -> bool:
        """Whether there is a key that is the table's identity, or whose columns are NOT NULL. A
        unique index has as many rows with NULL as there are."""
        columns = zip(self.relation.columns, self.description.columns, strict=True)
        may_repeat = [column is None or (column.is_optional and not of.identity) for column, of in columns]
        return bool(self.key) and not any(may_repeat[at] for at in self.key)

    async def register(self, registry: RegistryClient, topic: str, in_use: RelationDescription | None) -> None:
        """Register the relation's schemas, but only for Avro: JSON records contain their schemas,
        or have none. If the registry refuses a schema because of a NOT NULL column, register it
        with an optional field for that column. Raises SchemaError."""
        if not self._relations.registers_schemas:
            return
        try:
            self._schema_ids = await register_both(registry, topic, *self._relations.schemas_of(self.relation, topic))
        except IncompatibleSchema:
            newest = await registry.latest(value_subject(topic))
            newest_key = await registry.latest(key_subject(topic))
            relation = self.relation if newest is None else made_optional(self.relation, newest, newest_key)
            if relation == self.relation:
                raise
            self._schema_ids = await register_both(registry, topic, *self._relations.schemas_of(relation, topic))
            self._relations.report_optional(self.relation, relation)
            self.relation = relation

    def version(self, topic_sink: TopicSink) -> DebeziumVersion:
        return self._relations.version(self.relation, *self._schema_ids, topic_sink)


class DebeziumRelations:
    """The relations of a registrar in Debezium's dialect. `optional` has the pairs (relation oid,
    column name) whose fields must accept NULL, whatever the catalog says. `writer` is None if
    relations are described only."""

    def __init__(
        self,
        sql: asyncpg.Connection,
        writer: DebeziumWriter | None,
        options: DebeziumSettings,
        optional: set[tuple[int, str]],
        *,
        reads_attributes: bool = False,
    ) -> None:
        self.reads_attributes = reads_attributes
        self._sql = sql
        self._writer = writer
        self._options = options
        self._optional = optional
        self._warned: set[tuple[str, str, str]] = set()

    def field_name(self, column: str) -> str:
        return field_name(column, self._options)

    async def check_topic(self, registry: RegistryClient, topics: Topics, relation: Name) -> None:
        other = topics.shared_with(relation)
        if other is not None:
            raise topic_of_two(topics.of_relation(relation), relation, other)

    async def describe(
        self,
        registry: RegistryClient,
        description: RelationDescription,
        topic: str,
        in_use: RelationDescription | None,
        xid: int | None,
        attributes: Sequence[Attribute],
    ) -> DebeziumRelation:
        """Add attnum to the columns if there are `attributes`: column rules are followed by it."""
        known = {} if in_use is None else {c.name: c.attnum for c in in_use.columns if c.attnum is not None}
        names = [column.name for column in description.columns]
        numbers = attribute_numbers(names, attributes, xid, known)
        columns = tuple(replace(column, attnum=numbers.get(column.name)) for column in description.columns)
        return DebeziumRelation(self, await self.relation(replace(description, columns=columns), registry, topic))

    async def relation(self, description: RelationDescription, registry: RegistryClient, topic: str) -> ConnectRelation:
        """Describe the relation with the columns and the key that the catalog has for it now.
        Raises WalgateError and SchemaError."""
        with classified_errors(f"columns of {description.qualified_name}"):
            columns = await self._sql.fetch(COLUMNS_QUERY, description.oid)
            keys = await self._sql.fetch(KEY_QUERY, description.oid)
        catalog = [CatalogColumn(name, not_null, default) for name, not_null, default in columns]
        key = read_key(keys)
        sent = {column.name for column in description.columns}
        known = {column.name for column in catalog}
        recorded: dict[str, Any] = {}
        if description.replica_identity is ReplicaIdentity.FULL:
            if not (columns and sent.issuperset(key)):
                recorded = await self._recorded_fields(description, registry, topic)
                key = list(recorded) if sent.issuperset(recorded) else []
        elif not known.issuperset(column.name for column in description.identity_columns):
            recorded = await self._recorded_fields(description, registry, topic)
        gone = [name for name in recorded.keys() - known if (description.oid, name) not in self._optional]
        catalog = self._as_it_was(description, catalog)
        try:
            relation = connect_relation(description, catalog, key, self._options)
        except NameCollision as error:
            raise UnwritableRelation(
                f"{description.qualified_name}: {error}",
                hint="in Debezium's record format, an underscore replaces each character that Avro does not allow, so two "
                "columns can get the same name. Use kafka.dialect = walgate with another slot and topic prefix. Renaming a "
                "column is not enough: changes already committed are sent with the old names",
            ) from None
        except UnsupportedKey as error:
            raise UnwritableRelation(
                f"{description.qualified_name}: {error}, so different rows would have the same key",
                hint="set debezium.include_unknown_datatypes = true, which sends the text of such columns as bytes. If records "
                "of the table were written without the column in their key, also set schemas.on_incompatible = register",
            ) from None
        for described, column in zip(description.columns, relation.columns, strict=True):
            is_dropped = described.protection is not None and described.protection.action is Protect.DROP
            if column is None and not is_dropped:
                self._warn(
                    description.qualified_name, described.name, f"Debezium does not support {described.facts.name}"
                )
        return as_recorded(with_defaults(relation, catalog), {name: recorded[name] for name in gone})

    async def _recorded_fields(
        self, description: RelationDescription, registry: RegistryClient, topic: str
    ) -> dict[str, Any]:
        """Return the fields of the topic's newest key schema, in the key's order and by the names
        of their columns. The catalog no longer has this key if, after the change, the table was
        dropped or a column of the key was renamed."""
        newest = await registry.latest(key_subject(topic)) if self.registers_schemas else None
        names = {field_name(column.name, self._options): column.name for column in description.columns}
        fields = [] if newest is None else newest["fields"]
        return {names.get(field["name"], field["name"]): field for field in fields}

    def _as_it_was(self, description: RelationDescription, catalog: list[CatalogColumn]) -> list[CatalogColumn]:
        """Return the catalog's columns as they were at the change. A column of the replica identity
        (other than FULL) that is no longer in the catalog was NOT NULL. A column in `optional`
        accepts NULL."""
        known = {column.name: column for column in catalog}
        if description.replica_identity is not ReplicaIdentity.FULL:
            for column in description.identity_columns:
                known.setdefault(column.name, CatalogColumn(column.name, True))
        return [
            CatalogColumn(name, False, column.default) if (description.oid, name) in self._optional else column
            for name, column in known.items()
        ]

    def version(
        self, relation: ConnectRelation, value_schema_id: int, key_schema_id: int | None, topic_sink: TopicSink
    ) -> DebeziumVersion:
        """Return the version of a relation whose schemas are registered."""
        assert self._writer is not None
        description, sink = relation.description, self._sink(relation, topic_sink)
        left_out = self._writer.on_left_out
        records = DebeziumEncoder(
            relation, value_schema_id, key_schema_id, self._options, self._unconvertible, left_out
        )
        keys = RowEncoder(description, value_schema_id, 0 if description.identity_columns else None)
        return DebeziumVersion(description.qualified_name, value_schema_id, keys, records, sink, self._writer)

    def _sink(self, relation: ConnectRelation, topic_sink: TopicSink) -> KeyedSink:
        if self.registers_schemas:
            return topic_sink
        value, key = self.schemas_of(relation, topic_sink.topic)
        return JsonSink(topic_sink, key, value, with_schema=self._options.format_schemas_enable)

    @property
    def registers_schemas(self) -> bool:
        """Whether the schemas of relations are registered, which is the case for Avro only. JSON
        records contain their schemas, or have none."""
        return self._options.format == "avro"

    def schemas_of(self, relation: ConnectRelation, topic: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the schemas of the value and of the key."""
        adjusts = self._options.adjusts_names
        return (
            envelope_schema(relation, topic, adjusts_names=adjusts),
            key_schema(relation, topic, adjusts_names=adjusts),
        )

    def _unconvertible(self, relation: str, column: str, reason: str) -> None:
        metrics.UNCONVERTIBLE.inc()
        mode = self._options.event_converting_failure_handling_mode
        if mode == "fail":
            raise StopForOperator(
                f"{relation}, column {column}: {reason}",
                hint="set debezium.decimal_handling_mode = string to send NaN, or "
                "debezium.event_converting_failure_handling_mode = warn to send null with a warning",
            )
        if mode == "warn":
            self._warn(relation, column, reason)

    def report_optional(self, before: ConnectRelation, after: ConnectRelation) -> None:
        """Log the columns whose fields are optional although the columns are NOT NULL."""
        columns = zip(before.columns, after.columns, strict=True)
        names = [old.name for old, new in columns if old is not None and old != new]
        log.info(
            "columns_are_optional",
            relation=before.description.qualified_name,
            columns=names,
            reason="the topic's newest schema lacks them, or has them as optional: the registry refuses them as required",
        )

    def _warn(self, relation: str, column: str, reason: str) -> None:
        """Log a reason once per session and column, because every row may have it."""
        if (relation, column, reason) not in self._warned:
            self._warned.add((relation, column, reason))
            log.warning("column_without_value", relation=relation, column=column, reason=reason)
