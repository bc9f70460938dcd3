"""A Relation message -> a relation version that is ready for rows: catalog facts read, schemas
registered, topic created.

All of this waits for servers, and reading waits with it; meanwhile, the standby status task keeps
the connection alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.debezium.envelope_schema import ConnectRelation
from gateway.debezium.registrar import DebeziumRelations
from gateway.errors import Retry, UnwritableRelation
from gateway.events.missing_values import with_attributes
from gateway.events.row_encoder import RowEncoder
from gateway.failpoints import failpoint
from gateway.kafka.batches import BatchWriter
from gateway.kafka.producer import Producer
from gateway.kafka.topics import Name, Topics, compacted_without_key, topic_of_another, topic_of_two
from gateway.pgoutput import Relation, ReplicaIdentity, Type
from gateway.postgres.errors import DRIVER_ERRORS, classify_exception
from gateway.postgres.publication import descent_of, publication_facts
from gateway.relations.attributes import (
    ATTRIBUTES_QUERY,
    Attribute,
    attribute_numbers,
    needs_earlier,
    read_attributes,
)
from gateway.relations.describe import describe
from gateway.relations.type_catalog import (
    BUILT_IN_QUERY,
    GENERATED_KEY_QUERY,
    PRIMARY_KEY_QUERY,
    RELATION_QUERY,
    TYPES_QUERY,
    read_types,
)
from gateway.runtime.column_rules import check_key, protect
from gateway.runtime.excluded_tables import ExcludedTables
from gateway.schema_registry import classified_schema_errors
from gateway.transactions.transaction import RelationVersion
from schemas.avro_types import is_numeric
from schemas.change_schema import Schema, change_schema, enums_without_labels, key_schema
from schemas.errors import IncompatibleSchema
from schemas.registry_client import RegistryClient
from schemas.relation import Kind, MissingValue, RelationDescription, TypeFacts
from schemas.schema_metadata import recorded_attributes, recorded_key, recorded_oid, recorded_relation, recorded_types
from schemas.topic_names import key_subject, value_subject

log = structlog.get_logger()

_ASKED_AT_ONCE = 50
"""Concurrent requests to the registry."""
_REGISTERED_AT_ONCE = 8
"""Relations that are registered concurrently, each with up to two subjects."""
_NAMED = 3
"""Relations that an error message names."""


@dataclass(frozen=True, slots=True)
class _Catalog:
    """Rows of the catalog about some relations: facts of their types by type oid; generated columns
    of their replica identities, and all attributes, both by relation oid."""

    types: dict[int, TypeFacts]
    generated: dict[int, list[str]]
    attributes: dict[int, list[Attribute]]


class RowsOfPartition(Retry):
    """A partition whose root is published has rows of its own: it was published separately when
    they were written."""


class RelationRegistrar:
    """Announces relations: makes their topics, registers their schemas, builds their encoders.
    Raises WalgateError if PostgreSQL, the registry or Kafka does not answer, or if a schema is
    incompatible."""

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
        on_announced: Callable[[str, int, int], None],
        debezium: DebeziumRelations | None = None,
        partitions_have_topics: bool = False,
    ) -> None:
        """`on_announced` is called with each relation's name, schema id and number of columns.
        `debezium` is set if records have Debezium's dialect."""
        self._on_announced = on_announced
        self._debezium = debezium
        self._sql = sql
        self._registry = registry
        self._topics = topics
        self._producer = producer
        self._writer = writer
        self._prefix = settings.kafka.prefix
        self._columns = settings.columns
        self._publications = settings.source.publications
        self.excluded_tables = ExcludedTables(settings.source.excluded_tables, topics, marks=debezium is None)
        self._is_first_epoch = is_first_epoch
        self._announced_types: dict[int, tuple[str, str]] = {}
        self._partitions_have_topics = partitions_have_topics
        self._partitions_of_roots: set[int] = set()

    async def prepare(self, relations: Iterable[Name]) -> None:
        """Create the topics of (schema, table) in batches, before their first row: creating a
        thousand one by one takes long."""
        wanted = list(relations)
        if not self._is_first_epoch:
            await self._refuse_deleted(await self._topics.without_topic(wanted))
        await self._topics.ensure_relations(wanted)
        await self._producer.learn(self._topics.of_relation(relation) for relation in wanted)

    async def _refuse_deleted(self, missing: list[Name]) -> None:
        """Raise DataGap if any of these missing topics has a schema. A topic is created before its
        first schema is registered, so such a topic was deleted."""
        names = [topic for relation in missing for topic in self._topics.possible_names(relation)]
        deleted = []
        with classified_schema_errors():
            for start in range(0, len(names), _ASKED_AT_ONCE):
                some = names[start : start + _ASKED_AT_ONCE]
                found = await asyncio.gather(*(self._registry.latest(value_subject(topic)) for topic in some))
                deleted += [topic for topic, schema in zip(some, found, strict=True) if schema is not None]
        await self._topics.refuse_deleted(deleted)

    async def _make_topics(self, relations: Sequence[Name]) -> None:
        """Create the topics of these relations and, if any is missing, those of all tables that are
        published by now: a new table seldom comes alone."""
        if await self._topics.without_topic(relations):
            publications = await publication_facts(
                self._sql, self._publications, excluded=self.excluded_tables.patterns
            )
            published = {(r.namespace, r.name) for facts in publications.values() for r in facts.relations}
            await self.prepare([*relations, *sorted(published)])
        else:
            await self.prepare(relations)

    async def _topic(self, relation: Name) -> str:
        topic = self._topics.of_relation(relation)
        if self._debezium is not None:
            other = self._topics.shared_with(relation)
            if other is not None:
                raise topic_of_two(topic, relation, other)
        elif self._topics.is_given(relation):
            holds = recorded_relation(await self._registry.latest(value_subject(topic)) or {})
            if holds not in (None, relation):
                raise topic_of_another(topic, relation, holds)
        return topic

    def topic_of(self, relation: Name) -> str:
        """Return the topic of a relation's rows, even if it does not exist."""
        return next(iter(self._topics.possible_names(relation)))

    def note_type(self, message: Type) -> None:
        """Remember the name of a type, for when the catalog no longer has it."""
        self._announced_types[message.type_oid] = (message.namespace, message.name)

    async def comes_as_root(self, relation: Relation, previous: Relation | None) -> bool:
        """Return whether rows of this partition are sent as rows of its root, so that it needs no
        topic. PostgreSQL announces the root and then the partition. `previous` is the relation that
        was announced before this one: a partition that was dropped is recognized by it."""
        oid = relation.relation_oid
        if self._partitions_have_topics or not await self._topics.without_topic([(relation.namespace, relation.name)]):
            return False
        if oid not in self._partitions_of_roots:
            descent = await descent_of(self._sql, oid, 0 if previous is None else previous.relation_oid)
            if not descent.exists:
                return descent.follows_root and previous is not None and _have_same_columns(relation, previous)
            if not descent.ancestors:
                return False
            family = [oid, *descent.ancestors]
            publications = await publication_facts(self._sql, self._publications, family)
            published = {each.relation_oid for facts in publications.values() for each in facts.relations}
            if oid in published or published.isdisjoint(descent.ancestors):
                return False
            self._partitions_of_roots.add(oid)
        return True

    async def announce(
        self, relation: Relation, in_force: RelationVersion | None, xid: int | None = None
    ) -> RelationVersion:
        """Register a relation and return its version.

        `in_force` is the version with which changes of the relation have been encoded so far. The
        newest schema of the topic may be another one, from a savepoint or transaction that was
        rolled back; it does not bind later ones. `xid` is that of the transaction of the message;
        None means that the relation is as the catalog has it now.
        """
        with classified_schema_errors():
            await self._make_topics([(relation.namespace, relation.name)])
            catalog = await self._look([relation])
            description, relation_ = await self._described(relation, in_force, xid, catalog)
        return await self._registered(description, relation_, in_force)

    async def announce_all(self, relations: Sequence[tuple[Relation, RelationVersion | None]]) -> list[RelationVersion]:
        """Register relations as the catalog has them now, each with its version in force; return
        the new versions. The catalog is queried once for all, and several are registered at a time.

        After the first error, no further registration begins, as each may take as long to fail; the
        error is raised when those under way have ended. An UnwritableRelation names its relation.
        """
        with classified_schema_errors():
            await self._make_topics([(relation.namespace, relation.name) for relation, _ in relations])
            catalog = await self._look([relation for relation, _ in relations])
            described = []
            for relation, in_force in relations:
                with _naming(relation.relation_oid):
                    described.append((*await self._described(relation, in_force, None, catalog), in_force))
        turns = asyncio.Semaphore(_REGISTERED_AT_ONCE)
        failed: list[BaseException] = []

        async def registered(
            description: RelationDescription, relation_: ConnectRelation | None, in_force: RelationVersion | None
        ) -> RelationVersion:
            async with turns:
                if failed:
                    raise failed[0]
                try:
                    with _naming(description.oid):
                        return await self._registered(description, relation_, in_force)
                except BaseException as error:
                    failed.append(error)
                    raise

        found = await asyncio.gather(*(registered(*each) for each in described), return_exceptions=True)
        if failed:
            raise failed[0]
        return [each for each in found if not isinstance(each, BaseException)]

    async def _described(
        self, relation: Relation, in_force: RelationVersion | None, xid: int | None, catalog: _Catalog
    ) -> tuple[RelationDescription, ConnectRelation | None]:
        """Return the description of a relation and, in Debezium's dialect, its ConnectRelation."""
        topic = await self._topic((relation.namespace, relation.name))
        description = await self._describe(relation, topic, catalog)
        if self._debezium is None:
            in_use = None if in_force is None else in_force.encoder.description
            attributes = catalog.attributes.get(relation.relation_oid, [])
            return await self._with_attributes(description, topic, in_use, xid, attributes), None
        relation_ = await self._debezium.relation(description)
        check_key(description, relation_.key, self._columns)
        if not relation_.key and self._topics.makes_compacted(topic):
            raise compacted_without_key(topic, description.qualified_name)
        return description, relation_

    async def _registered(
        self, description: RelationDescription, relation_: ConnectRelation | None, in_force: RelationVersion | None
    ) -> RelationVersion:
        earlier = None if in_force is None else in_force.encoder.description
        if earlier is not None and (earlier.namespace, earlier.name) != (description.namespace, description.name):
            earlier = None  # renamed, so that its rows go to another topic
        topic = self._topics.of_relation((description.namespace, description.name))
        with classified_schema_errors():
            failpoint("before_registry_call")
            try:
                if self._debezium is not None and relation_ is not None:
                    value_schema_id, key_schema_id = await self._register_debezium(topic, relation_, self._debezium)
                else:
                    value_schema_id, key_schema_id = await self._register(topic, description, earlier)
            except IncompatibleSchema as error:
                if self._debezium is not None:
                    raise
                recorded = await self._registry.latest(value_subject(topic)) or {}
                if earlier is None and recorded_oid(recorded) not in (None, description.oid):
                    value_schema_id, key_schema_id = await self._register_anew(topic, description, recorded, error)
                else:
                    as_first_met = _with_types_as_first_met(description, recorded)
                    if as_first_met is None:
                        raise
                    description = as_first_met
                    value_schema_id, key_schema_id = await self._register(topic, description, earlier)
            failpoint("after_registry_call")
        keys = ", ".join(column.name for column in description.identity_columns) or "none"
        partition_count = self._topics.partition_count(topic)
        outlet = self._writer.outlet(topic, partition_count, f"{description.qualified_name} (key: {keys})")
        if self._debezium is not None and relation_ is not None:
            self._debezium.announce(relation_, value_schema_id, key_schema_id, outlet)
            key_schema_id = 0 if description.identity_columns else None
        without_labels = enums_without_labels(description)
        if without_labels:
            log.warning(
                "labels_left_out",
                relation=description.qualified_name,
                types=without_labels,
                note="the labels of these enums are too many for the schema; values are sent as usual",
            )
        encoder = RowEncoder(description, value_schema_id, key_schema_id)
        self._on_announced(description.qualified_name, value_schema_id, len(description.columns))
        log.debug("relation", name=description.qualified_name, schema_id=value_schema_id)
        return RelationVersion(description.qualified_name, value_schema_id, encoder, outlet)

    async def _register(
        self, topic: str, description: RelationDescription, earlier: RelationDescription | None
    ) -> tuple[int, int | None]:
        """Register the schemas of a relation. `earlier` is its description in force; None means the
        registry's newest schema."""
        return await self._register_both(
            topic,
            change_schema(description, self._prefix),
            key_schema(description, self._prefix),
            None if earlier is None else change_schema(earlier, self._prefix),
            None if earlier is None else key_schema(earlier, self._prefix),
        )

    async def _register_debezium(
        self, topic: str, relation: ConnectRelation, debezium: DebeziumRelations
    ) -> tuple[int, int | None]:
        if not debezium.registers_schemas:
            return 0, 0 if relation.key else None
        return await self._register_both(topic, *debezium.schemas_of(relation, topic))

    async def _register_both(
        self,
        topic: str,
        value_schema: Schema,
        key: Schema | None,
        earlier_value: Schema | None = None,
        earlier_key: Schema | None = None,
    ) -> tuple[int, int | None]:
        """Register the schemas of value and key concurrently; both requests have ended when this
        returns."""
        value = self._registry.register(value_subject(topic), value_schema, earlier_value)
        if key is None:
            return await value, None
        key_done = self._registry.register(key_subject(topic), key, earlier_key)
        value_schema_id, key_schema_id = await asyncio.gather(value, key_done, return_exceptions=True)
        if isinstance(value_schema_id, BaseException):
            raise value_schema_id
        if isinstance(key_schema_id, BaseException):
            raise key_schema_id
        return value_schema_id, key_schema_id

    async def _register_anew(
        self, topic: str, description: RelationDescription, recorded: Schema, error: IncompatibleSchema
    ) -> tuple[int, int | None]:
        """Register the schemas of a table with another oid under the same name. It is another
        table, so its rows need not be readable as those of the former one. The key comes first: the
        newest schema of the value records that this is another table, also after a crash in
        between."""
        log.warning(
            "table_recreated",
            relation=description.qualified_name,
            relation_oid=description.oid,
            former_oid=recorded_oid(recorded),
            note=error.message,
        )
        key = key_schema(description, self._prefix)
        key_schema_id = None
        if key is not None:
            key_schema_id = await self._registry.register(key_subject(topic), key, regardless=True)
        value = change_schema(description, self._prefix)
        return await self._registry.register(value_subject(topic), value, regardless=True), key_schema_id

    async def _look(self, relations: Sequence[Relation]) -> _Catalog:
        failpoint("before_catalog_query")
        oids = [relation.relation_oid for relation in relations]
        types = sorted({column.type_oid for relation in relations for column in relation.columns})
        generated: dict[int, list[str]] = {}
        try:
            facts = read_types(await self._sql.fetch(TYPES_QUERY, types))
            for relation_oid, name in await self._sql.fetch(GENERATED_KEY_QUERY, oids):
                generated.setdefault(relation_oid, []).append(name)
            attributes = {} if self._debezium else read_attributes(await self._sql.fetch(ATTRIBUTES_QUERY, oids))
        except DRIVER_ERRORS as error:
            names = ", ".join(f"{relation.namespace}.{relation.name}" for relation in relations[:_NAMED])
            more = f" and {len(relations) - _NAMED} more" if len(relations) > _NAMED else ""
            raise classify_exception(error, f"querying the columns of {names}{more}") from error
        failpoint("after_catalog_query")
        return _Catalog(facts, generated, attributes)

    async def _describe(self, relation: Relation, topic: str, catalog: _Catalog) -> RelationDescription:
        """Describe a relation. The catalog is as of now, the message as of the change. What the
        catalog no longer has (a dropped type, the key of a dropped table or of one whose key column
        was renamed) is taken from the newest schema of the topic, and what that does not have from
        the Type message."""
        oids = {column.type_oid for column in relation.columns}
        facts = catalog.types
        primary_key: list[str] = []
        is_key_known = is_key_whole = True
        names = {column.name for column in relation.columns}
        if relation.replica_identity is not ReplicaIdentity.FULL:
            is_key_whole = names.issuperset(catalog.generated.get(relation.relation_oid, ()))
        else:
            try:
                primary_key = [row[0] for row in await self._sql.fetch(PRIMARY_KEY_QUERY, relation.relation_oid)]
                is_key_known = names.issuperset(primary_key)
                if not primary_key:
                    is_key_known = bool(await self._sql.fetch(RELATION_QUERY, relation.relation_oid))
            except DRIVER_ERRORS as error:
                raise classify_exception(error, f"querying the key of {relation.namespace}.{relation.name}") from error
        if not (is_key_known and facts.keys() >= oids):
            recorded = await self._registry.latest(value_subject(topic)) or {}
            facts = {**await self._bases_of_domains(oids - facts.keys()), **recorded_types(recorded), **facts}
            if not is_key_known and recorded_oid(recorded) == relation.relation_oid:
                primary_key = recorded_key(recorded)
        description = describe(relation, facts, primary_key, self._announced_types, is_key_whole=is_key_whole)
        return protect(description, self._columns)

    async def _with_attributes(
        self,
        description: RelationDescription,
        topic: str,
        earlier: RelationDescription | None,
        xid: int | None,
        attributes: Sequence[Attribute],
    ) -> RelationDescription:
        """Return the description with attnum and attmissingval of its columns."""
        names = [column.name for column in description.columns]
        known: dict[str, tuple[int, MissingValue | None]] = {}
        if earlier is not None:
            known = {c.name: (c.attnum, c.missing) for c in earlier.columns if c.attnum is not None}
        elif needs_earlier(names, attributes, xid):
            recorded = await self._registry.latest(value_subject(topic)) or {}
            known = recorded_attributes(recorded) if recorded_oid(recorded) == description.oid else {}
        numbers = {name: number for name, (number, _) in known.items()}
        missing = {} if attributes else dict(known.values())
        return with_attributes(description, attribute_numbers(names, attributes, xid, numbers), attributes, missing)

    async def _bases_of_domains(self, missing: set[int]) -> dict[int, TypeFacts]:
        """Return facts of domains that the catalog no longer has. The Type message of a domain has
        the domain's oid and the name of its base type, but not the base type's typmod, so a domain
        over numeric stays unknown."""
        bases = {oid: name for oid in missing if (name := self._announced_types.get(oid)) and name[0] == "pg_catalog"}
        if not bases:
            return {}
        try:
            rows = await self._sql.fetch(BUILT_IN_QUERY, [name for _, name in bases.values()])
            built_in = read_types(await self._sql.fetch(TYPES_QUERY, [row[0] for row in rows]))
        except DRIVER_ERRORS as error:
            raise classify_exception(error, "querying the base types of domains") from error
        by_name = {facts.name: facts for facts in built_in.values() if not is_numeric(facts)}
        return {
            oid: TypeFacts(oid, *name, Kind.DOMAIN, base=by_name[name[1]])
            for oid, name in bases.items()
            if name[1] in by_name
        }


def _have_same_columns(relation: Relation, root: Relation) -> bool:
    """Return whether the columns of a relation are those of `root`, in whatever order."""
    columns = [{(column.name, column.type_oid) for column in each.columns} for each in (relation, root)]
    return columns[0] == columns[1]


@contextmanager
def _naming(relation_oid: int) -> Iterator[None]:
    try:
        yield
    except UnwritableRelation as error:
        error.relation_oid = relation_oid
        raise


def _with_types_as_first_met(description: RelationDescription, schema: Schema) -> RelationDescription | None:
    """Return the description with the types that are unknown in `schema` left as text, or None if
    there are none. The type was created in a transaction that was streamed while in progress, so it
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
