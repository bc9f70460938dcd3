"""Debezium's own consumers, unchanged, behind a gateway in its dialect: what they make of the
topics is what the tables hold."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from itertools import chain
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import Database
from tests.debezium import workload
from tests.debezium.connect import Worker, connect_worker
from tests.debezium.scene import prepare
from tests.debezium.test_server import settings
from tests.support.gateway_process import GatewayProcess

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

SINK_TIMEOUT_S = 120.0
UNKNOWN = (
    "t_int4multirange",
    "t_tsquery",
    "t_line",
    "t_lseg",
    "t_box",
    "t_path",
    "t_polygon",
    "t_circle",
    "t_pg_lsn",
    "t_pair",
)
"""Of types that Debezium leaves out."""
NOT_KEPT = {
    "t_point": "the sink needs PostGIS",
    "t_numeric_50_5": "the sink makes decimals of 38 digits at most",
    "t_hstore": "arrives as JSON",
    "t_varbit_10": "the sink fills it up to ten bits",
}
"""Column of the workload -> why the sink's table cannot hold its value; the same with Debezium's
connector."""
ARRAYS = ("t_bools", "t_int4s", "t_int8s", "t_texts")
"""Of types that the sink makes arrays of: for numeric(10,2) it asks PostgreSQL for a type of that
name."""
KEPT = {
    name: values
    for name, values in workload.COLUMNS.items()
    if (not values[0].endswith("[]") or name in ARRAYS) and name not in NOT_KEPT.keys() | set(UNKNOWN)
}
KEYED = (
    "kept",
    "by_default",
    "by_full",
    "by_index",
    "by_two",
    "large_full",
    "truncated",
    "parted_2026",
    "evolving",
    "moneys",
)
"""Tables that a sink can keep by key."""
OF_KEPT = (
    f"insert into kept values (1, {', '.join(values[1] for values in KEPT.values())})",
    f"insert into kept values (2, {', '.join(values[2] for values in KEPT.values())}), (3, {', '.join('null' for _ in KEPT)})",
    "insert into kept (id, t_text) values (4, 'to be deleted')",
    "update kept set t_text = 'changed' where id = 1",
    "update kept set id = 5 where id = 2",
    "delete from kept where id = 4",
)


async def test_the_jdbc_sink_has_the_tables(
    postgres: Postgres, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    source = await database.connect()
    await prepare(source)
    columns = ", ".join(f"{name} {values[0]}" for name, values in KEPT.items())
    await source.execute(f"create table kept (id int4 primary key, {columns}); create schema sink")
    chosen = {**settings(database, kafka, registry, topic_prefix), "debezium__interval_handling_mode": "string"}
    gateway = GatewayProcess(tmp_path / "gateway.log", chosen)
    await gateway.streaming()
    connectors = {
        "jdbc": jdbc_sink(postgres, database, topic_prefix, KEYED),
        "file": unwrapped_to_file(tmp_path / "unwrapped", topic_prefix, "by_default"),
    }
    async with connect_worker(kafka, registry, connectors) as worker:
        for statement in (*OF_KEPT, *workload.STATEMENTS):
            await source.execute(statement)

        async def different() -> list[str]:
            found = [await differences(source, table, f"{topic_prefix}_public_{table}") for table in KEYED]
            return list(chain.from_iterable(found))

        await becomes_empty(different, worker)

        async def not_unwrapped() -> list[str]:
            wanted = {row["id"]: row["note"] for row in await source.fetch("select id, note from by_default")}
            return [] if unwrapped_state(tmp_path / "unwrapped") == wanted else ["by_default"]

        await becomes_empty(not_unwrapped, worker)
    assert await gateway.stop() == 0, gateway.log_tail()


def jdbc_sink(postgres: Postgres, database: Database, prefix: str, tables: tuple[str, ...]) -> dict[str, str]:
    """It makes its tables in the schema `sink` by itself."""
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics.regex": rf"{prefix}\\.public\\.({'|'.join(tables)})",
        "connection.url": f"jdbc:postgresql://127.0.0.1:{postgres.port}/{database.name}?currentSchema=sink,public",
        "connection.username": "postgres",
        "connection.password": postgres.password,
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "truncate.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
    }


def unwrapped_to_file(path: Path, prefix: str, table: str) -> dict[str, str]:
    return {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "topics": f"{prefix}.public.{table}",
        "file": str(path),
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
    }


def unwrapped_state(path: Path) -> dict[int, str | None]:
    """Of a table of id and note, by the lines that the file sink wrote."""
    state: dict[int, str | None] = {}
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    for line in whole.splitlines():
        fields = dict(re.findall(r"(\w+)=([^,}]*)", line))
        if fields["__deleted"] == "true":
            del state[int(fields["id"])]
        else:
            state[int(fields["id"])] = fields.get("note")
    return state


async def becomes_empty(differing: Callable[[], Awaitable[list[str]]], worker: Worker) -> None:
    """Waits until nothing differs."""
    deadline = time.monotonic() + SINK_TIMEOUT_S
    while left := await differing():
        await asyncio.to_thread(worker.raise_failures)
        assert time.monotonic() < deadline, "\n".join(left)
        await asyncio.sleep(0.5)


async def differences(sql: asyncpg.Connection, table: str, copy: str) -> list[str]:
    """`table.column: values in the source | in the copy`, compared in the type of the source, each
    by its row's place."""
    columns = await sql.fetch(
        "select attname as name, format_type(atttypid, atttypmod) as type from pg_attribute "
        "where attrelid = $1::regclass and attnum > 0 and not attisdropped order by attnum",
        f"public.{table}",
    )
    if await sql.fetchval("select to_regclass($1)", f'sink."{copy}"') is None:
        return [f"{table}: no copy"]
    left = []
    for column in columns:
        name, compared = column["name"], _comparable(column["type"], f'"{column["name"]}"::text')
        key = f"select {compared} from {{}} order by (({{}}::text)::{columns[0]['type']})"
        try:
            there, copied = [
                [row[0] for row in await sql.fetch(key.format(place, columns[0]["name"]))]
                for place in (f"public.{table}", f'sink."{copy}"')
            ]
        except asyncpg.PostgresError as error:
            left.append(f"{table}.{name} {column['type']}: {error}")
            continue
        if there != copied:
            left.append(f"{table}.{name} {column['type']}: {there} | {copied}")
    return left


def _comparable(type_: str, text: str) -> str:
    """An expression of the same text for values that are equal."""
    if type_ == "time with time zone":
        return f"timezone('UTC', {text}::timetz)::text"  # Debezium sends it in UTC
    if type_ == "bit(1)":
        return f"({text} in ('1', 'true'))::text"  # a boolean in Connect
    if type_.startswith("numeric"):
        return f"trim_scale({text}::{type_})::text"
    return f"{text}::{'jsonb' if type_ == 'json' else type_}::text"
