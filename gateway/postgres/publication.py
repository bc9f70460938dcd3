"""Facts about publications, and about the tables, columns and row filters in them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gateway.names import is_table, qualified
from gateway.postgres.cached_query import CachedQuery
from gateway.postgres.classify_errors import DRIVER_ERRORS, classified_errors, classify_exception
from gateway.postgres.connection import transaction
from gateway.startup.facts import PublicationFacts, PublishedColumn, PublishedRelation
from gateway.startup.filters import check_filters, filter_calls
from gateway.startup.findings import OperatorWarning
from schemas.topic_names import format_relation

# Read from the catalog alone: pg_publication_tables and pg_get_expr open each table, and therefore
# wait if another session has locked it.
_PUBLICATION_QUERY: Final = """
SELECT to_jsonb(p) || jsonb_build_object(
    'foreign', (
    SELECT jsonb_agg(DISTINCT jsonb_build_array(rn.nspname, r.relname, cn.nspname, c.relname))
    FROM pg_catalog.pg_foreign_table AS f
    JOIN pg_catalog.pg_class AS c ON c.oid = f.ftrelid AND c.relispartition
    JOIN pg_catalog.pg_namespace AS cn ON cn.oid = c.relnamespace
    CROSS JOIN LATERAL pg_catalog.pg_partition_ancestors(c.oid) AS a
    JOIN pg_catalog.pg_class AS r ON r.oid = a.relid AND r.relkind = 'p' AND r.relpersistence = 'p'
    JOIN pg_catalog.pg_namespace AS rn ON rn.oid = r.relnamespace
    LEFT JOIN pg_catalog.pg_publication_rel AS l ON l.prpubid = p.oid AND l.prrelid = r.oid
    WHERE CASE WHEN p.puballtables THEN l.oid IS NULL AND NOT r.relispartition ELSE l.oid IS NOT NULL {by_schema} END),
    'inherited', (
    SELECT jsonb_agg(jsonb_build_array(rn.nspname, r.relname, cn.nspname, c.relname,
                                       pg_catalog.format('%I.%I', rn.nspname, r.relname),
                                       pg_catalog.format('%I.%I', cn.nspname, c.relname)) ORDER BY r.oid, c.oid)
    FROM pg_catalog.pg_inherits AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid AND c.relkind = 'r' AND NOT c.relispartition AND c.relpersistence = 'p'
    JOIN pg_catalog.pg_namespace AS cn ON cn.oid = c.relnamespace
    JOIN pg_catalog.pg_class AS r ON r.oid = i.inhparent AND r.relkind = 'r' AND r.relpersistence = 'p'
    JOIN pg_catalog.pg_namespace AS rn ON rn.oid = r.relnamespace
    LEFT JOIN pg_catalog.pg_publication_rel AS l ON l.prpubid = p.oid AND l.prrelid = r.oid
    WHERE NOT p.puballtables AND (l.oid IS NOT NULL {by_schema}) AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_publication AS p, pg_catalog.pg_class AS r
        LEFT JOIN pg_catalog.pg_publication_rel AS l ON l.prrelid = r.oid
        WHERE r.oid = c.oid AND p.pubname = ANY ($1::text[]) AND (p.puballtables OR l.prpubid = p.oid {by_schema}))),
    'oid', p.oid::bigint, 'detaching', CASE WHEN p.puballtables AND p.pubviaroot THEN (
    SELECT jsonb_agg(jsonb_build_array(pg_catalog.format('%I.%I', rn.nspname, r.relname),
                                       pg_catalog.format('%I.%I', cn.nspname, c.relname)) ORDER BY c.oid)
    FROM pg_catalog.pg_inherits AS i
    JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid AND c.relkind IN ('r', 'p')
    JOIN pg_catalog.pg_namespace AS cn ON cn.oid = c.relnamespace
    JOIN pg_catalog.pg_class AS r ON r.oid = i.inhparent JOIN pg_catalog.pg_namespace AS rn ON rn.oid = r.relnamespace
    WHERE i.inhdetachpending) END)
