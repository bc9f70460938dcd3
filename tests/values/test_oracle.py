"""Every PostgreSQL type, generated values, text and binary: what a stock Avro reader gets is what
PostgreSQL meant.

For each type its own table; hypothesis makes literals, the server keeps those that it accepts, a
slot gives them back in both wire forms, fastavro reads our records, and the server compares. A
difference names the literal.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.events.errors import UnknownBinary
from gateway.local import Postgres
from gateway.values.column_codec import has_binary_decoder
from tests.values import literals as lit
from tests.values.oracle import Record, Stream, column_text

SEED = int(os.environ.get("WALGATE_TEST_SEED", random.randrange(2**32)))
SHORT_COUNT, RARE_COUNT, LONG_COUNT = 40, 5, 600
"""Values a type in `make test`, and in `make long`."""
TEXT_ONLY = frozenset({"aclitem"})
"""Without a send function: sent as text among binary columns; its array cannot be sent in binary at
all."""


@dataclass(frozen=True, slots=True)
class Case:
    """`cast`: the type without typmod to compare in, so that a cast cannot round a difference away.

    `shown`: how the server writes a value. xml's output function leaves the encoding out, its cast
    to text does not.
    """

    type: str
    literals: SearchStrategy[str]
    cast: str = ""
    since: int = 14
    extension: str = ""
    shown: str = "({})::text"


CASES = [
    Case("bool", lit.boolean),
    Case("int2", lit.integers(-(2**15), 2**15 - 1)),
    Case("int4", lit.integers(-(2**31), 2**31 - 1)),
    Case("int8", lit.integers(-(2**63), 2**63 - 1)),
    Case("oid", lit.integers(0, 2**32 - 1)),
    Case("xid", lit.integers(0, 2**32 - 1)),
    Case("xid8", lit.integers(0, 2**64 - 1)),
    Case("cid", lit.integers(0, 2**32 - 1)),
    Case("float4", lit.float4),
    Case("float8", lit.float8),
    Case("numeric", lit.numeric),
    Case("numeric(12,2)", lit.decimal(12, 2), "numeric"),
    Case("numeric(1,0)", lit.decimal(1, 0), "numeric"),
    Case("numeric(5,5)", lit.decimal(5, 5), "numeric"),
    Case("numeric(18,4)", lit.decimal(18, 4), "numeric"),
    Case("numeric(38,0)", lit.decimal(38, 0), "numeric"),
    Case("numeric(38,10)", lit.decimal(38, 10), "numeric"),
    Case("numeric(38,38)", lit.decimal(38, 38), "numeric"),
    Case("numeric(39,2)", lit.decimal(39, 2), "numeric"),
    Case("numeric(1000,500)", lit.decimal(1000, 500), "numeric"),
    Case("numeric(3,-2)", lit.decimal(3, -2), "numeric", since=15),
    Case("numeric(3,5)", lit.decimal(3, 5), "numeric", since=15),
    Case("text", lit.text),
    Case("varchar(20)", lit.text, "varchar"),
    Case("bpchar(10)", lit.text, "bpchar"),
    Case("name", lit.text),
    Case('"char"', st.characters(min_codepoint=1, max_codepoint=127) | st.just("")),
    Case('"char"', st.integers(128, 255).map(lambda byte: f"\\{byte:03o}"), since=16),
    Case("bytea", lit.bytea),
    Case("uuid", lit.uuid),
    Case("json", lit.json_text),
    Case("jsonb", lit.json_text),
    Case("jsonpath", lit.jsonpath),
    Case("xml", lit.xml, shown="format('%s', {})"),
    Case("date", lit.date),
    Case("time", lit.time),
    Case("time(2)", lit.time, "time"),
    Case("timetz", lit.timetz),
    Case("timestamp", lit.timestamp),
    Case("timestamp(0)", lit.timestamp.filter(lambda text: not text.startswith("2942")), "timestamp"),
    Case("timestamptz", lit.timestamptz),
    Case("interval", lit.interval),
    Case("inet", lit.inet),
    Case("cidr", lit.cidr),
    Case("macaddr", lit.macaddr),
    Case("macaddr8", lit.macaddr8),
    Case("bit(9)", lit.bits(9, 9), "varbit"),
    Case("varbit", lit.bits(0, 70)),
    Case("money", lit.money),
    Case("point", lit.point),
    Case("lseg", lit.lseg),
    Case("box", lit.box),
    Case("path", lit.path),
    Case("polygon", lit.polygon),
    Case("line", lit.line),
    Case("circle", lit.circle),
    Case("tsvector", lit.tsvector),
    Case("tsquery", lit.tsquery),
    Case("pg_lsn", lit.pg_lsn),
    Case("tid", lit.tid),
    Case("pg_snapshot", lit.snapshot),
    Case("txid_snapshot", lit.snapshot),
    Case("int2vector", st.lists(lit.integers(-(2**15), 2**15 - 1), max_size=5).map(" ".join)),
    Case("oidvector", st.lists(lit.integers(0, 2**32 - 1), max_size=5).map(" ".join)),
    Case("refcursor", lit.text),
    Case("regclass", st.sampled_from(["pg_class", "pg_type"])),
    Case("regtype", st.sampled_from(["integer", "text", "timestamp with time zone"])),
    Case("aclitem", st.sampled_from(["postgres=r/postgres", "=w*/postgres"])),
    Case("int4range", lit.ranges(lit.integers(-99, 99))),
    Case("int8range", lit.ordered_ranges(st.integers(-(2**62), 2**62))),
    Case("numrange", lit.ranges(lit.numeric) | lit.ordered_ranges(st.integers(-999, 999), lambda n: f"{n}.50")),
    Case("tsrange", lit.ordered_ranges(st.integers(0, 7000), lambda n: f"{2000 + n}-02-03 04:05:06.{n:06d}")),
    Case("tstzrange", lit.ordered_ranges(st.integers(1, 9000), lambda n: f"{n:04d}-02-03 04:05:06+00")),
    Case("daterange", lit.ordered_ranges(st.integers(1, 9000), lambda n: f"{n:04d}-02-03")),
    Case("int4multirange", lit.multiranges(lit.ordered_ranges(st.integers(-99, 99)))),
    Case("nummultirange", lit.multiranges(lit.ordered_ranges(st.integers(-99, 99)))),
    Case("datemultirange", lit.multiranges(lit.ordered_ranges(st.integers(1000, 9000), lambda n: f"{n}-02-03"))),
    Case("bool[]", lit.arrays(lit.boolean)),
    Case("int4[]", lit.arrays(lit.integers(-(2**31), 2**31 - 1))),
    Case("int8[]", lit.arrays(lit.integers(-(2**63), 2**63 - 1))),
    Case("float4[]", lit.arrays(lit.float4)),
    Case("float8[]", lit.arrays(lit.float8)),
    Case("numeric[]", lit.arrays(lit.numeric)),
    Case("numeric(12,2)[]", lit.arrays(lit.decimal(12, 2)), "numeric[]"),
    Case("text[]", lit.arrays(lit.text)),
    Case('"char"[]', lit.arrays(st.characters(min_codepoint=1, max_codepoint=127))),
    Case("bytea[]", lit.arrays(lit.bytea)),
    Case("uuid[]", lit.arrays(lit.uuid)),
    Case("json[]", lit.arrays(lit.json_text)),
    Case("jsonb[]", lit.arrays(lit.json_text)),
    Case("date[]", lit.arrays(lit.date)),
    Case("time[]", lit.arrays(lit.time)),
    Case("timestamp[]", lit.arrays(lit.timestamp)),
    Case("timestamptz[]", lit.arrays(lit.timestamptz)),
    Case("interval[]", lit.arrays(lit.interval)),
    Case("inet[]", lit.arrays(lit.inet)),
    Case("bit(9)[]", lit.arrays(lit.bits(9, 9)), "varbit[]"),
    Case("box[]", lit.arrays(lit.box, ";")),
    Case("point[]", lit.arrays(lit.point)),
    Case("int4range[]", lit.arrays(lit.ordered_ranges(st.integers(-99, 99)))),
    Case("money[]", lit.arrays(lit.money)),
    Case("xid8[]", lit.arrays(lit.integers(0, 2**64 - 1))),
    Case("mood", st.sampled_from(["sad", "ok", "Very Happy", "null", "é"])),
    Case("mood[]", lit.arrays(st.sampled_from(["sad", "Very Happy", "null"]))),
    Case("price", lit.decimal(10, 2), "numeric"),
    Case("positive_price", lit.integers(0, 99_999_999), "numeric"),
    Case("price[]", lit.arrays(lit.decimal(10, 2)), "numeric[]"),
    Case("numbers", lit.arrays(lit.integers(-99, 99)), "int4[]"),
    Case("lists", lit.arrays(lit.arrays(lit.integers(-99, 99)))),
    Case("pair", lit.composites(lit.integers(-99, 99), lit.text, lit.timestamptz)),
    Case("pair[]", lit.arrays(lit.composites(lit.integers(-99, 99), lit.text, lit.timestamptz))),
    Case("nested", lit.composites(lit.composites(lit.integers(-99, 99), lit.text, lit.date), lit.arrays(lit.float8), lit.uuid)),
    Case("with_money", lit.composites(lit.money)),
    Case("textrange", lit.ordered_ranges(st.integers(1000, 9000), lambda n: f' "{n}\\')),
    Case("citext", lit.text, extension="citext"),
    Case("hstore", lit.hstore, extension="hstore"),
    Case("hstore[]", lit.arrays(lit.hstore), extension="hstore"),
    Case("ltree", lit.ltree, extension="ltree"),
    Case("vector(3)", lit.vector3, "vector", extension="vector"),
]  # fmt: skip

_MOMENTS = lit.ordered_ranges(st.integers(1, 9000), lambda n: f"{n:04d}-02-03 04:05:06")
_NAMES = {
    "regproc": ["now", "version"],
    "regprocedure": ["now()", "abs(integer)"],
    "regoper": ["||/", "!~~*"],
    "regoperator": ["+(integer,integer)", "-(NONE,numeric)"],
    "regclass": ["pg_class", "pg_catalog.pg_type"],
    "regtype": ["integer", "text[]", "-"],
    "regconfig": ["simple", "english"],
    "regdictionary": ["simple", "english_stem"],
    "regnamespace": ["pg_catalog", "information_schema"],
    "regrole": ["pg_read_all_data", "pg_monitor"],
    "regcollation": ['"C"', '"POSIX"'],
}
_RARE_SCALARS = {
    **{name: st.sampled_from(known) for name, known in _NAMES.items()},
    "tsmultirange": lit.multiranges(_MOMENTS),
    "tstzmultirange": lit.multiranges(_MOMENTS),
    "int8multirange": lit.multiranges(lit.ordered_ranges(st.integers(-(2**62), 2**62))),
    "information_schema.cardinal_number": lit.integers(0, 2**31 - 1),
    "information_schema.character_data": lit.text,
    "information_schema.sql_identifier": lit.text,
    "information_schema.time_stamp": lit.timestamptz.filter(lambda text: not text.startswith("2942")),
    "information_schema.yes_or_no": st.sampled_from(["YES", "NO"]),
}
_ARRAYS_ABOVE = {case.type for case in CASES if case.type.endswith("[]")}
_BASES_OF_DOMAINS = {
    "cardinal_number": "int4",
    "character_data": "varchar",
    "sql_identifier": "name",
    "time_stamp": "timestamptz",
    "yes_or_no": "varchar",
}
RARE_CASES = [
    *(Case(name, literals, _BASES_OF_DOMAINS.get(name.rpartition(".")[2], "")) for name, literals in _RARE_SCALARS.items()),
    *(
        Case(f"{name}[]", lit.arrays(literals), f"{base}[]" if (base := _BASES_OF_DOMAINS.get(name.rpartition(".")[2])) else "")
        for name, literals in _RARE_SCALARS.items()
    ),
    *(
        Case(f"{case.type}[]", lit.arrays(case.literals), f"{case.cast}[]" if case.cast else "", case.since, case.extension,
             "format('%s', {})" if case.type == "xml" else case.shown)
        for case in CASES
        if "[]" not in case.type + case.cast and f"{case.type}[]" not in _ARRAYS_ABOVE and case.type not in _RARE_SCALARS
    ),
]  # fmt: skip
"""The types that few columns have, and the array of every type that has none above."""

USER_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'Very Happy', 'null', 'é');
CREATE DOMAIN price AS numeric(10,2);
CREATE DOMAIN positive_price AS price CHECK (value >= 0);
CREATE DOMAIN numbers AS int4[];
CREATE DOMAIN list AS int4[];
CREATE DOMAIN lists AS list[];
CREATE TYPE pair AS (a int4, "b c" text, d timestamptz);
CREATE TYPE nested AS (p pair, q float8[], r uuid);
CREATE TYPE with_money AS (m money);
CREATE TYPE textrange AS RANGE (subtype = text);
CREATE FUNCTION accepts(literal text, type text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN EXECUTE format('SELECT %L::%s', literal, type); RETURN true; EXCEPTION WHEN others THEN RETURN false; END $$;
CREATE PUBLICATION everything FOR ALL TABLES;
"""


