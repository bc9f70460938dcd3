"""What gateway/kafka/aiokafka_internals relies on in aiokafka: one test for each, so that a new
version says what it breaks."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiokafka
import pytest
import pytest_asyncio
from aiokafka.client import ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.codec import lz4_encode
from aiokafka.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailableError,
    InvalidProducerIdMapping,
    KafkaConnectionError,
    NodeNotReadyError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.producer.transaction_manager import TransactionResult
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway.errors import StopForOperator
from gateway.kafka.aiokafka_internals import client as client_internals
from gateway.kafka.aiokafka_internals import connection as connection_internals
from gateway.kafka.aiokafka_internals import producer as producer_internals
from gateway.kafka.aiokafka_internals.admin import Admin, Consumer
from gateway.kafka.aiokafka_internals.client import Client
from gateway.kafka.aiokafka_internals.connection import ConnectError, first_to_succeed
from gateway.kafka.aiokafka_internals.producer import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    DirectProducer,
    end_batch,
    record_appender,
)
from gateway.kafka.aiokafka_internals.version import check_version
from gateway.local import Kafka
from gateway.local.kafka import QUICK_START
from gateway.local.ports import HOST, free_port
from gateway.runtime.event_loop import EventLoop
from tests.kafka.scripted_broker import (
    AUTHENTICATE,
    HANDSHAKE,
    METADATA,
    VERSIONS,
    ScriptedBroker,
    scripted_brokers,
)

ROOT = Path(__file__).parents[2]
HEADER_BYTES = 61  # of a record batch
LZ4 = 3
IN_TIME_S = 10.0  # aiokafka's own ways take the 40 s of a request


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
        ("gateway/runtime/session.py", "sql._transport.close()", False),
        ("gateway/postgres/login.py", "sql._transport.close()", False),
        ("spark_consumer/mirror/delta/delta_table.py", "spark._jvm", False),
        ("spark_consumer/jvm.py", "spark._jvm", True),
        ("gateway/kafka/topics.py", "import aiokafka.client", False),
        ("gateway/kafka/topics.py", "from aiokafka.protocol.metadata import MetadataRequest", False),
        ("gateway/kafka/position_topic.py", "from aiokafka import AIOKafkaConsumer", False),
        ("gateway/runtime/session.py", "from asyncpg.protocol import Record", False),
        (
            "gateway/kafka/aiokafka_internals/client.py",
            "from aiokafka.client import AIOKafkaClient\nAIOKafkaClient._conns",
            True,
        ),
        ("gateway/postgres/asyncpg_internals.py", "connection._transport.close()", True),
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
    """Stands for the client's `send`: each answer in turn; an exception is raised. `count` requests
    were sent."""

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
    monkeypatch.setattr("gateway.kafka.aiokafka_internals.producer.time.monotonic", lambda: now[0])
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
    assert producer.client._topics == {"second"}
    assert producer.failure is None
    producer._message_accumulator.fail_all(RequestTimedOutError())
    assert isinstance(producer.failure, RequestTimedOutError)
    assert all(isinstance(delivery.exception(), RequestTimedOutError) for delivery in deliveries)


async def test_a_topic_that_is_denied_fails_what_waits_for_it(producer: DirectProducer) -> None:
    delivery = producer.queue(producer.create_batch(), "second", 0)
    producer.client.send = Answers(Answer(TopicAuthorizationFailedError.errno))
    await producer._sender._do_add_partitions_to_txn(producer._txn_manager.partitions_to_add())
    assert isinstance(delivery.exception(), TopicAuthorizationFailedError)
    assert isinstance(producer.failure, TopicAuthorizationFailedError)


async def test_what_is_given_up_ends_at_once_and_says_nothing(
    producer: DirectProducer, no_complaints: list[dict[str, Any]]
) -> None:
    """A batch that is under way has a future of its own, and so has the transaction."""
    delivery = producer.queue(producer.create_batch(), "second", 1)
    producer._sender._sender_task = sender = asyncio.create_task(asyncio.sleep(3600))
    producer.stop_sending()
    with pytest.raises(asyncio.CancelledError):
        await sender
    producer._message_accumulator.fail_all(RequestTimedOutError())
    producer._txn_manager.error_transaction(RequestTimedOutError())
    assert delivery.done()
    producer._message_accumulator._batches.clear()
    producer._txn_manager._transaction_waiter = None
    del delivery
    gc.collect()
    assert no_complaints == []


async def test_a_producer_that_is_given_up_looks_for_no_coordinator_any_more(producer: DirectProducer) -> None:
    """aiokafka's loop would go on for as long as the process lives, and hold the batches."""
    producer.queue(producer.create_batch(), "second", 1)
    producer._sender._coordinators.clear()
    looked = asyncio.Event()

    async def nobody(*_: object) -> None:
        looked.set()
        raise CoordinatorNotAvailableError

    producer.client.coordinator_lookup = nobody
    producer._sender._sender_task = sender = asyncio.create_task(producer._sender._sender_routine())
    await looked.wait()
    producer.stop_sending()
    await producer.client.close()
    producer.client.release()
    _, hanging = await asyncio.wait({sender, producer._sender.request}, timeout=5)
    assert not hanging


