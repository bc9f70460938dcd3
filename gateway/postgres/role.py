"""Facts about the login: what its role may do, and to which kind of server it connects."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Final

import asyncpg

from gateway.postgres.classify_errors import classified_errors
from gateway.postgres.publication import publication_facts
from gateway.startup.role_checks import KEYLESS_BYTES, RoleFacts

# Amazon's servers have a role rds_replication: membership replaces the attribute REPLICATION, which
# cannot be set there.
_QUERY: Final = """
SELECT jsonb_build_object(
    'name', r.rolname,
    'is_superuser', r.rolsuper,
    'may_replicate', r.rolreplication OR EXISTS (
        SELECT FROM pg_catalog.pg_roles AS g
        WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')),
    'reads_statistics', pg_catalog.pg_has_role(r.oid, 'pg_read_all_stats', 'USAGE'),
    'connection_limit', r.rolconnlimit,
    'used_by_role', (SELECT count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.usesysid = r.oid) - 1,
    'database', pg_catalog.current_database(),
    'database_limit', (SELECT d.datconnlimit FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()),
    'used_in_database', (
        SELECT count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.datname = pg_catalog.current_database()) - 1,
    'used_connections', (SELECT count(*) FROM pg_catalog.pg_stat_activity AS a WHERE a.backend_type = 'client backend') - 1,
    'max_connections', pg_catalog.current_setting('max_connections')::int,
    'reserved_connections', pg_catalog.current_setting('superuser_reserved_connections')::int
                            + coalesce(pg_catalog.current_setting('reserved_connections', true), '0')::int,
    'pid', pg_catalog.pg_backend_pid(),
    'encrypted', coalesce((SELECT s.ssl FROM pg_catalog.pg_stat_ssl AS s WHERE s.pid = pg_catalog.pg_backend_pid()), false),
    'local', pg_catalog.inet_client_addr() IS NULL OR pg_catalog.inet_client_addr() <<= '127.0.0.0/8'
             OR pg_catalog.inet_client_addr() = '::1',
    'time', extract(epoch FROM pg_catalog.clock_timestamp()),
    'settings', (SELECT jsonb_agg(DISTINCT split_part(s.name, '.', 1)) FROM pg_catalog.pg_settings AS s
                 WHERE s.name LIKE ANY (ARRAY['rds.%', 'cloudsql.%', 'alloydb.%', 'azure.%'])))
FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user
"""
# The published relations $1, each with the names of its columns in $2, a JSON array, and, if $3 is
# true for it, the partitions from which its blocks are read. The view pg_publication_tables, and
# pg_partition_tree, would wait for tables that another session has locked.
_TABLES: Final = """
WITH RECURSIVE part (relid, columns, root, descends) AS (
    SELECT t.relid, t.columns, t.relid, t.descends
    FROM unnest($1::oid[], $2::jsonb[], $3::bool[]) AS t (relid, columns, descends)
    UNION ALL
    SELECT i.inhrelid, part.columns, part.root, true
    FROM part
    JOIN pg_catalog.pg_class AS p ON p.oid = part.relid AND p.relkind = 'p'
    JOIN pg_catalog.pg_inherits AS i ON i.inhparent = p.oid AND NOT i.inhdetachpending
    WHERE part.descends
)
SELECT c.oid AS relid, pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) AS name,
       n.oid AS namespace, pg_catalog.quote_ident(n.nspname) AS schema, c.relrowsecurity, t.columns, t.root,
       greatest(c.relpages, 0)::int8 * pg_catalog.current_setting('block_size')::int8 AS bytes
FROM part AS t
JOIN pg_catalog.pg_class AS c ON c.oid = t.relid AND (t.relid = t.root OR c.relkind = 'r')
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
"""
# The relations $1 whose key has an array. (The category of a domain is that of its base type.)
_ARRAY_KEYS: Final = """
SELECT DISTINCT c.oid::int8
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_index AS i ON i.indrelid = c.oid
                             AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid AND t.typcategory = 'A' AND t.typname <> 'oidvector'
WHERE c.oid = ANY ($1::oid[])
"""
# Tables on which the role has no SELECT. `lacks_columns` means that it also lacks SELECT on a
# column that is published, or that a row filter uses (pg_depend lists these).
_PARTLY_GRANTED: Final = f"""
SELECT t.name, t.relid,
       EXISTS (
           SELECT FROM pg_catalog.pg_attribute AS a
           WHERE a.attrelid = t.relid AND a.attnum > 0 AND NOT a.attisdropped
             AND NOT pg_catalog.has_column_privilege(t.relid, a.attnum, 'SELECT')
             AND (t.columns ? a.attname::text
                  OR EXISTS (
                      SELECT FROM pg_catalog.pg_depend AS d
                      WHERE d.classid = 'pg_catalog.pg_publication_rel'::pg_catalog.regclass
                        AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = t.relid
                        AND d.refobjsubid = a.attnum))) AS lacks_columns
