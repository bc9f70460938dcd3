"""The producer: queueing of batches, and the requests of transactions.

* `_EndOnce`. aiokafka resends an unanswered EndTxn in the same epoch. If the first request is
  delayed, it could then end the *next* transaction (the flaw that Jepsen found in Kafka's protocol
  before KIP-890). Here, an unanswered request is an error. Unnecessary with transaction protocol 2
  (KIP-890: EndTxn v5, the epoch grows with each transaction) in aiokafka.
* `_AddPatiently`. aiokafka waits 20 ms while the broker is still ending the previous transaction;
  with 2 ms, a whole Kafka transaction takes 7 instead of 27 ms. With hundreds of partitions, the
  broker takes a long time to end a transaction, and each refusal costs as many lookups, so the
  intervals grow. If access to a topic is denied, all queued batches fail with this error: aiokafka
  would only report at the commit that the transaction is in the wrong state. Unnecessary with
  transaction protocol 2, in which Produce adds partitions.
* `lz4_encode.__defaults__`. aiokafka compresses lz4 at level 9, the slowest. At level 1, a batch of
  everyday rows takes a tenth of the time and is a tenth larger (bench/encode.py: 0.7 of 5.9 us a
  row). Unnecessary with a compression level (KIP-390).
* `DirectProducer`. aiokafka's `send_batch` waits until the previous batch has been sent and looks
  up metadata for each batch. `stop` waits for what cannot be delivered. Partitions that are certain
  to be written can only be added with their first record. Futures that are no longer awaited are
  logged as errors. Unnecessary with a `send_batch` that only queues, and a `close` that gives up.
* `record_appender`, `end_batch`. `BatchBuilder.append` costs 0.6 us a record more than the C
  builder behind it. Unnecessary if `append` takes positional arguments and does not look for
  serializers that are not set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

import aiokafka
import aiokafka.codec
from aiokafka import AIOKafkaProducer
from aiokafka.client import CoordinationType
from aiokafka.producer.sender import BACKOFF_OVERRIDE, AddPartitionsToTxnHandler, EndTxnHandler, Sender
from aiokafka.producer.transaction_manager import TransactionState
from aiokafka.structs import TopicPartition

from gateway.kafka.aiokafka_internals.client import Client
from gateway.kafka.aiokafka_internals.connection import mark_retrieved

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.002, 0.1

aiokafka.codec.lz4_encode.__defaults__ = (1,)


class _EndOnce(EndTxnHandler):  # type: ignore[misc]  # aiokafka has no types
    """EndTxn that is not resent if it was not answered. The answer "not now" is not an unknown
    result, so it leads to another attempt."""

    async def do(self, node_id: int) -> bool:
        response = await self._sender.client.send(node_id, self.create_request(), group=self.group)
        backoff_s = self.handle_response(response)
        if backoff_s is not None:
            await asyncio.sleep(backoff_s)
        return backoff_s is None


class _AddPatiently(AddPartitionsToTxnHandler):  # type: ignore[misc]
    """AddPartitionsToTxn that is retried at growing intervals, at most 0.1 s apart, while the
    broker is still ending the previous transaction."""

    def handle_response(self, response: Any) -> float | None:
        backoff_s: float | None = super().handle_response(response)
        sender = self._sender
        if backoff_s != BACKOFF_OVERRIDE:
            sender.refused_since = None
            # If access to a topic is denied, aiokafka would wait forever.
            if sender._txn_manager.state is TransactionState.ABORTABLE_ERROR:
                sender._message_accumulator.fail_all(sender._txn_manager.wait_for_transaction_end().exception())
            return backoff_s
        now = time.monotonic()
        if sender.refused_since is None:
            sender.refused_since = now
        waited_s: float = now - sender.refused_since
        return min(max(FIRST_BACKOFF_S, waited_s / 4), LONGEST_BACKOFF_S)


class _Sender(Sender):  # type: ignore[misc]
    """The sender with the handlers above; the two methods that use them are otherwise aiokafka's.
    `request` is the last request of the transaction."""

    refused_since: float | None = None
    request: asyncio.Task[Any] | None = None

    def _maybe_do_transactional_request(self) -> asyncio.Task[Any] | None:
        self.request = super()._maybe_do_transactional_request()
        return self.request

    async def _do_add_partitions_to_txn(self, tps: Any) -> bool:
        done: bool = await _AddPatiently(self, tps).do(await self._transaction_coordinator())
        return done

    async def _do_txn_commit(self, commit_result: Any) -> None:
        await self._message_accumulator.flush_for_commit()
        if self._txn_manager.is_empty_transaction():
            self._txn_manager.complete_transaction()
        else:
            await _EndOnce(self, commit_result).do(await self._transaction_coordinator())

    async def _transaction_coordinator(self) -> int:
        found: int = await self._find_coordinator(CoordinationType.TRANSACTION, self._txn_manager.transactional_id)
        return found


class DirectProducer(AIOKafkaProducer):  # type: ignore[misc]
    """A producer that queues batches without waiting and can be given up in any state."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.client.__class__ = Client
        self._sender.__class__ = _Sender

    @property
    def is_in_transaction(self) -> bool:
        return bool(self._txn_manager.is_in_transaction())

    @property
    def failure(self) -> Exception | None:
        """The error that ended the sending of batches for good, if any."""
        failure: Exception | None = self._message_accumulator._exception
        return failure

    def add_to_transaction(self, topic: str, partition: int) -> None:
        """Add a partition to the transaction with the next request that adds partitions, before
        anything is written to it."""
        self._txn_manager.maybe_add_partition_to_txn(TopicPartition(topic, partition))

    def queue(self, builder: Any, topic: str, partition: int) -> asyncio.Future[Any]:
        """Queue a batch; the future is done when the batch is delivered. The metadata of the topic
        must be known or already requested."""
        self.client._topics.add(topic)
        batch = self._message_accumulator._append_batch(builder, TopicPartition(topic, partition))
        delivery: asyncio.Future[Any] = batch.future
        delivery.add_done_callback(mark_retrieved)
        return delivery

    def stop_sending(self) -> None:
        """Stop sending for good; what is queued remains undelivered."""
        for task in (self._sender.sender_task, self._sender.request):  # a request would look for a coordinator forever
            if task is not None and not task.done():
                task.cancel()
        self._closed = True
        batches = chain(self._message_accumulator._pending_batches, *self._message_accumulator._batches.values())
        waiters = [batch._drain_waiter for batch in batches]
        if self._txn_manager is not None and self._txn_manager._transaction_waiter is not None:
            waiters.append(self._txn_manager._transaction_waiter)
        for waiter in waiters:  # the sender may fail only now
            waiter.add_done_callback(mark_retrieved)


def record_appender(builder: Any) -> Callable[..., Any]:
    """Return `append(offset, timestamp_ms, key, value, headers)` of a batch builder. This function
    returns None when the batch is full."""
    append: Callable[..., Any] = builder._builder.append
    return append


def end_batch(builder: Any, record_count: int) -> None:
    """Close a batch to which `record_appender` has added `record_count` records."""
    builder._relative_offset = record_count  # what BatchBuilder.append would have counted
    builder.close()
