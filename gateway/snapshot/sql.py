"""The SQL of a snapshot. Sessions have an empty search_path, so only names of pg_catalog may be
used without a schema."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import fastavro

from gateway.names import quote_identifier
from gateway.snapshot.discovery.content_query import accounts
from gateway.snapshot.rules.ranges_to_read import TidRange, tid
from gateway.transactions.transaction import CHUNK_PREFIX
from gateway.values.special_values import NOT_UTF8

SESSION_SETTINGS: Final = (
    "SET row_security = off",  # a policy that would hide rows becomes an error
    "SET lock_timeout = '2s'",  # others must not queue behind a reader that waits for ACCESS EXCLUSIVE to be released
    "SET synchronous_commit = local",  # a chunk should be decoded soon, and need not be on a standby
    "SET standard_conforming_strings = on",
    "SET default_transaction_read_only = off",
    "SET default_transaction_deferrable = off",
)
SHORT_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '100ms'"
"""A setting for reading many tables, each of which may be locked."""

EQUAL: Final = "OPERATOR(pg_catalog.=)"
CURRENT_SNAPSHOT: Final = "SELECT pg_catalog.pg_current_snapshot()::text"
HORIZON: Final = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::int8"
NEW_XID: Final = "SELECT pg_catalog.pg_current_xact_id()::text"
EMIT: Final = (
    "SELECT pg_catalog.pg_current_xact_id()::text "
    f"FROM (SELECT pg_catalog.pg_logical_emit_message(true, '{CHUNK_PREFIX}', $1::text)) AS emitted"
)

_LABELS: Final = """
    SELECT pg_catalog.string_agg(pg_catalog.concat_ws(',', e.oid, e.enumlabel), ';' ORDER BY e.oid)
    FROM pg_catalog.pg_enum AS e"""
_FACTS: Final = """
WITH RECURSIVE {accounts}
SELECT pg_catalog.pg_current_snapshot()::text AS snapshot,
       pg_catalog.pg_relation_size($3::oid) / pg_catalog.current_setting('block_size')::int8 AS blocks,
       c.oid::int8 AS oid, c.relkind::text AS relkind, leaves.leaves::text AS leaves,
       pg_catalog.concat_ws(' ', c.oid, n.nspname, c.relname, c.relkind, c.relreplident, columns.columns, keys.keys,
                            sending.sending, account.account, leaves.leaves) AS fingerprint,
       ({labels} WHERE e.enumtypid = ANY ($4::oid[])) AS labels,
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
                                 ORDER BY p.oid) AS sending
    FROM pg_catalog.pg_publication AS p
    LEFT JOIN pg_catalog.pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = c.oid
    WHERE p.pubname = ANY ($2::text[])) AS sending
JOIN account ON account.relation = c.oid
CROSS JOIN LATERAL (
    WITH RECURSIVE part (oid) AS (
        SELECT c.oid
        UNION ALL
        SELECT i.inhrelid
        FROM part
        JOIN pg_catalog.pg_inherits AS i ON i.inhparent = part.oid AND NOT i.inhdetachpending
        WHERE c.relkind = 'p'
    )
    SELECT pg_catalog.jsonb_agg(jsonb_build_array(l.oid::int8, l.relfilenode::int8, ln.nspname, l.relname)
                                ORDER BY l.oid) AS leaves
    FROM part
    CROSS JOIN LATERAL (SELECT x.* FROM pg_catalog.pg_class AS x WHERE x.oid = part.oid AND x.relkind = 'r' OFFSET 0) AS l
    JOIN pg_catalog.pg_namespace AS ln ON ln.oid = l.relnamespace) AS leaves
