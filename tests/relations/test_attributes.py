"""Which attribute a column of a Relation message is: known, or not given."""

from __future__ import annotations

import asyncpg
import pytest

from gateway.relations.attributes import (
    ATTRIBUTES_QUERY,
    Attribute,
    are_explained,
    attribute_numbers,
    needs_earlier,
    read_attributes,
)
from tests.conftest import Database


def attributes(*names: str | None, generated: str = "", in_list: bool = False, **xids: int) -> list[Attribute]:
    """In the order of attnum; None: dropped. `xids`: of `dropped`, and of columns by name; 700
    else."""
    return [
        Attribute(number, name, name == generated, xids.get(name or "dropped", 700), None, in_list)
        for number, name in enumerate(names, 1)
    ]


def numbers(names: str, now: list[Attribute], xid: int | None = 800, earlier: str = "") -> dict[str, int]:
    """`names`: letters; `earlier`: letters with their numbers."""
    return attribute_numbers(list(names), now, xid, dict(zip(earlier[::2], map(int, earlier[1::2]), strict=True)))


def test_rows_of_the_query_are_attributes() -> None:
    assert read_attributes([(7, 1, None, False, 900, b"x", True)]) == {7: [Attribute(1, None, False, 900, b"x", True)]}


def test_columns_that_the_catalog_has_now_have_its_numbers() -> None:
    assert numbers("iab", attributes("i", None, "a", "b")) == {"i": 1, "a": 3, "b": 4}
    assert numbers("iab", attributes("i", None, "a", "b"), None) == {"i": 1, "a": 3, "b": 4}
    assert numbers("ia", attributes("i", "g", "a", generated="g")) == {"i": 1, "a": 3}
    assert numbers("iga", attributes("i", "g", "a", generated="g")) == {"i": 1, "g": 2, "a": 3}
    assert numbers("iba", attributes("i", "b", "a"), earlier="i1a2b3") == {"i": 1, "b": 2, "a": 3}
    assert numbers("ia", attributes("i", "a", "b")) == {"i": 1, "a": 2}  # b was added since


def test_a_name_that_another_column_has_now_depends_on_who_wrote_first() -> None:
    now = attributes("i", None, "a", dropped=900, a=900)
    assert needs_earlier(list("ia"), now, 899) and not needs_earlier(list("ia"), now, 900)
    assert not needs_earlier(list("iz"), now, 899)
    assert numbers("ia", now, 899, "i1a2") == {"i": 1, "a": 2}
    assert numbers("ia", now, 900, "i1a2") == {"i": 1, "a": 3}
    assert numbers("ia", now, 901, "i1a2") == {"i": 1, "a": 3}
    assert numbers("ia", now, None, "i1a2") == {"i": 1, "a": 3}
    assert numbers("ia", now, 899, "i1z2") == {"i": 1, "a": 3}  # dropped and added in a subtransaction of the message's
    wrapped = attributes("i", None, "a", dropped=5, a=5, i=5)
    assert numbers("ia", wrapped, 2**32 - 5, "i1a2") == {"i": 1, "a": 2}
    long_ago = attributes("i", None, "a", dropped=900 + 2**31)
    assert numbers("ia", long_ago, 899, "i1a2") == {"i": 1, "a": 3}


def test_what_was_changed_since_is_told_by_its_place() -> None:
    assert numbers("ia", attributes("i", "z", z=900)) == {"i": 1, "a": 2}
    assert numbers("iba", attributes("i", "a", "b", a=900, b=900)) == {"i": 1, "b": 2, "a": 3}
    assert numbers("iab", attributes("i", "z", None, "new", z=900, dropped=950, new=950)) == {"i": 1, "a": 2, "b": 3}
    assert numbers("ib", attributes("i", None, "z", z=900)) == {"i": 1, "b": 3}


def test_what_was_changed_by_the_transaction_of_the_message_may_be_behind_it() -> None:
    assert numbers("ia", attributes("i", "z", z=800)) == {"i": 1, "a": 2}
    assert numbers("ia", attributes("i", None, "q", dropped=800, q=800)) == {"i": 1, "a": 2}
    assert numbers("iq", attributes("i", None, "q", dropped=800, q=800)) == {"i": 1, "q": 3}


