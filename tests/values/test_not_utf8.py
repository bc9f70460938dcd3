"""Text that is not UTF-8, which a UTF8 database may hold all the same: readers get valid strings,
and can tell."""

from __future__ import annotations

import io
import struct
from typing import Any

import asyncpg
import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.pgoutput.tuple_data import Binary, Text, TupleValue
from gateway.snapshot.sql import KeyColumn, key_condition
from gateway.values.special_values import special_text
from schemas.change_schema import change_schema, key_schema
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts
from schemas.wire_format import FRAME_BYTES
from tests.conftest import Database
from tests.events.rows import facts
from tests.pgoutput.writer import write_tuple_data
from tests.values.oracle import Stream, column_text

TEXT = facts(25, "text")
TEXTS = TypeFacts(1009, "pg_catalog", "_text", Kind.ARRAY, element=TEXT)
CONTEXT = TransactionContext(771, -1, 3, 8, 8, None)
INVALID = b"caf\xe9"
ESCAPED = "\0\\x636166e9"

texts = st.binary(max_size=8).map(lambda value: value.replace(b"\0", b"")) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8
).map(str.encode)


def relation(*columns: TypeFacts) -> RelationDescription:
    """The first column is the key."""
    described = tuple(ColumnDescription(f"c{n}", each, -1, n == 0) for n, each in enumerate(columns))
    return RelationDescription(1, "public", "t", ReplicaIdentity.DEFAULT, described)


def encoded(description: RelationDescription, row: tuple[TupleValue, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(key, event) as fastavro reads them."""
    data = b"N" + write_tuple_data(row)
    key, value = RowEncoder(description, 1, 2).insert(data, 0, len(data), CONTEXT, 8, 0)
    assert key is not None
    return read(key, key_schema(description, "cdc")), read(value, change_schema(description, "cdc"))


def read(record: bytes, schema: Any) -> dict[str, Any]:
    found: Any = fastavro.schemaless_reader(io.BytesIO(record[FRAME_BYTES:]), fastavro.parse_schema(schema), None)
    return dict(found)


@pytest.mark.parametrize("form", [Text, Binary])
@given(key=texts, rest=st.lists(texts, max_size=7))
def test_every_text_is_read_as_it_was(form: type[Text | Binary], key: bytes, rest: list[bytes]) -> None:
    """Alone, and in runs of neighbours; as a value and as a key."""
    description = relation(TEXT, *[TEXT] * len(rest))
    key_event, event = encoded(description, tuple(form(value) for value in (key, *rest)))
    assert key_event == {"c0": special_text(key).decode()}
    for index, value in enumerate((key, *rest)):
        name = f"c{index}"
        shown = event["after"][name]
        if shown is None:
            escaped = event["special"][name]
            assert escaped[:3] == "\0\\x" and bytes.fromhex(escaped[3:]) == value
        else:
            assert shown.encode() == value and name not in event["special"]


@given(texts, texts)
def test_two_texts_are_two_keys(one: bytes, other: bytes) -> None:
    assert (special_text(one) == special_text(other)) == (one == other)
    special_text(one).decode()


def test_what_holds_such_a_text_is_special_as_a_whole() -> None:
    array = struct.pack("!iiIii", 1, 0, 25, 2, 1) + struct.pack("!i", 1) + b"a" + struct.pack("!i", 4) + INVALID
    for value in (Text(b"{a,caf\xe9}"), Binary(array)):
        _, event = encoded(relation(TEXT, TEXTS), (type(value)(b"k"), value))
        assert event["after"] == {"c0": "k", "c1": None}
        assert event["special"] == {"c1": "\0\\x" + b"{a,caf\xe9}".hex()}


NOT_CHECKED = """
CREATE TYPE pair AS (a int4, b text);
CREATE TABLE t (id int4 PRIMARY KEY, v text, vs text[], p pair, n name, c varchar(20));
CREATE TABLE keyed (v text PRIMARY KEY, w int4);
CREATE CAST (bytea AS text) WITHOUT FUNCTION;
CREATE PUBLICATION everything FOR ALL TABLES;
"""


async def test_what_the_newest_server_sends_unchecked_is_read_by_stock_readers(database: Database) -> None:
    await check(database)


async def test_what_the_oldest_server_sends_unchecked_is_read_by_stock_readers(database_oldest: Database) -> None:
    await check(database_oldest)


async def check(database: Database) -> None:
    """Judged by the server's own bytes: textsend, array_out, record_out."""
    sql = await database.connect()
    await sql.execute(NOT_CHECKED)
    stream = Stream(sql, f"not_utf8_{sql.get_server_pid()}", "everything")
    await stream.start()
    await sql.execute(
        "INSERT INTO t SELECT 1, v, ARRAY['a', v], ROW(1, v)::pair, 'n', v FROM (SELECT $1::bytea::text AS v) s",
        INVALID,
    )
    await sql.execute("INSERT INTO keyed SELECT $1::bytea::text, 1", INVALID)
    assert await rows_with_key(sql, ESCAPED) == await rows_with_key(sql, "other", ESCAPED) == 1
    await sql.execute("UPDATE keyed SET w = 2; UPDATE keyed SET v = 'valid'; DELETE FROM keyed")
    true = await sql.fetchrow(
        "SELECT textsend(v), textsend(array_out(vs)::text), textsend(record_out(p)::text), textsend(c) FROM t"
    )
    assert true is not None
    for records in await stream.both():
        row, insert, update, moved, renamed, delete = records
        for column, value in zip(("v", "vs", "p", "c"), true, strict=True):
            assert column_text(row.event, column) == "\0\\x" + bytes(value).hex(), column
        assert row.event["after"]["n"] == "n"
        assert [each.key_event for each in (insert, update, moved)] == [{"v": ESCAPED}] * 3
        assert moved.event["old_key"] == {"v": ESCAPED}
        assert [each.key_event for each in (renamed, delete)] == [{"v": "valid"}] * 2


async def rows_with_key(sql: asyncpg.Connection, *keys: str) -> int:
    """The number of rows that a snapshot finds when it reads these keys of `keyed` again."""
    schema: Any = fastavro.parse_schema({"type": "record", "name": "Key", "fields": [{"name": "v", "type": "string"}]})
    written = []
    for key in keys:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"v": key})
        written.append(out.getvalue())
    condition = key_condition("keyed", [KeyColumn("v", "text", is_text=True)], schema, written)
    found = await sql.fetchval(f"SELECT count(*) FROM keyed WHERE {condition}")
    return int(found)