WHERE c.oid = ANY ($1::oid[])
"""
_FILTER: Final = """(
    SELECT pg_catalog.string_agg('(' || pg_catalog.pg_get_expr(r.prqual, r.prrelid) || ')', ' OR ')
    FROM pg_catalog.pg_publication_rel AS r JOIN pg_catalog.pg_publication AS p ON p.oid = r.prpubid
    WHERE p.pubname = ANY ($2::text[]) AND r.prrelid = c.oid AND r.prqual IS NOT NULL)"""

# Rows of heap tables, encrypted ones included, keep their ctid until they are updated. A role that
# has privileges only on columns can read ctid (attribute number -1) only if SELECT on ctid is
# granted, too. A role that may not read any column yet is expected to be granted the whole table.
FILES: Final = """
SELECT c.oid::int8 AS oid, greatest(c.relpages, 0) AS blocks,
       coalesce(h.proname IN ('heap_tableam_handler', 'pg_tdeam_handler'), false) AS is_heap,
       coalesce(pg_catalog.has_table_privilege(c.oid, 'SELECT'), false) AS is_granted,
       coalesce(pg_catalog.has_column_privilege(c.oid, -1::int2, 'SELECT')
                OR NOT pg_catalog.has_any_column_privilege(c.oid, 'SELECT'), false) AS has_places
FROM pg_catalog.pg_class AS c
LEFT JOIN pg_catalog.pg_am AS m ON m.oid = c.relam
LEFT JOIN pg_catalog.pg_proc AS h ON h.oid = m.amhandler
WHERE c.oid = ANY ($1::oid[])
"""

EXISTING: Final = """
SELECT c.oid::int8, n.nspname, c.relname, c.relispartition
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = ANY ($1::oid[])
"""
# In this order: what has ended for the PostgreSQL snapshot was committed at a lower LSN.
PRESENT: Final = """
SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::int8,
       pg_catalog.pg_current_wal_insert_lsn()::text
"""

# pg_partition_tree would wait for partitions that another session has locked.
FOREIGN: Final = """
WITH RECURSIVE part (root, oid) AS (
    SELECT r.oid, r.oid FROM pg_catalog.pg_class AS r WHERE r.oid = ANY ($1::oid[]) AND r.relkind = 'p'
    UNION ALL
    SELECT part.root, i.inhrelid
    FROM part
    JOIN pg_catalog.pg_inherits AS i ON i.inhparent = part.oid AND NOT i.inhdetachpending
)
SELECT part.root::int8 AS oid, n.nspname, c.relname
FROM part
JOIN pg_catalog.pg_class AS c ON c.oid = part.oid AND c.relkind = 'f'
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY 1, 2, 3
"""

# Columns of the identity index, with the operator by which the index finds a value. Their types are
# without domains and modifiers, which do not affect equality. Indexes other than B-trees (WITHOUT
# OVERLAPS) use other strategy numbers, and get no operator.
KEYS: Final = """
WITH RECURSIVE key AS (
    SELECT c.oid, k.place, a.attname, a.atttypid, i.indclass[k.place - 1] AS opclass
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_index AS i ON i.indrelid = c.oid
                                 AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
    CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.attnum
    WHERE c.oid = ANY ($1::oid[])
), base (domain, oid) AS (
    SELECT DISTINCT atttypid, atttypid FROM key
    UNION ALL
    SELECT base.domain, t.typbasetype FROM base JOIN pg_catalog.pg_type AS t ON t.oid = base.oid AND t.typtype = 'd'
)
SELECT key.oid::int8 AS oid, key.attname AS name, t.oid <> key.atttypid AS is_domain,
       pg_catalog.format_type(t.oid, -1) AS type_name,
       operator.schema AS operator_schema, operator.oprname AS operator_name
FROM key
JOIN base ON base.domain = key.atttypid
JOIN pg_catalog.pg_type AS t ON t.oid = base.oid AND t.typtype <> 'd'
LEFT JOIN LATERAL (
    SELECT n.nspname AS schema, o.oprname
    FROM pg_catalog.pg_opclass AS opclass
    JOIN pg_catalog.pg_am AS m ON m.oid = opclass.opcmethod AND m.amname = 'btree'
    JOIN pg_catalog.pg_amop AS p ON p.amopfamily = opclass.opcfamily AND p.amopstrategy = 3
                                AND p.amoplefttype = opclass.opcintype AND p.amoprighttype = opclass.opcintype
    JOIN pg_catalog.pg_operator AS o ON o.oid = p.amopopr
    JOIN pg_catalog.pg_namespace AS n ON n.oid = o.oprnamespace
    WHERE opclass.oid = key.opclass) AS operator ON true
