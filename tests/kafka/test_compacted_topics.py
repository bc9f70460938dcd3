"""debezium.compacted_topics: which new topics keep the last record of each key."""

from __future__ import annotations

from gateway.config.kafka import KafkaSettings, TopicOverride
from gateway.kafka.topics import Topics
from schemas.topic_names import POSITION_TOPIC, message_topic, transaction_topic


def topics(*overrides: TopicOverride, compacted: bool = True) -> Topics:
    settings = KafkaSettings(dialect="debezium", prefix="shop", topics=overrides)
    return Topics(settings, transaction_topic("shop"), set(), lambda _: None, compacted=compacted)


async def test_topics_of_tables_are_compacted_and_no_others() -> None:
    made = topics()
    assert made.makes_compacted("shop.public.orders") and made.makes_compacted(POSITION_TOPIC)
    assert not made.makes_compacted(transaction_topic("shop")) and not made.makes_compacted(message_topic("shop"))
    assert not topics(compacted=False).makes_compacted("shop.public.orders")


async def test_a_topic_of_its_own_kind_stays_so() -> None:
    made = topics(TopicOverride(pattern="shop.public.log", config={"cleanup.policy": "delete"}))
    assert made.makes_compacted("shop.public.orders") and not made.makes_compacted("shop.public.log")
