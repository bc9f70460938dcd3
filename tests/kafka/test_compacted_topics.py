"""Which new topics keep only the last record of each key."""

from __future__ import annotations

from typing import Literal

import pytest

from gateway.config.kafka import KafkaSettings, TopicOverride
from gateway.kafka.topics import Topics
from gateway.local import Kafka
from gateway.startup.findings import OperatorWarning
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC, message_topic, transaction_topic


def topics(
    *overrides: TopicOverride, compacted: bool = True, dialect: Literal["walgate", "debezium"] = "debezium"
) -> Topics:
    settings = KafkaSettings(dialect=dialect, prefix="shop", topics=overrides)
    return Topics(settings, transaction_topic("shop"), set(), lambda _: None, compacted=compacted)


async def test_topics_of_tables_are_compacted_and_no_others() -> None:
    made = topics()
    assert made.makes_compacted("shop.public.orders") and made.makes_compacted(POSITION_TOPIC)
    assert not made.makes_compacted(transaction_topic("shop")) and not made.makes_compacted(message_topic("shop"))
    assert not topics(compacted=False).makes_compacted("shop.public.orders")


async def test_a_topic_of_its_own_kind_stays_so() -> None:
    made = topics(TopicOverride(pattern="shop.public.log", config={"cleanup.policy": "delete"}))
    assert made.makes_compacted("shop.public.orders") and not made.makes_compacted("shop.public.log")


@pytest.mark.integration
@pytest.mark.parametrize("writes_truncates", [True, False])
async def test_truncates_are_warned_of_where_a_table_has_several_partitions(
    kafka: Kafka, topic_prefix: str, writes_truncates: bool
) -> None:
    single = TopicOverride(pattern=r".*\.small", partitions=1)
    settings = KafkaSettings(
        bootstrap_servers=kafka.bootstrap_servers, dialect="debezium", prefix=topic_prefix, topics=(single,)
    )
    said: list[OperatorWarning] = []
    marker = transaction_topic(topic_prefix)
    for _ in range(2):  # new topics, then known ones
        made = Topics(settings, marker, set(), said.extend, writes_truncates=writes_truncates)
        await made.start()
        await made.ensure([marker, message_topic(topic_prefix)])
        await made.ensure_relations([("public", "small")])
        assert said == []
        await made.ensure_relations([("public", "large"), ("public", "other")])
        assert len(said) == 2 * writes_truncates and len(set(said)) == writes_truncates
        assert all("in the first partition only" in each.message for each in said)
        said.clear()
        await made.close()


@pytest.mark.parametrize("policy", ["compact", "delete"])
async def test_a_pattern_that_matches_all_topics_leaves_those_of_the_gateway_as_they_must_be(policy: str) -> None:
    made = topics(TopicOverride(pattern=".*", config={"cleanup.policy": policy}), compacted=False, dialect="walgate")
    assert made.makes_compacted(POSITION_TOPIC) and made.makes_compacted(SNAPSHOT_TOPIC)
    assert not made.makes_compacted(transaction_topic("shop")) and not made.makes_compacted(message_topic("shop"))
    assert made.makes_compacted("shop.public.orders") == (policy == "compact")
