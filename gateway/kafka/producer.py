"""The transactional producer, and how it is given up. gateway/kafka/transaction_delivery.py decides
when a Kafka transaction begins and when it is committed.

aiokafka's producer is used with the changes of gateway/kafka/aiokafka_internals. Three rules follow
from measurements and from the source of version 0.14:

* `commit_transaction` returns normally although a batch of the transaction failed, so every batch's
  future is awaited first (gateway/kafka/transaction_delivery.py). After one failed or unknown
  result, a producer is never used again: it is abandoned here.
* While the broker is down, the producer's calls never return, so each call is awaited with a time
  limit.
* Sequence numbers wrap wrongly after 2^31 records on a partition, so `is_worn` asks for a new
  producer long before that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable
from math import inf
from typing import Any, TypeVar

import structlog
from aiokafka.errors import KafkaError

from gateway.config.kafka import KafkaSettings
from gateway.errors import Retry
from gateway.kafka.aiokafka_internals.producer import DirectProducer
from gateway.kafka.batches import RECORD_OVERHEAD_BYTES, Batch
from gateway.kafka.classify_errors import classify
from gateway.kafka.shutdown import close_with_timeout

MAX_PARTITION_RECORDS = 1 << 30
"""The producer is replaced after this many records on one partition."""

STOP_TIMEOUT_S = 3.0

log = structlog.get_logger()
T = TypeVar("T")


class Producer:
    """A producer from its start until it is abandoned. Methods raise WalgateError; after any error
    the object must be abandoned.

    The transactional id fences earlier gateways in both modes. With exactly_once, rows, markers and
    positions are written in the same Kafka transactions. With at_least_once, a second producer
    sends rows and markers without transactions. Only positions are then written in transactions, so
    that a fenced gateway cannot write an older position over a newer one.
    """

    def __init__(self, settings: KafkaSettings, transactional_id: str) -> None:
        self._settings = settings
        self.is_transactional = settings.delivery == "exactly_once"
        self._timeout_s = settings.delivery_timeout_s
        self.transaction_timeout_s = settings.transaction_timeout_s if self.is_transactional else inf
        self._records: Counter[tuple[str, int]] = Counter()
        self._transactional = self._direct_producer(
            transactional_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_s * 1000,
        )
        self._rows = self._transactional
        if not self.is_transactional:
            self._rows = self._direct_producer(f"{transactional_id}.rows", enable_idempotence=True)
        self._all = list(dict.fromkeys((self._transactional, self._rows)))
        self.create_batch = self._rows.create_batch

    def _direct_producer(self, client_id: str, **identity: Any) -> DirectProducer:
        settings = self._settings
        return DirectProducer(
            **settings.client_options(),
            **identity,
            client_id=client_id,
            acks="all",
            compression_type=None if settings.compression == "none" else settings.compression,
            max_batch_size=min(settings.batch_bytes, settings.max_record_bytes - RECORD_OVERHEAD_BYTES),
            max_request_size=settings.max_record_bytes,
            request_timeout_ms=settings.request_timeout_s * 1000,
            linger_ms=0,
        )

    async def start(self) -> None:
        """Connect and take the transactional id. When this returns, an earlier producer is fenced
        and its open transaction has ended."""
        for producer in self._all:
            await self._limited(producer.start(), "starting the producer")

    async def begin(self, always: list[tuple[str, int]]) -> None:
        """Open a Kafka transaction. `always` lists partitions that the transaction will certainly
        write to; they are added with the first request that adds partitions."""
        await self._limited(self._transactional.begin_transaction(), "beginning a transaction")
        for topic, partition in always:
            self._transactional.add_to_transaction(topic, partition)

    async def learn(self, topics: Iterable[str]) -> None:
        """Read where the partitions of new topics are."""
        await self._limited(self._rows.client.learn(topics), "reading the metadata of topics")

    def send(self, batch: Batch, *, in_transaction: bool = False) -> asyncio.Future[Any]:
        """Queue a batch; the future is done when the batch is delivered. With `in_transaction`, the
        batch is part of a Kafka transaction in both modes. The queue's length is bounded by the
        gateway's own memory limit."""
        producer = self._transactional if in_transaction else self._rows
        self._records[batch.topic, batch.partition] += batch.builder.record_count()
        if producer.failure is not None:
            raise classify(producer.failure, "sending a batch")
        return producer.queue(batch.builder, batch.topic, batch.partition)

    async def delivered(self, future: asyncio.Future[Any]) -> int:
        """Wait until the broker has acknowledged a batch; return its base offset."""
        if not future.done() or future.exception() is not None:
            await self._limited(asyncio.shield(future), "waiting for the broker")
        metadata = future.result()  # most are done at once: a request has one batch of each partition
        if metadata is None or metadata.offset < 0:
            raise Retry("a batch was acknowledged without an offset")
        offset: int = metadata.offset
        return offset

    async def commit(self) -> None:
        await self._limited(self._transactional.commit_transaction(), "committing a transaction")

    @property
    def is_worn(self) -> bool:
        """Whether a sequence number is close to its limit, so that the producer must be
        replaced."""
        return bool(self._records) and max(self._records.values()) >= MAX_PARTITION_RECORDS

    async def abort(self) -> None:
        """Abort the open transaction, if any: until it has ended, no other slot's gateway can read
        the position topic to its end. The next producer would abort it too, but may come late or
        never. If the commit has been requested, it is left to the next producer: it may have
        happened.

        The request is sent only once, after each batch has been answered, and the producer is not
        used afterwards. Hence, no batch of the transaction can arrive after its end."""
        if self._transactional.is_in_transaction:
            await close_with_timeout(self._transactional.abort_transaction(), STOP_TIMEOUT_S)

    async def abandon(self) -> None:
        """Give up the producer, whatever its state; wait at most STOP_TIMEOUT_S for each of its
        clients."""
        for producer in self._all:
            producer.stop_sending()
            await close_with_timeout(producer.client.close(), STOP_TIMEOUT_S)
            producer.client.release()

    async def _limited(self, awaitable: Awaitable[T], doing: str) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await awaitable
        except (KafkaError, TimeoutError, OSError) as error:
            raise classify(error, doing) from error
