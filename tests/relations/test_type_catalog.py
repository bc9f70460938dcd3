"""Facts about types and identity from real catalogs, on the newest and on the oldest server."""

from __future__ import annotations

import asyncpg
import pytest

from gateway.relations.type_catalog import PRIMARY_KEY_QUERY, TYPES_QUERY, read_key, read_types, unknown_type
from schemas.relation import Kind, TypeFacts
from tests.conftest import Database

TYPES = """
CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'ok');
ALTER TYPE mood ADD VALUE 'fine' BEFORE 'ok';
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN positive_price AS price CHECK (value > 0);
CREATE TYPE pair AS (a int, gone text, "b c" price[]);
ALTER TYPE pair DROP ATTRIBUTE gone;
CREATE TYPE floatrange AS RANGE (subtype = float8);
CREATE TABLE t (id int, code text, n int, PRIMARY KEY (code, id));
CREATE TABLE covered (note text, id int, PRIMARY KEY (id) INCLUDE (note));
CREATE TABLE swappable (id int PRIMARY KEY DEFERRABLE);
"""


async def facts_of(connection: asyncpg.Connection, *names: str) -> list[TypeFacts]:
    oids = [await connection.fetchval("SELECT $1::regtype::oid::int8", name) for name in names]
    found = read_types([tuple(row) for row in await connection.fetch(TYPES_QUERY, oids)])
    return [found[oid] for oid in oids]


async def check_facts(database: Database) -> None:
    connection = await database.connect()
    try:
        await connection.execute(TYPES)
        mood, positive, pair, ranges, citext = await facts_of(
            connection, "mood", "positive_price", "pair", "floatmultirange[]", "citext"
        )
        assert (mood.kind, mood.namespace, mood.labels) == (Kind.ENUM, "public", ("sad", "fine", "ok"))
        assert positive.kind is Kind.DOMAIN
        assert positive.base is not None
        assert (positive.base.name, positive.base_typmod) == ("price", -1)
        assert positive.base.base is not None
        assert (positive.base.base.oid, positive.base.base_typmod) == (1700, (10 << 16 | 2) + 4)
        assert [(attribute.name, attribute.facts.name) for attribute in pair.attributes] == [
            ("a", "int4"),
            ("b c", "_price"),
        ]
        price_array = pair.attributes[1].facts
        assert (price_array.kind, price_array.element) == (Kind.ARRAY, positive.base)
        assert ranges.kind is Kind.ARRAY
        assert ranges.element is not None
        assert ranges.element.kind is Kind.MULTIRANGE
        assert ranges.element.element is not None
        assert (ranges.element.element.kind, ranges.element.element.name) == (Kind.RANGE, "floatrange")
        assert ranges.element.element.element is not None
        assert ranges.element.element.element.name == "float8"
        assert (citext.kind, citext.extension) == (Kind.BASE, "citext")
        point, int2vector, aclitem, boxes = await facts_of(connection, "point", "int2vector", "aclitem", "box[]")
        assert (point.kind, point.element, int2vector.kind) == (Kind.BASE, None, Kind.BASE)
        assert (aclitem.sends_binary, point.sends_binary, boxes.delimiter) == (False, True, ";")
        await check_the_rest(connection)
    finally:
        await connection.close()


async def check_the_rest(connection: asyncpg.Connection) -> None:
    assert read_types([tuple(row) for row in await connection.fetch(TYPES_QUERY, [999_999])]) == {}
    assert unknown_type(999_999).kind is Kind.UNKNOWN
    oid = await connection.fetchval("SELECT 't'::regclass::oid::int8")
    assert [row[0] for row in await connection.fetch(PRIMARY_KEY_QUERY, oid)] == ["id", "code"]
    oid = await connection.fetchval("SELECT 'covered'::regclass::oid::int8")
    assert [row[0] for row in await connection.fetch(PRIMARY_KEY_QUERY, oid)] == ["id"]
    oid = await connection.fetchval("SELECT 'swappable'::regclass::oid::int8")
    assert await connection.fetch(PRIMARY_KEY_QUERY, oid) == []
    assert await connection.fetch(PRIMARY_KEY_QUERY, 999_999) == []


@pytest.mark.integration
async def test_facts_of_the_newest_server(database: Database) -> None:
    await check_facts(database)


@pytest.mark.integration
async def test_facts_of_the_oldest_server(database_oldest: Database) -> None:
    await check_facts(database_oldest)


def test_a_part_that_was_dropped_while_the_catalog_was_read_is_unknown() -> None:
    of_array = (20001, "public", "_gone", "A", True, ",", 20000, -1, "", (), (), (), ())
    found = read_types([of_array])[20001]
    assert found.kind is Kind.ARRAY and found.element == unknown_type(20000)


def test_the_key_is_the_first_index_that_is_listed() -> None:
    assert read_key([("t_pkey", "b"), ("t_pkey", "a"), ("t_other", "c")]) == ["b", "a"]
    assert read_key([]) == []
