"""Kafka that is away for a while, refuses us, or has no such topic: three different things."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway.local import Kafka
from spark_consumer.errors import MalformedRecord, SourceRefused, SourceUnavailable, TransactionIncomplete
from spark_consumer.reader import broker as brokers
from spark_consumer.reader.broker import Broker, Stretch, _Reading, _rounds, _Trouble

TOPIC = "cdc.transaction"
PASSWORD = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "p",
}  # the test's broker takes none


BROKER = """
import time
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
for _ in range(20):
    producer.produce("t", b"value", partition=0)
producer.flush(10)
print(*(f"{broker.host}:{broker.port}" for broker in producer.list_topics(timeout=5).brokers.values()), flush=True)
time.sleep(300)
"""


class Answers:
    """A consumer whose broker gives these answers, one for each question."""

    def __init__(self, *answers: int | tuple[int, int]) -> None:
        self.answers = list(answers)

    def get_watermark_offsets(self, _: object, timeout: float) -> tuple[int, int]:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        return answer

    def poll(self, _: float) -> None:
        pass


def asked(monkeypatch: pytest.MonkeyPatch, *answers: int | tuple[int, int]) -> Broker:
    broker = Broker({"bootstrap.servers": "answers"}, no_progress_s=0.5)
    monkeypatch.setattr(brokers, "Consumer", lambda _: Answers(*answers))
    monkeypatch.setattr(brokers, "_consumers", {})
    return broker


@pytest.mark.parametrize(
    "passing", [KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError.NOT_LEADER_FOR_PARTITION]
)
def test_a_broker_that_starts_again_is_waited_for(monkeypatch: pytest.MonkeyPatch, passing: int) -> None:
    assert asked(monkeypatch, passing, passing, (3, 7)).offsets(TOPIC) == (3, 7)


def test_a_topic_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = asked(monkeypatch, KafkaError._UNKNOWN_PARTITION, (3, 7))
    with pytest.raises(SourceUnavailable, match="topic is missing"):
        broker.offsets(TOPIC)


def test_a_topic_that_was_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started does not know its topics at once."""
    broker = asked(monkeypatch, (3, 7), KafkaError._UNKNOWN_PARTITION, (3, 8))
    assert [broker.offsets(TOPIC), broker.offsets(TOPIC)] == [(3, 7), (3, 8)]


def test_a_broker_that_stays_away_is_told_with_the_reason() -> None:
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match=r"_ALL_BROKERS_DOWN.*Connection refused"):
        Broker({"bootstrap.servers": "127.0.0.1:1"}).offsets(TOPIC, patience_s=0)
    assert time.monotonic() - began < 20


async def test_a_wrong_protocol_is_told(kafka: Kafka) -> None:
    """It looks as if the broker hung up, so it is waited for."""
    broker = Broker({"bootstrap.servers": kafka.bootstrap_servers, "security.protocol": "ssl"})
    with pytest.raises(SourceUnavailable, match=r"_TRANSPORT: .*SSL_HANDSHAKE") as caught:
        await asyncio.to_thread(broker.offsets, TOPIC, patience_s=2)
    assert "kafka.security.protocol" in caught.value.hint


async def test_a_broker_that_refuses_us_is_not_waited_for(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "_ASK_S", 2.0)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, **PASSWORD}
    with pytest.raises(SourceRefused, match="_AUTHENTICATION") as caught:
        await asyncio.to_thread(Broker(settings, no_progress_s=300).offsets, TOPIC)
    assert "kafka.sasl" in caught.value.hint
    with pytest.raises(SourceRefused, match="_AUTHENTICATION"):
        await asyncio.to_thread(list, Broker(settings, no_progress_s=1).read(TOPIC, 0, 0, 5))


def test_a_broker_that_hangs_is_away_and_one_without_a_record_is_not() -> None:
    """The former is waited for; the read after it takes what is there. librdkafka's own broker, in
    a process that is stopped."""
    with subprocess.Popen([sys.executable, "-c", BROKER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        broker = Broker({"bootstrap.servers": process.stdout.readline().strip()}, no_progress_s=2)
        try:
            assert [offset for offsets, _ in broker.read("t", 0, 0, 9) for offset in offsets] == list(range(10))
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(SourceUnavailable, match=r"t\[0\] from offset 10 on: _TIMED_OUT"):
                list(broker.read("t", 0, 10, 19))
            process.send_signal(signal.SIGCONT)
            assert [offset for offsets, _ in broker.read("t", 0, 10, 19) for offset in offsets] == list(range(10, 20))
            with pytest.raises(TransactionIncomplete, match="no record at offset 20"):
                list(broker.read("t", 0, 10, 25))
        finally:
            process.kill()


@pytest.mark.parametrize("skip_tombstones", [True, False])
def test_a_tombstone_is_skipped_only_where_it_may_be(skip_tombstones: bool) -> None:
    """A slot's position that was deleted, in the topic of positions."""
    messages: list[Any] = [
        SimpleNamespace(error=lambda: None, offset=lambda at=at: at, value=lambda value=value: value)
        for at, value in enumerate([b"a", None, b"b"])
    ]
    reading = _Reading(0, Stretch("walgate.position", 0, 0, 2, skip_tombstones), _Trouble(), 0)
    if skip_tombstones:
        assert reading.take(messages) == 3
        assert reading.hand_out() == (0, [0, 2], [b"a", b"b"])
    else:
        with pytest.raises(MalformedRecord, match=r"walgate.position\[0\] 1: a record with a null value"):
            reading.take(messages)


def test_one_assignment_has_a_partition_once_and_large_stretches_alone() -> None:
    places = [("a", 0, 9), ("a", 1, 9), ("b", 0, 9_999), ("a", 0, 20), ("b", 0, 9), ("a", 0, 30)]
    stretches = [Stretch(topic, partition, 0, last) for topic, partition, last in places]
    assert [[index for index, _ in found] for found in _rounds(stretches)] == [[2], [0, 1, 4], [3], [5]]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_offsets_survive_a_restart_of_the_broker() -> None:
    async with Kafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 2})
        for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
            await asyncio.to_thread(made.result, 30)
        broker = Broker({"bootstrap.servers": kafka.bootstrap_servers}, no_progress_s=120)
        assert await asyncio.to_thread(broker.offsets, TOPIC) == (0, 0)
        await kafka.stop()
        asking = asyncio.create_task(asyncio.to_thread(broker.offsets, TOPIC))
        await kafka.start()
        assert await asking == (0, 0)
