"""A Relation message -> a relation version ready for rows: catalog facts, schemas registered, topic made.

All of this waits, and the reading waits with it; the slot is kept alive by the standby status task meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import asyncpg
import structlog

from gateway.events.row_encoder import RowEncoder
from gateway.kafka.outlet import BatchWriter
from gateway.kafka.producer import Producer
from gateway.kafka.topics import Topics, deleted_topics
from gateway.operate.failpoints import failpoint
from gateway.operate.settings import Settings
from gateway.pgoutput import Relation, ReplicaIdentity, Type
from gateway.relations.catalog import PRIMARY_KEY_QUERY, RELATION_QUERY, TYPES_QUERY, read_types
from gateway.relations.description import describe
from gateway.replication.errors import DRIVER_ERRORS, classify_exception
from gateway.service.schema_errors import classified_schema_errors
from gateway.transactions.transaction import RelationVersion
from schemas.description import Kind, RelationDescription
from schemas.errors import IncompatibleSchema
from schemas.names import key_subject, topic_name, value_subject
from schemas.recorded import recorded_key, recorded_oid, recorded_types
from schemas.registry import RegistryClient
from schemas.relation import change_schema, key_schema

log = structlog.get_logger()


class Announcer:
    """Raises WalgateError: PostgreSQL, registry or Kafka not there, or a schema that is not compatible."""

    def __init__(
        self,
        sql: asyncpg.Connection,
        registry: RegistryClient,
        topics: Topics,
        producer: Producer,
        writer: BatchWriter,
        settings: Settings,
        *,
        is_first_epoch: bool,
    ) -> None:
        self._sql = sql
        self._registry = registry
        self._topics = topics
        self._producer = producer
        self._writer = writer
        self._prefix = settings.kafka.prefix
        self._is_first_epoch = is_first_epoch
        self._announced_types: dict[int, tuple[str, str]] = {}

    async def prepare(self, relations: Iterable[tuple[str, str]]) -> None:
        """Make the topics of (schema, table) in one call, before their first row: a thousand one by one take long."""
        with classified_schema_errors():
            topics = [topic_name(self._prefix, namespace, name) for namespace, name in relations]
        await self._ensure(topics)

    async def _ensure(self, topics: list[str]) -> dict[str, int]:
        """A topic is made before its first schema is registered: one that is missing although it has a schema was deleted."""
        if not self._is_first_epoch:
            with classified_schema_errors():
                missing = await self._topics.missing(topics)
                deleted = [topic for topic in missing if await self._registry.latest(value_subject(topic)) is not None]
            if deleted:
                raise deleted_topics(deleted)
        partition_counts = await self._topics.ensure(topics)
        await self._producer.learn(topics)
        return partition_counts

    def note_type(self, message: Type) -> None:
        """The name of a type, for when the catalog has forgotten it."""
        self._announced_types[message.type_oid] = (message.namespace, message.name)

    async def announce(self, relation: Relation, in_force: RelationVersion | None) -> RelationVersion:
        """`in_force`: what changes of the relation were encoded with so far. The newest schema of the topic may be another:
        one of a savepoint or transaction that was rolled back, by which later ones are not bound."""
        earlier = None if in_force is None else in_force.encoder.description
        if earlier is not None and (earlier.namespace, earlier.name) != (relation.namespace, relation.name):
            earlier = None  # renamed: another topic
        with classified_schema_errors():
            topic = topic_name(self._prefix, relation.namespace, relation.name)
            partition_count = (await self._ensure([topic]))[topic]
            description = await self._describe(relation, topic)
            failpoint("before_registry_call")
            try:
                value_schema_id, key_schema_id = await self._register(topic, description, earlier)
            except IncompatibleSchema:
                as_first_met = await self._with_types_as_first_met(topic, description)
                if as_first_met is None:
                    raise
                description = as_first_met
                value_schema_id, key_schema_id = await self._register(topic, description, earlier)
            failpoint("after_registry_call")
        keys = ", ".join(column.name for column in description.identity_columns) or "none"
        outlet = self._writer.outlet(topic, partition_count, f"{description.qualified_name} (key: {keys})")
        encoder = RowEncoder(description, value_schema_id, key_schema_id)
        log.debug("relation", name=description.qualified_name, schema_id=value_schema_id)
        return RelationVersion(description.qualified_name, value_schema_id, encoder, outlet)

    async def _register(
        self, topic: str, description: RelationDescription, earlier: RelationDescription | None
    ) -> tuple[int, int | None]:
        """Value and key at once, and both done when it returns. `earlier`: what is in force, None: the registry's newest."""
        earlier_value = None if earlier is None else change_schema(earlier, self._prefix)
        value = self._registry.register(value_subject(topic), change_schema(description, self._prefix), earlier_value)
        key = key_schema(description, self._prefix)
        if key is None:
            return await value, None
        earlier_key = None if earlier is None else key_schema(earlier, self._prefix)
        key_done = self._registry.register(key_subject(topic), key, earlier_key)
        value_schema_id, key_schema_id = await asyncio.gather(value, key_done, return_exceptions=True)
        if isinstance(value_schema_id, BaseException):
            raise value_schema_id
        if isinstance(key_schema_id, BaseException):
            raise key_schema_id
        return value_schema_id, key_schema_id

    async def _describe(self, relation: Relation, topic: str) -> RelationDescription:
        """The catalog is as of now, the message as of the change: what the catalog has forgotten meanwhile (a dropped type,
        the key of a dropped table or of one whose key column was renamed) comes from the newest schema of the topic."""
        failpoint("before_catalog_query")
        oids = sorted({column.type_oid for column in relation.columns})
        primary_key: list[str] = []
        is_key_known = True
        try:
            facts = read_types(await self._sql.fetch(TYPES_QUERY, oids))
            if relation.replica_identity is ReplicaIdentity.FULL:
                primary_key = [row[0] for row in await self._sql.fetch(PRIMARY_KEY_QUERY, relation.relation_oid)]
                is_key_known = {column.name for column in relation.columns}.issuperset(primary_key)
                if not primary_key:
                    is_key_known = bool(await self._sql.fetch(RELATION_QUERY, relation.relation_oid))
        except DRIVER_ERRORS as error:
            raise classify_exception(error, f"types of {relation.namespace}.{relation.name}") from error
        failpoint("after_catalog_query")
        if not (is_key_known and facts.keys() >= set(oids)):
            recorded = await self._registry.latest(value_subject(topic)) or {}
            facts = {**recorded_types(recorded), **facts}
            if not is_key_known and recorded_oid(recorded) == relation.relation_oid:
                primary_key = recorded_key(recorded)
        return describe(relation, facts, primary_key, self._announced_types)

    async def _with_types_as_first_met(
        self, topic: str, description: RelationDescription
    ) -> RelationDescription | None:
        """A type that was made in a transaction which was streamed while open was unknown then, and its values were sent
        as text. They stay text. None where that is not the reason."""
        recorded = recorded_types(await self._registry.latest(value_subject(topic)) or {})
        columns = [
            replace(column, facts=recorded[column.facts.oid])
            if column.facts.oid in recorded and recorded[column.facts.oid].kind is Kind.UNKNOWN
            else column
            for column in description.columns
        ]
        if tuple(columns) == description.columns:
            return None
        log.info(
            "types_stay_text", relation=description.qualified_name, note="schemas.on_incompatible=register changes it"
        )
        return replace(description, columns=tuple(columns))
