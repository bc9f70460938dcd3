"""Errors of the broker: what happens next, and what a person reads."""

from __future__ import annotations

import pytest
from aiokafka.errors import InvalidTransactionTimeout

from gateway.kafka.errors import classify
from gateway.kafka.outlet import RECORD_OVERHEAD_BYTES, BatchWriter
from gateway.kafka.producer import Producer
from gateway.kafka.topic_admin import Refusal
from gateway.kafka.topics import refused_topic
from gateway.local import Kafka
from gateway.operate.errors import RetrySlowly, StopForOperator
from gateway.operate.kafka_settings import KafkaSettings


def test_a_transaction_timeout_that_the_broker_refuses_stops() -> None:
    error = classify(InvalidTransactionTimeout(), "starting the producer")
    assert type(error) is StopForOperator
    assert "kafka.transaction_timeout_s" in error.hint


def test_a_topic_that_may_not_be_made_names_the_right_and_is_waited_for() -> None:
    for code in (29, 31):  # TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED
        error = refused_topic(Refusal("t", code, ""))
        assert type(error) is RetrySlowly and "grant Create" in error.hint


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
async def test_a_broker_refuses_too_long_a_transaction_timeout_for_good(kafka: Kafka) -> None:
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, transaction_timeout_s=3600)
    producer = Producer(settings, "walgate.test.timeout")
    try:
        with pytest.raises(StopForOperator, match="InvalidTransactionTimeout"):
            await producer.start()
    finally:
        await producer.abandon()