FROM pg_catalog.pg_publication AS p WHERE p.pubname = ANY ($1::text[]) ORDER BY p.pubname
"""
_FOREIGN_BY_SCHEMA: Final = """OR EXISTS (
    SELECT FROM pg_catalog.pg_publication_namespace AS s WHERE s.pnpubid = p.oid AND s.pnnspid = r.relnamespace)"""
_RELATION_QUERY: Final = """
WITH RECURSIVE publication AS (
    SELECT p.oid, p.pubname, p.puballtables, p.pubviaroot, to_jsonb(p) ->> 'pubgencols' = 's' AS sends_stored
    FROM pg_catalog.pg_publication AS p WHERE p.pubname = ANY ($1::text[])
), part_of (relid, ancestor) AS (
    SELECT i.inhrelid, i.inhparent
    FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent AND c.relkind = 'p'
    WHERE NOT i.inhdetachpending
    UNION
    SELECT i.inhrelid, part_of.ancestor
    FROM part_of JOIN pg_catalog.pg_inherits AS i ON i.inhparent = part_of.relid AND NOT i.inhdetachpending
), publishable AS ( -- is_publishable_class
    SELECT c.oid, c.relnamespace, c.relkind, c.relispartition FROM pg_catalog.pg_class AS c
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384 {of_family}
), listed AS ( -- in 19, FOR ALL TABLES EXCEPT (TABLE ...) lists what is not published
    SELECT p.oid AS publication, r.prrelid AS relid, to_jsonb(r) ->> 'prexcept' IS NOT DISTINCT FROM 'true' AS is_except
    FROM publication AS p JOIN pg_catalog.pg_publication_rel AS r ON r.prpubid = p.oid
), excepted AS (
    SELECT publication, relid FROM listed WHERE is_except
    UNION
    SELECT l.publication, o.relid FROM listed AS l JOIN part_of AS o ON o.ancestor = l.relid WHERE l.is_except
), named AS (
    SELECT p.oid AS publication, c.oid AS relid FROM publication AS p JOIN publishable AS c
    ON p.puballtables AND CASE WHEN p.pubviaroot THEN NOT c.relispartition ELSE c.relkind = 'r' END
    WHERE NOT EXISTS (SELECT FROM excepted AS e WHERE e.publication = p.oid AND e.relid = c.oid)
    UNION
    SELECT publication, relid FROM listed WHERE NOT is_except
    {named_by_schema}
), part AS (
    SELECT p.oid AS publication, p.pubviaroot, o.relid
    FROM named AS n JOIN publication AS p ON p.oid = n.publication JOIN part_of AS o ON o.ancestor = n.relid
), published AS (
    (SELECT publication, relid FROM named EXCEPT SELECT publication, relid FROM part WHERE pubviaroot)
    UNION
    SELECT publication, relid FROM part WHERE NOT pubviaroot
)
SELECT jsonb_build_object(
    'publication', p.pubname, 'relation_oid', c.oid::bigint, 'namespace', n.nspname, 'name', c.relname,
    'row_filter', chosen.row_filter, 'relreplident', c.relreplident, 'relkind', c.relkind,
    'has_column_list', chosen.attnums IS NOT NULL, 'columns', columns.columns,
    'identity', keys.identity, 'generated_identity', CASE WHEN c.relreplident <> 'f' THEN keys.generated ELSE (
        SELECT jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped) END,
    'filter_leaves_identity', EXISTS (
        SELECT FROM regexp_matches(chosen.row_filter, ':varattno (-?[0-9]+)', 'g') AS used
        WHERE NOT used[1]::int2 = ANY (keys.attnums)),
    'is_sent_as_root', c.oid IN (SELECT part.relid FROM part WHERE part.pubviaroot),
    'other_identity', CASE WHEN c.relkind = 'p' THEN (
        SELECT jsonb_agg(pg_catalog.format('%I.%I', pn.nspname, l.relname) ORDER BY l.oid)
        FROM part_of AS o JOIN pg_catalog.pg_class AS l ON l.oid = o.relid AND l.relkind = 'r'
        JOIN pg_catalog.pg_namespace AS pn ON pn.oid = l.relnamespace
        WHERE o.ancestor = c.oid AND l.relreplident <> c.relreplident) END,
    'primary_key', CASE c.relreplident WHEN 'f' THEN (
        SELECT jsonb_agg(a.attname) FROM pg_catalog.pg_index AS i
        CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) AS k (attnum)
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate) END)
FROM published AS t
JOIN publication AS p ON p.oid = t.publication
JOIN pg_catalog.pg_class AS c ON c.oid = t.relid AND (c.relkind = 'r' OR c.relkind = 'p' AND p.pubviaroot) {of_wanted}
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
{chosen}
CROSS JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_array(a.attname, a.atttypid::bigint, a.atttypmod,
                                       pg_catalog.format_type(a.atttypid, a.atttypmod))
                     ORDER BY a.attnum) AS columns
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      AND CASE WHEN chosen.attnums IS NULL THEN a.attgenerated = '' OR a.attgenerated = 's' AND p.sends_stored
               ELSE a.attnum = ANY (chosen.attnums) END) AS columns
