"""A sequence of Kafka transactions: each holds its rows, then its markers, then one position.

    writer   fills the open transaction: batches become ready while the gateway reads
    close    ends the open transaction: its markers and its position are known
    deliver  begin -> batches -> all deliveries awaited -> manifests
             -> markers and position -> awaited -> commit;
             only then may PostgreSQL receive the confirmation

While one transaction is being committed, the next one is filled; the broker never has two open
ones. A PostgreSQL transaction that must not be split may be larger than memory. Its batches are
therefore sent as they fill, and `room` makes the reader wait while too much is in flight.
gateway/runtime/kafka_transactions.py decides when to close a transaction. Any failed or unknown
result raises an error; the caller abandons the producer and starts again from the position.

With kafka.delivery = at_least_once, rows and markers are sent without a Kafka transaction.
`commit_position` then commits the newest position in a small transaction of its own, while the next
rows are already being sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

from gateway.errors import Retry
from gateway.events.marker_encoder import Marker, encode_markers
from gateway.failpoints import failpoint
from gateway.kafka.batches import Batch, BatchWriter
from gateway.kafka.producer import Producer
from gateway.transactions.commit_policy import CommitPolicy
from gateway.transactions.position import Position, encode_position
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC
from schemas.used_schemas import UsedSchemas

REQUEST_BYTES = 2 << 20
"""The producer is given about this many bytes at once, and sends them in one request. A request
takes several times its size in memory while it is built. With thousands of batches, the broker
would answer the first only after the last."""


class TransactionTimedOut(Retry):
    """A Kafka transaction failed after writing it, and waiting for the rest of its rows, had taken
    at least half of kafka.transaction_timeout_s: it is too large for that time. A transaction that
    was only interrupted has been written for a shorter time."""


@dataclass(slots=True)
class KafkaTransaction:
    """The content of one Kafka transaction. It is closed once `position` is set."""

    ready: deque[Batch] = field(default_factory=deque)
    markers: list[Marker] = field(default_factory=list)
    position: Position | None = None
    states: dict[bytes, bytes | None] = field(default_factory=dict)
    """States of snapshots by key, which become durable with the position. None removes a record."""
    begun: bool = False
    forgets: bytes | None = None


class Delivery:
    """The delivery of Kafka transactions, one after another. One task calls `deliver` repeatedly,
    and another one fills and closes transactions.

    `marker_frame` and `position_frame` are the Confluent frames of markers and positions.
    The newest of `used_schemas` is stored with each position.
    `on_delivered` is called with the topic, the record count and the size in bytes of each batch of
    rows that the broker has acknowledged.
    """

    def __init__(
        self,
        producer: Producer,
        writer: BatchWriter,
        marker_frame: bytes,
        position_frame: bytes,
        marker_topic: str,
        policy: CommitPolicy,
        on_delivered: Callable[[str, int, int], None],
        used_schemas: UsedSchemas,
    ) -> None:
        self._producer = producer
        self._used_schemas = used_schemas
        self._writer = writer
        self._marker_frame = marker_frame
        self._position_frame = position_frame
        self._own = BatchWriter(producer.create_batch, writer.max_record_bytes)
        self._markers = self._own.sink(marker_topic, 1, "the markers")
        self._always = [(marker_topic, 0), (POSITION_TOPIC, 0)]
        self.policy = policy
        self._open = KafkaTransaction()
        self._closed: KafkaTransaction | None = None
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._done = asyncio.Event()
        self._delivering = False
        self._committing = False
        self._acked_at = self._counted_at = self._writing_s = self._begun_at = 0.0
        self._longest_counted_s = producer.transaction_timeout_s / 10
        self._positions = (
            self._own if producer.is_transactional else BatchWriter(producer.create_batch, writer.max_record_bytes)
        )
        self._position = self._positions.sink(POSITION_TOPIC, 1, "the position")
        self._states = self._positions.sink(SNAPSHOT_TOPIC, 1, "the snapshots")
        self._position_to_come: Position | None = None
        self._states_to_come: dict[bytes, bytes | None] = {}
        self._forgets: bytes | None = None
        self._committing_position = False
        self._position_wake = asyncio.Event()
        self.in_flight_bytes = 0
        self._busy_at = 0.0
        self._on_delivered = on_delivered

    @property
    def _is_busy(self) -> bool:
        """Whether an answer of Kafka is awaited."""
        return self.in_flight_bytes > 0 or not self.is_free or self._committing_position

    def stalled_s(self, now: float) -> float:
        """Return the number of seconds for which Kafka has acknowledged nothing although an answer
        is awaited. `now` is a monotonic time."""
        return max(now - max(self._busy_at, self._acked_at), 0.0) if self._is_busy else 0.0

    @property
    def is_free(self) -> bool:
        """Whether another Kafka transaction may be closed."""
        return self._closed is None and not self._committing

    @property
    def is_quiet(self) -> bool:
        """Whether no Kafka transaction is closed or being committed, and nothing waits to be
        sent."""
        if self._position_to_come is not None or self._committing_position:
            return False
        return self.is_free and not self._delivering and not self._open.ready and not self._writer.has_records

    @property
    def holds_unclosed(self) -> bool:
        """Whether batches have left the writer, and perhaps the gateway, although the position to
        commit with them is not known yet."""
        return self._open.begun or bool(self._open.ready)

    def offer(self) -> None:
        """Take the full batches of the writer; call this after each read."""
        if self._writer.ready:
            self._note_busy()
            self._take_ready()
            self._wake.set()

    def _note_busy(self) -> None:
        if not self._is_busy:
            self._busy_at = time.monotonic()

    def _take_ready(self) -> None:
        for batch in self._writer.ready:
            self._open.ready.append(batch)
            self.in_flight_bytes += batch.memory_bytes
        self._writer.ready.clear()
        if not self.policy.has_room(self.in_flight_bytes):
            self._has_room.clear()

    def close(self, markers: list[Marker], position: Position, states: dict[bytes, bytes | None] | None = None) -> None:
        """End the open Kafka transaction; `position` and `states` become durable with it. Only call
        this when `is_free`."""
        assert self.is_free
        self._note_busy()
        self._writer.close_all()
        self._take_ready()
        transaction, self._open = self._open, KafkaTransaction()
        transaction.markers = markers
        transaction.position = position
        transaction.states = states or {}
        self._closed = transaction
        self._wake.set()

    async def room(self) -> None:
        """Wait until the bytes in flight are within the memory limit."""
        if not self._has_room.is_set():
            failpoint("reading_paused")
        await self._has_room.wait()

    async def commit_done(self) -> None:
        """Wait until the Kafka transaction that is being delivered is durable."""
        self._done.clear()
        await self._done.wait()

    async def deliver_now(
        self,
        markers: list[Marker],
        position: Position,
        forgets: bytes | None = None,
        states: Mapping[bytes, bytes | None] = MappingProxyType({}),
    ) -> None:
        """Deliver one Kafka transaction without rows, before the first `deliver`. `forgets` is the
        key of another position, which this transaction deletes."""
        await self._deliver(KafkaTransaction(markers=markers, position=position, forgets=forgets, states=dict(states)))
        self._committing = False
        if self._position_to_come is not None:
            await self.commit_position()

    async def prove_fence(self) -> None:
        """Commit a Kafka transaction without records, before the first `deliver`. Raises Retry if
        another producer has taken the transactional id."""
        await self._producer.begin(self._always)
        await self._producer.commit()

    async def deliver(self) -> Position | None:
        """Deliver the next Kafka transaction and return its position, which is durable by then.
        With at_least_once, return None, because `commit_position` makes the position durable. Call
        `rest` next. Raises WalgateError on the first failed or unknown result."""
        while self._closed is None and not self._open.ready:
            self._wake.clear()
            await self._wake.wait()
        transaction = self._closed or self._open  # the open one has full batches
        self._delivering = True
        position = await self._deliver(transaction)
        self._delivering = False
        self._acked_at = time.monotonic()
        failpoint("after_commit")
        return position if self._producer.is_transactional else None

    async def rest(self) -> None:
        """Wait until the next Kafka transaction may begin, then mark Kafka as free."""
        if self._producer.is_transactional and (rest_s := self._rest_s()):
            await asyncio.sleep(rest_s)
        self._committing = False
        self._done.set()

    def _rest_s(self) -> float:
        return self.policy.rest_s(time.monotonic() - self._begun_at)

    async def commit_position(self) -> Position:
        """Commit the newest position whose rows and markers have been delivered, and return it once
        it is durable. This is used with at_least_once only."""
        while self._position_to_come is None:
            self._position_wake.clear()
            await self._position_wake.wait()
        if rest_s := self._rest_s():
            await asyncio.sleep(rest_s)
        self._committing_position, self._begun_at = True, time.monotonic()
        position, self._position_to_come = self._position_to_come, None
        await self._producer.begin([(POSITION_TOPIC, 0)])
        self._positions.tick()
        forgets, self._forgets = self._forgets, None
        self._append_position(position, self._states_to_come, forgets)
        self._states_to_come = {}
        self._positions.close_all()
        futures = [self._producer.send(batch, in_transaction=True) for batch in self._positions.ready]
        self._positions.ready.clear()
        failpoint("markers_sent")
        for future in futures:
            await self._producer.delivered(future)
        await self._producer.commit()
        self._committing_position = False
        return position

    def _append_position(self, position: Position, states: dict[bytes, bytes | None], forgets: bytes | None) -> None:
        position = replace(position, newest_schema=self._used_schemas.newest)
        self._position.append(position.key, encode_position(self._position_frame, position), None)
        if forgets is not None:
            self._position.append(forgets, None, None)
        for key, value in states.items():
            self._states.append(key, value, None)

    async def _deliver(self, transaction: KafkaTransaction) -> Position:
        transaction.begun = True
        if self._producer.is_transactional:
            self._begun_at = time.monotonic()
            await self._producer.begin(self._always)
        failpoint("transaction_begun")
        self._acked_at = self._counted_at = time.monotonic()
        self._writing_s = 0.0
        try:
            position = await self._send_rows(transaction)
            await self._finish(transaction, position)
        except Retry as error:
            if self._writing_s >= self._producer.transaction_timeout_s / 2:
                raise TransactionTimedOut(error.message, hint=error.hint) from error
            raise
        return position

    async def _finish(self, transaction: KafkaTransaction, position: Position) -> None:
        """Send markers and position, and commit. An expired Kafka transaction whose rows were
        acknowledged in time fails here."""
        failpoint("all_acked")
        self._own.tick()
        append = self._markers.append
        for marker in encode_markers(self._marker_frame, transaction.markers, position.epoch):
            append(None, marker, None)
        failpoint("markers_built")
        if self._producer.is_transactional:
            self._append_position(position, transaction.states, transaction.forgets)
        self._own.close_all()
        futures = [self._producer.send(batch) for batch in self._own.ready]
        self._own.ready.clear()
        failpoint("markers_sent")
        for future in futures:  # what the reader has filled meanwhile belongs to the next Kafka transaction
            await self._producer.delivered(future)
        failpoint("position_sent")
        failpoint("before_commit")
        if self._producer.is_transactional:
            await self._producer.commit()
        else:  # the position must not be durable before its markers
            self._position_to_come = position
            self._states_to_come |= transaction.states
            self._forgets = transaction.forgets
            self._position_wake.set()

    async def _send_rows(self, transaction: KafkaTransaction) -> Position:
        """Send the batches as they become ready, until the Kafka transaction is closed and each
        batch is acknowledged."""
        sent: deque[tuple[Batch, asyncio.Future[Any]]] = deque()
        sent_bytes = 0
        while True:
            while transaction.ready and sent_bytes < REQUEST_BYTES:
                batch = transaction.ready.popleft()
                sent_bytes += batch.size
                sent.append((batch, self._producer.send(batch)))
                failpoint("batch_sent")
            if sent:
                # Await them in order: a manifest needs the pieces of a partition in order, and
                # memory is freed steadily.
                batch, future = sent.popleft()
                sent_bytes -= batch.size
                base_offset = await self._producer.delivered(future)
                place = batch.topic, batch.partition
                for manifest, first, count in batch.pieces:
                    manifest.add(place, base_offset + first, count)
                self._note_answer(batch)
                failpoint("batch_acked")
            elif transaction.position is not None:
                self._closed = None
                self._committing = True
                return transaction.position
            else:
                await self._wait_for_rest()

    async def _wait_for_rest(self) -> None:
        """Wait for more batches or the end of the Kafka transaction. This may take long, because
        many changes of a PostgreSQL transaction may be left out. Return after `_longest_counted_s`
        at the latest, so that this time is counted."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._longest_counted_s if isfinite(self._longest_counted_s) else None):
                await self._wake.wait()
        self._count()

    def _count(self) -> None:
        """Count the time since the last call as spent writing, but at most `_longest_counted_s`: a
        long silence is an interruption of the broker or of this process."""
        now = time.monotonic()
        self._writing_s += min(now - self._counted_at, self._longest_counted_s)
        self._counted_at = now

    def _note_answer(self, batch: Batch) -> None:
        """Note when the batch was acknowledged, and that it no longer takes memory."""
        self._count()
        self._acked_at = self._counted_at
        self.in_flight_bytes -= batch.memory_bytes
        self._on_delivered(batch.topic, batch.builder.record_count(), batch.size)
        if self.policy.has_room(self.in_flight_bytes):
            self._has_room.set()