class Judge:
    """A database with a slot; counts what it has compared."""

    def __init__(self, connection: asyncpg.Connection, version: int) -> None:
        self.connection = connection
        self.version = version
        self.stream = Stream(connection, f"oracle_{connection.get_server_pid()}", "everything")
        self.compared = 0
        self.extensions: set[str] = set()
        self.has_xml = True

    async def start(self) -> None:
        await self.stream.start()
        await self.connection.execute(USER_TYPES)
        rows = await self.connection.fetch("SELECT name FROM pg_available_extensions")
        self.extensions = {row[0] for row in rows} & {case.extension for case in CASES}
        for extension in self.extensions:
            await self.connection.execute(f"CREATE EXTENSION {extension}")
        self.has_xml = await self.connection.fetchval("SELECT accepts('<a/>', 'xml')")

    def lacks(self, case: Case) -> str | None:
        """Why this server cannot have the type."""
        if self.version < case.since:
            return f"{case.type} came with PostgreSQL {case.since}"
        if case.extension and case.extension not in self.extensions:
            return f"this server has no extension {case.extension}"
        if case.type.startswith("xml") and not self.has_xml:
            return "this server was built without libxml"
        return None

    async def judge(self, case: Case, count: int) -> None:
        """Insert `count` generated values; compare all that the server takes, in text, and in
        binary where we read it."""
        try:
            await self._judge(case, count)
        finally:
            await self.stream.forget()

    async def _judge(self, case: Case, count: int) -> None:
        values = generated(case.literals, count)
        await self.connection.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id int4 PRIMARY KEY, v {case.type})")
        await self.connection.execute(
            f"INSERT INTO t SELECT id, CASE WHEN accepts(v, $3) THEN v END::{case.type} "
            "FROM unnest($1::int4[], $2::text[]) u (id, v) WHERE v IS NULL OR accepts(v, $3)",
            list(range(len(values))), values, case.type,
        )  # fmt: skip
        text_records = await self.stream.peek(binary=False)
        assert len(text_records) > len(values) // 8, f"{case.type}: the server takes too few of the literals"
        facts = text_records[0].description.columns[1].facts
        await self._compare(case, text_records, values, "text")
        assert has_binary_decoder(facts) or case.type.removesuffix("[]") in TEXT_ONLY, (
            f"{case.type} has no binary decoder"
        )
        if has_binary_decoder(facts):
            binary_records = await self.stream.peek(binary=True)
            await self._compare(case, binary_records, values, "binary")
            for text_record, binary_record in zip(text_records, binary_records, strict=True):
                assert text_record.value == binary_record.value, f"{values[text_record.event['after']['id']]!r}"

    async def _compare(self, case: Case, records: list[Record], values: list[str | None], form: str) -> None:
        ids = [record.event["after"]["id"] for record in records]
        delimiter = records[0].description.columns[1].facts.delimiter
        texts = [column_text(record.event, "v", delimiter=delimiter) for record in records]
        read = case.shown.format(f"u.v::{case.cast or case.type}")
        rows = await self.connection.fetch(
            f"SELECT u.id, u.v, t.v::text FROM unnest($1::int4[], $2::text[]) u (id, v) JOIN t USING (id) "
            f"WHERE {read} IS DISTINCT FROM {case.shown.format('t.v')}",
            ids,
            texts,
        )
        assert not rows, f"{case.type} in {form}: {values[rows[0][0]]!r} was read as {rows[0][1]!r}, is {rows[0][2]!r}"
        self.compared += len(records)


