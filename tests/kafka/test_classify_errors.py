"""Errors of the broker: what happens next, and what a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from aiokafka.admin import NewTopic
from aiokafka.errors import InvalidTransactionTimeout, TopicAuthorizationFailedError

from gateway.config.kafka import KafkaSettings
from gateway.errors import DataGap, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.kafka.aiokafka_internals.admin import Admin
from gateway.kafka.batches import RECORD_OVERHEAD_BYTES, BatchWriter
from gateway.kafka.classify_errors import TopicDenied, classify
from gateway.kafka.producer import Producer
from gateway.kafka.topic_admin import Refusal
from gateway.kafka.topics import Topics, refused_topic
from gateway.local import Kafka


def test_a_transaction_timeout_that_the_broker_refuses_stops() -> None:
    error = classify(InvalidTransactionTimeout(), "starting the producer")
    assert type(error) is StopForOperator
    assert "kafka.transaction_timeout_s" in error.hint


def test_a_topic_that_may_not_be_made_names_the_right_and_is_waited_for() -> None:
    for code in (29, 31):  # TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED
        error = refused_topic(Refusal("t", code, ""))
        assert type(error) is RetrySlowly and "grant Create" in error.hint


@pytest.mark.parametrize(
    ("names", "topics"),
    [((), "the topics of the prefix"), (("t",), "topic t"), (({"t", "s"},), "topics s, t")],
)
def test_a_denied_access_names_the_topics(names: tuple[object, ...], topics: str) -> None:
    error = classify(TopicAuthorizationFailedError(*names), "writing")
    assert type(error) is TopicDenied and error.message == f"writing: the broker denies access to {topics}"
    assert error.hint == f"grant Write and Describe on {topics}"


CODES = {
    0: DataGap,
    7: Retry,  # REQUEST_TIMED_OUT
    17: DataGap,  # INVALID_TOPIC_EXCEPTION: another topic's name collides
    29: TopicDenied,  # TOPIC_AUTHORIZATION_FAILED
    31: RetrySlowly,  # CLUSTER_AUTHORIZATION_FAILED
    36: Retry,  # TOPIC_ALREADY_EXISTS
    37: DataGap,  # INVALID_PARTITIONS
    38: DataGap,  # INVALID_REPLICATION_FACTOR
    40: DataGap,  # INVALID_CONFIG
    41: Retry,  # NOT_CONTROLLER
    44: DataGap,  # POLICY_VIOLATION
    89: Retry,  # THROTTLING_QUOTA_EXCEEDED
}


@pytest.mark.parametrize(("code", "expected"), CODES.items())
async def test_only_an_answer_about_the_topic_shows_that_it_was_deleted(
    code: int, expected: type[WalgateError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker cannot be made to give these answers."""

    async def answer(_: Admin, topics: Sequence[NewTopic], *, validate_only: bool) -> object:
        assert validate_only
        return SimpleNamespace(topic_errors=[(topic.name, code, "") for topic in topics])

    monkeypatch.setattr(Admin, "create_topics", answer)
    topics = Topics(KafkaSettings(), "markers", {"t"}, print)
    with pytest.raises(WalgateError) as caught:
        await topics.refuse_deleted(["t"])
    assert type(caught.value) is expected
    if code == 29:
        assert caught.value.hint == "grant Create on topic t"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(code, StopForOperator) for code in (17, 37, 40, 44)]
    + [(code, RetrySlowly) for code in (29, 31, 38)]
    + [(code, Retry) for code in (-1, 5, 7, 8, 15, 41, 89)],
)
async def test_only_an_answer_about_the_topic_refuses_its_creation(
    code: int, expected: type[WalgateError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are those of a controller that moves, starts or has too much to do."""

    async def answer(_: Admin, topics: Sequence[NewTopic], *, validate_only: bool = False) -> object:
        return SimpleNamespace(topic_errors=[(topic.name, code, "") for topic in topics])

    async def nothing(_: Admin, topics: Sequence[str]) -> object:
        return [{"error_code": 3, "topic": topic, "partitions": []} for topic in topics]

    monkeypatch.setattr(Admin, "create_topics", answer)
    monkeypatch.setattr(Admin, "metadata", nothing)
    topics = Topics(KafkaSettings(replication_factor=1), "markers", set(), print)
    for creation in (topics.ensure(["markers"]), topics.ensure_relations([("public", "t")])):
        with pytest.raises(WalgateError) as caught:
            await creation
        assert type(caught.value) is expected


async def test_a_batch_is_never_larger_than_the_largest_record() -> None:
    """Else many small rows would end as one that is too large."""
    most = 20_000
    producer = Producer(KafkaSettings(max_record_bytes=most, compression="none"), "walgate.test")
    writer = BatchWriter(producer.create_batch, most - RECORD_OVERHEAD_BYTES)
    sink = writer.sink("t", 1, "t")
    try:
        for _ in range(1000):
            sink.append(None, b"x" * 100, None)
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
