"""The SQL of a snapshot. Sessions have an empty search_path, so that only names of pg_catalog stand without their schema."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import fastavro

from gateway.names import quote_identifier
from gateway.snapshot.rules.ctid_ranges import TidRange, tid
from gateway.transactions.transaction import CHUNK_PREFIX

SESSION_SETTINGS: Final = (
    "SET row_security = off",  # a policy that would hide rows is an error
    "SET lock_timeout = '2s'",  # nobody shall queue behind a reader that waits for an ACCESS EXCLUSIVE lock
    "SET synchronous_commit = local",  # a chunk must be decoded soon, and be on no standby
    "SET standard_conforming_strings = on",
    "SET default_transaction_read_only = off",
    "SET default_transaction_deferrable = off",
)

LOOK: Final = "SELECT pg_catalog.pg_current_snapshot()::text"
NEW_XID: Final = "SELECT pg_catalog.pg_current_xact_id()::text"
EMIT: Final = (
    "SELECT pg_catalog.pg_current_xact_id()::text "
    f"FROM (SELECT pg_catalog.pg_logical_emit_message(true, '{CHUNK_PREFIX}', $1::text)) AS emitted"
)

_FACTS: Final = """
SELECT pg_catalog.pg_current_snapshot()::text AS snapshot,
       pg_catalog.pg_relation_size($3::oid) / pg_catalog.current_setting('block_size')::int8 AS blocks,
       c.oid::int8 AS oid, c.relkind::text AS relkind, leaves.leaves::text AS leaves,
       pg_catalog.concat_ws(' ', c.oid, n.nspname, c.relname, c.relkind, c.relreplident, columns.columns, keys.keys,
                            sent.sent, leaves.leaves) AS fingerprint,
       {filter} AS row_filter
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT pg_catalog.string_agg(pg_catalog.concat_ws(',', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated), ';'
                                 ORDER BY a.attnum) AS columns
    FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns
CROSS JOIN LATERAL (
    SELECT pg_catalog.string_agg(pg_catalog.concat_ws(',', i.indexrelid, i.indisprimary, i.indisreplident, i.indimmediate,
                                                      i.indisvalid, i.indkey::text), ';' ORDER BY i.indexrelid) AS keys
    FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)) AS keys
CROSS JOIN LATERAL (
    SELECT pg_catalog.string_agg(pg_catalog.concat_ws(',', p.oid, p.pubviaroot, to_jsonb(p) ->> 'pubgencols',
                                                      to_jsonb(r) ->> 'prattrs', to_jsonb(r) ->> 'prqual'), ';'
                                 ORDER BY p.oid) AS sent
    FROM pg_catalog.pg_publication AS p
    LEFT JOIN pg_catalog.pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = c.oid
    WHERE p.pubname = ANY ($2::text[])) AS sent
CROSS JOIN LATERAL (
    WITH RECURSIVE part (oid) AS (
        SELECT c.oid
        UNION ALL
        SELECT i.inhrelid
        FROM part
        JOIN pg_catalog.pg_inherits AS i ON i.inhparent = part.oid AND NOT i.inhdetachpending
        JOIN pg_catalog.pg_class AS x ON x.oid = i.inhrelid AND x.relispartition
    )
    SELECT pg_catalog.jsonb_agg(jsonb_build_array(l.oid::int8, l.relfilenode::int8, ln.nspname, l.relname)
                                ORDER BY l.oid) AS leaves
    FROM part
    JOIN pg_catalog.pg_class AS l ON l.oid = part.oid AND l.relkind = 'r'
    JOIN pg_catalog.pg_namespace AS ln ON ln.oid = l.relnamespace) AS leaves
