"""Errors of the broker: what happens next, and what a person reads."""

from __future__ import annotations

import pytest
from aiokafka.errors import InvalidTransactionTimeout

from gateway.kafka.outlet import RECORD_OVERHEAD_BYTES, BatchWriter
from gateway.kafka.producer import Producer, classify
from gateway.kafka.topics import Topics
from gateway.local import Kafka
from gateway.operate.errors import StopForOperator
from gateway.operate.settings import KafkaSettings
from schemas.names import topic_name


def test_a_transaction_timeout_that_the_broker_refuses_stops() -> None:
    error = classify(InvalidTransactionTimeout(), "starting the producer")
    assert type(error) is StopForOperator
    assert "kafka.transaction_timeout_s" in error.hint


async def test_a_batch_is_never_larger_than_the_largest_record() -> None:
    """Else many small rows would end as one that is too large."""
    most = 20_000
    producer = Producer(KafkaSettings(max_record_bytes=most, compression="none"), "walgate.test")
    writer = BatchWriter(producer.create_batch, most - RECORD_OVERHEAD_BYTES)
    outlet = writer.outlet("t", 1, "t")
    try:
        for _ in range(1000):
            outlet.append(None, b"x" * 100, None)
        writer.close_all()
        assert len(writer.ready) > 5
        assert max(batch.size for batch in writer.ready) <= most - RECORD_OVERHEAD_BYTES
    finally:
        await producer.abandon()


@pytest.mark.integration
async def test_two_tables_whose_topics_collide_are_told_the_reason(kafka: Kafka, topic_prefix: str) -> None:
    topics = Topics(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), f"{topic_prefix}.transaction", set())
    await topics.start()
    try:
        await topics.ensure([topic_name(topic_prefix, "sales", "order_items")])
        with pytest.raises(StopForOperator, match="collides") as caught:
            await topics.ensure([topic_name(topic_prefix, "sales_order", "items")])
        assert "rename one of the two" in caught.value.hint
    finally:
        await topics.close()


@pytest.mark.integration
async def test_a_broker_refuses_too_long_a_transaction_timeout_for_good(kafka: Kafka) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, transaction_timeout_s=3600)
    producer = Producer(settings, "walgate.test.timeout")
    try:
        with pytest.raises(StopForOperator, match="InvalidTransactionTimeout"):
            await producer.start()
    finally:
        await producer.abandon()
