"""A Relation message -> a relation version that is ready for rows: the catalog was read, the
schemas are registered, and the topic exists. This module also decides whether the rows of a
partition are sent as rows of its root (`comes_as_root`).

These steps wait for servers, and the stream is not read meanwhile. The standby status task keeps
the connection alive.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.errors import NextSession, Retry, UnwritableRelation
from gateway.failpoints import failpoint
from gateway.kafka.batches import BatchWriter
from gateway.kafka.producer import Producer
from gateway.kafka.topics import Name, Topics, compacted_without_key, is_of_other_prefix
from gateway.names import qualified
from gateway.pgoutput.relation import Relation, Type
from gateway.postgres.classify_errors import DRIVER_ERRORS, classified_errors, classify_exception
from gateway.postgres.publication import descent_of, publication_facts
from gateway.relations.attributes import ATTRIBUTES_QUERY, Attribute, are_explained, read_attributes
from gateway.relations.describe import describe
from gateway.relations.type_catalog import (
    BUILT_IN_QUERY,
    GENERATED_KEY_QUERY,
    PRIMARY_KEY_QUERY,
    RELATION_QUERY,
    TYPES_QUERY,
    read_types,
)
from gateway.runtime.assign_column_rules import (
    check_key,
    not_seen,
    protect,
    refuse_renamed,
    refuse_unknown,
    renamed_later,
)
from gateway.runtime.dialect import DescribedRelation, DialectRelations
from gateway.runtime.excluded_tables import ExcludedTables
from gateway.schema_errors import classified_schema_errors, topics_with_schema
from gateway.snapshot.discovery.sent_before_commit import SentBeforeCommit, holds_lock, is_seen
from gateway.transactions.record_writer import RelationVersion
from schemas.avro_types import is_numeric
from schemas.change_schema import Schema, columns_without_default, enums_without_labels
from schemas.registry_client import RegistryClient
from schemas.relation import Kind, RelationDescription, ReplicaIdentity, TypeFacts
from schemas.schema_metadata import (
    FormerRelation,
    recorded_key,
    recorded_oid,
    recorded_relation_and_columns,
    recorded_types,
)
from schemas.topic_names import format_relation, value_subject

log = structlog.get_logger()

_REGISTERED_AT_ONCE = 8
"""Relations that are registered concurrently, each with up to two subjects."""
_NAMED = 3
"""Relations that an error message names."""


@dataclass(frozen=True, slots=True)
class _Catalog:
    """The catalog's entries for some relations: their types, by type oid; the generated columns of
    their replica identities, and all their attributes, both by relation oid."""

    types: dict[int, TypeFacts]
    generated: dict[int, list[str]]
    attributes: dict[int, list[Attribute]]


class RowsOfPartition(Retry):
    """A partition whose root is published has rows of its own: it was published separately when
    they were written."""

    def change(self, next_session: NextSession) -> None:
        next_session.give_topics_to_partitions()


class RelationRegistrar:
    """Announce relations: create their topics, register their schemas, and build their encoders.
    Methods raise WalgateError if PostgreSQL, the registry or Kafka does not answer, or if a schema
    is incompatible."""

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
        dialect: DialectRelations,
        marks_excluded: bool,
        partitions_have_topics: bool = False,
    ) -> None:
        """`on_announced` is called with each relation's name, schema id and number of columns.
        `marks_excluded` means that manifests name excluded tables that have a topic."""
        self._on_announced = on_announced
        self._dialect = dialect
        self._sql = sql
        self.sent_before_commit = SentBeforeCommit(sql)
        self._registry = registry
        self._topics = topics
        self._producer = producer
        self._writer = writer
        self._columns = settings.columns
        self._is_of_other = partial(is_of_other_prefix, settings.kafka)
        self._publications = settings.source.publications
        self.excluded_tables = ExcludedTables(settings.source.excluded_tables, topics, marks=marks_excluded)
        self._is_first_epoch = is_first_epoch
        self._announced_types: dict[int, tuple[str, str]] = {}
        self._partitions_have_topics = partitions_have_topics
        self._partitions_of_roots: set[int] = set()
        self._roots_of_other_identity: set[int] = set()

    async def prepare(self, relations: Iterable[Name]) -> None:
        """Create the topics of (schema, table) in batches, before their first row: creating a
        thousand one by one is slow."""
        wanted = list(relations)
        if not self._is_first_epoch:
            await self._refuse_deleted(await self._topics.without_topic(wanted))
        await self._topics.ensure_relations(wanted)
        await self._producer.learn(self._topics.of_relation(relation) for relation in wanted)

    async def _refuse_deleted(self, missing: list[Name]) -> None:
        """Raise DataGap if any of these missing topics has a schema. A topic is created before its
        first schema is registered, so such a topic was deleted."""
        names = [topic for relation in missing for topic in self._topics.possible_names(relation)]
        await self._topics.refuse_deleted(await topics_with_schema(self._registry, names))

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

    def topic_of(self, relation: Name) -> str:
        """Return the topic of a relation's rows, even if it does not exist."""
        return next(iter(self._topics.possible_names(relation)))

    def note_type(self, message: Type) -> None:
        """Remember the name of a type, for when the catalog no longer has it."""
        self._announced_types[message.type_oid] = (message.namespace, message.name)

    async def comes_as_root(self, relation: Relation, previous: Relation | None) -> bool:
        """Return whether rows of this partition are sent as rows of its root, so that it needs no
        topic. PostgreSQL announces the root and then the partition. `previous` is the relation that
        was announced before this one, by which a dropped partition is recognized."""
        oid = relation.relation_oid
        if self._partitions_have_topics or not await self._topics.without_topic([(relation.namespace, relation.name)]):
            return False
        if oid not in self._partitions_of_roots:
            descent = await descent_of(self._sql, oid, 0 if previous is None else previous.relation_oid)
            is_like_root = descent.follows_root and previous is not None and _have_same_columns(relation, previous)
            if not descent.exists:
                return is_like_root
            if not descent.ancestors:
                return False
            family = [oid, *descent.ancestors]
            publications = await publication_facts(self._sql, self._publications, family)
            if publications.keys() < set(self._publications):  # one was renamed or dropped after the change
                return is_like_root
            published = {each.relation_oid for facts in publications.values() for each in facts.relations}
            if oid in published or published.isdisjoint(descent.ancestors):
                return False
            self._partitions_of_roots.add(oid)
        return True

    async def compare_identity(self, partition: Relation, root: Relation, in_force: RelationVersion | None) -> None:
        """Warn, once for each root, about a partition that lacks the REPLICA IDENTITY FULL of its
        root. Then let `in_force`, the version of the root, expect rows of such partitions. ALTER
        TABLE does not pass the replica identity on to partitions, nor do new partitions inherit it.

        `root` is the relation that was announced before `partition`. It may be another one.
        """
        if root.replica_identity is not ReplicaIdentity.FULL or partition.replica_identity is ReplicaIdentity.FULL:
            return
        if not _have_same_columns(partition, root):
            return
        if partition.relation_oid not in self._partitions_of_roots:
            descent = await descent_of(self._sql, partition.relation_oid, root.relation_oid)
            if root.relation_oid not in descent.ancestors and (descent.exists or not descent.follows_root):
                return
        if root.relation_oid not in self._roots_of_other_identity:
            self._roots_of_other_identity.add(root.relation_oid)
            quoted = qualified(partition.namespace, partition.name)
            log.warning(
                "old_rows_incomplete",
                relation=f"{root.namespace}.{root.name}",
                partition=f"{partition.namespace}.{partition.name}",
                reason="the table has REPLICA IDENTITY FULL, the partition has not: of its old rows, only the key is sent",
                hint=f"if consumers need whole old rows: ALTER TABLE {quoted} REPLICA IDENTITY FULL, for each partition",
            )
        if in_force is not None:
            in_force.expect_rows_of_leaves()

    async def announce(
        self,
        relation: Relation,
        in_force: RelationVersion | None,
        xid: int | None = None,
        *,
        is_uncommitted: bool = False,
    ) -> RelationVersion:
        """Register a relation and return its version.

        `in_force` is the version with which changes of the relation have been encoded so far. The
        newest schema of the topic may be a different one, left by a transaction or savepoint that
        was rolled back; later schemas need not be compatible with it. `xid` is the transaction of
        the message; None means that the relation is as the catalog has it now. `is_uncommitted`
        means that the transaction was not committed when the message was sent. Raises
        ColumnsUnknown if a rule may concern a column that the transaction has changed, and the
        catalog does not show it yet.
        """
        with classified_schema_errors():
            await self._make_topics([(relation.namespace, relation.name)])
            catalog = await self._look_within(relation, in_force, xid, is_uncommitted=is_uncommitted)
            described = await self._described(relation, in_force, xid, catalog)
        if is_uncommitted and xid is not None:
            attributes = catalog.attributes.get(relation.relation_oid, [])
            self.sent_before_commit.note(xid, described.description, attributes)
        return await self._registered(described, in_force, catalog)

    async def _look_within(
        self, relation: Relation, in_force: RelationVersion | None, xid: int | None, *, is_uncommitted: bool
    ) -> _Catalog:
        """Look up a relation for a message of the transaction `xid`. If that has committed, and
        other sessions do not see it yet, wait for it a little. Raises ColumnsUnknown as
        `announce`."""
        oid, has_rules = relation.relation_oid, bool(self._columns.rules)
        held = await holds_lock(self._sql, oid, xid) if xid is not None and has_rules else None
        catalog = await self._look([relation])
        attributes, names = catalog.attributes.get(oid, []), [column.name for column in relation.columns]
        if xid is None:
            return catalog
        if is_uncommitted:
            if has_rules and (relation.xid is not None or held is not None):  # streamed, or still prepared
                in_use = None if in_force is None else in_force.description
                refuse_unknown(relation, in_use, self._columns, attributes, xid, holds_lock=held is True)
        elif held if has_rules else not are_explained(names, attributes, xid):
            if not await is_seen(self._sql, xid, oid) and has_rules:
                raise not_seen(relation, xid)
            return await self._look([relation])
        return catalog

    async def announce_all(self, relations: Sequence[tuple[Relation, RelationVersion | None]]) -> list[RelationVersion]:
        """Register relations as the catalog has them now, each with its version in force, and
        return the new versions. The catalog is queried once for all of them, and several are
        registered at a time.

        After the first error, no further registration begins, as each may take as long to fail. The
        error is raised when the registrations under way have ended. An UnwritableRelation names its
        relation.
        """
        with classified_schema_errors():
            await self._make_topics([(relation.namespace, relation.name) for relation, _ in relations])
            catalog = await self._look([relation for relation, _ in relations])
            described = []
            for relation, in_force in relations:
                with _naming(relation.relation_oid):
                    described.append((await self._described(relation, in_force, None, catalog), in_force))
        turns = asyncio.Semaphore(_REGISTERED_AT_ONCE)
        failed: list[BaseException] = []

        async def registered(described: DescribedRelation, in_force: RelationVersion | None) -> RelationVersion:
            async with turns:
                if failed:
                    raise failed[0]
                try:
                    with _naming(described.description.oid):
                        return await self._registered(described, in_force, catalog)
                except BaseException as error:
                    failed.append(error)
                    raise

        found = await asyncio.gather(*(registered(*each) for each in described), return_exceptions=True)
        if failed:
            raise failed[0]
        return [each for each in found if not isinstance(each, BaseException)]

    async def _described(
        self, relation: Relation, in_force: RelationVersion | None, xid: int | None, catalog: _Catalog
    ) -> DescribedRelation:
        name = (relation.namespace, relation.name)
        await self._dialect.check_topic(self._registry, self._topics, name)
        topic = self._topics.of_relation(name)
        description = await self._describe(relation, topic, catalog)
        in_use = None if in_force is None else in_force.description
        attributes = catalog.attributes.get(relation.relation_oid, [])
        described = await self._dialect.describe(self._registry, description, topic, in_use, xid, attributes)
        check_key(description, described.key, self._columns)
        if not described.identifies_rows and self._topics.makes_compacted(topic):
            raise compacted_without_key(topic, description.qualified_name)
        return described

    async def _registered(
        self, described: DescribedRelation, in_force: RelationVersion | None, catalog: _Catalog
    ) -> RelationVersion:
        description = described.description
        in_use = None if in_force is None else in_force.description
        if in_use is not None and (in_use.namespace, in_use.name) != (description.namespace, description.name):
            in_use = None  # renamed, so that its rows go to another topic
        topic = self._topics.of_relation((description.namespace, description.name))
        with classified_schema_errors():
            await self._refuse_renamed(description, in_force, topic, catalog.attributes.get(description.oid, []))
            failpoint("before_registry_call")
            await described.register(self._registry, topic, in_use)
            failpoint("after_registry_call")
        description = described.description
        keys = ", ".join(column.name for column in description.identity_columns) or "none"
        partition_count = self._topics.partition_count(topic)
        sink = self._writer.sink(topic, partition_count, f"{description.qualified_name} (key: {keys})")
        version = described.version(sink)
        if description.oid in self._roots_of_other_identity:
            version.expect_rows_of_leaves()
        without_labels = enums_without_labels(description)
        if without_labels:
            log.warning(
                "labels_left_out",
                relation=description.qualified_name,
                types=without_labels,
                note="the labels of these enums are too many for the schema; values are sent as usual",
            )
        without_default = columns_without_default(description)
        if without_default:
            table = shlex.quote(format_relation(description.namespace, description.name))
            log.warning(
                "defaults_left_out",
                relation=description.qualified_name,
                columns=without_default,
                note="the defaults that existing rows have in these columns are too large for the schema: consumers do not get "
                "them; values of new and changed rows are sent as usual",
                hint=f"`walgate snapshot start {table}` reads the table again, with these values",
            )
        self._on_announced(version.name, version.schema_id, len(description.columns))
        log.debug("relation", name=version.name, schema_id=version.schema_id)
        return version

    async def _refuse_renamed(
        self,
        description: RelationDescription,
        in_force: RelationVersion | None,
        topic: str,
        attributes: Sequence[Attribute],
    ) -> None:
        """Raise UnwritableRelation if a column has left a rule by a new name. The former names are
        those in force or, in a new session, those of the newest schema."""
        if not self._columns.rules:
            return
        if in_force is not None:
            in_use = in_force.description
            former = FormerRelation(in_use.namespace, in_use.name, {c.name: c.attnum for c in in_use.columns})
        else:
            newest = await self._newest_schema(description, topic)
            former = recorded_relation_and_columns(newest, description.namespace, description.name)
            former = await self._before_message(description, former, topic, attributes)
        is_in_list = any(each.is_in_list for each in attributes)
        refuse_renamed(description, former, self._columns, self._dialect.field_name, is_in_list=is_in_list)

    async def _before_message(
        self, description: RelationDescription, former: FormerRelation, topic: str, attributes: Sequence[Attribute]
    ) -> FormerRelation:
        """Return `former`, which is of the newest schema, without the names that columns were given
        after the message. The message is then sent again, so a schema has the former name of the
        column. Without such a schema, the column was renamed and renamed back."""
        field_name = self._dialect.field_name
        later = renamed_later(description, former, self._columns, attributes, field_name)
        columns = dict(former.columns)
        if later:
            async for schema in self._registry.versions(value_subject(topic)):
                if recorded_oid(schema) in (None, description.oid):
                    recorded = recorded_relation_and_columns(schema, description.namespace, description.name).columns
                    for name, column in later.items():
                        if recorded.get(field_name(column.name), 0) in (None, column.attnum):
                            columns.pop(name, None)
        return FormerRelation(former.namespace, former.name, columns)

    async def _newest_schema(self, description: RelationDescription, topic: str) -> Schema:
        """Return the newest schema of a relation, from another topic if the relation had another
        name; {} if there is none."""
        newest = await self._registry.latest(value_subject(topic))
        if newest is not None and recorded_oid(newest) in (None, description.oid):
            return newest
        if self._is_first_epoch or not self._dialect.registers_schemas:
            return {}
        topics = await self._topics.of_relations()
        subjects = [value_subject(topic) for topic in topics]
        others = {value_subject(topic) for topic in topics if self._topics.may_be_of_others(topic)}
        return await self._registry.find_relation(description.oid, subjects, self._is_of_other, others) or {}

    async def _look(self, relations: Sequence[Relation]) -> _Catalog:
        failpoint("before_catalog_query")
        oids = [relation.relation_oid for relation in relations]
        types = sorted({column.type_oid for relation in relations for column in relation.columns})
        generated: dict[int, list[str]] = {}
        try:
            facts = read_types(await self._sql.fetch(TYPES_QUERY, types))
            for relation_oid, name in await self._sql.fetch(GENERATED_KEY_QUERY, oids):
                generated.setdefault(relation_oid, []).append(name)
            attributes: dict[int, list[Attribute]] = {}
            if self._dialect.reads_attributes:
                attributes = read_attributes(await self._sql.fetch(ATTRIBUTES_QUERY, oids))
        except DRIVER_ERRORS as error:
            names = ", ".join(f"{relation.namespace}.{relation.name}" for relation in relations[:_NAMED])
            more = f" and {len(relations) - _NAMED} more" if len(relations) > _NAMED else ""
            raise classify_exception(error, f"querying the columns of {names}{more}") from error
        failpoint("after_catalog_query")
        return _Catalog(facts, generated, attributes)

    async def _describe(self, relation: Relation, topic: str, catalog: _Catalog) -> RelationDescription:
        """Describe a relation. The message is as of the change, but the catalog is as of now. A
        type or key that the catalog no longer has is taken from the newest schema of the topic. A
        table may have been dropped, or a column of its key renamed. Types that this schema lacks
        are taken from Type messages."""
        oids = {column.type_oid for column in relation.columns}
        facts = catalog.types
        primary_key: list[str] = []
        is_key_known = is_key_whole = True
        names = {column.name for column in relation.columns}
        if relation.replica_identity is not ReplicaIdentity.FULL:
            is_key_whole = names.issuperset(catalog.generated.get(relation.relation_oid, ()))
        else:
            with classified_errors(f"querying the key of {relation.namespace}.{relation.name}"):
                primary_key = [row[0] for row in await self._sql.fetch(PRIMARY_KEY_QUERY, relation.relation_oid)]
                is_key_known = names.issuperset(primary_key)
                if not primary_key:
                    is_key_known = bool(await self._sql.fetch(RELATION_QUERY, relation.relation_oid))
        if not (is_key_known and facts.keys() >= oids):
            recorded = await self._registry.latest(value_subject(topic)) or {}
            facts = {**await self._bases_of_domains(oids - facts.keys()), **recorded_types(recorded), **facts}
            if not is_key_known and recorded_oid(recorded) == relation.relation_oid:
                primary_key = recorded_key(recorded)
        description = describe(relation, facts, primary_key, self._announced_types, is_key_whole=is_key_whole)
        return protect(description, self._columns)

    async def _bases_of_domains(self, missing: set[int]) -> dict[int, TypeFacts]:
        """Return the domains that the catalog no longer has. The Type message of a domain has the
        domain's oid and the name of its base type, but not the base type's typmod, so a domain over
        numeric stays unknown."""
        bases = {oid: name for oid in missing if (name := self._announced_types.get(oid)) and name[0] == "pg_catalog"}
        if not bases:
            return {}
        with classified_errors("querying the base types of domains"):
            rows = await self._sql.fetch(BUILT_IN_QUERY, [name for _, name in bases.values()])
            built_in = read_types(await self._sql.fetch(TYPES_QUERY, [row[0] for row in rows]))
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
