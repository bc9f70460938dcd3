"""What a connector did not write is not passed: seen by PostgreSQL's own test_decoding, and by the
records of its topics."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiokafka.structs import TopicPartition
from confluent_kafka import Producer

from gateway.config.settings import Settings
from gateway.debezium.find_written import find_written, read_to
from gateway.errors import Retry, StopForOperator
from gateway.kafka.aiokafka_internals.admin import Consumer
from gateway.local import Kafka, Registry
from gateway.postgres.credentials import login_of
from gateway.startup.connect_offset import DebeziumOffset
from schemas.lsn import Lsn
from schemas.registry_client import RegistryClient
from tests.conftest import Database
from tests.debezium.scene import PUBLICATION, make_topics

pytestmark = pytest.mark.integration

SLOT = "select (lsn - '0/0'::pg_lsn)::int8 from pg_create_logical_replication_slot($1, $2)"
ROWS = """
select (lsn - '0/0'::pg_lsn)::int8, xid::text::int8 from pg_logical_slot_peek_changes($1, null, null)
where data like 'table %INSERT%'
"""


def send(kafka: Kafka, topic: str, values: list[bytes]) -> None:
    make_topics(kafka.bootstrap_servers, [topic])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def settings_of(dsn: str, kafka: Kafka, registry: Registry, prefix: str, skipped: str) -> Settings:
    return Settings.model_validate(
        {
            "source": {"dsn": dsn, "slot": prefix, "publications": [PUBLICATION]},
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "prefix": prefix, "dialect": "debezium"},
            "registry": {"url": registry.url},
            "debezium": {"skipped_operations": skipped, "format": "json"},
            "snapshot": {"mode": "never"},
        }
    )


async def written_beyond(start: Lsn, settings: Settings, topic: str) -> DebeziumOffset:
    client = RegistryClient(settings.registry.url)
    try:
        login = login_of(settings.source)
        return await find_written(settings, client, {topic}, DebeziumOffset(start, start), login)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("statement", "skipped", "is_passed"),
    [
        ("truncate b", "none", False),
        ("truncate b", "t", True),
        ("select pg_logical_emit_message(true, 'a prefix', 'text')", "t", False),
        ("select pg_logical_emit_message(false, 'a prefix', 'text')", "t", False),
        ("select pg_logical_emit_message(true, 'walgate.heartbeat', 'text')", "t", True),
    ],
)
async def test_what_has_no_record_is_not_passed(
    database: Database,
    kafka: Kafka,
    registry: Registry,
    topic_prefix: str,
    statement: str,
    skipped: str,
    is_passed: bool,
) -> None:
    sql = await database.connect()
    await sql.execute(
        f"create table a (id int4 primary key); create table b (id int4 primary key);"
        f"create publication {PUBLICATION} for all tables"
    )
    start = await sql.fetchval(SLOT, topic_prefix, "pgoutput")
    witness = f"{topic_prefix}_witness"
    await sql.fetchval(SLOT, witness, "test_decoding")
    await sql.execute("insert into a values (1)")
    await sql.execute(statement)
    await sql.execute("insert into a values (2)")
    (first, _), (last, _) = rows = await sql.fetch(ROWS, witness)
    topic = f"{topic_prefix}.public.a"
    sources = [{"txId": xid, "sequence": json.dumps([str(start), str(lsn)])} for lsn, xid in rows]
    records = [json.dumps({"op": "c", "source": source}).encode() for source in sources]
    await asyncio.to_thread(send, kafka, topic, records)
    settings = settings_of(database.dsn, kafka, registry, topic_prefix, skipped)
    found = await written_beyond(Lsn(start), settings, topic)
    assert found.lsn == (last if is_passed else first) + 1


async def test_a_record_without_a_schema_id_is_not_of_a_connector(
    kafka: Kafka, registry: Registry, topic_prefix: str
) -> None:
    await asyncio.to_thread(send, kafka, topic_prefix, [b"text"])
    settings = settings_of("postgresql://nowhere/", kafka, registry, topic_prefix, "t")
    with pytest.raises(StopForOperator, match=f"offset 0 of {topic_prefix} was not written by a Debezium connector"):
        await written_beyond(Lsn(1), settings, topic_prefix)


async def test_a_partition_that_gives_nothing_is_not_waited_for_without_end(kafka: Kafka, topic_prefix: str) -> None:
    await asyncio.to_thread(send, kafka, topic_prefix, [b"1", b"2"])
    consumer, place = Consumer(bootstrap_servers=kafka.bootstrap_servers), TopicPartition(topic_prefix, 0)
    await consumer.start()
    try:
        consumer.assign([place])
        consumer.seek(place, 0)
        assert [record.value async for record in read_to(consumer, place, 2, 30)] == [b"1", b"2"]
        consumer.seek(place, 0)
        with pytest.raises(Retry, match=f"{topic_prefix}, partition 0, could not be read beyond offset 2"):
            _ = [record async for record in read_to(consumer, place, 3, 1)]
    finally:
        await consumer.stop()