CROSS JOIN LATERAL (
    SELECT jsonb_agg(a.attname ORDER BY k.place) AS identity, array_agg(a.attnum) AS attnums,
           jsonb_agg(a.attname ORDER BY k.place) FILTER (WHERE a.attgenerated <> '') AS generated
    FROM pg_catalog.pg_index AS i
    CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate {is_key}
                                                     WHEN 'i' THEN i.indisreplident AND i.indisvalid END) AS keys
ORDER BY p.pubname, n.nspname, c.relname
"""
# Additions of PostgreSQL 15: schemas, column lists, row filters. The column lists and filters of a
# table do not apply if its schema is published too. A filter is only compared and searched, and
# never shown, so the parsed form suffices, without the locations in its SQL.
_NAMED_BY_SCHEMA: Final = """UNION
    SELECT p.oid, c.oid FROM publication AS p
    JOIN pg_catalog.pg_publication_namespace AS s ON s.pnpubid = p.oid JOIN publishable AS c ON c.relnamespace = s.pnnspid
"""
_CHOSEN: Final = """
LEFT JOIN LATERAL (
    SELECT r.prattrs::int2[] AS attnums, regexp_replace(r.prqual::text, ':location -?[0-9]+', '', 'g') AS row_filter
    FROM pg_catalog.pg_publication_rel AS r
    WHERE r.prpubid = p.oid AND r.prrelid = c.oid AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_publication_namespace AS s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
) AS chosen ON true
"""
# Conditions for given relations. A table's publication depends only on the table and its ancestors.
_OF_FAMILY: Final = """AND c.oid IN (
        SELECT pg_catalog.unnest($2::oid[]) UNION ALL SELECT ancestor FROM part_of WHERE relid = ANY ($2::oid[]))"""
_OF_WANTED: Final = "AND c.oid = ANY ($2::oid[])"
# Since PostgreSQL 18, the primary key of a partitioned table is its replica identity even while not
# all partitions have it (RelationGetIndexList), as with partitions that are foreign tables.
_KEY_OF_ROOT: Final = "AND (i.indisvalid OR c.relkind = 'p')"
_NOTHING_CHOSEN: Final = "CROSS JOIN (SELECT NULL::int2[] AS attnums, NULL::text AS row_filter) AS chosen"


def publication_query(major_version: int) -> str:
    """Return a query with one row for each publication named in $1."""
    return _PUBLICATION_QUERY.format(by_schema=_FOREIGN_BY_SCHEMA if major_version >= 15 else "")


def relation_query(major_version: int, *, of_some: bool = False) -> str:
    """Return a query with one row for each table of each publication named in $1. With `of_some`,
    it returns only tables whose oids are in $2."""
    has_lists = major_version >= 15
    return _RELATION_QUERY.format(
        named_by_schema=_NAMED_BY_SCHEMA if has_lists else "",
        chosen=_CHOSEN if has_lists else _NOTHING_CHOSEN,
        is_key=_KEY_OF_ROOT if major_version >= 18 else "AND i.indisvalid",
        of_family=_OF_FAMILY if of_some else "",
        of_wanted=_OF_WANTED if of_some else "",
    )


_IDENTITIES: Final = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "INDEX"}


async def published_tables(
    sql: asyncpg.Connection, names: Sequence[str], limit: int, *, excluded: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return (schema, table) of the first `limit` published tables in the order of their names,
    without excluded ones. Raises WalgateError."""
    publications = await publication_facts(sql, names, excluded=excluded)
    return sorted({(r.namespace, r.name) for facts in publications.values() for r in facts.relations})[:limit]


