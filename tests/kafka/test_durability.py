"""What is said of topics that a lost disk could take away, and how the gateway makes those that
everything depends on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

from gateway.config.kafka import KafkaSettings
from gateway.kafka.aiokafka_internals.admin import Admin
from gateway.kafka.durability import Durability, cautions
from gateway.kafka.topics import Topics
from gateway.startup.findings import OperatorWarning
from schemas.topic_names import POSITION_TOPIC, transaction_topic
from tests.support.clusters import Cluster, cluster

SAFE = Durability(copies=3, min_in_sync=2, unclean=False)


@pytest.mark.parametrize(
    ("found", "broker_count", "said"),
    [
        (SAFE, 3, ()),
        (Durability(1, 1, False), 1, ()),
        (Durability(1, 1, False), 2, ()),
        (Durability(2, 1, False), 2, ()),
        (Durability(1, 1, False), 3, ("only 1 replica, although there are 3 brokers",)),
        (Durability(2, 2, False), 5, ("only 2 replicas, although there are 5 brokers",)),
        (Durability(3, 1, False), 3, ("min.insync.replicas is 1",)),
        (Durability(3, 1, True), 3, ("min.insync.replicas is 1", "unclean.leader.election.enable is on")),
        (Durability(3, None, None), 3, ()),
    ],
)
def test_what_a_cluster_could_do_better_is_said(found: Durability, broker_count: int, said: tuple[str, ...]) -> None:
    messages = [each.message for each in cautions({"safe": SAFE, "t": found}, broker_count)]
    assert len(messages) == len(said)
    assert all(text in message and "topic t" in message for text, message in zip(said, messages, strict=True))


def test_of_many_topics_some_are_named() -> None:
    (only,) = cautions({f"t{number}": Durability(1, 1, False) for number in range(9)}, 3)
    assert only.message.startswith("topics t0, t1, t2, t3, t4 and 4 more: ")


@pytest_asyncio.fixture
async def three() -> AsyncIterator[Cluster]:
    """With Kafka's defaults for new topics: one copy, one in sync."""
    async with cluster({"default.replication.factor": 1, "min.insync.replicas": 1}) as made:
        yield made


@pytest.mark.integration
@pytest.mark.long
async def test_with_the_defaults_of_three_brokers_rows_get_a_caution_and_positions_three_copies(
    three: Cluster, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Any] = []
    describe = Admin.describe_configs

    async def counted(self: Admin, resources: Any, *rest: Any) -> Any:
        requests.append(resources)
        return await describe(self, resources, *rest)

    monkeypatch.setattr(Admin, "describe_configs", counted)
    markers, rows = transaction_topic(topic_prefix), f"{topic_prefix}.public.t"
    admin = three.admin()
    old = NewTopic(f"{topic_prefix}.old", 1, 3, config={"unclean.leader.election.enable": "true"})
    await asyncio.to_thread(admin.create_topics([old])[old.topic].result, 30)
    said: list[OperatorWarning] = []
    settings = KafkaSettings(bootstrap_servers=three.bootstrap_servers, prefix=topic_prefix)
    for turn in range(2):  # new, then known: found by what they were made with, then by asking
        topics = Topics(settings, markers, set(), said.extend)
        await topics.start()
        await topics.ensure([POSITION_TOPIC, markers])
        assert said == []
        await topics.ensure([rows])
        (caution,) = said
        assert f"topic {rows}: only 1 replica, although there are 3 brokers" in caution.message
        said.clear()
        await topics.ensure([old.topic])
        assert [each.message.split(": ")[1] for each in said] == [
            "min.insync.replicas is 1",
            "unclean.leader.election.enable is on",
        ]
        said.clear()
        asked = len(requests)
        for number in range(3):
            await topics.ensure([f"{rows}{turn}{number}"])
        assert len(said) == 3 and len(requests) - asked <= 1, "the broker's defaults are asked for once, no topic's are"
        said.clear()
        await topics.close()
    found = (await asyncio.to_thread(admin.list_topics, timeout=30)).topics
    for topic in (POSITION_TOPIC, markers):
        assert [len(partition.replicas) for partition in found[topic].partitions.values()] == [3]
        resource = ConfigResource(ResourceType.TOPIC, topic)
        config = await asyncio.to_thread(admin.describe_configs([resource])[resource].result, 30)
        assert config["min.insync.replicas"].value == "2"
