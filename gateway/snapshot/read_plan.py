"""Describe a relation as its snapshot begins: its published columns, its files, and how its rows
are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Protocol

import asyncpg
import fastavro

from gateway.config.settings import Settings
from gateway.errors import UnwritableRelation
from gateway.names import qualified, quote_identifier
from gateway.pgoutput.relation import Column, Relation
from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.connection import transaction
from gateway.postgres.publication import publication_facts
from gateway.snapshot.discovery.content_query import content_query
from gateway.snapshot.rules.published_content import PublishedContent, read_contents
from gateway.snapshot.rules.ranges_to_read import Leaf
from gateway.snapshot.sql import (
    ENUMS,
    EQUAL,
    FILES,
    FOREIGN,
    HORIZON,
    KEYS,
    SHORT_LOCK_TIMEOUT,
    KeyColumn,
    column_list,
    facts_query,
    key_condition,
)
from gateway.snapshot.table_errors import UnwritableTable
from gateway.startup.facts import PublicationFacts, PublishedRelation
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.record_writer import RelationVersion
from gateway.values.column_codec import is_copied_in_binary
from schemas.avro_types import Form, key_type, value_type
from schemas.change_schema import key_schema
from schemas.relation import ColumnDescription, ReplicaIdentity


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A relation as the catalog describes it.

    `relation` is the relation as its first publication has it. `leaf_names` are quoted, in the
    order of `leaves`. `row_filter` is SQL, or None if the filter was not printed. `is_heap`: all
    leaves are heap tables, so ranges of blocks are ranges of rows. If all partitions are foreign
    tables, the relation itself is the only leaf.
    """

    relation: PublishedRelation
    is_partitioned: bool
    is_heap: bool
    leaves: tuple[Leaf, ...]
    leaf_names: tuple[str, ...]
    row_filter: str | None
    fingerprint: str
    content: PublishedContent
    key_columns: Mapping[str, KeyColumn] = field(default_factory=dict)
    """Columns of the index that REPLICA IDENTITY USING INDEX names, or otherwise of the primary
    key, by name."""
    key_enums: tuple[int, ...] = ()
    """Oids of the enums whose labels occur in keys."""
    foreign_names: tuple[str, ...] = ()
    """Quoted names of partitions that are foreign tables. PostgreSQL sends no changes of them. A
    relation with such partitions is read at once."""
    is_granted: bool = True
    """Whether the role may read all columns of the relation and of its leaves."""
    has_places: bool = True
    """Whether the role may read `ctid` of all leaves."""

    @property
    def has_ranges(self) -> bool:
        """Whether the relation can be read in ranges of blocks."""
        return self.is_heap and self.has_places and not self.foreign_names

    @property
    def sends_updates(self) -> bool:
        """Whether UPDATEs of the relation are published, as far as is known."""
        return self.content.account is None or "u" in self.content.account.actions

    @property
    def relation_name(self) -> str:
        return qualified(self.relation.namespace, self.relation.name)

    @property
    def source(self) -> str:
        """The FROM item with all rows of the relation. Tables that inherit from the relation are
        left out: they are tables of their own."""
        return self.relation_name if self.is_partitioned else f"ONLY {self.relation_name}"


def fingerprint(facts: str, labels: str | None) -> str:
    """Return a hash of the columns `fingerprint` and `labels` of `facts_query`."""
    return sha256(f"{facts} {labels}".encode() if labels else facts.encode()).hexdigest()


async def survey(
    sql: asyncpg.Connection, publications: Sequence[str], relation_oids: Sequence[int], *, prints_filters: bool = True
) -> dict[int, Surveyed]:
    """Survey those of the relations that are published, in one PostgreSQL snapshot.

    Printing a row filter takes a lock on its table; everything else is read from the catalog alone.
    Raises WalgateError and what the driver raises.
    """
    async with transaction(sql, isolation="repeatable_read", readonly=True):
        publications_ = await publication_facts(sql, publications, relation_oids)
        return await _survey(sql, publications_, relation_oids, prints_filters=prints_filters)