"""

# The enums in the types of the identity's columns: keys contain labels as text, and a label can be
# renamed without an event.
ENUMS: Final = f"""
WITH RECURSIVE type (relation, oid) AS (
    SELECT i.indrelid, a.atttypid
    FROM pg_catalog.pg_index AS i
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = ANY ($1::oid[]) AND (i.indisprimary OR i.indisreplident)
    UNION
    SELECT type.relation, part.oid
    FROM type
    JOIN pg_catalog.pg_type AS t ON t.oid = type.oid
    CROSS JOIN LATERAL (
        SELECT unnest(ARRAY[t.typbasetype, t.typelem])
        UNION ALL
        SELECT r.rngsubtype FROM pg_catalog.pg_range AS r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL
        SELECT a.atttypid FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped) AS part (oid)
    WHERE part.oid <> 0
), enum AS (
    SELECT type.relation, pg_catalog.array_agg(DISTINCT type.oid) AS oids
    FROM type JOIN pg_catalog.pg_type AS t ON t.oid = type.oid AND t.typtype = 'e' GROUP BY type.relation
)
SELECT enum.relation::int8 AS oid, enum.oids::int8[] AS enums, ({_LABELS} WHERE e.enumtypid = ANY (enum.oids)) AS labels
FROM enum
"""


# An xmin that is ahead of all assigned ids belongs to a row that is at least 2^31 transactions old.
_HAS_OLD_ROW: Final = """
SELECT EXISTS (SELECT FROM ONLY {table} AS t
               WHERE pg_catalog.age(t.xmin) > pg_catalog.age($1::text::xid) OR pg_catalog.age(t.xmin) < 0)
"""
FILE_FACTS: Final = """
SELECT c.relfilenode::int8 AS filenode, n.nspname, c.relname,
       pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 AS next_xid
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = $1::oid
"""


def has_old_row(table: str) -> str:
    """Return the query that tells whether `table` has a row from before transaction $1."""
    return _HAS_OLD_ROW.format(table=table)


def facts_query(major_version: int, *, prints_filters: bool = True) -> str:
    """Return the query that describes relations.

    $1: relation oids; $2: publications; $3: a leaf whose blocks are counted, or null; $4: oids of
    enums, see ENUMS. The result columns `fingerprint` and `labels` change with everything that a
    chunk depends on: columns, identity, publications, partitions, files, and labels in keys.
    """
    row_filter = _FILTER if prints_filters and major_version >= 15 else "NULL::text"
    return _FACTS.format(labels=_LABELS, filter=row_filter, accounts=accounts(major_version))


def column_list(names: Sequence[str], is_binary: Sequence[bool]) -> str:
    """Return the select list. Columns without a binary decoder are sent as the output functions of
    their types print them. The function concat returns this text, whereas a cast to text may return
    another (boolean, inet). IS DISTINCT FROM NULL is also true for a row of nulls."""
    return ", ".join(
        column if binary else f"CASE WHEN {column} IS DISTINCT FROM NULL THEN pg_catalog.concat({column}) END"
        for column, binary in zip(map(quote_identifier, names), is_binary, strict=True)
    )


def lock(names: Sequence[str], *, only: bool = True, share: bool = False) -> str:
    """Return the LOCK TABLE statement. The lock is taken before the PostgreSQL snapshot, so that no
    rewrite and no TRUNCATE can happen between the snapshot and the commit."""
    each = "ONLY " if only else ""
    return f"LOCK TABLE {', '.join(each + name for name in names)} IN {'SHARE' if share else 'ACCESS SHARE'} MODE"


def lock_by_explain(names: Sequence[str], *, only: bool = True) -> str:
    """Return a statement that takes an ACCESS SHARE lock. Unlike LOCK TABLE, it works for a role
    that may read only some columns.

    EXPLAIN executes nothing, so foreign servers are not contacted. The PostgreSQL snapshot of the
    statement is older than the lock, so the transaction must take a new snapshot for each statement
    (READ COMMITTED).
    """
    each = "ONLY " if only else ""
    return f"EXPLAIN SELECT FROM {', '.join(f'{each}{name} AS t{index}' for index, name in enumerate(names))}"


def select_range(columns: str, leaf: str, found: TidRange, row_filter: str) -> str:
    conditions = [f"ctid >= '{tid(found.first)}'"]
    if found.end is not None:
        conditions.append(f"ctid < '{tid(found.end)}'")
    if row_filter:
        conditions.append(f"({row_filter})")
    return f"SELECT {columns} FROM ONLY {leaf} WHERE {' AND '.join(conditions)}"


def select_all(columns: str, relation: str, row_filter: str) -> str:
    return f"SELECT {columns} FROM {relation}" + (f" WHERE {row_filter}" if row_filter else "")


def select_parts(columns: str, sources: Sequence[str], row_filter: str) -> str:
    """Return the query for all rows of several FROM items."""
    return " UNION ALL ".join(select_all(columns, source, row_filter) for source in sources)


def select_keys(columns: str, relation: str, key_condition: str, row_filter: str) -> str:
    return select_all(columns, relation, key_condition + (f" AND ({row_filter})" if row_filter else ""))


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the identity.

    Literals are cast to `type_name` and compared with `operator`. `is_domain`: the column's type is
    a domain over `type_name`, which accepts values that the domain may no longer accept. `is_text`:
    in the key, the value is PostgreSQL's text. `is_array`: in the row, the value is an Avro array.
    """

    name: str
    type_name: str
    operator: str = EQUAL
    is_domain: bool = False
    is_text: bool = False
    is_array: bool = False