@pytest_asyncio.fixture
async def no_complaints() -> AsyncIterator[list[dict[str, Any]]]:
    """What asyncio logs of futures that nobody asked."""
    found: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context))
    yield found
    loop.set_exception_handler(None)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes seconds takes a fraction."""
    for name, seconds in (("STAGGER_S", 0.05), ("CONNECT_TIMEOUT_S", 0.3), ("WATCH_S", 0.02), ("SILENCE_S", 0.1)):
        for module in (connection_internals, client_internals):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, seconds)


@asynccontextmanager
async def client_of(*brokers: ScriptedBroker, **options: Any) -> AsyncIterator[Client]:
    made = Client(bootstrap_servers=[f"{HOST}:{broker.port}" for broker in brokers], **options)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.usefixtures("soon")
async def test_addresses_are_raced() -> None:
    async with scripted_brokers(3) as (deaf, other, good), client_of(deaf, other, good) as client:
        deaf.answers[VERSIONS].clear()
        other.answers[METADATA].clear()
        async with asyncio.timeout(IN_TIME_S):
            await client.bootstrap()
        assert {broker.port for broker in client.cluster.brokers()} == {deaf.port, other.port, good.port}


@pytest.mark.usefixtures("soon")
async def test_what_happened_at_each_address_is_said() -> None:
    async with scripted_brokers(2) as (deaf, empty), client_of(deaf, empty) as client:
        deaf.answers[VERSIONS].clear()
        empty.listed = {}
        async with asyncio.timeout(IN_TIME_S):
            with pytest.raises(ConnectError) as failed:
                await client.bootstrap()
        assert isinstance(failed.value.errors[f"{HOST}:{deaf.port}"], TimeoutError)
        assert "does not know any broker" in str(failed.value.errors[f"{HOST}:{empty.port}"])


@pytest.mark.usefixtures("soon")
async def test_a_broker_that_takes_no_connection_is_in_nobodys_way() -> None:
    async with scripted_brokers(2) as (deaf, good), client_of(good) as client:
        deaf.answers[VERSIONS].clear()
        await client.bootstrap()
        begun = time.monotonic()
        waiting = asyncio.create_task(client.send(1, MetadataRequest([])))
        async with asyncio.timeout(IN_TIME_S):
            while not deaf.connections:
                await asyncio.sleep(0.001)
            connected = good.connections
            await asyncio.gather(*(client.send(2, MetadataRequest([])) for _ in range(5)))
            assert not waiting.done()
            assert good.connections == connected + 1
            with pytest.raises(NodeNotReadyError):
                await waiting
        assert time.monotonic() - begun >= connection_internals.CONNECT_TIMEOUT_S
        # It is suspected now: asked last.
        assert {client.get_random_node() for _ in range(50)} == {2}
        assert {tuple(client._brokers()) for _ in range(50)} == {(2, 1)}
        deaf.answers[VERSIONS].set()
        await client.send(1, MetadataRequest([]))
        assert {client.get_random_node() for _ in range(100)} == {1, 2}


@pytest.mark.usefixtures("soon")
async def test_a_connection_that_ended_is_replaced() -> None:
    async with scripted_brokers(1) as (broker,), client_of(broker) as client:
        await client.bootstrap()
        await client.send(1, MetadataRequest([]))
        connected = broker.connections
        client._conns[1, ConnectionGroup.DEFAULT].close()
        await client.send(1, MetadataRequest([]))
        assert broker.connections == connected + 1


@pytest.mark.usefixtures("soon")
async def test_metadata_come_from_the_first_broker_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "shuffle", lambda ids: ids.sort())
    async with scripted_brokers(2) as (silent, good), client_of(good) as client:
        await client.bootstrap()
        silent.answers[METADATA].clear()
        async with asyncio.timeout(IN_TIME_S):
            assert await client.force_metadata_update() is True
        assert METADATA in silent.asked


@pytest.mark.usefixtures("soon")
async def test_the_admin_client_asks_the_brokers_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three, one takes no connections and one is silent: no request waits for the one that
    aiokafka would choose."""
    monkeypatch.setattr(random, "shuffle", lambda ids: ids.sort())
    async with scripted_brokers(3) as (gone, silent, good):
        for broker in (silent, good):
            broker.listed = {1: free_port(), 2: silent.port, 3: good.port}
        silent.answers[VERSIONS].clear()
        admin = Admin(bootstrap_servers=f"{HOST}:{good.port}")
        await admin.start()
        try:
            async with asyncio.timeout(IN_TIME_S):
                for _ in range(5):
                    assert len((await admin.describe_cluster())["brokers"]) == 3
        finally:
            await admin.close()
        assert not gone.asked


