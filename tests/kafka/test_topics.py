"""Topics that were just made, and whose metadata the producer asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource
from confluent_kafka import TopicPartition, admin
from confluent_kafka.admin import AdminClient

from gateway.config.kafka import KafkaSettings
from gateway.errors import Retry, StopForOperator
from gateway.kafka.aiokafka_internals.admin import Admin
from gateway.kafka.cluster_facts import kafka_facts
from gateway.kafka.producer import Producer
from gateway.kafka.topics import Topics
from gateway.local import Kafka
from gateway.startup.findings import Finding, OperatorWarning
from gateway.startup.kafka_checks import KafkaExpected, check_brokers, check_refusals, check_topics
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC, transaction_topic

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


async def test_a_kafka_that_refuses_settings_and_shows_no_default_still_takes_the_gateways_topics(
    monkeypatch: pytest.MonkeyPatch, topic_prefix: str
) -> None:
    """As Confluent Cloud does it. What is not refused is asked of a broker."""
    create, describe = Admin.create_topics, Admin.describe_configs

    async def refuse_small_segments(self: Admin, topics: list[NewTopic], *, validate_only: bool = False) -> Any:
        small = [topic for topic in topics if int(topic.topic_configs.get("segment.bytes", 1 << 30)) < 52428800]
        response = await create(self, [each for each in topics if each not in small], validate_only=validate_only)
        response.topic_errors += [(each.name, 44, "segment.bytes") for each in small]
        return response

    async def hide_the_default(self: Admin, asked: list[ConfigResource]) -> Any:
        responses = await describe(self, asked)
        for resource in (each for response in responses for each in response.resources):
            resource[4][:] = [entry for entry in resource[4] if entry[0] != "default.replication.factor"]
        return responses

    monkeypatch.setattr(Admin, "create_topics", refuse_small_segments)
    own, markers = [POSITION_TOPIC, SNAPSHOT_TOPIC], transaction_topic(topic_prefix)
    async with Kafka() as kafka:

        async def found(replication_factor: int) -> list[Finding]:
            settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, replication_factor=replication_factor)
            expected = KafkaExpected(
                topic_prefix, POSITION_TOPIC, markers, "walgate.1", replication_factor=replication_factor
            )
            topics = Topics(settings, markers, set(), print)
            facts = await kafka_facts(settings, expected, own, [], topics.new_topic)
            return [*check_refusals(facts, expected), *check_brokers(facts, expected), *check_topics(facts, expected)]

        warnings = list(await found(1))
        refused = [
            each.message for each in warnings if isinstance(each, OperatorWarning) and "segment.bytes" in each.message
        ]
        assert [f"the settings of topic {topic}" in text for topic, text in zip(own, refused, strict=True)] == [
            True,
            True,
        ]

        told: list[OperatorWarning] = []
        topics = Topics(
            KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, replication_factor=1), markers, set(), told.extend
        )
        await topics.start()
        assert await topics.ensure(own) == dict.fromkeys(own, 1)
        for topic in own:
            await topics.check_compacted(topic)
        await topics.close()
        assert [each.message for each in told] == refused
        assert not [each for each in await found(1) if "the settings of topic" in each.message]

        monkeypatch.setattr(Admin, "describe_configs", hide_the_default)
        unknown = "does not contain default.replication.factor"
        (stop,) = [each for each in await found(-1) if isinstance(each, StopForOperator)]
        assert unknown in stop.message
        topics = Topics(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers), markers, set(), print)
        await topics.start()
        with pytest.raises(StopForOperator, match=unknown) as caught:
            await topics.ensure([markers])
        assert caught.value.hint == stop.hint == "set kafka.replication_factor"
        await topics.close()

        async def not_controller(_: Admin, topics: list[NewTopic], *, validate_only: bool) -> Any:
            return SimpleNamespace(topic_errors=[(each.name, 41, "") for each in topics])

        monkeypatch.setattr(Admin, "create_topics", not_controller)
        own.append(markers)
        with pytest.raises(Retry, match="NotController"):  # no finding about the topic
            await found(1)


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
