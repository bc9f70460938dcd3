"""Everyday changes of tables in Debezium's dialect, which a registry with the level BACKWARD would
refuse if each NOT NULL column became a required field."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.debezium.encoded import Record
from tests.debezium.scene import Reader
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

TABLES = """
create table docs (id int primary key, title text, vector float4[] not null, v int);
alter table docs alter vector set storage external;
create table accounts (email text unique, n int);
alter table accounts replica identity full;
create publication walgate for all tables;
"""
CHANGES = (
    "alter table docs add column n text",  # a restart follows: the field is optional only in the registry
    "alter table docs alter v set not null",
    "alter table docs rename vector to embedding",
    "alter table docs add column tags text[] not null default '{}'",
    "alter table docs add column threshold float8 not null default 'Infinity'",
    "alter table docs add column place inet not null default '10.0.0.1'",
    "alter table accounts alter email set not null",
)


async def test_columns_that_are_not_null_do_not_stop_the_gateway(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    await sql.execute(TABLES)
    gateway = GatewayProcess(tmp_path / "gateway.log", _settings(database, kafka, registry, topic_prefix))
    await gateway.streaming()
    await sql.execute("insert into docs select 0, 'first', array_agg(random()), 1 from generate_series(1, 768)")
    await sql.execute("update docs set title = 'the vector is not sent'")  # it has no placeholder
    await sql.execute("insert into accounts values ('0@example.org', 0)")
    topics = [f"{topic_prefix}.public.{name}" for name in ("docs", "accounts")]
    for number, change in enumerate(CHANGES, 1):
        await sql.execute(change)
        vector = "embedding" if number > 2 else "vector"
        await sql.execute(
            f"insert into docs (id, title, {vector}, v) values ({number}, $1, '{{1, 2}}', {number})", change
        )
        await sql.execute(f"insert into accounts values ('{number}@example.org', {number})")
        await _arrives(kafka, registry, topics, number)
        if number == 1:
            assert await gateway.stop() == 0, gateway.log_tail()
            await gateway.streaming()
            await sql.execute("update docs set title = 'again' where id = 1")
    assert await gateway.stop() == 0, gateway.log_tail()
    reader = Reader(kafka.bootstrap_servers, registry.url, topics)
    records = await reader.until(lambda record: _number(record) == len(CHANGES))
    last = [record.value["after"] for record in records if record.value and "id" in record.value["after"]][-1]
    expected = dict(*await sql.fetch("select * from docs where id = $1", len(CHANGES)))
    assert last == {**expected, "place": str(expected["place"])}
    keys = [record.key for record in records if record.key is not None and "email" in record.key]
    assert keys == [{"email": f"{number}@example.org"} for number in range(len(CHANGES) + 1)]


async def test_rows_of_a_table_that_is_gone_keep_their_key(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    tables = ("dropped", "renamed", "keyless")
    for name in tables:
        type_of_key = "serial" if name == "dropped" else "int"
        await sql.execute(f'create table {name} ("the id" {type_of_key} primary key, n int)')
        await sql.execute(f"alter table {name} replica identity full")
        await sql.execute(f"insert into {name} values (1, 1)")
    await sql.execute("create publication walgate for all tables")
    gateway = GatewayProcess(tmp_path / "gateway.log", _settings(database, kafka, registry, topic_prefix))
    await gateway.streaming()
    for name in tables:
        await sql.execute(f"insert into {name} values (2, 2)")
    topics = [f"{topic_prefix}.public.{name}" for name in tables]
    for topic in topics:
        await Reader(kafka.bootstrap_servers, registry.url, [topic]).reaches(lambda record: record.key == {"the_id": 2})
    assert await gateway.stop() == 0, gateway.log_tail()
    for name in tables:
        await sql.execute(f"delete from {name} where n = 2")
    await sql.execute('drop table dropped; alter table renamed rename "the id" to number')
    await sql.execute("alter table keyless drop constraint keyless_pkey; insert into keyless values (3, 3)")
    await gateway.streaming()
    for topic in topics[:2]:
        reader = Reader(kafka.bootstrap_servers, registry.url, [topic])
        records = await reader.until(lambda record: record.value is None)
        assert [record.key for record in records] == 3 * [{"the_id": 2}], "a row, its deletion and the tombstone"
        assert len(await asyncio.to_thread(_keys, kafka.bootstrap_servers, topic)) == 1, "their bytes are equal too"
    await sql.execute("insert into renamed values (4, 4)")
    await Reader(kafka.bootstrap_servers, registry.url, topics[1:2]).reaches(lambda record: record.key == {"number": 4})
    reader = Reader(kafka.bootstrap_servers, registry.url, topics[2:])
    records = await reader.until(lambda record: bool(record.value and record.value["op"] == "c" and record.key is None))
    assert records[-1].value is not None and records[-1].value["after"]["the_id"] == 3
    assert await gateway.stop() == 0, gateway.log_tail()


def _keys(bootstrap_servers: str, topic: str) -> set[bytes]:
    """The keys of a topic, to its end."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "keys", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: set[bytes] = set()
    while (message := consumer.poll(30)) is not None and message.error() is None:
        key = message.key()
        assert isinstance(key, bytes)
        found.add(key)
    consumer.close()
    return found


def _settings(database: Database, kafka: Kafka, registry: Registry, prefix: str) -> dict[str, object]:
    return {
        "source__dsn": database.dsn,
        "source__slot": prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "kafka__dialect": "debezium",
        "kafka__partitions": 1,
        "registry__url": registry.url,
    }


async def _arrives(kafka: Kafka, registry: Registry, topics: list[str], number: int) -> None:
    await Reader(kafka.bootstrap_servers, registry.url, topics[:1]).reaches(
        lambda record: record.value is not None and record.value["after"]["id"] == number
    )
    await Reader(kafka.bootstrap_servers, registry.url, topics[1:]).reaches(lambda record: _number(record) == number)


def _number(record: Record) -> int | None:
    return record.value["after"].get("n") if record.value is not None and "email" in record.value["after"] else None
