"""Tables of every type that a server has: as columns, and as keys where the type can be one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import asyncpg

from gateway.names import quote_identifier

SCHEMA: Final = "ext"
"""Extensions are in no schema of the search_path of a reader."""

LITERALS: Final = (
    "1", "2.50", "-0", "a", "A", "b ", "t", "{}", "{1,2}", "(1,2)", "(1,2),(3,4)", "[1,2)", "2026-01-02", "10:20:30",
    "2026-01-02 03:04:05", "P1D", "\\x00ff", "101", "<a/>", "127.0.0.1", "08:00:2b:01:02:03", "08:00:2b:01:02:03:04:05",
    "0/16B3748", "1..2", "a=>1", "a.b", "978-0-306-40615-7", "0-306-40615-7", "1436-4522", "M-2306-7118-7", "220356483481",
    "[2026-01-02,2026-01-03)", "(6378168,0,0)", "[1,2,3]", "{1:1,2:2}/3", "postgres=r/postgres", "pg_class", "sum(integer)",
    "=(integer,integer)", "!~~", "english", "C", "10:20:10,14", "6ecd8c99-4036-403d-bf84-cf8400f67836", '{"a": 1}',
    "<(1,2),3>", "((0,0),(1,1),(1,0))", "pg_monitor",
)  # fmt: skip
WITH_MODIFIERS: Final = (
    "character(3)", "character varying(3)", "numeric(5,2)", "bit(3)", "bit varying(3)", "time(0) without time zone",
    "timestamp(0) without time zone", "interval day to second(0)",
)  # fmt: skip
"""The modifier is no part of a key's text."""

VALUES_AT_MOST: Final = 4

USERS_TYPES: Final = f"""
CREATE SCHEMA {SCHEMA};
CREATE TYPE {SCHEMA}.letter AS ENUM ('b ', 'a', 'A', 'it''s');
CREATE FUNCTION {SCHEMA}.accepts(value text, type text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE pg_catalog.format('SELECT %L::%s', value, type);
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    RETURN false;
END $$;
CREATE TYPE {SCHEMA}.bare;
CREATE FUNCTION {SCHEMA}.bare_in(cstring) RETURNS {SCHEMA}.bare LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION {SCHEMA}.bare_out({SCHEMA}.bare) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'int4out';
CREATE TYPE {SCHEMA}.bare (INPUT = {SCHEMA}.bare_in, OUTPUT = {SCHEMA}.bare_out, LIKE = int4);
"""
"""`bare` is a base type as users make them: without a send function."""

_TYPES: Final = """
SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(t.typname) AS name,
       n.nspname = 'pg_catalog' AS is_built_in
FROM pg_catalog.pg_type AS t
JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
WHERE n.nspname IN ('pg_catalog', $1) AND t.typtype IN ('b', 'e', 'r', 'm', 'd') AND t.typisdefined
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_type AS e WHERE e.typarray = t.oid)
ORDER BY 2, 1
"""


@dataclass(frozen=True, slots=True)
class TypeTable:
    """`types` of the columns c0, c1, ...: the key's columns where `is_key`, else beside an `id`."""

    name: str
    types: tuple[str, ...]
    is_key: bool

    @property
    def columns(self) -> list[str]:
        return [f"c{index}" for index in range(len(self.types))]


async def create_types(sql: asyncpg.Connection) -> None:
    """The extensions of this server, and users' types of all kinds over what they bring."""
    await sql.execute(USERS_TYPES)
    for (extension,) in await sql.fetch("SELECT name FROM pg_available_extensions ORDER BY name"):
        if "pl" not in extension:  # languages bring no types
            await sql.execute(f"CREATE EXTENSION {quote_identifier(extension)} SCHEMA {SCHEMA} CASCADE")


async def _types(sql: asyncpg.Connection) -> tuple[dict[str, list[str]], list[str]]:
    """Literals by type, and types of which none is known."""
    literals, without = {}, []
    names = [(row["name"], row["is_built_in"]) for row in await sql.fetch(_TYPES, SCHEMA)]
    names += [(name, True) for name in WITH_MODIFIERS]
    for name, is_built_in in names:
        query = f"SELECT array_agg(l) FROM unnest($1::text[]) AS l WHERE {SCHEMA}.accepts(l, $2)"
        values = await sql.fetchval(query, [*LITERALS, "it's"], name)
        if values is None:
            without.append(name)
            continue
        literals[name] = values[:VALUES_AT_MOST]
        if not is_built_in:
            await _derive(sql, name, literals)
    return literals, without