def generated(strategy: SearchStrategy[str], count: int) -> list[str | None]:
    """`count` literals and one NULL; the same for the same seed."""
    values: list[str] = []
    batch = 5  # the first is always the simplest

    @seed(SEED)
    @settings(
        max_examples=max(count // batch, 1),
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(strategy, min_size=batch, max_size=batch))
    def collect(some: list[str]) -> None:
        values.extend(some)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collect()
    return [*values[:count], None]


LACKS = {14: "this server has no extension vector", 18: "this server was built without libxml"}
"""All that the servers of these tests lack and others of their versions have."""


async def _judge_of(server: Postgres) -> AsyncIterator[Judge]:
    connection = await server.connect("postgres")
    name = f"oracle_{connection.get_server_pid()}"
    await connection.execute(f"CREATE DATABASE {name}")
    inside = await server.connect(name)
    judge = Judge(inside, server.version)
    await judge.start()
    try:
        yield judge
    finally:
        await inside.execute("SELECT pg_drop_replication_slot($1)", judge.stream.slot)
        await inside.close()
        await connection.execute(f"DROP DATABASE {name}")
        await connection.close()
        print(f"\n{judge.compared} values compared on PostgreSQL {judge.version}, seed {SEED}")


@pytest_asyncio.fixture(scope="module")
async def newest(postgres: Postgres) -> AsyncIterator[Judge]:
    async for judge in _judge_of(postgres):
        yield judge


@pytest_asyncio.fixture(scope="module")
async def oldest(postgres_oldest: Postgres) -> AsyncIterator[Judge]:
    async for judge in _judge_of(postgres_oldest):
        yield judge


async def _try(judge: Judge, case: Case, count: int) -> None:
    reason = reason_to_leave_out(judge, case)
    if reason is not None:
        pytest.skip(reason)
    await judge.judge(case, count)


def reason_to_leave_out(judge: Judge, case: Case) -> str | None:
    reason = judge.lacks(case)
    assert reason is None or judge.version < case.since or reason == LACKS.get(judge.version), reason
    return reason


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.type)
async def test_newest_server_finds_no_difference(newest: Judge, case: Case) -> None:
    await _try(newest, case, SHORT_COUNT)


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.type)
async def test_oldest_server_finds_no_difference(oldest: Judge, case: Case) -> None:
    await _try(oldest, case, SHORT_COUNT)


