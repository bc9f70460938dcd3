"""What gateway/kafka/driver.py relies on in aiokafka: one test for each, so that a new version says what it breaks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
import pytest_asyncio
from aiokafka.cluster import ClusterMetadata
from aiokafka.codec import lz4_encode
from aiokafka.errors import ConcurrentTransactions, RequestTimedOutError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.producer.transaction_manager import TransactionResult
from aiokafka.structs import TopicPartition
from confluent_kafka.admin import AdminClient

from gateway.kafka import driver
from gateway.kafka.driver import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    Admin,
    Client,
    Consumer,
    DirectProducer,
    check_version,
    end_batch,
    record_appender,
)
from gateway.local import Kafka
from gateway.local.kafka import QUICK_START
from gateway.operate.errors import StopForOperator

ROOT = Path(__file__).parents[2]
HEADER_BYTES = 61  # of a record batch
LZ4 = 3


@pytest.mark.parametrize("version", ["0.13.0", "0.15.0", "1.0", "0.140.0"])
def test_another_version_of_aiokafka_is_refused(version: str) -> None:
    with pytest.raises(StopForOperator, match=version):
        check_version(version)


def test_the_installed_version_is_one_whose_source_was_read() -> None:
    check_version(aiokafka.__version__)


@pytest.mark.parametrize(
    ("path", "source", "allowed"),
    [
        ("gateway/kafka/topics.py", "admin._client.close()", False),
        ("gateway/service/session.py", "sql._transport.close()", False),
        ("gateway/replication/login.py", "sql._transport.close()", False),
        ("spark_consumer/mirror/target.py", "spark._jvm", False),
        ("spark_consumer/jvm.py", "spark._jvm", True),
        ("gateway/kafka/topics.py", "import aiokafka.client", False),
        ("gateway/kafka/topics.py", "from aiokafka.protocol.metadata import MetadataRequest", False),
        ("gateway/kafka/position_topic.py", "from aiokafka import AIOKafkaConsumer", False),
        ("gateway/service/session.py", "from asyncpg.protocol import Record", False),
        ("gateway/kafka/driver.py", "from aiokafka.client import AIOKafkaClient\nAIOKafkaClient._conns", True),
        ("gateway/replication/driver.py", "connection._transport.close()", True),
        ("gateway/kafka/topics.py", "from aiokafka.errors import KafkaError", True),
    ],
)
def test_make_check_refuses_the_insides_of_a_driver_outside_its_one_file(path: str, source: str, allowed: bool) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--select", "SLF,TID251", "--stdin-filename", path, "-"]
    done = subprocess.run(command, input=source, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == allowed, done.stdout + done.stderr


@pytest_asyncio.fixture
async def producer() -> AsyncIterator[DirectProducer]:
    """Never started; inside a transaction to which one partition belongs."""
    made = DirectProducer(transactional_id="t", compression_type="lz4")
    manager = made._txn_manager
    manager.set_pid_and_epoch(1, 0)
    manager.begin_transaction()
    manager.maybe_add_partition_to_txn(TopicPartition("first", 0))
    manager.partition_added(TopicPartition("first", 0))
    made._sender._coordinators[1] = 7
    yield made
    made.stop_sending()
    await made.client.close()


class Answers:
    """Stands for the client's `send`: each answer in turn; an exception is raised. `count` requests were sent."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.count = 0

    async def __call__(self, node_id: int, request: Any, **_: Any) -> Any:
        self.count += 1
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Answer:
    def __init__(self, *errors: int) -> None:
        self.error_code = errors[0] if errors else 0
        self.errors = [("second", list(enumerate(errors)))]


async def test_an_end_of_a_transaction_that_was_not_answered_is_an_error_and_not_sent_again(
    producer: DirectProducer,
) -> None:
    producer.client.send = answers = Answers(RequestTimedOutError(), Answer(0))
    with pytest.raises(RequestTimedOutError):
        await producer._sender._do_txn_commit(TransactionResult.COMMIT)
    assert answers.count == 1


async def test_an_answered_end_of_a_transaction_completes_it(producer: DirectProducer) -> None:
    producer._txn_manager.committing_transaction()
    producer.client.send = Answers(Answer(0))
    await producer._sender._do_txn_commit(TransactionResult.COMMIT)
    assert not producer.is_in_transaction
    await producer._txn_manager.wait_for_transaction_end()


