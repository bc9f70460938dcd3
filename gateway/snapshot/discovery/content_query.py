"""The query of the catalog entries and files that the published rows of relations depend on: see
rules/published_content.py.

The query reads each catalog once for all relations. With 10,000 tables, it takes a few hundred
milliseconds; a subquery for each table would take seconds.
"""

from __future__ import annotations

from typing import Final

# The accounts of the relations $1: see Account in rules/published_content.py. They consist of
# versions of catalog rows, since an entry that was altered and altered back looks the same as
# before. $2: publications.
_ACCOUNTS: Final = """
wanted AS MATERIALIZED (
    SELECT c.oid, c.relkind, c.relnamespace, c.reltype, c.relowner, c.relispartition
    FROM pg_catalog.pg_class AS c WHERE c.oid = ANY ($1::oid[])
), publication AS MATERIALIZED (
    SELECT p.*, p.xmin::text AS version FROM pg_catalog.pg_publication AS p WHERE p.pubname = ANY ($2::text[])
), above (relation, oid, namespace, path) AS (
    SELECT w.oid, w.oid, w.relnamespace, '' FROM wanted AS w
    UNION ALL
    SELECT above.relation, p.oid, p.relnamespace, above.path || i.xmin::text || '/'
    FROM above
    JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = above.oid AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_class AS p ON p.oid = i.inhparent AND p.relkind = 'p'
), placed AS ( -- by a row of pg_depend: pg_class changes with every GRANT
    SELECT d.objid, d.refobjid, min(d.xmin::text) AS version FROM pg_catalog.pg_depend AS d
    WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objsubid = 0 AND d.refclassid = 'pg_catalog.pg_namespace'::regclass
      AND d.objid = ANY (ARRAY(SELECT above.oid FROM above))
    GROUP BY d.objid, d.refobjid
), listing AS (
    SELECT w.oid AS relation, p.oid AS publication, 'all' AS listing, true AS is_whole
    FROM publication AS p CROSS JOIN wanted AS w WHERE p.puballtables
    UNION ALL
    SELECT above.relation, r.prpubid, concat_ws(' ', r.oid, r.xmin, above.path), {is_whole}
    FROM pg_catalog.pg_publication_rel AS r JOIN above ON above.oid = r.prrelid
    WHERE r.prrelid = ANY (ARRAY(SELECT above.oid FROM above))
    {by_schema}
), member AS (
    SELECT l.relation, l.publication, pg_catalog.string_agg(l.listing, ',' ORDER BY l.listing) AS listing,
           pg_catalog.bool_or(l.is_whole) AS is_whole
    FROM listing AS l GROUP BY l.relation, l.publication
), sent AS (
    SELECT m.relation, pg_catalog.bool_or(m.is_whole) AS is_whole, pg_catalog.jsonb_agg(jsonb_build_array(
        p.oid::int8, p.version, p.pubname,
        concat(CASE WHEN p.pubinsert THEN 'i' END, CASE WHEN p.pubupdate THEN 'u' END,
               CASE WHEN p.pubdelete THEN 'd' END, CASE WHEN p.pubtruncate THEN 't' END),
        m.listing, m.is_whole, p.pubviaroot) ORDER BY p.oid) AS memberships
    FROM member AS m JOIN publication AS p ON p.oid = m.publication GROUP BY m.relation
), used (relation, oid) AS (
    SELECT a.attrelid, a.atttypid FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
    UNION
    SELECT used.relation, part.oid
    FROM used
    JOIN pg_catalog.pg_type AS t ON t.oid = used.oid
    CROSS JOIN LATERAL (
        SELECT t.typbasetype UNION ALL SELECT t.typelem
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range AS r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute AS a
                  WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS part (oid)
    WHERE part.oid >= 16384
), composite AS (
    SELECT t.oid, pg_catalog.string_agg(concat(a.attnum, CASE WHEN a.attisdropped THEN '-' END), ',' ORDER BY a.attnum) AS version
    FROM pg_catalog.pg_type AS t
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = t.typrelid AND a.attnum > 0
    WHERE t.typtype = 'c' AND t.oid = ANY (ARRAY(SELECT used.oid FROM used))
    GROUP BY t.oid
), versions AS (
    SELECT v.relation, pg_catalog.jsonb_agg(jsonb_build_array(v.oid, v.version) ORDER BY v.oid) AS types
    FROM (
        SELECT used.relation, e.oid::int8, e.xmin::text FROM used JOIN pg_catalog.pg_enum AS e ON e.enumtypid = used.oid
        UNION ALL
        SELECT used.relation, t.oid::int8, t.version FROM used JOIN composite AS t ON t.oid = used.oid
    ) AS v (relation, oid, version)
    GROUP BY v.relation
), attribute AS (
    SELECT a.attrelid AS relation, min(a.xmin::text) FILTER (WHERE a.attnum = -1) AS made,
           pg_catalog.string_agg(a.attnum::text, ',' ORDER BY a.attnum) FILTER (WHERE a.attnum > 0) AS generated
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = ANY ($1::oid[]) AND (a.attnum = -1 OR a.attnum > 0 AND (a.attgenerated <> '' OR a.attisdropped))
    GROUP BY a.attrelid
), account AS (
    SELECT w.oid AS relation, w.relispartition, sent.is_whole, jsonb_build_array(
        attribute.made, placed.version, t.xmin::text, w.relowner::int8, sent.memberships, versions.types, w.relispartition,
        attribute.generated) AS account
    FROM wanted AS w
    LEFT JOIN attribute ON attribute.relation = w.oid
    LEFT JOIN placed ON placed.objid = w.oid AND placed.refobjid = w.relnamespace
    LEFT JOIN pg_catalog.pg_type AS t ON t.oid = w.reltype
    LEFT JOIN sent ON sent.relation = w.oid
    LEFT JOIN versions ON versions.relation = w.oid
)"""
_IS_WHOLE: Final = "r.prqual IS NULL AND r.prattrs IS NULL"
_BY_SCHEMA: Final = """UNION ALL
    SELECT above.relation, s.pnpubid, concat_ws(' ', s.oid, s.xmin, above.path, placed.version), true
    FROM pg_catalog.pg_publication_namespace AS s
    JOIN above ON above.namespace = s.pnnspid
    LEFT JOIN placed ON above.relation <> above.oid AND placed.objid = above.oid AND placed.refobjid = above.namespace"""