# `$1` has publications, and `$2` tables. The query returns each table that is listed in one of the
# publications, with the transaction that first listed it. A table may be listed itself, by its
# schema, or by a table of which it is a partition. With FOR ALL TABLES, no table is returned, as
# all rows that a table ever held were sent.
_LISTED: Final = """
SELECT t.relid::int8, (array_agg(l.xmin ORDER BY pg_catalog.age(l.xmin) DESC))[1]::text AS listed_in
FROM unnest($2::oid[]) AS t (relid)
CROSS JOIN LATERAL (
    SELECT t.relid UNION SELECT a.relid FROM pg_catalog.pg_partition_ancestors(t.relid::regclass) AS a) AS f (relid)
JOIN (
    SELECT r.xmin, r.prpubid AS publication, r.prrelid AS relid FROM pg_catalog.pg_publication_rel AS r
    WHERE to_jsonb(r) ->> 'prexcept' IS DISTINCT FROM 'true'
    {by_schema}
) AS l ON l.relid = f.relid
JOIN pg_catalog.pg_publication AS p ON p.oid = l.publication
WHERE p.pubname = ANY ($1::text[])
GROUP BY t.relid
HAVING NOT EXISTS (SELECT FROM pg_catalog.pg_publication AS e WHERE e.pubname = ANY ($1::text[]) AND e.puballtables)
"""
_LISTED_BY_SCHEMA: Final = """UNION ALL
    SELECT s.xmin, s.pnpubid, c.oid FROM pg_catalog.pg_publication_namespace AS s
    JOIN pg_catalog.pg_class AS c ON c.relnamespace = s.pnnspid AND c.relkind IN ('r', 'p')"""
_HELD_ROWS: Final = """
SELECT EXISTS (SELECT FROM {table} AS t WHERE pg_catalog.age(t.xmin) > pg_catalog.age($1::text::xid))
"""
MOST_ASKED: Final = 100
"""The maximum number of tables to query, one after the other, within the periodic check."""
MOST_ASKED_S: Final = 5.0
"""The maximum time in seconds for these queries."""


async def tables_that_held_rows(
    sql: asyncpg.Connection, names: Sequence[str], relations: Sequence[PublishedRelation]
) -> list[str]:
    """Return the names of those `relations` that have rows from before they were listed in a
    publication of `names`. PostgreSQL does not send these rows.

    A table is omitted if the query cannot be answered soon (because of privileges, locks, size or
    too many other tables). Raises WalgateError.
    """
    until = time.monotonic() + MOST_ASKED_S
    by_schema = _LISTED_BY_SCHEMA if sql.get_server_version().major >= 15 else ""
    oids = [relation.relation_oid for relation in relations]
    with classified_errors("querying the rows of new tables"):
        listed = dict(await sql.fetch(_LISTED.format(by_schema=by_schema), list(names), oids))
        asked = [relation for relation in relations if relation.relation_oid in listed]
        return [
            relation.full_name
            for relation in asked[:MOST_ASKED]
            if time.monotonic() < until and await _held_rows(sql, relation, listed[relation.relation_oid])
        ]


async def _held_rows(sql: asyncpg.Connection, relation: PublishedRelation, listed_in: str) -> bool:
    table = qualified(relation.namespace, relation.name)
    try:
        async with transaction(sql, readonly=True):
            await sql.execute("SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '1s'")
            return bool(await sql.fetchval(_HELD_ROWS.format(table=table), listed_in))
    except asyncpg.PostgresError:  # an error with one table is no reason to end the session
        return False