FROM ({_TABLES}) AS t
WHERE NOT pg_catalog.has_table_privilege(t.relid, 'SELECT')
"""
_UNREADABLE: Final = f"""
SELECT t.name FROM ({_PARTLY_GRANTED}) AS t WHERE t.lacks_columns ORDER BY 1
"""
# -1 is ctid. With the name instead of the number, has_column_privilege would raise an error for a
# relation without ctid, if the plan visits one.
_READ_AT_ONCE: Final = f"""
SELECT t.name FROM ({_PARTLY_GRANTED}) AS t
WHERE NOT t.lacks_columns
  AND EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = t.relid AND (i.indisprimary OR i.indisreplident))
  AND NOT pg_catalog.has_column_privilege(t.relid, -1::int2, 'SELECT')
ORDER BY 1
"""
# pg_relation_size would wait for tables that another session has locked.
_LARGE: Final = f"""
SELECT min(t.name) FILTER (WHERE t.relid = t.root) AS name
FROM ({_TABLES}) AS t
GROUP BY t.root
HAVING sum(t.bytes) > {KEYLESS_BYTES}
ORDER BY 1
"""
_CLOSED: Final = f"""
SELECT t.schema FROM ({_TABLES}) AS t
WHERE NOT pg_catalog.has_schema_privilege(t.namespace, 'USAGE')
ORDER BY 1
"""
_FILTERED: Final = f"""
SELECT t.name FROM ({_TABLES}) AS t
WHERE t.relrowsecurity AND pg_catalog.row_security_active(t.relid)
ORDER BY 1
"""
_NAMED: Final = 20
_PROVIDERS: Final = {"rds": "aws", "cloudsql": "google", "alloydb": "google", "azure": "azure", "neon": "neon"}


async def role_facts(
    sql: asyncpg.Connection, publications: Sequence[str], *, excluded: Sequence[str] = ()
) -> RoleFacts:
    """Return the facts about the current role. `excluded` has the patterns of tables that need not
    be read. Raises WalgateError."""
    facts = await publication_facts(sql, publications, excluded=excluded)
    columns: dict[int, list[str]] = {}
    keyless = set()
    for relation in (relation for each in facts.values() for relation in each.relations):
        columns.setdefault(relation.relation_oid, []).extend(column.name for column in relation.columns)
        if not relation.key_columns:
            keyless.add(relation.relation_oid)
    with classified_errors("querying the role"):
        # A table without a key, or with an array in it, is read through its root.
        whole = keyless.union(row[0] for row in await sql.fetch(_ARRAY_KEYS, [*columns]))
        tables = [*columns], [json.dumps(names) for names in columns.values()], [oid not in whole for oid in columns]
        begun = time.time()
        row = json.loads(await sql.fetchval(_QUERY))
        now = (begun + time.time()) / 2
        unreadable = await sql.fetch(_UNREADABLE, *tables)
        read_at_once = await sql.fetch(_READ_AT_ONCE, *tables)
        large = await sql.fetch(_LARGE, [*keyless], ["[]"] * len(keyless), [True] * len(keyless))
        closed = await sql.fetch(_CLOSED, *tables)
        filtered = await sql.fetch(_FILTERED, *tables)
    provider = next((_PROVIDERS[name] for name in row["settings"] or () if name in _PROVIDERS), "")
    return RoleFacts(
        name=row["name"],
        is_superuser=row["is_superuser"],
        may_replicate=row["may_replicate"],
        reads_statistics=row["reads_statistics"],
        # Neon's proxy, which does not pool, gives each client a random process ID.
        is_pooled=provider != "neon" and row["pid"] != sql.get_server_pid(),
        provider=provider,
        is_encrypted=row["encrypted"],
        is_local=row["local"],
        connection_limit=row["connection_limit"],
        used_by_role=row["used_by_role"],
        database=row["database"],
        database_limit=row["database_limit"],
        used_in_database=row["used_in_database"],
        max_connections=row["max_connections"],
        reserved_connections=row["reserved_connections"],
        used_connections=row["used_connections"],
        server_ahead_s=float(row["time"]) - now,
        unreadable=_named(unreadable),
        read_at_once=_named(read_at_once),
        keyless=_named(large),
        closed_schemas=_named(closed),
        filtered=_named(filtered),
    )


def _named(rows: Sequence[asyncpg.Record]) -> tuple[str, ...]:
    """Return the first names of `rows`."""
    return tuple(dict.fromkeys(row[0] for row in rows))[:_NAMED]