@pytest.mark.integration
async def test_newest_server_finds_no_difference_in_rarer_types(newest: Judge) -> None:
    await _try_all(newest, RARE_CASES, RARE_COUNT)


@pytest.mark.integration
async def test_oldest_server_finds_no_difference_in_rarer_types(oldest: Judge) -> None:
    await _try_all(oldest, RARE_CASES, RARE_COUNT)


async def _try_all(judge: Judge, cases: list[Case], count: int) -> None:
    """Without the types that this server cannot have."""
    for case in cases:
        if reason_to_leave_out(judge, case) is None:
            await judge.judge(case, count)


@pytest.mark.integration
async def test_the_name_of_what_a_user_made_is_asked_for_in_text(newest: Judge) -> None:
    await newest.connection.execute(
        "CREATE TABLE named (id int4 PRIMARY KEY, v regclass); INSERT INTO named VALUES (1, 'pg_class')"
    )
    (record,) = await newest.stream.take(binary=True)
    assert record.event["after"]["v"] == "pg_class"
    await newest.connection.execute("INSERT INTO named VALUES (2, 'named')")
    with pytest.raises(UnknownBinary):
        await newest.stream.peek(binary=True)
    (record,) = await newest.stream.take(binary=False)
    assert record.event["after"]["v"] == "named"
    await newest.connection.execute("DROP TABLE named")


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_values_without_a_difference_on_the_newest_server(newest: Judge) -> None:
    await _try_all(newest, CASES + RARE_CASES, LONG_COUNT)
    assert newest.compared >= 100_000


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_values_without_a_difference_on_the_oldest_server(oldest: Judge) -> None:
    await _try_all(oldest, CASES + RARE_CASES, LONG_COUNT)
    assert oldest.compared >= 100_000