def test_what_is_not_known_has_no_number() -> None:
    assert numbers("ia", []) == {}
    assert needs_earlier(list("ia"), [], 800) and numbers("ia", [], 800, "i1z2") == {"i": 1}  # dropped
    assert numbers("ic", attributes("i", "a", "c", in_list=True)) == {}
    assert numbers("iac", attributes("i", "a")) == {"i": 1, "a": 2}  # c: of a transaction that has not committed
    assert numbers("ib", attributes("i", "a", "b")) == {"i": 1, "b": 3}
    assert numbers("iba", attributes("i", "a", "b")) == {"i": 1}  # b and a: their names have been exchanged
    assert numbers("ixa", attributes("i", "a")) == numbers("ixa", [], earlier="i1a2") == {"i": 1}  # a was renamed to x
    assert numbers("ixb", attributes("i", "a", "b")) == {"i": 1, "b": 3}  # a was renamed to x


@pytest.mark.parametrize(
    ("names", "now", "is_explained"),
    [
        ("ia", attributes("i", "a"), True),
        ("ia", attributes("i", "a", in_list=True), True),
        ("i", attributes("i", "a", in_list=True), True),
        ("ia", attributes("i", "g", "a", generated="g"), True),
        ("ia", attributes("i", "a", "b", b=900), True),  # added later
        ("ia", attributes("i", "z", z=800), True),  # renamed behind the message, and committed
        ("ix", attributes("i", "a"), False),
        ("ixa", attributes("i", "a"), False),
        ("iax", attributes("i", "a"), False),
        ("iba", attributes("i", "a", "b"), False),
        ("ib", attributes("i", "a", "b"), False),
        ("ia", attributes("i", "a", "b"), False),  # perhaps the former b
        ("ia", [], False),
    ],
)
def test_only_what_the_catalog_shows_is_explained(names: str, now: list[Attribute], is_explained: bool) -> None:
    assert are_explained(list(names), now, 800) is is_explained


SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'it''s ok');
CREATE TABLE t (id int PRIMARY KEY, gone text);
INSERT INTO t VALUES (1);
ALTER TABLE t DROP gone, ADD half int GENERATED ALWAYS AS (id / 2) STORED;
ALTER TABLE t ADD words text DEFAULT 'a, "b" {c}', ADD many int[] DEFAULT '{1,NULL}', ADD m mood DEFAULT 'it''s ok',
    ADD at timestamptz DEFAULT '2026-01-02 03:04:05+02', ADD empty text DEFAULT '', ADD b box DEFAULT '((0,0),(1,1))',
    ADD nothing text;
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE part2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
ALTER TABLE parted ADD same text DEFAULT 'x';
ALTER TABLE parted ADD later int;
CREATE TABLE rewritten (id int);
INSERT INTO rewritten VALUES (1);
ALTER TABLE rewritten ADD c int DEFAULT 7;
"""


async def found_of(connection: asyncpg.Connection, table: str) -> list[Attribute]:
    oid = await connection.fetchval("SELECT $1::text::regclass::oid::int8", table)
    return read_attributes([tuple(row) for row in await connection.fetch(ATTRIBUTES_QUERY, [oid])])[oid]


async def check(database: Database) -> None:
    connection = await database.connect()
    try:
        await connection.execute("SET TimeZone = 'UTC'")
        await connection.execute(SETUP)
        found = await found_of(connection, "t")
        assert [each.number for each in found] == list(range(1, 11))
        assert [each.name for each in found[:4]] == ["id", None, "half", "words"]
        assert [each.name for each in found if each.is_generated] == ["half"]
        assert {each.name: each.missing for each in found if each.missing is not None} == {
            "words": b'a, "b" {c}', "many": b"{1,NULL}", "m": b"it's ok", "at": b"2026-01-02 01:04:05+00", "empty": b"",
            "b": b"(1,1),(0,0)",
        }  # fmt: skip
        await connection.execute("VACUUM FULL rewritten")
        assert [each.missing for each in await found_of(connection, "rewritten")] == [None, None]
        parted = {each.name: each.missing for each in await found_of(connection, "parted")}
        assert parted == {"id": None, "same": b"x", "later": None}
        await connection.execute("CREATE PUBLICATION p FOR TABLE t")
        assert not any(each.is_in_list for each in await found_of(connection, "t"))
        if connection.get_server_version().major >= 15:
            await connection.execute("ALTER PUBLICATION p SET TABLE t (id, many)")
            assert all(each.is_in_list for each in await found_of(connection, "t"))
        assert await connection.fetch(ATTRIBUTES_QUERY, [999_999]) == []
    finally:
        await connection.close()


@pytest.mark.integration
async def test_attributes_of_the_newest_server(database: Database) -> None:
    await check(database)


@pytest.mark.integration
async def test_attributes_of_the_oldest_server(database_oldest: Database) -> None:
    await check(database_oldest)