@pytest.mark.usefixtures("soon")
async def test_a_silent_broker_is_given_up_when_the_cluster_has_given_it_up() -> None:
    async with scripted_brokers(2) as (silent, good), client_of(good) as client:
        await client.bootstrap()
        await asyncio.gather(*(client.send(node, MetadataRequest([])) for node in (1, 2)))
        silent.answers[METADATA].clear()
        waiting = asyncio.create_task(client.send(1, MetadataRequest([])))
        await asyncio.sleep(0.5)
        assert not waiting.done()  # the cluster still lists it
        assert client._brokers() == [2, 1]
        good.listed = {2: good.port}
        async with asyncio.timeout(IN_TIME_S):
            with pytest.raises(KafkaConnectionError):
                await waiting


class Tokens:
    """`kafka_settings` gives the like. `refusal`: what is raised instead of the next token."""

    def __init__(self) -> None:
        self.given = 0
        self.forgotten = 0
        self.refusal: Exception | None = None

    async def token(self) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.given += 1
        return "token"

    def forget(self) -> None:
        self.forgotten += 1


PASSWORD: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "user",
    "sasl_plain_password": "secret",
}


def _token(tokens: Tokens) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": tokens,
    }


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", ["password", "token"])
async def test_a_login_is_renewed_before_it_ends(kind: str) -> None:
    tokens = Tokens()
    options = PASSWORD if kind == "password" else _token(tokens)
    async with scripted_brokers(1) as (broker,), client_of(broker, **options) as client:
        broker.session_ms = 400
        await client.bootstrap()
        begun = time.monotonic()
        await client.send(1, MetadataRequest([]))
        connected, logins = broker.connections, broker.asked.count(AUTHENTICATE)
        async with asyncio.timeout(IN_TIME_S):
            while broker.asked.count(AUTHENTICATE) < logins + 2:
                await asyncio.sleep(0.01)
        assert time.monotonic() - begun >= 2 * 0.4 * connection_internals.RENEWED_AFTER
        await client.send(1, MetadataRequest([]))
        assert broker.connections == connected
        assert tokens.forgotten == 0


