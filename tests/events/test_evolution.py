"""Relations that change in mid-stream and mid-transaction, through a real slot, in text and in
binary.

Every case has rows before, during and after. Each event is read with its own schema and with every
other version of its topic: old events with new schemas, new events with old ones, by the reader's
own resolution.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import uuid4

import asyncpg
import fastavro
import pytest
import pytest_asyncio
from fastavro.read import SchemaResolutionError

from schemas.change_schema import change_schema
from schemas.compatibility import incompatible_columns
from schemas.topic_names import avro_namespace
from tests.conftest import Database
from tests.values.oracle import Record, Stream, read_avro, text_of

pytestmark = pytest.mark.integration


@dataclass(slots=True)
class Source:
    """A database with a slot on a publication `p`, which the case makes or else holds all
    tables."""

    connection: asyncpg.Connection
    stream: Stream

    async def run(self, *statements: str, publication: str = "CREATE PUBLICATION p FOR ALL TABLES") -> list[Record]:
        """The records of these statements, the same from text and from binary. The tables of
        `setup` come first."""
        await self.connection.execute(publication)
        for statement in statements:
            await self.connection.execute(statement)
        text, binary = await self.stream.both()
        assert [(record.key, record.value) for record in text] == [(record.key, record.value) for record in binary]
        return binary


@pytest_asyncio.fixture
async def source(database: Database) -> AsyncIterator[Source]:
    connection = await database.connect()
    stream = Stream(connection, f"evolution_{uuid4().hex[:8]}", "p")
    await stream.start()
    yield Source(connection, stream)
    await connection.close()


def afters(records: list[Record]) -> list[dict[str, str | None]]:
    """The rows of the inserts and updates, as PostgreSQL text."""
    rows = [record.event["after"] for record in records if record.event["after"] is not None]
    return [{name: text_of(value) for name, value in row.items()} for row in rows]


def versions(records: list[Record]) -> list[dict[str, Any]]:
    """The value schemas in the order of their first use, through JSON as from a registry."""
    texts = dict.fromkeys(json.dumps(change_schema(record.description, "cdc")) for record in records)
    return [json.loads(text) for text in texts]


def assert_readable_across_versions(records: list[Record], *, forward: bool = True) -> None:
    """Each event with each version of its relation: what both know is equal, what the writer did
    not know is null.

        Not `forward`: a wider type, which an older schema cannot read; a reader is told so and never
        given a wrong value.
    """
    schemas = versions(records)
    for old, new in pairwise(schemas):
        if old["namespace"] == new["namespace"]:
            assert incompatible_columns(old, new) == []
    parsed = [fastavro.parse_schema(schema) for schema in schemas]
    for record in records:
        description = record.description
        namespace = avro_namespace("cdc", description.namespace, description.name)
        writer = fastavro.parse_schema(json.loads(json.dumps(change_schema(description, "cdc"))))
        own = schemas.index(json.loads(json.dumps(change_schema(description, "cdc"))))
        for place, (schema, reader) in enumerate(zip(schemas, parsed, strict=True)):
            if schema["namespace"] != namespace:
                continue
            if place < own and not forward:
                with pytest.raises(SchemaResolutionError):
                    read_avro(record.value, writer, reader)
            else:
                _assert_same(record.event, read_avro(record.value, writer, reader))


def _assert_same(written: dict[str, Any], read: dict[str, Any]) -> None:
    for name, value in written.items():
        if name in ("old_key", "before", "after") and value is not None:
            assert read[name] == {column: value.get(column) for column in read[name]}
        else:
            assert read[name] == value, name


COMPATIBLE = {
    "add a column in mid-transaction": (
        ["CREATE TABLE t (id int PRIMARY KEY)"],
        ["BEGIN", "INSERT INTO t VALUES (1)", "ALTER TABLE t ADD more text", "INSERT INTO t VALUES (2, 'x')", "COMMIT",
         "INSERT INTO t VALUES (3, 'y')"],
        [{"id": "1"}, {"id": "2", "more": "x"}, {"id": "3", "more": "y"}],
    ),
    "add a column with a default": (
        ["CREATE TABLE t (id int PRIMARY KEY)"],
        ["INSERT INTO t VALUES (1)", "ALTER TABLE t ADD more int NOT NULL DEFAULT 7", "INSERT INTO t VALUES (2)",
         "UPDATE t SET more = 8 WHERE id = 1"],
        [{"id": "1"}, {"id": "2", "more": "7"}, {"id": "1", "more": "8"}],
    ),
    "drop a column in mid-transaction": (
        ["CREATE TABLE t (id int PRIMARY KEY, gone text, stays text)"],
        ["BEGIN", "INSERT INTO t VALUES (1, 'a', 'b')", "ALTER TABLE t DROP gone", "INSERT INTO t VALUES (2, 'c')",
         "COMMIT", "INSERT INTO t VALUES (3, 'd')"],
        [{"id": "1", "gone": "a", "stays": "b"}, {"id": "2", "stays": "c"}, {"id": "3", "stays": "d"}],
    ),
    "rename a column": (
        ["CREATE TABLE t (id int PRIMARY KEY, old text)"],
        ["INSERT INTO t VALUES (1, 'a')", "BEGIN", "ALTER TABLE t RENAME old TO new", "INSERT INTO t VALUES (2, 'b')",
         "COMMIT", "INSERT INTO t VALUES (3, 'c')"],
        [{"id": "1", "old": "a"}, {"id": "2", "new": "b"}, {"id": "3", "new": "c"}],
    ),
    "int4 to int8": (
        ["CREATE TABLE t (id int PRIMARY KEY, n int)"],
        ["INSERT INTO t VALUES (1, 5)", "BEGIN", "ALTER TABLE t ALTER n TYPE int8",
         "INSERT INTO t VALUES (2, 1099511627776)", "COMMIT", "INSERT INTO t VALUES (3, -1)"],
        [{"id": "1", "n": "5"}, {"id": "2", "n": "1099511627776"}, {"id": "3", "n": "-1"}],
    ),
    "varchar to text, a wider numeric": (
        ["CREATE TABLE t (id int PRIMARY KEY, v varchar(5), n numeric(5,2))"],
        ["INSERT INTO t VALUES (1, 'a', 1.5)", "ALTER TABLE t ALTER v TYPE text, ALTER n TYPE numeric(9,2)",
         "INSERT INTO t VALUES (2, 'longer now', 1.25)"],
        [{"id": "1", "v": "a", "n": "1.50"}, {"id": "2", "v": "longer now", "n": "1.25"}],
    ),
    "rename the table in mid-transaction": (
        ["CREATE TABLE t (id int PRIMARY KEY)"],
        ["BEGIN", "INSERT INTO t VALUES (1)", "ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (2)", "COMMIT",
         "INSERT INTO u VALUES (3)"],
        [{"id": "1"}, {"id": "2"}, {"id": "3"}],
    ),
    "another key": (
        ["CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE)"],
        ["INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key",
         "UPDATE t SET id = 2", "UPDATE t SET code = 'b'", "ALTER TABLE t DROP CONSTRAINT t_pkey",
         "ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET code = 'c'"],
        [{"id": "1", "code": "a"}, {"id": "2", "code": "a"}, {"id": "2", "code": "b"}, {"id": "2", "code": "c"}],
    ),
    "an enum with a new label in mid-transaction": (
        ["CREATE TYPE mood AS ENUM ('sad')", "CREATE TABLE t (id int PRIMARY KEY, m mood)"],
        ["INSERT INTO t VALUES (1, 'sad')", "ALTER TYPE mood ADD VALUE 'ok'", "INSERT INTO t VALUES (2, 'ok')"],
        [{"id": "1", "m": "sad"}, {"id": "2", "m": "ok"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPATIBLE)
async def test_events_of_all_versions_are_readable(case: str, source: Source) -> None:
    setup, statements, expected = COMPATIBLE[case]
    records = await source.run(*setup, *statements)
    assert afters(records) == expected
    assert_readable_across_versions(records, forward=case != "int4 to int8")


INCOMPATIBLE = {
    "text to int by USING": (
        ["CREATE TABLE t (id int PRIMARY KEY, c text)", "INSERT INTO t VALUES (1, '12')",
         "ALTER TABLE t ALTER c TYPE int USING c::int", "INSERT INTO t VALUES (2, 13)"],
        ["text (string)", "int4 (int)"],
    ),
    "dropped and added again with another type": (
        ["CREATE TABLE t (id int PRIMARY KEY, c text)", "BEGIN", "INSERT INTO t VALUES (1, '12')", "ALTER TABLE t DROP c",
         "ALTER TABLE t ADD c date", "INSERT INTO t VALUES (2, '2026-01-02')", "COMMIT"],
        ["text (string)", "date (date)"],
    ),
    "the table made anew with other types": (
        ["CREATE TABLE t (id int PRIMARY KEY, c numeric(10,2))", "INSERT INTO t VALUES (1, 1.5)", "DROP TABLE t",
         "CREATE TABLE t (id int PRIMARY KEY, c numeric(10,4))", "INSERT INTO t VALUES (2, 1.25)"],
        ["numeric (decimal(10,2))", "numeric (decimal(10,4))"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INCOMPATIBLE)
async def test_an_incompatible_change_is_found_and_loses_nothing(case: str, source: Source) -> None:
    statements, (old_type, new_type) = INCOMPATIBLE[case]
    records = await source.run(*statements)
    old, new = versions(records)
    (change,) = incompatible_columns(old, new)
    assert (change.column, change.old_type, change.new_type) == ("c", old_type, new_type)
    assert [row["id"] for row in afters(records)] == ["1", "2"]
    assert None not in [row["c"] for row in afters(records)]


async def test_the_four_replica_identities_give_what_they_promise(source: Source) -> None:
    change = "UPDATE t SET code = code || '!'; UPDATE t SET id = id + 1; DELETE FROM t"
    insert = "INSERT INTO t VALUES (1, 'a', 'x')"
    records = await source.run(
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL UNIQUE, note text)",
        insert, change,
        "ALTER TABLE t REPLICA IDENTITY FULL", insert, change,
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key", insert, change,
        "ALTER TABLE t REPLICA IDENTITY NOTHING", insert,
    )  # fmt: skip
    told = [
        (r.description.replica_identity.name, r.kind, r.key_event, r.event["old_key"], r.event["before"])
        for r in records
    ]
    first, changed, moved = (
        {"id": 1, "code": "a", "note": "x"}, {"id": 1, "code": "a!", "note": "x"}, {"id": 2, "code": "a!", "note": "x"}
    )  # fmt: skip
    assert told == [
        ("DEFAULT", "I", {"id": 1}, None, None),
        ("DEFAULT", "U", {"id": 1}, None, None),
        ("DEFAULT", "moved", {"id": 1}, {"id": 1}, None),
        ("DEFAULT", "U", {"id": 2}, {"id": 1}, None),
        ("DEFAULT", "D", {"id": 2}, {"id": 2}, None),
        ("FULL", "I", {"id": 1}, None, None),
        ("FULL", "U", {"id": 1}, None, first),
        ("FULL", "moved", {"id": 1}, None, changed),
        ("FULL", "U", {"id": 2}, None, changed),
        ("FULL", "D", {"id": 2}, None, moved),
        ("INDEX", "I", {"code": "a"}, None, None),
        ("INDEX", "moved", {"code": "a"}, {"code": "a"}, None),
        ("INDEX", "U", {"code": "a!"}, {"code": "a"}, None),
        ("INDEX", "U", {"code": "a!"}, None, None),
        ("INDEX", "D", {"code": "a!"}, {"code": "a!"}, None),
        ("NOTHING", "I", None, None, None),
    ]
    assert_readable_across_versions(records)


async def test_full_without_primary_key_has_no_key_but_the_whole_row(source: Source) -> None:
    records = await source.run(
        "CREATE TABLE t (a int, b text)", "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (1, NULL)",
        "UPDATE t SET b = 'x'", "DELETE FROM t",
    )  # fmt: skip
    assert [record.key for record in records] == [None] * 3
    assert [record.event["before"] for record in records] == [None, {"a": 1, "b": None}, {"a": 1, "b": "x"}]


async def test_a_toasted_column_that_did_not_change_is_named(source: Source) -> None:
    big = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) i"
    records = await source.run(
        "CREATE TABLE t (id int PRIMARY KEY, big text, n int)", "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t VALUES (1, ({big}), 1)", "UPDATE t SET n = 2", "UPDATE t SET id = 2", "UPDATE t SET big = NULL",
        "ALTER TABLE t REPLICA IDENTITY FULL", f"UPDATE t SET big = ({big})", "UPDATE t SET n = 3", "DELETE FROM t",
    )  # fmt: skip
    unchanged = [record.event["unchanged"] for record in records]
    # Under FULL the server puts the stored value into the old tuple, and since 15 into the new one
    # too.
    assert unchanged[:5] == [[], ["big"], [], ["big"], []]
    stored = records[0].event["after"]["big"]
    assert len(stored) == 12_800
    update, gone = records[-2].event, records[-1].event
    assert update["before"]["big"] == stored
    assert update["after"]["big"] == stored or update["unchanged"] == ["big"]
    assert gone["before"] == {"id": 2, "big": stored, "n": 3}


@pytest.mark.parametrize("via_root", [False, True])
async def test_partitions_are_relations_of_their_own_or_their_root(via_root: bool, source: Source) -> None:
    records = await source.run(
        "CREATE TABLE t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 (note text, id int NOT NULL)", "ALTER TABLE t1 ADD PRIMARY KEY (id)",
        "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (1) TO (10)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1, 'a'), (11, 'b')", "UPDATE t SET id = 12 WHERE id = 1",
        "ALTER TABLE t DETACH PARTITION t2", "INSERT INTO t2 VALUES (13, 'c')", "INSERT INTO t VALUES (2, 'd')",
        publication=f"CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = {via_root})",
    )  # fmt: skip
    names = [record.description.name for record in records]
    told = [(record.kind, record.key_event) for record in records]
    assert told == [
        ("I", {"id": 1}), ("I", {"id": 11}), ("D", {"id": 1}), ("I", {"id": 12}), ("I", {"id": 13}), ("I", {"id": 2})
    ]  # fmt: skip
    assert names == (["t", "t", "t", "t", "t2", "t"] if via_root else ["t1", "t2", "t1", "t2", "t2", "t1"])
    assert afters(records)[0] == {"id": "1", "note": "a"}


async def test_stored_generated_columns_are_sent_where_published(source: Source) -> None:
    records = await source.run(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)", "INSERT INTO t VALUES (4)",
        "ALTER PUBLICATION p SET (publish_generated_columns = none)", "INSERT INTO t VALUES (5)",
        publication="CREATE PUBLICATION p FOR ALL TABLES WITH (publish_generated_columns = stored)",
    )  # fmt: skip
    # A slot that is peeked at later reads the publication as it was at each change.
    assert afters(records) == [{"id": "4", "twice": "8"}, {"id": "5"}]
    assert_readable_across_versions(records)


async def test_column_lists_and_row_filters_send_what_they_say(source: Source) -> None:
    records = await source.run(
        "CREATE TABLE t (id int PRIMARY KEY, shown text, hidden text)",
        "CREATE PUBLICATION q FOR TABLE t (id, shown) WHERE (id > 10)", "DROP PUBLICATION p", "ALTER PUBLICATION q RENAME TO p",
        "INSERT INTO t VALUES (1, 'a', 'secret'), (11, 'b', 'secret')", "UPDATE t SET id = 12 WHERE id = 1",
        "UPDATE t SET shown = 'c' WHERE id = 11", "UPDATE t SET id = 2 WHERE id = 11",
    )  # fmt: skip
    told = [(record.kind, record.event["after"]) for record in records]
    assert told == [
        ("I", {"id": 11, "shown": "b"}), ("I", {"id": 12, "shown": "a"}), ("U", {"id": 11, "shown": "c"}), ("D", None)
    ]  # fmt: skip


ODD_NAMES = [
    "a b",
    "a_b",
    "a.b",
    "a-b",
    'a"b',
    "Ab",
    "ab",
    "AB",
    "é",
    "e\u0301",
    "\U0001f40d",
    "1st",
    "_x0020_",
    " ",
    "select",
    "x" * 63,
]


async def test_columns_may_have_any_name(source: Source) -> None:
    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    columns = ", ".join(f"{quoted(name)} int" for name in ODD_NAMES)
    table = quoted('My "Täble". x')
    records = await source.run(
        f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({quoted(ODD_NAMES[0])}, {quoted(ODD_NAMES[-1])}))",
        f"INSERT INTO {table} VALUES ({', '.join(str(number) for number in range(len(ODD_NAMES)))})",
        f"DELETE FROM {table}",
    )
    schema = change_schema(records[0].description, "cdc")
    (before,) = (field["type"][1] for field in schema["fields"] if field["name"] == "before")
    true_names = {field["name"]: field.get("pg.name", field["name"]) for field in before["fields"]}
    after = records[0].event["after"]
    assert {true_names[name]: value for name, value in after.items()} == {name: at for at, name in enumerate(ODD_NAMES)}
    assert schema["pg.relation"]["name"] == 'My "Täble". x'


async def test_a_table_may_have_1600_columns_or_none(source: Source) -> None:
    columns = ", ".join(f"c{number} int2" for number in range(1599))
    records = await source.run(
        f"CREATE TABLE wide (id int PRIMARY KEY, {columns})", "INSERT INTO wide (id, c0, c1598) VALUES (1, 2, 3)",
        "CREATE TABLE nothing ()", "INSERT INTO nothing DEFAULT VALUES",
    )  # fmt: skip
    wide, nothing = records
    assert {name: value for name, value in wide.event["after"].items() if value is not None} == {
        "id": 1,
        "c0": 2,
        "c1598": 3,
    }
    assert len(wide.event["after"]) == 1600
    assert nothing.event["after"] == {}


async def test_values_of_ten_megabytes_pass(source: Source) -> None:
    records = await source.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, b bytea)",
        "INSERT INTO t VALUES (1, repeat('é', 5 * 1024 * 1024), decode(repeat('00ff', 5 * 1024 * 1024), 'hex'))",
    )
    after = records[0].event["after"]
    assert after["v"] == "é" * (5 * 1024 * 1024)
    assert after["b"] == b"\0\xff" * (5 * 1024 * 1024)


async def test_a_type_that_was_dropped_meanwhile_is_text(source: Source) -> None:
    await source.connection.execute(
        "CREATE PUBLICATION p FOR ALL TABLES; CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN price AS numeric(8,2); "
        "CREATE TABLE t (id int PRIMARY KEY, m mood, p price, ms mood[]); INSERT INTO t VALUES (1, 'ok', 1.5, '{sad}');"
        "DROP TABLE t; DROP TYPE mood; DROP DOMAIN price"
    )
    (record,) = await source.stream.take(binary=False)
    assert record.event["after"] == {"id": 1, "m": "ok", "p": "1.50", "ms": "{sad}"}
    assert [column.facts.kind.value for column in record.description.columns] == [
        "base",
        "unknown",
        "unknown",
        "unknown",
    ]
    assert record.description.columns[1].facts.name == "mood"


async def test_a_truncate_of_several_tables_is_one_record_for_each(source: Source) -> None:
    records = await source.run(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY REFERENCES t)", "INSERT INTO t VALUES (1)",
        "TRUNCATE t, u",
    )  # fmt: skip
    assert [(record.description.name, record.event["op"]) for record in records] == [
        ("t", "INSERT"), ("t", "TRUNCATE"), ("u", "TRUNCATE")
    ]  # fmt: skip
