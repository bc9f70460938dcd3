"""Flink SQL reads a topic of Debezium's dialect, unchanged (`debezium-avro-confluent`): its table
is the source's."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.debezium.flink import flink
from tests.debezium.scene import PUBLICATION, Reader, is_the_end
from tests.debezium.test_server import settings
from tests.support.gateway_process import GatewayProcess

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(240)]

COLUMNS = {
    "id": ("int primary key", "INT NOT NULL", "id"),
    "small": ("smallint", "INT", "small"),
    "large": ("bigint", "BIGINT", "large"),
    "flag": ("bool not null default true", "BOOLEAN", "flag"),
    "price": ("numeric(12,2)", "DECIMAL(12, 2)", "price"),
    "ratio": ("float8", "DOUBLE", "ratio"),
    "note": ("text", "STRING", "note"),
    "token": ("uuid", "STRING", "token::text"),
    "content": ("jsonb", "STRING", "content::text"),
    "bytes": ("bytea", "BYTES", "bytes"),
    "words": ("text[]", "ARRAY<STRING>", "words"),
    "day": ("date", "INT", "day - date '1970-01-01'"),
    "at": ("timestamp", "BIGINT", "(extract(epoch from at) * 1000000)::bigint"),
    "moment": ("timestamptz", "STRING", "to_char(moment at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"),
}
"""Column -> its type, its type in Flink, and what Flink has of it."""
WORKLOAD = (
    (
        "insert into kept select n, n, n::int8 * 1000000000, n % 2 = 0, n / 100.0, n / 3.0, 'row ' || n, gen_random_uuid(),"
        " jsonb_build_object('n', n), decode(repeat('00ff', n % 5), 'hex'), array['a', null, n::text], date '2026-01-01' + n,"
        " timestamp '2026-01-01' + n * interval '1.5 s', timestamptz '2026-01-01 00:00:00.5+02' + n * interval '1 h'"
        " from generate_series(1, 200) n"
    ),
    "insert into kept (id) values (1000), (1001), (1002)",
    "update kept set note = 'changed', price = -price, content = null where id % 3 = 0",
    "delete from kept where id % 7 = 0",
    "update kept set id = id + 5000 where id % 10 = 1",
    "update kept set id = 1, note = 'back again' where id = 5001",
    "delete from kept where id = 1001",
    "insert into kept (id, note) values (1001, 'anew')",
)


async def test_the_table_of_flink_is_that_of_the_source(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    columns = ", ".join(f"{name} {type_}" for name, (type_, _, _) in COLUMNS.items())
    await sql.execute(
        f"create table kept ({columns}); alter table kept replica identity full;"
        f"create publication {PUBLICATION} for all tables"
    )
    gateway = GatewayProcess(tmp_path / "gateway.log", settings(database, kafka, registry, topic_prefix))
    await gateway.streaming()
    for statement in (*WORKLOAD, "insert into kept (id, note) values (-1, 'the end')"):
        await sql.execute(statement)
    topic = f"{topic_prefix}.public.kept"
    records = await Reader(kafka.bootstrap_servers, registry.url, [topic]).until(is_the_end)
    assert await gateway.stop() == 0, gateway.log_tail()
    assert {record.value and record.value["op"] for record in records} == {"c", "u", "d", None}
    found = await asyncio.to_thread(read, tmp_path, kafka, registry, topic)
    rows = await sql.fetch(f"select {', '.join(said for _, _, said in COLUMNS.values())} from kept")
    assert found == Counter(map(comparable, rows))
    assert len(rows) > 150


def read(folder: Path, kafka: Kafka, registry: Registry, topic: str) -> Counter[tuple[object, ...]]:
    with flink(folder) as running:
        running.execute(definition(kafka, registry, topic))
        return running.table("SELECT * FROM kept")


def definition(kafka: Kafka, registry: Registry, topic: str) -> str:
    columns = ", ".join(f"`{name}` {type_}" for name, (_, type_, _) in COLUMNS.items())
    options = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": kafka.bootstrap_servers,
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        "format": "debezium-avro-confluent",
        "debezium-avro-confluent.url": registry.url,
    }
    given = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    return f"CREATE TABLE kept ({columns}) WITH ({given})"


def comparable(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)