@pytest.mark.usefixtures("soon")
async def test_nothing_is_sent_while_a_login_is_renewed() -> None:
    async with scripted_brokers(1) as (broker,), client_of(broker, **PASSWORD) as client:
        await client.bootstrap()
        await client.send(1, MetadataRequest([]))
        broker.answers[HANDSHAKE].clear()
        broker.asked.clear()
        client._conns[1, ConnectionGroup.DEFAULT].renew_at = time.monotonic()
        async with asyncio.timeout(IN_TIME_S):
            while HANDSHAKE not in broker.asked:
                await asyncio.sleep(0.001)
        sent = asyncio.create_task(client.send(1, MetadataRequest([])))
        await asyncio.sleep(0.2)  # no second login begins meanwhile
        broker.answers[HANDSHAKE].set()
        await sent
        assert (broker.asked[:2], {*broker.asked[2:]}) == ([HANDSHAKE, AUTHENTICATE], {METADATA})


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", ["password", "token"])
async def test_a_connection_whose_login_fails_ends(kind: str) -> None:
    options = PASSWORD if kind == "password" else _token(Tokens())
    async with scripted_brokers(1) as (broker,), client_of(broker, **options) as client:
        await client.bootstrap()
        await client.send(1, MetadataRequest([]))
        connection = client._conns[1, ConnectionGroup.DEFAULT]
        broker.login_code, broker.challenge = (
            (SaslAuthenticationFailed.errno, b"") if kind == "password" else (0, b"no")
        )
        await connection.log_in_again()
        assert not connection.connected()


@pytest.mark.usefixtures("soon")
async def test_without_a_token_the_connection_stays_as_long_as_it_may() -> None:
    tokens = Tokens()
    async with scripted_brokers(1) as (broker,), client_of(broker, **_token(tokens)) as client:
        await client.bootstrap()
        await client.send(1, MetadataRequest([]))
        broker.asked.clear()
        tokens.refusal = StopForOperator("nobody gives tokens")
        await client._conns[1, ConnectionGroup.DEFAULT].log_in_again()
        await client.send(1, MetadataRequest([]))
        assert broker.asked == [METADATA]


@pytest.mark.usefixtures("soon")
async def test_a_challenge_refuses_a_token() -> None:
    """And the token is not given again (RFC 7628)."""
    tokens = Tokens()
    async with scripted_brokers(1) as (broker,), client_of(broker, **_token(tokens)) as client:
        broker.challenge = b'{"status":"invalid_token"}'
        with pytest.raises(ConnectError, match="the broker rejects the token: .*invalid_token"):
            await client.bootstrap()
        assert (tokens.given, tokens.forgotten) == (2, 1)  # asked for before the connection's time begins, too


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
    await producer.client.learn(["learnt"])
    assert [facts["error_code"] for facts in await admin.metadata(["described"])] == [3]
    producer.stop_sending()
    await asyncio.gather(producer.client.close(), consumer.stop(), admin.close())
    user = AdminClient({"bootstrap.servers": creating_kafka.bootstrap_servers})
    await asyncio.sleep(0.2)  # a broker creates what is asked for a little later
    user.create_topics([NewTopic("created", 1, 1)])["created"].result(30)
    async with asyncio.timeout(IN_TIME_S):
        while "created" not in (topics := user.list_topics(timeout=30).topics):
            await asyncio.sleep(0.05)
    assert not {"asked", "learnt", "described"} & topics.keys()


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
def test_a_request_over_a_connection_that_has_just_closed_is_a_connection_error(kafka: Kafka) -> None:
    """uvloop's transport raises RuntimeError then."""

    async def send() -> None:
        client = Client(bootstrap_servers=kafka.bootstrap_servers)
        await client.bootstrap()
        try:
            node = next(iter(client.cluster.brokers())).nodeId
            assert await client.ready(node)
            connection = client._conns[node, ConnectionGroup.DEFAULT]
            connection._writer.transport.abort()
            await asyncio.sleep(0)  # one iteration before aiokafka knows
            with pytest.raises(KafkaConnectionError, match="closed"):
                connection.send(MetadataRequest([]))
            assert not connection.connected()
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(send())