def parse_publications(
    publications: Sequence[dict[str, Any]], relations: Sequence[dict[str, Any]], excluded: Sequence[str] = ()
) -> dict[str, PublicationFacts]:
    """Return the facts by publication. `excluded` has the patterns of source.excluded_tables."""
    sent: dict[str, list[PublishedRelation]] = {}
    sent_as_root: dict[str, list[PublishedRelation]] = {}
    left_out: dict[str, list[PublishedRelation]] = {}
    for entry in relations:
        relation = _relation(entry)
        group = left_out if is_table(relation.full_name, excluded) else sent
        group = sent_as_root if entry["is_sent_as_root"] else group
        group.setdefault(entry["publication"], []).append(relation)
    return {
        row["pubname"]: PublicationFacts(
            oid=row["oid"],
            name=row["pubname"],
            all_tables=row["puballtables"],
            via_root=row["pubviaroot"],
            actions=frozenset(action for action in ("insert", "update", "delete", "truncate") if row["pub" + action]),
            relations=tuple(sent.get(row["pubname"], ())),
            excluded=tuple(left_out.get(row["pubname"], ())),
            sent_as_root=tuple(sent_as_root.get(row["pubname"], ())),
            detaching=tuple((root, partition) for root, partition in row["detaching"] or ()),
            foreign=tuple(
                (format_relation(*names[:2]), format_relation(*names[2:]))
                for names in _not_excluded(sorted(row["foreign"] or ()), excluded)
            ),
            inherited=tuple((names[4], names[5]) for names in _not_excluded(row["inherited"] or (), excluded)),
        )
        for row in publications
    }


def _not_excluded(rows: Iterable[Sequence[str]], excluded: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the rows that name no excluded table. Each begins with schema and name of a published
    table, and those of a partition or child of it."""
    for row in rows:
        if not any(is_table(".".join(name), excluded) for name in (row[:2], row[2:4])):
            yield row


def _relation(row: dict[str, Any]) -> PublishedRelation:
    return PublishedRelation(
        relation_oid=row["relation_oid"],
        namespace=row["namespace"],
        name=row["name"],
        replica_identity=_IDENTITIES[row["relreplident"]],
        identity_columns=tuple(row["identity"] or ()),
        columns=tuple(PublishedColumn(*column) for column in row["columns"] or ()),
        row_filter=row["row_filter"],
        generated_identity=tuple(row["generated_identity"] or ()),
        primary_key=tuple(row["primary_key"] or ()),
        has_column_list=row["has_column_list"],
        filter_leaves_identity=row["filter_leaves_identity"],
        other_identity=tuple(row["other_identity"] or ()),
    )


async def publication_facts(
    sql: asyncpg.Connection,
    names: Sequence[str],
    relation_oids: Sequence[int] | None = None,
    *,
    excluded: Sequence[str] = (),
) -> dict[str, PublicationFacts]:
    """Return the facts by publication; names that do not exist are omitted. If `relation_oids` is
    given, all other relations are omitted. `excluded` has the patterns of excluded tables. Raises
    WalgateError."""
    arguments = [list(names)] if relation_oids is None else [list(names), list(relation_oids)]
    with classified_errors("querying the publications"):
        # One PostgreSQL snapshot, so that no table is seen without its publication.
        async with transaction(sql, isolation="repeatable_read", readonly=True):
            major = sql.get_server_version().major
            publications = await sql.fetch(publication_query(major), list(names))
            query = relation_query(major, of_some=relation_oids is not None)
            relations = await sql.fetch(query, *arguments)
    return parse_publications(
        [json.loads(row[0]) for row in publications], [json.loads(row[0]) for row in relations], excluded
    )


class PublicationLoader:
    """A loader that repeats `publication_facts` for the same names. Facts that have not changed are
    not fetched again, so they do not load the event loop."""

    def __init__(self, names: Sequence[str], excluded: Sequence[str] = ()) -> None:
        self._names = list(names)
        self._excluded = tuple(excluded)
        self._turn = asyncio.Lock()
        self._relations = CachedQuery()
        self._publications: list[dict[str, Any]] = []
        self.known: dict[str, PublicationFacts] = {}
        """The facts that were returned last."""

    async def facts(self, sql: asyncpg.Connection) -> dict[str, PublicationFacts]:
        """Return the facts by publication; names that do not exist are omitted. Raises
        WalgateError."""
        async with self._turn:
            try:
                async with transaction(sql, isolation="repeatable_read", readonly=True):
                    major = sql.get_server_version().major
                    rows = await sql.fetch(publication_query(major), self._names)
                    publications = [json.loads(row[0]) for row in rows]
                    if publications != self._publications:
                        self._relations = CachedQuery()
                    query = relation_query(major)
                    relations = await self._relations.fetch(sql, query, self._names)
            except DRIVER_ERRORS as error:
                self._relations = CachedQuery()
                raise classify_exception(error, "querying the publications") from error
            if relations is not None:
                self._publications = publications
                entries = [json.loads(row[0]) for row in relations]
                self.known = parse_publications(publications, entries, self._excluded)
            return self.known


_FAILING_FUNCTIONS: Final = """
SELECT p.oid::int8, p.proname
FROM pg_catalog.pg_proc AS p
WHERE p.oid = ANY ($1::oid[]) AND NOT p.proleakproof AND p.proname <> ALL ($2::text[]) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_operator AS o
    JOIN pg_catalog.pg_amop AS a ON a.amopopr IN (o.oid, o.oprnegate)
    JOIN pg_catalog.pg_am AS m ON m.oid = a.amopmethod AND m.amname IN ('btree', 'hash')
    WHERE o.oprcode = p.oid)
