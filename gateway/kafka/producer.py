"""The transactional producer, and how it is given up.

aiokafka's producer is used with seven rules (measured, its source read at 0.14):

* `commit_transaction` returns normally although a batch of the transaction failed, so every batch's future is awaited
  before (gateway/kafka/delivery.py). A producer with one failed or unknown result is dead: never retried, abandoned here.
* With the broker down its calls never return: everything is awaited under a time limit.
* Sequence numbers wrap wrongly after 2^31 records on a partition: `records_left` asks for a new producer long before.
* It sends an unanswered EndTxn again in the same epoch. A delayed first one could then end the *next* transaction (the flaw
  that Jepsen found in Kafka's protocol before KIP-890), so `_EndOnce` makes an unanswered one an error.
* It compresses lz4 at level 9, the slowest; at level 1 a batch of everyday rows takes a tenth of the time and is a tenth
  larger (bench/encode.py: 0.7 of 5.9 us a row).
* It asks for the metadata of every topic of the cluster, unless it is told which ones: then it would make those that
  were deleted.
* It waits 20 ms when the broker still ends the previous transaction (BACKOFF_OVERRIDE); 2 ms takes a whole cycle from
  27 to 7 ms. Where it takes long, because there are hundreds of partitions, each refusal costs the broker as many
  look-ups: so it is asked less and less often.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Iterable
from functools import partial
from math import inf
from typing import Any, TypeVar

import aiokafka.client
import aiokafka.codec
import aiokafka.producer.sender
import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import (
    InvalidTransactionTimeout,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.producer.sender import AddPartitionsToTxnHandler, EndTxnHandler
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import TopicPartition

from gateway.kafka.goodbye import say_goodbye
from gateway.kafka.outlet import RECORD_OVERHEAD_BYTES, Batch
from gateway.operate.errors import Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.operate.settings import KafkaSettings

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.002, 0.1


class _EndOnce(EndTxnHandler):  # type: ignore[misc]  # aiokafka has no types
    """EndTxn that is not sent twice. An answer that says "not now" is no unknown result and is tried again."""

    async def do(self, node_id: int) -> bool:
        response = await self._sender.client.send(node_id, self.create_request(), group=self.group)
        backoff_s = self.handle_response(response)
        if backoff_s is not None:
            await asyncio.sleep(backoff_s)
        return backoff_s is None


class _AddPatiently(AddPartitionsToTxnHandler):  # type: ignore[misc]
    """AddPartitionsToTxn that asks less and less often, down to every 0.1 s, while the broker still ends the previous
    transaction."""

    def handle_response(self, response: Any) -> float | None:
        backoff_s: float | None = super().handle_response(response)
        sender = self._sender
        if backoff_s != FIRST_BACKOFF_S:
            sender.refused_since = None
            return backoff_s
        now = time.monotonic()
        if getattr(sender, "refused_since", None) is None:
            sender.refused_since = now
        waited_s: float = now - sender.refused_since
        return min(max(FIRST_BACKOFF_S, waited_s / 4), LONGEST_BACKOFF_S)


aiokafka.client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)
aiokafka.producer.sender.EndTxnHandler = _EndOnce
aiokafka.producer.sender.AddPartitionsToTxnHandler = _AddPatiently
aiokafka.producer.sender.BACKOFF_OVERRIDE = FIRST_BACKOFF_S
aiokafka.codec.lz4_encode.__defaults__ = (1,)

MAX_PARTITION_RECORDS = 1 << 30
"""After so many records on one partition the producer is made anew."""

STOP_TIMEOUT_S = 3.0

log = structlog.get_logger()
T = TypeVar("T")


def classify(error: BaseException, doing: str) -> WalgateError:
    """What happens next after an error of the Kafka client. Unknown: a new producer tries again from the position."""
    if isinstance(error, WalgateError):
        return error
    text = f"{doing}: {type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, (MessageSizeTooLargeError, RecordListTooLargeError)):
        return StopForOperator(
            text,
            hint="raise max.message.bytes of the topic (message.max.bytes of the broker) to kafka.max_record_bytes",
        )
    if isinstance(error, (TransactionalIdAuthorizationFailed, TopicAuthorizationFailedError)):
        return RetrySlowly(
            text, hint="grant Write and Describe on the transactional id and on the topics of the prefix"
        )
    if isinstance(error, (SaslAuthenticationFailed, UnsupportedSaslMechanismError)):
        return RetrySlowly(text, hint="check kafka.sasl_mechanism, kafka.sasl_username and the password")
    if isinstance(error, InvalidTransactionTimeout):
        return StopForOperator(
            text, hint="lower kafka.transaction_timeout_s, or raise transaction.max.timeout.ms of the broker to it"
        )
    if isinstance(error, ProducerFenced):
        return Retry(text, hint="another gateway with the same slot took over, or the transaction timed out")
    if isinstance(error, KafkaConnectionError):
        return Retry(text, hint="check kafka.bootstrap_servers and that the broker is up")
    if isinstance(error, TimeoutError):
        return Retry(f"{doing}: no answer in time", hint="is the broker up and reachable?")
    return Retry(text)


class Producer:
    """One life of the producer. Methods raise WalgateError; after any error the object must be abandoned."""

    def __init__(self, settings: KafkaSettings, transactional_id: str) -> None:
        self._settings = settings
        self.is_transactional = settings.delivery == "exactly_once"
        self._timeout_s = settings.delivery_timeout_s
        self.transaction_timeout_s = settings.transaction_timeout_s if self.is_transactional else inf
        self._records: Counter[tuple[str, int]] = Counter()
        identity: dict[str, Any] = (
            {"transactional_id": transactional_id, "transaction_timeout_ms": settings.transaction_timeout_s * 1000}
            if self.is_transactional
            else {"enable_idempotence": True}
        )
        self._producer = AIOKafkaProducer(
            **settings.client_options(),
            **identity,
            client_id=transactional_id,
            acks="all",
            compression_type=None if settings.compression == "none" else settings.compression,
            max_batch_size=min(settings.batch_bytes, settings.max_record_bytes - RECORD_OVERHEAD_BYTES),
            max_request_size=settings.max_record_bytes,
            request_timeout_ms=settings.request_timeout_s * 1000,
            linger_ms=0,
        )
        self.create_batch = self._producer.create_batch

    async def start(self) -> None:
        """Connect and take the transactional id: when this returns, an earlier producer is fenced and its open
        transaction is ended."""
        await self._limited(self._producer.start(), "starting the producer")

    async def begin(self, always: list[tuple[str, int]]) -> None:
        """Open a Kafka transaction. `always`: partitions that it will certainly write, announced with the first ones."""
        if not self.is_transactional:
            return
        await self._limited(self._producer.begin_transaction(), "beginning a transaction")
        for topic, partition in always:
            self._producer._txn_manager.maybe_add_partition_to_txn(TopicPartition(topic, partition))

    async def learn(self, topics: Iterable[str]) -> None:
        """Where the partitions of new topics are, by one request for these alone."""
        client = self._producer.client
        new = [topic for topic in topics if topic not in client._topics]
        if new:
            client._topics.update(new)
            request = client.send(client.get_random_node(), MetadataRequest(new, allow_auto_topic_creation=False))
            found = ClusterMetadata()
            found.update_metadata(await self._limited(request, "asking where topics are"))
            client.cluster._partitions.update(found._partitions)

    def send(self, batch: Batch) -> asyncio.Future[Any]:
        """Queue a batch; the future is its delivery. Does what `send_batch` does, but without waiting until the batch
        before it has left: the queue's length is bounded by our own memory limit."""
        place = TopicPartition(batch.topic, batch.partition)
        self._records[place] += batch.builder.record_count()
        self._producer.client._topics.add(batch.topic)
        accumulator = self._producer._message_accumulator
        if accumulator._exception is not None:
            raise classify(accumulator._exception, "sending a batch")
        future: asyncio.Future[Any] = accumulator._append_batch(batch.builder, place).future
        return future

    async def delivered(self, future: asyncio.Future[Any]) -> int:
        """The base offset of a batch, once the broker acknowledged it."""
        if not future.done() or future.exception() is not None:
            await self._limited(asyncio.shield(future), "waiting for the broker")
        metadata = future.result()  # most are done together: a request has one batch of each partition
        if metadata is None or metadata.offset < 0:
            raise Retry("a batch was acknowledged without an offset")
        offset: int = metadata.offset
        return offset

    async def commit(self) -> None:
        if self.is_transactional:
            await self._limited(self._producer.commit_transaction(), "committing a transaction")

    @property
    def is_worn(self) -> bool:
        """Time for a new producer: a sequence number comes near its end."""
        return bool(self._records) and max(self._records.values()) >= MAX_PARTITION_RECORDS

    async def abort(self) -> None:
        """End the transaction that is open, if any: until it has ended, no other slot's gateway can read the position topic to
        its end. Sent once, and never by a producer that goes on."""
        if self.is_transactional and self._producer._txn_manager.is_in_transaction():
            await say_goodbye(self._producer.abort_transaction(), STOP_TIMEOUT_S)

    async def abandon(self) -> None:
        """Give the producer up, whatever state it is in; never waits longer than STOP_TIMEOUT_S."""
        sender = self._producer._sender.sender_task
        if sender is not None and not sender.done():
            sender.cancel()
        self._producer._closed = True
        client = self._producer.client
        await say_goodbye(client.close(), STOP_TIMEOUT_S)
        # Its requests in flight wait for metadata, which a closed client never gets: task and batches would stay for ever.
        waiting = client._md_update_fut
        if waiting is not None and not waiting.done():
            waiting.set_result(False)

    async def _limited(self, awaitable: Awaitable[T], doing: str) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await awaitable
        except (KafkaError, TimeoutError, OSError) as error:
            raise classify(error, doing) from error