@pytest.mark.integration
async def test_the_handlers_are_those_that_a_real_transaction_uses(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    for name, method in (("_EndOnce", "do"), ("_AddPatiently", "handle_response")):
        plain = getattr(getattr(producer_internals, name), method)

        def noted(self: Any, argument: Any, *, name: str = name, plain: Any = plain) -> Any:
            used.append(name)
            return plain(self, argument)

        monkeypatch.setattr(getattr(producer_internals, name), method, noted)
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


@pytest.mark.integration
async def test_what_is_asked_beyond_the_admin_client_and_the_consumer(kafka: Kafka, topic_prefix: str) -> None:
    """Nothing is added to a transaction: the broker does not know the producer, and says so of a
    topic that it would allow."""
    options = {"bootstrap_servers": kafka.bootstrap_servers}
    admin, consumer = Admin(**options), Consumer(**options)
    await asyncio.gather(admin.start(), consumer.start())
    try:
        topics = [f"{topic_prefix}.a", f"{topic_prefix}.b"]
        await admin.create_topics([aiokafka.admin.NewTopic(topic, 2, 1) for topic in topics])
        expected = {TopicPartition(topic, partition) for topic in topics for partition in range(2)}
        async with asyncio.timeout(IN_TIME_S):  # a broker knows a topic a moment after the controller
            while await consumer.partitions_below(f"{topic_prefix}.") != expected:
                await asyncio.sleep(0.05)
        assert admin.broker_count == 1
        (leader,) = {partition["leader"] for topic in await admin.metadata(topics) for partition in topic["partitions"]}
        async with asyncio.timeout(IN_TIME_S):
            while await admin.without_log(leader, dict.fromkeys(topics, range(2))):
                await asyncio.sleep(0.05)
        assert await admin.without_log(leader, {topics[0]: [0], topics[1]: [1, 2]}) == {topics[1]}
        async with asyncio.timeout(60):  # the coordinator's own topic is created by the first question
            while (codes := await admin.add_to_no_transaction(topic_prefix, topics)) != dict.fromkeys(
                topics, InvalidProducerIdMapping.errno
            ):
                assert set(codes.values()) <= {15, 16, 14}, codes  # not available, not the coordinator, loading
                await asyncio.sleep(0.1)
        assert await admin.add_to_no_transaction(topic_prefix, []) == {}
        await admin._client.learn(topics[:1])
        assert admin._client._topics == {topics[0]}
        assert admin._client.cluster.partitions_for_topic(topics[0]) == {0, 1}
        assert admin._client.cluster.partitions_for_topic(topics[1]) is None
    finally:
        await asyncio.gather(admin.close(), consumer.stop())


async def test_attempts_that_end_together_leave_no_exception_behind() -> None:
    """asyncio would log each of them as one that was never retrieved."""
    noted: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noted.append(context))
    for _ in range(20):
        gate = asyncio.Event()

        async def succeeds(opened: asyncio.Event = gate) -> int:
            await opened.wait()
            return 1

        async def fails(opened: asyncio.Event = gate) -> int:
            await opened.wait()
            raise OSError("refused")

        racing = asyncio.create_task(first_to_succeed([succeeds, fails, fails], 0.0))
        await asyncio.sleep(0.01)
        gate.set()
        assert await racing == 1
        del racing
    gc.collect()
    await asyncio.sleep(0)
    assert noted == []
