"""Publications: what they hold, and what has changed between two looks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gateway.operate.errors import Retry
from gateway.replication.errors import DRIVER_ERRORS, classify_exception

# attnames and rowfilter came with 15, pubgencols with 18; as JSON a missing column reads as null.
PUBLICATION_QUERY: Final = """
SELECT to_jsonb(p) || jsonb_build_object('oid', p.oid::bigint)
FROM pg_catalog.pg_publication AS p WHERE p.pubname = ANY ($1::text[]) ORDER BY p.pubname
"""
RELATION_QUERY: Final = """
SELECT jsonb_build_object(
    'publication', t.pubname, 'relation_oid', c.oid::bigint, 'namespace', t.schemaname, 'name', t.tablename,
    'attnames', to_jsonb(t) -> 'attnames', 'rowfilter', to_jsonb(t) ->> 'rowfilter',
    'relreplident', c.relreplident, 'relkind', c.relkind,
    'primary_key', keys.primary_key, 'identity', keys.identity, 'columns', columns.columns)
FROM pg_catalog.pg_publication_tables AS t
JOIN pg_catalog.pg_namespace AS n ON n.nspname = t.schemaname
JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
CROSS JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                                       pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated)
                     ORDER BY a.attnum) AS columns
    FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns
CROSS JOIN LATERAL (
    SELECT jsonb_agg(a.attname ORDER BY k.place) FILTER (WHERE i.indisprimary) AS primary_key,
           jsonb_agg(a.attname ORDER BY k.place) FILTER (
               WHERE CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                                         WHEN 'i' THEN i.indisreplident END) AS identity
    FROM pg_catalog.pg_index AS i
    CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND i.indisvalid AND (i.indisprimary OR i.indisreplident)) AS keys
WHERE t.pubname = ANY ($1::text[])
ORDER BY t.pubname, t.schemaname, t.tablename
"""
_IDENTITIES: Final = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "INDEX"}


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """`type_name` is for people: numeric(12,2)."""

    name: str
    type_oid: int
    typmod: int
    type_name: str


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """One table in one publication. `columns` are those that are sent, in the table's order."""

    relation_oid: int
    namespace: str
    name: str
    replica_identity: str  # DEFAULT, NOTHING, FULL, INDEX
    identity_columns: tuple[str, ...]  # of DEFAULT and INDEX; empty when the index that should give them is not there
    primary_key: tuple[str, ...]
    columns: tuple[PublishedColumn, ...]
    row_filter: str | None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def has_identity(self) -> bool:
        return self.replica_identity == "FULL" or bool(self.identity_columns)


@dataclass(frozen=True, slots=True)
class PublicationFacts:
    """A publication of another oid is another publication, whatever its name."""

    oid: int
    name: str
    all_tables: bool
    via_root: bool
    actions: frozenset[str]  # of insert, update, delete, truncate
    relations: tuple[PublishedRelation, ...]


def parse_publications(
    publications: Sequence[dict[str, Any]], relations: Sequence[dict[str, Any]]
) -> dict[str, PublicationFacts]:
    """By name; names that do not exist are missing."""
    return {
        row["pubname"]: PublicationFacts(
            oid=row["oid"],
            name=row["pubname"],
            all_tables=row["puballtables"],
            via_root=row["pubviaroot"],
            actions=frozenset(action for action in ("insert", "update", "delete", "truncate") if row["pub" + action]),
            relations=tuple(_relation(entry) for entry in relations if entry["publication"] == row["pubname"]),
        )
        for row in publications
    }


def _relation(row: dict[str, Any]) -> PublishedRelation:
    sent: list[str] | None = row["attnames"]
    columns = tuple(
        PublishedColumn(name, type_oid, typmod, type_name)
        for name, type_oid, typmod, type_name, generated in row["columns"] or ()
        # 14 does not say which columns are sent: all but the generated ones.
        if (name in sent if sent is not None else not generated)
    )
    return PublishedRelation(
        relation_oid=row["relation_oid"],
        namespace=row["namespace"],
        name=row["name"],
        replica_identity=_IDENTITIES[row["relreplident"]],
        identity_columns=tuple(row["identity"] or ()),
        primary_key=tuple(row["primary_key"] or ()),
        columns=columns,
        row_filter=row["rowfilter"],
    )


async def publication_facts(sql: asyncpg.Connection, names: Sequence[str]) -> dict[str, PublicationFacts]:
    """By name; names that do not exist are missing. Raises classified errors."""
    try:
        # One snapshot, so that no table is seen without its publication.
        async with sql.transaction(isolation="repeatable_read", readonly=True):
            publications = await sql.fetch(PUBLICATION_QUERY, list(names))
            relations = await sql.fetch(RELATION_QUERY, list(names))
    except (asyncpg.UndefinedTableError, asyncpg.InternalServerError) as error:
        # pg_publication_tables opens each table, and has no lock on it yet.
        raise Retry(f"a table went while the publications were read: {error.sqlstate}") from error
    except DRIVER_ERRORS as error:
        raise classify_exception(error, "facts of the publications") from error
    return parse_publications([json.loads(row[0]) for row in publications], [json.loads(row[0]) for row in relations])


def published_types(publications: dict[str, PublicationFacts]) -> frozenset[int]:
    """Type oids of every column that is sent: binary is asked for when each of them has a binary decoder."""
    return frozenset(
        column.type_oid
        for publication in publications.values()
        for relation in publication.relations
        for column in relation.columns
    )


def inventory_changes(before: PublicationFacts, after: PublicationFacts) -> Iterator[str]:
    """One sentence for each difference of what is published, not of the tables' own columns: the stream tells those."""
    if before.all_tables != after.all_tables:
        yield f"{after.name}: {'now' if after.all_tables else 'no longer'} for all tables"
    if before.via_root != after.via_root:
        yield f"{after.name}: publish_via_partition_root is now {str(after.via_root).lower()}"
    for action in sorted(before.actions ^ after.actions):
        yield f"{after.name}: {'now publishes' if action in after.actions else 'no longer publishes'} {action}"
    old = {relation.relation_oid: relation for relation in before.relations}
    new = {relation.relation_oid: relation for relation in after.relations}
    for oid in sorted(old.keys() - new.keys()):
        yield f"{after.name}: {old[oid].full_name} is no longer published"
    for oid in sorted(new.keys() - old.keys()):
        yield f"{after.name}: {new[oid].full_name} is published from now on, without the rows that it holds"
    for oid in sorted(old.keys() & new.keys()):
        if old[oid].row_filter != new[oid].row_filter:
            yield f"{after.name}: {new[oid].full_name} has another row filter"
        dropped = {column.name for column in old[oid].columns} - {column.name for column in new[oid].columns}
        if dropped:
            yield f"{after.name}: {new[oid].full_name} no longer sends {', '.join(sorted(dropped))}"