async def _derive(sql: asyncpg.Connection, name: str, literals: dict[str, list[str]]) -> None:
    values = literals[name]
    short = name.partition(".")[2].strip('"')
    await sql.execute(
        f"CREATE DOMAIN {SCHEMA}.domain_{short} AS {name}; CREATE TYPE {SCHEMA}.pair_{short} AS (a {name}, b int)"
    )
    literals[f"{SCHEMA}.domain_{short}"] = values
    arrays = await sql.fetch("SELECT ARRAY[v]::text FROM unnest($1::text[]) AS v", values)
    literals[f"{name}[]"] = [row[0] for row in arrays]
    rows = await sql.fetch("SELECT ROW(v, 1)::text FROM unnest($1::text[]) AS v", values)
    literals[f"{SCHEMA}.pair_{short}"] = [row[0] for row in rows]
    if await is_ordered(sql, name, values):
        await sql.execute(f"CREATE TYPE {SCHEMA}.range_{short} AS RANGE (SUBTYPE = {name})")
        spans = await sql.fetch(
            f"SELECT {SCHEMA}.range_{short}(v::{name}, NULL)::text FROM unnest($1::text[]) v", values
        )
        literals[f"{SCHEMA}.range_{short}"] = [row[0] for row in spans]


async def is_ordered(sql: asyncpg.Connection, name: str, literals: list[str]) -> bool:
    """Whether a column of the type can be a key. An array can only be compared where its elements
    can."""
    try:
        async with sql.transaction():
            await sql.execute(f"CREATE TEMPORARY TABLE probe (k {name} PRIMARY KEY) ON COMMIT DROP")
            for literal in {literals[0], literals[-1]}:
                await sql.execute(f"INSERT INTO probe VALUES ({quoted(literal)}::{name}) ON CONFLICT DO NOTHING")
    except (asyncpg.UndefinedObjectError, asyncpg.UndefinedFunctionError):
        return False
    return True


def quoted(literal: str) -> str:
    return "'" + literal.replace("'", "''") + "'"


async def create_tables(sql: asyncpg.Connection, *, columns_at_most: int = 8) -> tuple[list[TypeTable], list[str]]:
    """Of every type with a literal; and the types without one. Types of pg_catalog share tables,
    others have their own, so that each is asked for alone."""
    literals, without = await _types(sql)
    extended = {row["name"] for row in await sql.fetch(_TYPES, SCHEMA) if not row["is_built_in"]}
    extended = {name for name in extended if not name.partition(".")[2].startswith(("domain_", "pair_", "range_"))}
    tables: list[TypeTable] = []
    for is_key in (True, False):
        names = [name for name in literals if not is_key or await is_ordered(sql, name, literals[name])]
        own = [name for name in names if is_key and name in extended]
        shared = [name for name in names if name not in own]
        groups: list[tuple[str, ...]] = [(name,) for name in own]
        groups += [tuple(shared[at : at + columns_at_most]) for at in range(0, len(shared), columns_at_most)]
        letter = "k" if is_key else "v"
        tables += [TypeTable(f"public.{letter}{number}", types, is_key) for number, types in enumerate(groups)]
    for table in tables:
        await _create(sql, table, literals)
    return tables, without


async def _create(sql: asyncpg.Connection, table: TypeTable, literals: dict[str, list[str]]) -> None:
    columns = [f"{column} {kind}" for column, kind in zip(table.columns, table.types, strict=True)]
    key = (
        f"PRIMARY KEY ({', '.join(table.columns)})"
        if table.is_key
        else "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    )
    await sql.execute(
        f"CREATE TABLE {table.name} ({', '.join(columns)}, n int, big text, {key});"
        f"ALTER TABLE {table.name} ALTER big SET STORAGE EXTERNAL"
    )
    count = max(len(literals[kind]) for kind in table.types)
    for number in range(count):
        row = ", ".join(f"{quoted(literals[kind][number % len(literals[kind])])}::{kind}" for kind in table.types)
        await sql.execute(
            f"INSERT INTO {table.name} ({', '.join(table.columns)}, n, big) VALUES ({row}, {number}, repeat('b', 2500)) "
            "ON CONFLICT DO NOTHING"
        )