async def _survey(
    sql: asyncpg.Connection,
    publications: dict[str, PublicationFacts],
    relation_oids: Sequence[int],
    *,
    prints_filters: bool,
) -> dict[int, Surveyed]:
    sent: dict[int, list[PublishedRelation]] = {}
    for facts in publications.values():
        for relation in facts.relations:
            sent.setdefault(relation.relation_oid, []).append(relation)
    wanted = [oid for oid in relation_oids if oid in sent]
    version, names = sql.get_server_version().major, list(publications)
    rows = await sql.fetch(facts_query(version, prints_filters=prints_filters), wanted, names, None, [])
    horizon = await sql.fetchval(HORIZON)
    contents = read_contents(await sql.fetch(content_query(version), wanted, names), horizon)
    foreign: dict[int, list[str]] = {}
    for table in await sql.fetch(FOREIGN, wanted):
        foreign.setdefault(table["oid"], []).append(qualified(table["nspname"], table["relname"]))
    leaves_of = {row["oid"]: json.loads(row["leaves"] or "[]") for row in rows}
    for oid in foreign:  # without a leaf, nothing would be read
        leaves_of[oid] = leaves_of[oid] or [(oid, 0, sent[oid][0].namespace, sent[oid][0].name)]
    parts = [*wanted, *(leaf[0] for each in leaves_of.values() for leaf in each)]
    files = {file["oid"]: file for file in await sql.fetch(FILES, parts)}
    keys: dict[int, dict[str, KeyColumn]] = {}
    for key in await sql.fetch(KEYS, wanted):
        column = KeyColumn(key["name"], key["type_name"], _operator(key), key["is_domain"])
        keys.setdefault(key["oid"], {})[column.name] = column
    enums = {row["oid"]: row for row in await sql.fetch(ENUMS, wanted)}
    found = {}
    for row in rows:
        leaves = leaves_of[row["oid"]]
        relations, enum = sent[row["oid"]], enums.get(row["oid"])
        is_filtered = all(relation.row_filter is not None for relation in relations)
        found[row["oid"]] = Surveyed(
            relation=relations[0],
            is_partitioned=row["relkind"] == "p",
            is_heap=all(files[leaf[0]]["is_heap"] for leaf in leaves),
            leaves=tuple(Leaf(oid, filenode, files[oid]["blocks"]) for oid, filenode, _, _ in leaves),
            leaf_names=tuple(qualified(namespace, name) for _, _, namespace, name in leaves),
            row_filter=_filter(row, prints_filters=prints_filters) if is_filtered else "",
            fingerprint=fingerprint(row["fingerprint"], enum["labels"] if enum else None),
            content=contents[row["oid"]],
            key_columns=keys.get(row["oid"], {}),
            key_enums=tuple(enum["enums"]) if enum else (),
            foreign_names=tuple(foreign.get(row["oid"], ())),
            is_granted=all(files[oid]["is_granted"] for oid in (row["oid"], *(leaf[0] for leaf in leaves))),
            has_places=all(files[leaf[0]]["has_places"] for leaf in leaves),
        )
    return found


def _operator(key: asyncpg.Record) -> str:
    if key["operator_name"] is None:
        return EQUAL
    return f"OPERATOR({quote_identifier(key['operator_schema'])}.{key['operator_name']})"


def _filter(row: asyncpg.Record, *, prints_filters: bool) -> str | None:
    return row["row_filter"] or "" if prints_filters else None


def as_message(relation: PublishedRelation) -> Relation:
    """Return the Relation message that PostgreSQL would send for the relation."""
    is_full = relation.replica_identity == "FULL"
    return Relation(
        xid=None,
        relation_oid=relation.relation_oid,
        namespace=relation.namespace,
        name=relation.name,
        replica_identity=ReplicaIdentity[relation.replica_identity],
        columns=tuple(
            Column(is_full or column.name in relation.identity_columns, column.name, column.type_oid, column.typmod)
            for column in relation.columns
        ),
    )


@dataclass(slots=True)
class ReadPlan:
    """The way in which the rows of a relation are queried and encoded.

    `is_binary`: for each column, whether its values are sent in binary form. `columns` is the
    select list. `keeps_tuples`: of each row, the reader keeps the key, which the encoder returns,
    and the tuple. It discards the encoded event: the tuple is encoded again, in Debezium's format,
    when the chunk is published.
    """

    surveyed: Surveyed
    version: RelationVersion
    topic: str
    is_binary: tuple[bool, ...]
    columns: str
    key_columns: tuple[KeyColumn, ...]
    """The columns of the key, in the order of the Avro key."""
    _key_schema: Any = field(repr=False)
    keeps_tuples: bool = False
    unreachable: tuple[str, ...] = ()
    """Foreign partitions that are left out because they cannot be read."""
    compares_text: bool = False
    """Whether keys are compared as text, because a chunk of keys has failed with an error that does
    not pass by itself. Perhaps a key is no longer a value of its type."""

    @property
    def is_read_at_once(self) -> bool:
        """Whether the relation is read in one chunk. Without a key, stale rows cannot be
        recognized; without ranges of blocks, the relation cannot be divided. If its key has an
        array, a mirror keeps it as a log, which a snapshot can only replace in one transaction."""
        return not self.key_columns or self.has_array_key or not self.surveyed.has_ranges

    @property
    def has_array_key(self) -> bool:
        return any(column.is_array for column in self.key_columns)

    @property
    def sources(self) -> list[str]:
        """The FROM items that together have all readable rows of the relation."""
        surveyed = self.surveyed
        if not self.unreachable:
            return [surveyed.source]
        local = [f"ONLY {name}" for name in surveyed.leaf_names]
        return [*local, *(name for name in surveyed.foreign_names if name not in self.unreachable)]

    @property
    def finds_keys(self) -> bool:
        """Whether rows can be queried by their keys. A column rule that replaces values of a key
        column makes this impossible. A chunk of keys then queries all rows, and keeps those with
        its keys (`_copy` in chunk_reader.py). Rows are not reselected."""
        return not any(column.protection for column in self.version.encoder.description.identity_columns)

    def leave_out(self, partitions: tuple[str, ...]) -> None:
        """Read the relation without these foreign partitions."""
        self.unreachable = partitions

    def compare_text(self) -> None:
        """Compare keys as text from now on, until the table gets another read plan."""
        self.compares_text = True

    def key_condition(self, keys: Sequence[bytes]) -> str:
        relation = self.surveyed.relation_name
        return key_condition(relation, self.key_columns, self._key_schema, keys, compares_text=self.compares_text)


