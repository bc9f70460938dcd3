"""The same judgement at the end of the road: every type through the gateway and Kafka, read by
stock tools.

One table a type; confluent-kafka's consumer, the registry's schemas and fastavro read what was
delivered; PostgreSQL compares.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from gateway.local import Kafka, Postgres, Registry
from gateway.local.binaries import OLDEST_VERSION
from tests.evolution.delivered import Delivered
from tests.support.theatre import theatre
from tests.values.oracle import column_text
from tests.values.test_oracle import CASES, SEED, USER_TYPES, Case, generated

pytestmark = pytest.mark.integration

SHORT_COUNT, LONG_COUNT = 10, 1200
"""Values a type in `make test`, and in `make long`; the server does not take all of them."""
WITHOUT_BINARY = {"money", "money[]", "tsquery", "regclass", "regtype", "with_money"}
END = "the_end"


@pytest.fixture(params=["postgres", "postgres_oldest"])
def source(request: pytest.FixtureRequest) -> Postgres:
    found: Postgres = request.getfixturevalue(request.param)
    return found


@pytest.mark.timeout(300)
async def test_every_type_arrives_as_it_was_meant(
    source: Postgres, kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    binary = "auto" if source.version > OLDEST_VERSION else "off"
    compared, types = await deliver_and_compare(source, binary, kafka, registry, tmp_path / "gateway.log", SHORT_COUNT)
    assert compared > 4 * types


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("binary", ["auto", "off"])
async def test_a_hundred_thousand_values_arrive_as_they_were_meant(
    source: Postgres, binary: str, kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    compared, _ = await deliver_and_compare(source, binary, kafka, registry, tmp_path / "gateway.log", LONG_COUNT)
    assert compared >= 100_000


async def deliver_and_compare(
    source: Postgres, binary: str, kafka: Kafka, registry: Registry, log: Path, count: int
) -> tuple[int, int]:
    """(values compared, types)."""
    name = f"types_{uuid4().hex[:8]}"
    async with theatre(name, source, kafka, registry, log, source__binary=binary) as stage:
        await stage.sql.execute(USER_TYPES)
        cases = await _tables(stage.sql, source.version, with_all=binary == "off")
        await stage.gateway.streaming(source__publications="everything")
        values = {table: await _fill(stage.sql, table, case, count) for table, case in cases.items()}
        await stage.sql.execute(f"INSERT INTO {END} VALUES (1)")
        found = await stage.delivered(lambda each: bool(each.committed(END)))
        try:
            compared = sum(
                [await _compare(stage.sql, found, table, case, values[table]) for table, case in cases.items()]
            )
        finally:
            found.close()
        assert await stage.gateway.stop() == 0, log.read_text()
        assert "text_tuples" not in log.read_text(), "binary tuples were not asked for"
    print(f"\n{compared} values through Kafka from PostgreSQL {source.version}, binary {binary}, seed {SEED}")
    return compared, len(cases)


async def _tables(sql: asyncpg.Connection, version: int, *, with_all: bool) -> dict[str, Case]:
    """A table for each type that this server has."""
    rows = await sql.fetch("SELECT name FROM pg_available_extensions")
    available = {row[0] for row in rows}
    cases = [case for case in CASES if case.since <= version and (not case.extension or case.extension in available)]
    if not await sql.fetchval("SELECT accepts('<a/>', 'xml')"):  # built without libxml
        cases = [case for case in cases if case.type != "xml"]
    if not with_all:
        cases = [case for case in cases if case.type not in WITHOUT_BINARY]
    for extension in {case.extension for case in cases if case.extension}:
        await sql.execute(f"CREATE EXTENSION {extension}")
    tables = {f"type_{number}": case for number, case in enumerate(cases)}
    for table, case in tables.items():
        await sql.execute(f"CREATE TABLE {table} (id int4 PRIMARY KEY, v {case.type})")
    await sql.execute(f"CREATE TABLE {END} (id int4 PRIMARY KEY)")
    return tables


async def _fill(sql: asyncpg.Connection, table: str, case: Case, count: int) -> list[str | None]:
    values = generated(case.literals, count)
    await sql.execute(
        f"INSERT INTO {table} SELECT id, CASE WHEN accepts(v, $3) THEN v END::{case.type} "
        "FROM unnest($1::int4[], $2::text[]) u (id, v) WHERE v IS NULL OR accepts(v, $3)",
        list(range(len(values))),
        values,
        case.type,
    )
    return values


async def _compare(sql: asyncpg.Connection, found: Delivered, table: str, case: Case, values: list[str | None]) -> int:
    delimiter = ";" if case.type == "box[]" else ","
    events = [record.event for record in found.committed(table)]
    texts = [column_text(event, "v", delimiter=delimiter) for event in events]
    assert len(events) == await sql.fetchval(f"SELECT count(*) FROM {table}")
    read = case.shown.format(f"u.v::{case.cast or case.type}")
    rows = await sql.fetch(
        f"SELECT u.id, u.v, t.v::text FROM unnest($1::int4[], $2::text[]) u (id, v) JOIN {table} t USING (id) "
        f"WHERE {read} IS DISTINCT FROM {case.shown.format('t.v')}",
        [event["after"]["id"] for event in events],
        texts,
    )
    assert not rows, f"{case.type}: {values[rows[0][0]]!r} was read as {rows[0][1]!r}, is {rows[0][2]!r}"
    return len(events)
