"""The dialect of the records: one object of a session has everything that depends on it.

Only `dialect_of` creates a Dialect. gateway/runtime/native_dialect.py has Walgate's own dialect,
gateway/debezium/dialect.py has Debezium's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import asyncpg

from gateway.config.settings import Settings
from gateway.kafka.batches import BatchWriter, TopicSink
from gateway.kafka.fixed_topics import FixedSchemas
from gateway.kafka.topics import Name, Topics
from gateway.postgres.credentials import Credentials
from gateway.relations.attributes import Attribute
from gateway.startup.connect_offset import DebeziumOffset
from gateway.transactions.position import Position
from gateway.transactions.record_writer import RecordWriter, RelationVersion
from schemas.registry_client import RegistryClient
from schemas.relation import RelationDescription


class DescribedRelation(Protocol):
    """A described relation, which becomes a RelationVersion after its schemas have been
    registered."""

    @property
    def description(self) -> RelationDescription: ...

    @property
    def key(self) -> Sequence[int]:
        """The indexes of the columns in the key of the relation's records."""
        ...

    @property
    def identifies_rows(self) -> bool:
        """Whether different rows always have different keys."""
        ...

    async def register(self, registry: RegistryClient, topic: str, in_use: RelationDescription | None) -> None:
        """Register the schemas. `in_use` is the description with which changes have been encoded so
        far, under the same name. Raises SchemaError."""
        ...

    def version(self, sink: TopicSink) -> RelationVersion:
        """Return the version. Call it after `register`."""
        ...


class DialectRelations(Protocol):
    """The relations of one registrar, which queries over its own connection."""

    reads_attributes: bool
    """Whether `describe` needs the relation's attributes as the catalog has them."""

    @property
    def registers_schemas(self) -> bool:
        """Whether the registry has the schemas of relations."""
        ...

    def field_name(self, column: str) -> str:
        """Return the name that a schema has for a column, from which readers take the column's
        name."""
        ...

    async def check_topic(self, registry: RegistryClient, topics: Topics, relation: Name) -> None:
        """Raise StopForOperator if the relation's topic has records of another relation."""
        ...

    async def describe(
        self,
        registry: RegistryClient,
        description: RelationDescription,
        topic: str,
        in_use: RelationDescription | None,
        xid: int | None,
        attributes: Sequence[Attribute],
    ) -> DescribedRelation:
        """Complete the description of a relation. `in_use` is the description with which changes
        have been encoded so far. `xid` is the transaction of the Relation message; None means that
        the relation is as the catalog has it now. Raises WalgateError."""
        ...


class Dialect(Protocol):
    """The dialect of a session's records."""

    has_markers: bool
    """Whether the marker topic has EPOCH and GAP markers."""
    records_exclusions: bool
    """Whether consumers see what was left out, so that tables may be put in quarantine."""
    writes_before_commit: bool
    """Whether transactions can be written before they commit."""

    def is_used(self, positions: Collection[Position], fresh: Position, topics_are_used: bool) -> bool:
        """Return whether the topics were written by a gateway. `topics_are_used` means that they
        have records. `fresh` is the position of a gateway that starts anew."""
        ...

    async def register_fixed_schemas(self, registry: RegistryClient) -> FixedSchemas:
        """Register the schemas of the fixed topics and return their ids. Raises SchemaError."""
        ...

    async def find_written(
        self,
        registry: RegistryClient,
        relations: Mapping[str, RelationDescription],
        offset: DebeziumOffset,
        login: Credentials,
    ) -> DebeziumOffset:
        """Return the offset after the last change whose records a replaced connector has all
        written. `relations` are the published ones by topic, and `login` is for the server of the
        slot. Raises WalgateError, also if the gateway would write other keys."""
        ...

    def record_writer(
        self, position: Position, topics: Topics, writer: BatchWriter, schemas: FixedSchemas
    ) -> RecordWriter:
        """Return the writer of the records of a stream."""
        ...

    def relations(
        self, sql: asyncpg.Connection, writer: RecordWriter, optional: set[tuple[int, str]]
    ) -> DialectRelations:
        """Return the relations of a registrar. `optional` contains the pairs (relation oid, column
        name) whose fields must accept NULL, whatever the catalog says."""
        ...


def dialect_of(settings: Settings) -> Dialect:
    """Return the dialect that kafka.dialect selects."""
    if settings.writes_debezium:
        from gateway.debezium.dialect import DebeziumDialect

        return DebeziumDialect(settings)
    from gateway.runtime.native_dialect import NativeDialect

    return NativeDialect(settings)
