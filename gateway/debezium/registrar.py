"""Debezium's dialect in a session: schemas and encoders of relations, the fixed schemas, the state
machine."""

from __future__ import annotations

import time
from importlib.metadata import version as package_version
from typing import Any

import asyncpg
import structlog

from gateway.config.debezium_options import DebeziumOptions
from gateway.debezium.column_defaults import with_defaults
from gateway.debezium.envelope_schema import (
    CatalogColumn,
    ConnectRelation,
    NameCollision,
    connect_relation,
    envelope_schema,
    key_schema,
)
from gateway.debezium.json_machine import JsonSink
from gateway.debezium.machine import DebeziumMachine, DebeziumTopics, DebeziumVersion
from gateway.debezium.row_encoder import DebeziumEncoder, LeftOut
from gateway.debezium.source_block import SourceNames
from gateway.errors import StopForOperator, UnwritableRelation
from gateway.kafka.batches import TopicSink
from gateway.observe import metrics
from gateway.postgres.errors import DRIVER_ERRORS, classify_exception
from gateway.relations.type_catalog import COLUMNS_QUERY, KEY_QUERY, read_key
from gateway.transactions.position import Position
from gateway.transactions.transaction import MessageTopic
from schemas.relation import Protect, RelationDescription, ReplicaIdentity

log = structlog.get_logger()


class DebeziumRelations:
    """The relations of a session in Debezium's dialect. `optional` has (relation oid, column) of
    fields that must accept NULL, whatever the catalog says now."""

    def __init__(self, sql: asyncpg.Connection, options: DebeziumOptions, optional: set[tuple[int, str]]) -> None:
        self.versions: dict[int, DebeziumVersion] = {}
        self._sql = sql
        self._options = options
        self._optional = optional
        self._warned: set[tuple[str, str, str]] = set()
        self.left_out: LeftOut | None = None

    async def relation(self, description: RelationDescription) -> ConnectRelation:
        """Describe the relation with the current facts of the catalog. Raises WalgateError."""
        try:
            columns = await self._sql.fetch(COLUMNS_QUERY, description.oid)
            keys = await self._sql.fetch(KEY_QUERY, description.oid)
        except DRIVER_ERRORS as error:
            raise classify_exception(error, f"columns of {description.qualified_name}") from error
        catalog = [CatalogColumn(name, not_null, default) for name, not_null, default in columns]
        catalog = self._as_it_was(description, catalog)
        try:
            relation = connect_relation(description, catalog, read_key(keys), self._options)
        except NameCollision as error:
            raise UnwritableRelation(
                f"{description.qualified_name}: {error}",
                hint="in Debezium's record format, an underscore replaces each character that Avro does not allow, so two "
                "columns can get the same name. Use kafka.dialect = walgate with another slot and topic prefix. Renaming a "
                "column is not enough: changes already committed are sent with the old names",
            ) from None
        for described, column in zip(description.columns, relation.columns, strict=True):
            is_dropped = described.protection is not None and described.protection.action is Protect.DROP
            if column is None and not is_dropped:
                self._warn(
                    description.qualified_name, described.name, f"Debezium does not support {described.facts.name}"
                )
        return with_defaults(relation, catalog)

    def _as_it_was(self, description: RelationDescription, catalog: list[CatalogColumn]) -> list[CatalogColumn]:
        """Return the catalog's columns as they were: a column of the replica identity (other than
        FULL) was never null, even if it is no longer in the catalog."""
        known = {column.name: column for column in catalog}
        if description.replica_identity is not ReplicaIdentity.FULL:
            for column in description.identity_columns:
                known.setdefault(column.name, CatalogColumn(column.name, True))
        return [
            CatalogColumn(name, False, column.default) if (description.oid, name) in self._optional else column
            for name, column in known.items()
        ]

    def announce(
        self, relation: ConnectRelation, value_schema_id: int, key_schema_id: int | None, outlet: TopicSink
    ) -> None:
        """Make the relation's encoder, after its schemas have been registered."""
        description = relation.description
        encoder = DebeziumEncoder(
            relation, value_schema_id, key_schema_id, self._options, self._unconvertible, self.left_out
        )
        collection = description.qualified_name
        if self.registers_schemas:
            self.versions[description.oid] = DebeziumVersion(collection, encoder, outlet)
        else:
            value, key = self.schemas_of(relation, outlet.topic)
            in_json = JsonSink(outlet, key, value, with_schema=self._options.format_schemas_enable)
            self.versions[description.oid] = DebeziumVersion(collection, encoder, in_json)

    @property
    def registers_schemas(self) -> bool:
        """Whether schemas of relations are registered. JSON has them in its records, or not at
        all."""
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

    def _warn(self, relation: str, column: str, reason: str) -> None:
        """Log each reason once per session and column, because every row may have it."""
        if (relation, column, reason) not in self._warned:
            self._warned.add((relation, column, reason))
            log.warning("column_without_value", relation=relation, column=column, reason=reason)


def debezium_machine(
    position: Position,
    messages: MessageTopic,
    topics: DebeziumTopics,
    options: DebeziumOptions,
    relations: DebeziumRelations,
) -> DebeziumMachine:
    names = SourceNames(package_version("walgate"), position.prefix, position.database)
    machine = DebeziumMachine(
        epoch=position.epoch,
        resume_lsn=position.resume_lsn,
        last_commit_lsn=position.last_commit_lsn,
        prepared=position.prepared,
        messages=messages,
        names=names,
        topics=topics,
        options=options,
        clock_ns=time.time_ns,
        skip_lsn=position.skip_lsn,
        written=(position.written_xid, position.written_lsn),
    )
    machine.versions = relations.versions
    relations.left_out = machine.left_out
    return machine