def _key_column(surveyed: Surveyed, column: ColumnDescription) -> KeyColumn:
    """Describe a column of the key. `column` is a column of the relation's version, whose key may
    be newer than the survey."""
    published = {each.name: KeyColumn(each.name, each.type_name) for each in surveyed.relation.columns}
    key = surveyed.key_columns.get(column.name) or published[column.name]
    type_ = value_type(column)
    return replace(key, is_text=key_type(type_).form is Form.STRING, is_array=type_.form is Form.ARRAY)


def read_plan(
    surveyed: Surveyed,
    version: RelationVersion,
    topic: str,
    prefix: str,
    *,
    text_only: bool,
    keeps_tuples: bool = False,
) -> ReadPlan:
    description = version.encoder.description
    is_binary = tuple(not text_only and is_copied_in_binary(column.facts) for column in description.columns)
    schema = key_schema(description, prefix)
    return ReadPlan(
        surveyed,
        version,
        topic,
        is_binary,
        column_list([column.name for column in description.columns], is_binary),
        tuple(_key_column(surveyed, column) for column in description.identity_columns),
        None if schema is None else fastavro.parse_schema(schema),
        keeps_tuples,
    )


class ReadPlans:
    """Create read plans; the methods raise WalgateError and UnwritableTable. `text_only`: all
    columns are sent as text."""

    def __init__(
        self,
        settings: Settings,
        sql: asyncpg.Connection,
        machine: TransactionMachine,
        register: RegisterRelations,
        *,
        text_only: bool,
    ) -> None:
        self._source = settings.source
        self._prefix = settings.kafka.prefix
        self._sql = sql
        self._machine = machine
        self._register = register
        self._text_only = text_only

    def use_text(self) -> None:
        """Have all columns sent as text, because a binary value cannot be encoded."""
        self._text_only = True

    async def survey(self, relation_oids: Sequence[int]) -> dict[int, Surveyed]:
        """Survey those of the relations that are published. A relation that is locked is surveyed
        without its row filter."""
        with classified_errors("querying the tables of the snapshot"):
            with suppress(asyncpg.LockNotAvailableError):
                return await survey(self._sql, self._source.publications, relation_oids)
            return await self._survey_parts(relation_oids)

    async def _survey_parts(self, relation_oids: Sequence[int]) -> dict[int, Surveyed]:
        """Survey relations of which some are locked, dividing them in halves until the locked ones
        are found. A lock is awaited only for a moment, since many may be held, and other sessions
        queue behind one that waits."""
        publications, middle = self._source.publications, len(relation_oids) // 2
        if not middle:
            return await survey(self._sql, publications, relation_oids, prints_filters=False)
        found: dict[int, Surveyed] = {}
        for part in relation_oids[:middle], relation_oids[middle:]:
            try:
                async with transaction(self._sql, isolation="repeatable_read", readonly=True):
                    await self._sql.execute(SHORT_LOCK_TIMEOUT)
                    found |= await survey(self._sql, publications, part)
            except asyncpg.LockNotAvailableError:
                found |= await self._survey_parts(part)
        return found

    async def of(self, surveyed: Iterable[Surveyed]) -> list[ReadPlan]:
        tables = list(surveyed)
        relations = [as_message(each.relation) for each in tables]
        if not relations:
            return []
        try:
            registered = await self._register([(each, self._machine.in_force(each.relation_oid)) for each in relations])
        except UnwritableRelation as error:
            for each in relations:
                if each.relation_oid == error.relation_oid:
                    raise UnwritableTable(error, each.relation_oid, (each.namespace, each.name)) from error
            raise
        text_only = self._text_only
        return [
            read_plan(each, version, topic, self._prefix, text_only=text_only, keeps_tuples=version.reads_tuples)
            for each, (version, topic) in zip(tables, registered, strict=True)
        ]


class RegisterRelations(Protocol):
    async def __call__(
        self, relations: Sequence[tuple[Relation, RelationVersion | None]]
    ) -> list[tuple[RelationVersion, str]]:
        """Register the relations, each given with the version in force (or None).

        Return the version that the rows of each relation are encoded with, and its topic, both
        ready for use.
        """
        ...