def key_condition(
    relation: str, columns: Sequence[KeyColumn], schema: Any, keys: Sequence[bytes], *, compares_text: bool = False
) -> str:
    """Return the condition that a row of `relation` has one of these keys.

    `columns` are in the order of the Avro record `schema`; `keys` are Avro without a frame.
    `compares_text`: do not cast text to a type that may no longer accept it. In this case, no index
    can be used. A text that is not UTF-8 cannot be a literal: its bytes are compared.
    """
    names = [f"v{index}" for index in range(len(columns))]
    types = ["text" if compares_text and column.is_text else column.type_name for column in columns]
    left = [
        _compared(f"{relation}.{quote_identifier(each.name)}", each, compares_text=compares_text) for each in columns
    ]
    rows, alternatives = [], []
    for values in (list(_decode(schema, key).values()) for key in keys):
        literals = [f"{_literal(value)}::{name}" for value, name in zip(values, types, strict=True)]
        if not any(map(_is_not_utf8, values)):
            rows.append(f"({', '.join(literals)})")
            continue
        equal = [
            f"pg_catalog.textsend(pg_catalog.concat({relation}.{quote_identifier(column.name)})) {EQUAL} '{value[1:]}'"
            if _is_not_utf8(value)
            else f"{compared} {literal}"
            for column, value, compared, literal in zip(columns, values, left, literals, strict=True)
        ]
        alternatives.append(" AND ".join(equal))
    if rows:
        given = f"(VALUES {', '.join(rows)}) AS given ({', '.join(names)})"
        equal = [f"{compared} given.{name}" for compared, name in zip(left, names, strict=True)]
        alternatives.append(f"EXISTS (SELECT FROM {given} WHERE {' AND '.join(equal)})")
    return alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(alternatives)})"


def _is_not_utf8(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.startswith(NOT_UTF8)


def _compared(column: str, key: KeyColumn, *, compares_text: bool) -> str:
    if compares_text and key.is_text:
        return f'pg_catalog.concat({column}) COLLATE pg_catalog."C" {EQUAL}'
    return f"{column}{f'::{key.type_name}' if key.is_domain else ''} {key.operator}"


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