async def test_a_broker_that_still_ends_the_last_transaction_is_asked_soon_then_less_often(
    producer: DirectProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka says by BACKOFF_OVERRIDE that this is the reason."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    now = [100.0]
    monkeypatch.setattr("gateway.kafka.driver.time.monotonic", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    producer._txn_manager._txn_partitions.clear()
    producer.add_to_transaction("second", 0)
    refusals = [Answer(ConcurrentTransactions.errno)] * 60
    producer.client.send = Answers(*refusals, Answer(0))
    partitions = producer._txn_manager.partitions_to_add()
    while not await producer._sender._do_add_partitions_to_txn(partitions):
        assert partitions == {TopicPartition("second", 0)}
    assert partitions == set()
    assert slept[0] == FIRST_BACKOFF_S
    assert slept == sorted(slept)
    assert slept[-1] == LONGEST_BACKOFF_S
    assert producer._sender.refused_since is None


def test_lz4_is_level_1() -> None:
    """Of what a batch holds, as aiokafka builds it."""
    plain, packed = (BatchBuilder(1 << 20, codec) for codec in (0, LZ4))
    for builder in (plain, packed):
        for number in range(3000):
            builder.append(timestamp=1, key=b"%d" % number, value=b"value %d of some words" % (number * number))
    content = bytes(plain._build())[HEADER_BYTES:]
    assert lz4_encode(content, 9) != lz4_encode(content, 1)
    assert bytes(packed._build())[HEADER_BYTES:] == lz4_encode(content, 1)


def test_the_short_way_to_append_makes_the_same_bytes() -> None:
    usual, short = BatchBuilder(1000, 0), BatchBuilder(1000, 0)
    append = record_appender(short)
    count = 0
    while usual.append(timestamp=5, key=b"k%d" % count, value=b"v") is not None:
        assert append(count, 5, b"k%d" % count, b"v", []) is not None
        count += 1
    assert append(count, 5, b"k%d" % count, b"v", []) is None
    end_batch(short, count)
    assert short.closed()
    assert (short.record_count(), short.size()) == (usual.record_count(), usual.size())
    assert short._build() == usual._build()


async def test_what_waits_for_metadata_is_released_after_the_end(producer: DirectProducer) -> None:
    waiting = producer.client.force_metadata_update()
    await producer.client.close()
    assert not waiting.done()
    producer.client.release()
    assert await waiting is False


async def test_batches_queue_behind_each_other_and_their_partition_is_announced(producer: DirectProducer) -> None:
    deliveries = [producer.queue(producer.create_batch(), "second", 1) for _ in range(3)]
    assert not any(delivery.done() for delivery in deliveries)
    assert len(producer._message_accumulator._batches["second", 1]) == 3
    assert producer._txn_manager.partitions_to_add() == {TopicPartition("second", 1)}
    assert producer.failure is None
    producer._message_accumulator.fail_all(RequestTimedOutError())
    assert isinstance(producer.failure, RequestTimedOutError)
    assert all(isinstance(delivery.exception(), RequestTimedOutError) for delivery in deliveries)


@pytest_asyncio.fixture(scope="module")
async def creating_kafka() -> AsyncIterator[Kafka]:
    """Creates a topic that is asked for."""
    async with Kafka(settings={"auto.create.topics.enable": "true"}, jvm_options=[QUICK_START]) as broker:
        yield broker


@pytest.mark.integration
async def test_no_client_creates_a_topic_by_asking_for_it(creating_kafka: Kafka) -> None:
    options = {"bootstrap_servers": creating_kafka.bootstrap_servers}
    admin, producer = Admin(**options), DirectProducer(**options)
    consumer = Consumer(**options)
    for client in (producer.client, consumer._client, admin._client):
        assert type(client) is Client
        await client.bootstrap()
        client.set_topics(["asked"])
        await client.force_metadata_update()
    assert [facts["error_code"] for facts in await admin.metadata(["asked"])] == [3]
    await producer.client.learn(["learnt"])
    producer.stop_sending()
    await asyncio.gather(producer.client.close(), consumer.stop(), admin.close())
    topics = AdminClient({"bootstrap.servers": creating_kafka.bootstrap_servers}).list_topics(timeout=30).topics
    assert not {"asked", "learnt"} & topics.keys()


@pytest.mark.integration
async def test_a_client_that_knows_no_topic_asks_for_none(kafka: Kafka, topic_prefix: str) -> None:
    admin = Admin(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        answer = await admin.create_topics([aiokafka.admin.NewTopic(topic_prefix, 1, 1)])
        assert answer.topic_errors[0][1] == 0
        await admin._client.force_metadata_update()
        assert admin._client.cluster.topics() == set()
        async with asyncio.timeout(10):  # a broker knows a topic a moment after the controller
            while topic_prefix not in (await admin._client.fetch_all_metadata()).topics():
                await asyncio.sleep(0.05)
        assert isinstance(admin._client.cluster, ClusterMetadata)
    finally:
        await admin.close()


@pytest.mark.integration
async def test_the_handlers_are_those_that_a_real_transaction_uses(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    for name, method in (("_EndOnce", "do"), ("_AddPatiently", "handle_response")):
        plain = getattr(getattr(driver, name), method)

        def noted(self: Any, argument: Any, *, name: str = name, plain: Any = plain) -> Any:
            used.append(name)
            return plain(self, argument)

        monkeypatch.setattr(getattr(driver, name), method, noted)
    options = {"bootstrap_servers": kafka.bootstrap_servers}
    admin, producer = Admin(**options), DirectProducer(**options, transactional_id=topic_prefix)
    await admin.start()
    await admin.create_topics([aiokafka.admin.NewTopic(topic_prefix, 1, 1)])
    await producer.start()
    try:
        await producer.begin_transaction()
        builder = producer.create_batch()
        record_appender(builder)(0, 1, b"k", b"v", [])
        end_batch(builder, 1)
        metadata = await producer.queue(builder, topic_prefix, 0)
        assert metadata.offset == 0
        await producer.commit_transaction()
        assert {"_EndOnce", "_AddPatiently"} == set(used)
    finally:
        producer.stop_sending()
        await producer.client.close()
        await admin.close()
