"""What a connector did not write is not passed: seen by PostgreSQL's own test_decoding, and by the
records of its topics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

import pytest
from aiokafka.structs import TopicPartition
from confluent_kafka import Producer
from structlog.testing import capture_logs

from gateway.config.settings import Settings
from gateway.debezium import find_written as find_written_module
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


def send(kafka: Kafka, topic: str, values: Sequence[bytes]) -> None:
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


async def two_rows(
    database: Database, slot: str, statement: str = "select"
) -> tuple[Lsn, tuple[int, int], tuple[bytes, bytes]]:
    """Where the slot begins; the LSNs of two rows behind it, with the statement between them; and a
    connector's records of them."""
    sql = await database.connect()
    await sql.execute(
        f"create table a (id int4 primary key); create table b (id int4 primary key);"
        f"create publication {PUBLICATION} for all tables"
    )
    start = await sql.fetchval(SLOT, slot, "pgoutput")
    await sql.fetchval(SLOT, f"{slot}_witness", "test_decoding")
    await sql.execute("insert into a values (1)")
    await sql.execute(statement)
    await sql.execute("insert into a values (2)")
    (first, xid), (last, last_xid) = await sql.fetch(ROWS, f"{slot}_witness")
    records = record("c", start, first, xid), record("c", start, last, last_xid)
    return Lsn(start), (first, last), records


def record(operation: str, commit_lsn: int, lsn: int, xid: int) -> bytes:
    source = {"txId": xid, "sequence": json.dumps([str(commit_lsn), str(lsn)])}
    return json.dumps({"op": operation, "source": source}).encode()


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
    start, (first, last), records = await two_rows(database, topic_prefix, statement)
    topic = f"{topic_prefix}.public.a"
    await asyncio.to_thread(send, kafka, topic, records)
    settings = settings_of(database.dsn, kafka, registry, topic_prefix, skipped)
    found = await written_beyond(start, settings, topic)
    assert found.lsn == (last if is_passed else first) + 1


async def test_records_of_an_aborted_transaction_were_not_written(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str
) -> None:
    """A Connect worker with exactly-once support leaves one if it is killed, open at first. Its
    offsets have no records that a reader could wait for."""
    start, (first, _), (one, two) = await two_rows(database, topic_prefix)
    topic, settings = f"{topic_prefix}.public.a", settings_of(database.dsn, kafka, registry, topic_prefix, "t")
    await asyncio.to_thread(send, kafka, topic, [one])
    worker = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic_prefix})
    await asyncio.to_thread(worker.init_transactions, 30)
    worker.begin_transaction()
    worker.produce(topic, two, partition=0)
    assert await asyncio.to_thread(worker.flush, 30) == 0
    with pytest.raises(Retry, match=f"still open in {topic}, partition 0"):
        await written_beyond(start, settings, topic)
    await asyncio.to_thread(worker.abort_transaction, 30)
    found = None
    async with asyncio.timeout(30):
        while found is None:
            with suppress(Retry):  # the end of the transaction reaches the partition a little later
                found = await written_beyond(start, settings, topic)
    assert found.lsn == first + 1


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_rows_of_a_snapshot_say_how_far_to_look_back(
    kafka: Kafka, registry: Registry, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, is_streamed: bool
) -> None:
    """Nothing says it in a topic of nothing but such rows. Each record is logged here."""
    monkeypatch.setattr(find_written_module, "_LOG_INTERVAL_S", 0)
    await asyncio.to_thread(send, kafka, topic_prefix, [record("r", 0, 900, 7)] * 2001)
    settings = settings_of("postgresql://nowhere/", kafka, registry, topic_prefix, "t")
    offset = DebeziumOffset(Lsn(950), Lsn(950)) if is_streamed else DebeziumOffset(Lsn(900), Lsn(0), of_snapshot=True)
    client = RegistryClient(registry.url)
    with capture_logs() as logged:
        assert await find_written(settings, client, {topic_prefix}, offset, login_of(settings.source)) == offset
    await client.close()
    assert [entry["records_read"] for entry in logged if entry["event"] == "reading_topics_of_connector"] == list(
        range(1, 501)
    )


@pytest.mark.parametrize("value", [b"text", b'{"a":' * 10_000], ids=["text", "nested"])
async def test_a_record_without_a_schema_id_is_not_of_a_connector(
    kafka: Kafka, registry: Registry, topic_prefix: str, value: bytes
) -> None:
    await asyncio.to_thread(send, kafka, topic_prefix, [value])
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
