"""The broker keeps its port and its data through every kind of end."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from gateway.local import Kafka
from gateway.local.kafka import QUICK_START
from gateway.local.ports import answers

pytestmark = pytest.mark.integration


async def _send(kafka: Kafka, topic: str, value: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="local")
    async with producer, producer.transaction():
        await producer.send_and_wait(topic, value)


async def _read(kafka: Kafka, topic: str, count: int) -> list[bytes]:
    """The first `count` committed records."""
    partition = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, isolation_level="read_committed")
    await consumer.start()
    try:
        consumer.assign([partition])
        await consumer.seek_to_beginning()
        values: list[bytes] = []
        while len(values) < count:
            batches = await consumer.getmany(timeout_ms=1000)
            values += [record.value for batch in batches.values() for record in batch]
        return values
    finally:
        await consumer.stop()


@pytest.mark.timeout(180)
async def test_committed_records_outlive_stop_and_kill() -> None:
    # A killed broker may register again when its session has ended, by default after nine seconds.
    session = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}
    async with Kafka(jvm_options=[QUICK_START], settings=session) as kafka:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        await admin.start()
        await admin.create_topics([NewTopic("kept", 1, 1)])
        await admin.close()
        await _send(kafka, "kept", b"one")
        await kafka.stop()
        assert kafka.pid is None and not await answers(kafka.port)
        await kafka.start()
        await _send(kafka, "kept", b"two")
        await kafka.kill()
        assert kafka.pid is None
        await kafka.start()
        # Killed right after the commit, a coordinator may write that transaction's markers only
        # when its id is used again.
        await _send(kafka, "kept", b"three")
        assert await _read(kafka, "kept", 3) == [b"one", b"two", b"three"]
        log = kafka.log_path.read_text()
        assert "Kafka version: 4.3.1" in log


async def test_topics_are_not_made_by_asking_for_them(kafka: Kafka, topic_prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    await admin.describe_topics([topic_prefix])
    assert topic_prefix not in await admin.list_topics()
    await admin.close()