"""
_TYPE_NAMES: Final = (
    "SELECT t.oid::int8, pg_catalog.format_type(t.oid, NULL) FROM pg_catalog.pg_type AS t WHERE t.oid = ANY ($1::oid[])"
)
_NEVER_FAIL: Final = (
    *("lower", "upper", "initcap", "length", "char_length", "character_length", "octet_length", "bit_length"),
    *("btrim", "ltrim", "rtrim", "starts_with", "reverse", "strpos", "md5", "ascii"),
    *("textlike", "textnlike", "bpcharlike", "bpcharnlike", "namelike", "namenlike", "texticlike", "texticnlike"),
    *("isfinite", "jsonb_exists", "jsonb_contains", "jsonb_contained", "array_length", "cardinality"),
    *("arrayoverlap", "arraycontains", "arraycontained", "bool", "booland_statefunc", "text"),
)
"""Functions that are not marked leakproof, but do not fail for any value of a row. (The pattern of
a LIKE is usually a constant.)"""


async def filters_that_can_fail(
    sql: asyncpg.Connection, publications: Mapping[str, PublicationFacts]
) -> list[OperatorWarning]:
    """Return a warning for each row filter that can fail. Send no query if there are no filters.
    Raises WalgateError."""
    functions, cast_to = filter_calls(publications)
    if not functions and not cast_to:
        return []
    with classified_errors("querying the functions of the row filters"):
        failing = dict(await sql.fetch(_FAILING_FUNCTIONS, sorted(functions), list(_NEVER_FAIL)))
        types = dict(await sql.fetch(_TYPE_NAMES, sorted(cast_to)))
    return list(check_filters(publications, failing, types))


_DESCENT: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = $1::oid) AS is_there,
       ARRAY(SELECT a.relid::oid::int8 FROM pg_catalog.pg_partition_ancestors($1::oid::regclass) AS a
             WHERE a.relid <> $1::oid) AS ancestors,
       EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = $2::oid AND c.relkind = 'p') AS follows_root
"""


@dataclass(frozen=True, slots=True)
class Descent:
    """The tables of which a relation is a partition. `follows_root` means that the relation
    announced just before this one is partitioned."""

    exists: bool
    ancestors: tuple[int, ...]
    follows_root: bool


async def descent_of(sql: asyncpg.Connection, relation_oid: int, previous_oid: int) -> Descent:
    """Return the ancestors of a relation, and whether `previous_oid` is partitioned. The cost of
    the query does not depend on the number of published tables. Raises WalgateError."""
    with classified_errors("querying the tables that a relation is a partition of"):
        row = await sql.fetchrow(_DESCENT, relation_oid, previous_oid)
    return Descent(row["is_there"], tuple(row["ancestors"]), row["follows_root"])


async def publication_names(sql: asyncpg.Connection) -> list[str]:
    """Return the names of the database's publications. Raises WalgateError."""
    with classified_errors("querying the publications"):
        return [name for (name,) in await sql.fetch("SELECT pubname::text FROM pg_catalog.pg_publication")]