# The row of a system column is never updated: its xmin is the transaction that created the table. A
# table that was created as a partition has a row in pg_inherits with the same xmin, and rows of
# columns from earlier commands of that transaction: ATTACH PARTITION updates the rows of all
# columns in the same command. Another transaction that updated or deleted a row (xmax) has
# overwritten cmin, even if it was rolled back.
_CONTENT: Final = """
WITH RECURSIVE {accounts}, part (root, oid, has_parts, is_attached, attachment) AS (
    SELECT w.oid, w.oid, w.relkind = 'p', false, '' FROM wanted AS w
    UNION ALL
    SELECT part.root, i.inhrelid, part.has_parts, part.is_attached OR i.xmax <> 0 OR i.xmin <> (
        SELECT s.xmin FROM pg_catalog.pg_attribute AS s WHERE s.attrelid = i.inhrelid AND s.attnum = -1)
        OR NOT EXISTS (
        SELECT FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = i.inhrelid AND a.attnum > 0 AND NOT a.attisdropped
          AND a.xmin = i.xmin AND a.xmax = 0 AND a.cmin::text::int8 < i.cmin::text::int8),
        part.attachment || i.xmin::text || '/'
    FROM part
    JOIN pg_catalog.pg_inherits AS i ON i.inhparent = part.oid AND NOT i.inhdetachpending
    WHERE part.has_parts
), columns AS (
    SELECT a.attrelid, pg_catalog.md5(pg_catalog.string_agg(a.attnum || ' ' || a.xmin::text, ',' ORDER BY a.attnum)) AS columns
    FROM pg_catalog.pg_attribute AS a WHERE a.attnum > 0 AND a.attrelid = ANY (ARRAY(SELECT part.oid FROM part))
    GROUP BY a.attrelid
), leaf AS (
    SELECT part.root, pg_catalog.jsonb_agg(jsonb_build_array(
        l.oid::int8, l.relfilenode::int8, coalesce(columns.columns, ''), part.is_attached, part.attachment,
        l.reltoastrelid::int8) ORDER BY l.oid) AS leaves
    FROM part
    JOIN pg_catalog.pg_class AS l ON l.oid = part.oid AND l.relkind IN ('r', 'f')
                                 AND l.oid = ANY (ARRAY(SELECT part.oid FROM part))
    LEFT JOIN columns ON columns.attrelid = l.oid
    GROUP BY part.root
)
SELECT c.oid::int8 AS oid, n.nspname, c.relname, c.relkind = 'p' AS is_partitioned, leaf.leaves::text AS leaves,
       a.account::text AS account,
       CASE WHEN NOT a.is_whole OR a.relispartition AND removals.has_roots THEN removals.count END AS removals
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN account AS a ON a.relation = c.oid
CROSS JOIN ({removals}) AS removals
LEFT JOIN leaf ON leaf.root = c.oid
WHERE c.oid = ANY ($1::oid[])
"""

# A membership that is added and removed again leaves no row in the catalog, but is counted in its
# statistics.
_LISTINGS: Final = ("pg_publication", "pg_publication_rel", "pg_publication_namespace")
_REMOVALS: Final = """
    SELECT pg_catalog.sum(pg_catalog.pg_stat_get_tuples_deleted(('pg_catalog.' || catalog.name)::regclass))::int8 AS count,
           EXISTS (SELECT FROM publication AS p WHERE p.pubviaroot) AS has_roots
    FROM (VALUES ('{catalogs}')) AS catalog (name)"""

PLAN: Final = "SET LOCAL enable_nestloop = off"
"""A setting for transactions with a `content_query` of many relations: the planner assumes that
recursive queries have few rows, and would join them in loops whose cost is quadratic."""


def content_query(major_version: int) -> str:
    """Return the query for `PublishedContent`. $1: relation oids; $2: publications. It must run in
    the same PostgreSQL snapshot as HORIZON."""
    catalogs = _LISTINGS if major_version >= 15 else _LISTINGS[:-1]
    return _CONTENT.format(accounts=accounts(major_version), removals=_REMOVALS.format(catalogs="'),('".join(catalogs)))


def accounts(major_version: int) -> str:
    """Return the items of a WITH RECURSIVE clause. The item `account` has a row (relation, account)
    for each of the relations $1."""
    has_lists = major_version >= 15
    return _ACCOUNTS.format(is_whole=_IS_WHOLE if has_lists else "true", by_schema=_BY_SCHEMA if has_lists else "")
