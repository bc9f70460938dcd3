"""Topics that were just made, and whose metadata the producer asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition, admin
from confluent_kafka.admin import AdminClient

from gateway.config.kafka import KafkaSettings
from gateway.kafka.producer import Producer
from gateway.kafka.topics import Topics
from gateway.local import Kafka
from schemas.topic_names import transaction_topic

pytestmark = pytest.mark.integration
PARTITIONS = 10


@pytest.fixture
def names(kafka: Kafka, topic_prefix: str) -> Iterator[list[str]]:
    names = [f"{topic_prefix}.{number}" for number in range(10)]
    yield names
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for deleted in client.delete_topics(names).values():
        deleted.result()


async def made(kafka: Kafka, topic_prefix: str, names: list[str]) -> KafkaSettings:
    settings = KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, prefix=topic_prefix, partitions=PARTITIONS, delivery="at_least_once"
    )
    topics = Topics(settings, transaction_topic(topic_prefix), set(), print)
    await topics.start()
    assert await topics.ensure(names) == dict.fromkeys(names, PARTITIONS)
    await topics.close()
    return settings


def ends(kafka: Kafka, names: list[str]) -> list[int]:
    """Asked once: a partition without its log raises."""
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    end: Any = vars(admin)["OffsetSpec"].latest()  # not in the stubs' exports
    asked = {TopicPartition(name, partition): end for name in names for partition in range(PARTITIONS)}
    return [found.result().offset for found in client.list_offsets(asked).values()]


async def test_topics_that_were_made_take_records_at_once(kafka: Kafka, topic_prefix: str, names: list[str]) -> None:
    await made(kafka, topic_prefix, names)
    assert await asyncio.to_thread(ends, kafka, names) == [0] * len(names) * PARTITIONS


async def test_the_producer_asks_for_the_topics_that_it_was_told_of(
    kafka: Kafka, topic_prefix: str, names: list[str]
) -> None:
    producer = Producer(await made(kafka, topic_prefix, names), topic_prefix)
    await producer.start()
    try:
        client = producer._rows.client
        await producer.learn(names[:2])
        await producer.learn(names[1:3])
        assert client.cluster.topics() >= set(names[:3])  # at once, without a refresh of all
        await client.force_metadata_update()
        assert client.cluster.topics() == set(names[:3])
    finally:
        await producer.abandon()
