"""Which topic a relation gets on a real broker: always the same one, whoever came first and however
often it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.config.kafka import KafkaSettings
from gateway.errors import DataGap, Retry, StopForOperator
from gateway.kafka.topic_admin import TopicAdmin
from gateway.kafka.topics import Topics
from gateway.local import Kafka
from schemas.topic_names import topic_name, topic_names, transaction_topic

pytestmark = pytest.mark.integration

FIRST, SECOND = ("sales", "order_items"), ("sales_order", "items")
THIRD = ("sales_order_items", "x"), ("sales", "order_items_x"), ("sales_order", "items_x")
LONG = ("производство данных", "заказы клиентов за прошлый год")
NewTopics = Callable[..., Awaitable[Topics]]


@pytest_asyncio.fixture
async def new_topics(kafka: Kafka, topic_prefix: str) -> AsyncIterator[NewTopics]:
    """Of another start of the gateway each time."""
    made: list[Topics] = []

    async def make(seen: set[str] | None = None, **settings: object) -> Topics:
        values = KafkaSettings.model_validate(
            {"bootstrap_servers": kafka.bootstrap_servers, "prefix": topic_prefix, "partitions": 1, **settings}
        )
        topics = Topics(values, transaction_topic(topic_prefix), set() if seen is None else seen, print)
        await topics.start()
        made.append(topics)
        return topics

    yield make
    for topics in made:
        await topics.close()


async def named(topics: Topics, *relations: tuple[str, str]) -> list[str]:
    await topics.ensure_relations(relations)
    return [topics.of_relation(relation) for relation in relations]


async def delete(kafka: Kafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 30)
    while topic in (await asyncio.to_thread(admin.list_topics, timeout=30)).topics:
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("early", "late"), [(FIRST, SECOND), (SECOND, FIRST)])
async def test_of_two_names_that_collide_the_later_is_hashed_and_stays_so(
    new_topics: NewTopics, topic_prefix: str, early: tuple[str, str], late: tuple[str, str]
) -> None:
    expected = [topic_name(topic_prefix, *early), topic_names(topic_prefix, *late)[1]]
    topics = await new_topics()
    assert [*await named(topics, early), *await named(topics, late)] == expected
    assert await named(await new_topics(), late, early) == expected[::-1]  # after a restart the other one comes first
    assert await named(await new_topics(), late) == expected[1:]


async def test_two_names_that_collide_in_one_request_get_two_topics(new_topics: NewTopics, topic_prefix: str) -> None:
    topics = await named(await new_topics(), FIRST, SECOND, *THIRD)
    assert topics == [
        topic_names(topic_prefix, *relation)[relation in (SECOND, *THIRD[1:])] for relation in (FIRST, SECOND, *THIRD)
    ]
    again = (*THIRD, SECOND, FIRST)
    assert await named(await new_topics(), *again) == [*topics[2:], topics[1], topics[0]]


async def test_a_name_that_is_too_long_is_hashed(new_topics: NewTopics, topic_prefix: str) -> None:
    """284 bytes under the prefix `cdc`; 63 bytes each of a schema and a table that need no escape
    fit."""
    plain = ("s" * 63, "t" * 63)
    topics = await named(await new_topics(), LONG, plain)
    assert topics == [topic_names(topic_prefix, *LONG)[0], f"{topic_prefix}.{'s' * 63}.{'t' * 63}"]
    assert len(topics[0]) <= 249
    assert await named(await new_topics(), plain, LONG) == topics[::-1]


async def test_a_topic_of_somebody_else_that_collides_is_no_obstacle(
    kafka: Kafka, new_topics: NewTopics, topic_prefix: str
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    foreign = f"{topic_prefix}_sales.order_items"
    await asyncio.to_thread(admin.create_topics([NewTopic(foreign, 1, 1)])[foreign].result, 30)
    hashed = topic_names(topic_prefix, *FIRST)[1]
    assert await named(await new_topics(), FIRST) == [hashed]
    await delete(kafka, foreign)
    assert await named(await new_topics(), FIRST) == [hashed]


async def test_a_given_name_is_used_and_nobody_elses(new_topics: NewTopics, topic_prefix: str) -> None:
    given = f"{topic_prefix}.sales.order-items.v2"
    topics = await new_topics(topic_names={'"sales_order"."items"': given})
    assert await named(topics, FIRST, SECOND) == [topic_name(topic_prefix, *FIRST), given]
    assert topics.is_given(SECOND)
    assert not topics.is_given(FIRST)


@pytest.mark.parametrize("relation", [FIRST, LONG])
async def test_a_topic_that_is_deleted_under_way_is_not_created_again(
    kafka: Kafka, new_topics: NewTopics, relation: tuple[str, str]
) -> None:
    seen: set[str] = set()
    (topic,) = await named(await new_topics(seen), relation)
    await delete(kafka, topic)
    with pytest.raises(DataGap, match=topic):
        await named(await new_topics(seen), relation)


async def test_a_topic_that_the_broker_does_not_know_yet_was_not_deleted(
    kafka: Kafka, new_topics: NewTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a broker is minutes behind the controller."""
    seen: set[str] = set()
    (topic,) = await named(await new_topics(seen), FIRST)
    behind = await new_topics(seen)
    with monkeypatch.context() as patch:
        patch.setattr(TopicAdmin, "existing", nothing_exists)
        with pytest.raises(Retry, match=f"all existing topics: {topic} is missing"):
            await named(behind, FIRST)
        await delete(kafka, topic)
        with pytest.raises(DataGap, match=topic):
            await named(behind, FIRST)


async def nothing_exists(*_: object) -> dict[str, object]:
    return {}


async def test_a_fixed_topic_that_collides_stops_with_the_ways_out(
    kafka: Kafka, new_topics: NewTopics, topic_prefix: str
) -> None:
    foreign = f"{topic_prefix}_transaction"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    await asyncio.to_thread(admin.create_topics([NewTopic(foreign, 1, 1)])[foreign].result, 30)
    topics = await new_topics()
    with pytest.raises(StopForOperator, match=f"collides with existing topic: {foreign}") as caught:
        await topics.ensure([transaction_topic(topic_prefix)])
    assert "set another kafka.prefix" in caught.value.hint
    await delete(kafka, foreign)
    assert await (await new_topics()).ensure([transaction_topic(topic_prefix)]) == {transaction_topic(topic_prefix): 1}


@pytest.mark.parametrize(
    ("topic", "dialects"),
    [
        ("cdc.public.orders", set()),
        ("cdc.public.orders--0123456789abcdef0123456789abcdef", set()),
        ("cdc.chosen", set()),
        ("cdc.orders", {"walgate", "debezium"}),
        ("cdc.shop.public.orders", {"walgate"}),
    ],
)
async def test_a_topic_that_no_table_can_have_may_be_of_another_application(topic: str, dialects: set[str]) -> None:
    for dialect in ("walgate", "debezium"):
        settings = KafkaSettings(prefix="cdc", dialect=dialect, topic_names={"public.t": "cdc.chosen"})
        topics = Topics(settings, transaction_topic("cdc"), set(), print)
        assert topics.may_be_of_others(topic) == (dialect in dialects)