WHERE c.oid = ANY ($1::oid[])
"""
_FILTER: Final = """(
    SELECT pg_catalog.string_agg('(' || pg_catalog.pg_get_expr(r.prqual, r.prrelid) || ')', ' OR ')
    FROM pg_catalog.pg_publication_rel AS r JOIN pg_catalog.pg_publication AS p ON p.oid = r.prpubid
    WHERE p.pubname = ANY ($2::text[]) AND r.prrelid = c.oid AND r.prqual IS NOT NULL)"""

# The row of a system column is never updated: who inserted it has made the table. A partition that was made as one stands in
# pg_inherits since then.
CONTENT: Final = """
WITH RECURSIVE part (root, oid, is_attached) AS (
    SELECT c.oid, c.oid, false FROM pg_catalog.pg_class AS c WHERE c.oid = ANY ($1::oid[])
    UNION ALL
    SELECT part.root, i.inhrelid, part.is_attached OR i.xmin <> (
        SELECT s.xmin FROM pg_catalog.pg_attribute AS s WHERE s.attrelid = i.inhrelid AND s.attnum = -1)
    FROM part
    JOIN pg_catalog.pg_inherits AS i ON i.inhparent = part.oid AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_class AS x ON x.oid = i.inhrelid AND x.relispartition
), leaf AS (
    SELECT part.root, pg_catalog.jsonb_agg(jsonb_build_array(l.oid::int8, l.relfilenode::int8, columns.columns, part.is_attached)
                                           ORDER BY l.oid) AS leaves
    FROM part
    JOIN pg_catalog.pg_class AS l ON l.oid = part.oid AND l.relkind = 'r'
    CROSS JOIN LATERAL (
        SELECT pg_catalog.md5(pg_catalog.string_agg(a.attnum || ' ' || a.xmin::text, ',' ORDER BY a.attnum)) AS columns
        FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = l.oid AND a.attnum > 0) AS columns
    GROUP BY part.root
)
SELECT c.oid::int8 AS oid, n.nspname, c.relname, c.relkind = 'p' AS is_partitioned, leaf.leaves::text AS leaves
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN leaf ON leaf.root = c.oid
WHERE c.oid = ANY ($1::oid[])
"""

# Of heap, and of what is heap but for its encryption, rows keep their place until they change.
FILES: Final = """
SELECT c.oid::int8 AS oid, greatest(c.relpages, 0) AS blocks, h.proname IN ('heap_tableam_handler', 'pg_tdeam_handler') AS is_heap
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_am AS m ON m.oid = c.relam
JOIN pg_catalog.pg_proc AS h ON h.oid = m.amhandler
WHERE c.oid = ANY ($1::oid[])
"""


def facts_query(major_version: int, *, prints_filters: bool = True) -> str:
    """$1: relation oids; $2: publications; $3: a leaf whose blocks are counted, or null. `fingerprint` changes with
    everything that a chunk depends on: columns, identity, publications, partitions, files."""
    return _FACTS.format(filter=_FILTER if prints_filters and major_version >= 15 else "NULL::text")


def qualified(namespace: str, name: str) -> str:
    return f"{quote_identifier(namespace)}.{quote_identifier(name)}"


def column_list(names: Sequence[str], is_binary: Sequence[bool]) -> str:
    """Columns whose type has no binary decoder come as PostgreSQL's own text: a cast is not always that (boolean,
    inet), concat is. IS DISTINCT FROM NULL is true of a row of nulls too."""
    return ", ".join(
        column if binary else f"CASE WHEN {column} IS DISTINCT FROM NULL THEN pg_catalog.concat({column}) END"
        for column, binary in zip(map(quote_identifier, names), is_binary, strict=True)
    )


def lock(names: Sequence[str], *, only: bool = True, share: bool = False) -> str:
    """A lock is taken before the snapshot: behind it, no rewrite and no TRUNCATE can come between the snapshot and the commit."""
    each = "ONLY " if only else ""
    return f"LOCK TABLE {', '.join(each + name for name in names)} IN {'SHARE' if share else 'ACCESS SHARE'} MODE"


def select_range(columns: str, leaf: str, found: TidRange, row_filter: str) -> str:
    conditions = [f"ctid >= '{tid(found.first)}'"]
    if found.end is not None:
        conditions.append(f"ctid < '{tid(found.end)}'")
    if row_filter:
        conditions.append(f"({row_filter})")
    return f"SELECT {columns} FROM ONLY {leaf} WHERE {' AND '.join(conditions)}"


def select_all(columns: str, relation: str, row_filter: str) -> str:
    return f"SELECT {columns} FROM {relation}" + (f" WHERE {row_filter}" if row_filter else "")


def select_keys(columns: str, relation: str, key_condition: str, row_filter: str) -> str:
    return select_all(columns, relation, key_condition + (f" AND ({row_filter})" if row_filter else ""))


def key_condition(columns: Sequence[tuple[str, str]], schema: Any, keys: Sequence[bytes]) -> str:
    """The rows with one of these keys. `columns`: names and types of the identity columns, in the order of the Avro record
    `schema`; `keys`: Avro without a frame."""
    rows = [list(_decode(schema, key).values()) for key in keys]
    names = [f"v{index}" for index in range(len(columns))]
    arrays = ", ".join(
        "ARRAY[" + ", ".join(_literal(row[index]) for row in rows) + "]::text[]" for index in range(len(columns))
    )
    left = ", ".join(quote_identifier(name) for name, _ in columns)
    right = ", ".join(f"{name}::{type_name}" for name, (_, type_name) in zip(names, columns, strict=True))
    return f"({left}) IN (SELECT {right} FROM unnest({arrays}) AS given ({', '.join(names)}))"


def _decode(schema: Any, key: bytes) -> dict[str, Any]:
    record: Any = fastavro.schemaless_reader(io.BytesIO(key), schema, None)
    return dict(record)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "'t'" if value else "'f'"
    text = "\\x" + value.hex() if isinstance(value, bytes) else str(value)
    return "'" + text.replace("'", "''") + "'"
