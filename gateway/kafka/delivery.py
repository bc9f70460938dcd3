"""Cycles: one Kafka transaction after another, each with its rows, then its markers, then one position.

    writer   fills the cycle that is open: batches become ready while the gateway reads
    seal     closes it at a transaction boundary: markers are owed, the position to come is known
    run      begin -> batches -> every delivery awaited -> manifests -> markers and position -> awaited -> commit
             -> `on_durable(resume_lsn)`: only now may PostgreSQL be told

While one cycle commits the next one fills; two Kafka transactions are never open. A transaction that must not be split
may be larger than memory: its batches leave as they fill, and `room` makes the reader wait while too much is under way.
Any failed or unknown result raises; the caller abandons the producer and starts again from the position.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.events.marker import Marker, encode_markers
from gateway.kafka.outlet import Batch, BatchWriter
from gateway.kafka.position import Position, encode_position
from gateway.kafka.producer import Producer
from gateway.operate.errors import Retry
from gateway.operate.failpoints import failpoint
from schemas.names import POSITION_TOPIC

REQUEST_BYTES = 2 << 20
"""No more is given to the producer at once: it makes one request of it, which takes several times its size while it is put
together, and the broker's first answer comes after the last of thousands of batches."""


class TransactionTimedOut(Retry):
    """A Kafka transaction failed that was written to for half of kafka.transaction_timeout_s at least: it is too large for
    that time, whereas one that was interrupted has little written to it."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Confluent frames of the fixed records."""

    marker: bytes
    position: bytes


@dataclass(slots=True)
class Cycle:
    """One Kafka transaction. Sealed when `position` is set."""

    ready: deque[Batch] = field(default_factory=deque)
    markers: list[Marker] = field(default_factory=list)
    position: Position | None = None
    begun: bool = False


class Delivery:
    """`on_durable(position)` is called after each committed cycle, `on_idle()` when another one may be sealed."""

    def __init__(
        self,
        producer: Producer,
        writer: BatchWriter,
        frames: Frames,
        marker_topic: str,
        memory_bytes: int,
    ) -> None:
        self._producer = producer
        self._writer = writer
        self._frames = frames
        self._own = BatchWriter(producer.create_batch, writer.max_record_bytes)
        self._markers = self._own.outlet(marker_topic, 1, "the markers")
        self._position = self._own.outlet(POSITION_TOPIC, 1, "the position")
        self._always = [(marker_topic, 0), (POSITION_TOPIC, 0)]
        self.memory_bytes = memory_bytes
        self.on_durable: Callable[[Position], None] = lambda position: None
        self.on_idle: Callable[[], None] = lambda: None
        self._open = Cycle()
        self._sealed: Cycle | None = None
        self._wake = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._done = asyncio.Event()
        self._delivering = False
        self._busy = False
        self._acked_at = self._writing_s = 0.0
        self.under_way_bytes = 0

    @property
    def may_seal(self) -> bool:
        return self._sealed is None and not self._busy

    @property
    def is_quiet(self) -> bool:
        """Nothing is being committed, sealed or waiting to leave."""
        return self.may_seal and not self._delivering and not self._open.ready and not self._writer.has_records

    @property
    def holds_unsealed(self) -> bool:
        """Batches have left the writer, and perhaps the gateway, without a position to commit them with."""
        return self._open.begun or bool(self._open.ready)

    def offer(self) -> None:
        """Take the full batches of the writer; call it after each read."""
        if self._writer.ready:
            self._take_ready()
            self._wake.set()

    def _take_ready(self) -> None:
        for batch in self._writer.ready:
            self._open.ready.append(batch)
            self.under_way_bytes += batch.memory_bytes
        self._writer.ready.clear()
        if self.under_way_bytes > self.memory_bytes:
            self._has_room.clear()

    def seal(self, markers: list[Marker], position: Position) -> None:
        """End the open cycle here; `position` is what becomes durable with it. Only when `may_seal`."""
        assert self.may_seal
        self._writer.close_all()
        self._take_ready()
        cycle, self._open = self._open, Cycle()
        cycle.markers = markers
        cycle.position = position
        self._sealed = cycle
        self._wake.set()

    async def room(self) -> None:
        """Wait until less than the memory limit is under way."""
        if not self._has_room.is_set():
            failpoint("reading_paused")
        await self._has_room.wait()

    async def cycle_done(self) -> None:
        """Wait until the cycle that is being delivered is durable."""
        self._done.clear()
        await self._done.wait()

    async def deliver_now(self, markers: list[Marker], position: Position) -> None:
        """One Kafka transaction of markers and a position alone, before `run` is started."""
        await self._deliver(Cycle(markers=markers, position=position))
        self._busy = False

    async def run(self) -> None:
        """Deliver until cancelled; raises WalgateError on the first failed or unknown result."""
        while True:
            cycle = await self._next_cycle()
            self._delivering = True
            position = await self._deliver(cycle)
            self._delivering = self._busy = False
            failpoint("after_commit")
            self.on_durable(position)
            self.on_idle()
            self._done.set()

    async def _next_cycle(self) -> Cycle:
        """A sealed cycle, or the open one when it already has full batches."""
        while self._sealed is None and not self._open.ready:
            self._wake.clear()
            await self._wake.wait()
        return self._sealed or self._open

    async def _deliver(self, cycle: Cycle) -> Position:
        cycle.begun = True
        await self._producer.begin(self._always)
        failpoint("transaction_begun")
        self._acked_at, self._writing_s = time.monotonic(), 0.0
        try:
            position = await self._send_rows(cycle)
        except Retry as error:
            if self._writing_s >= self._producer.transaction_timeout_s / 2:
                raise TransactionTimedOut(error.message, hint=error.hint) from error
            raise
        failpoint("all_acked")
        self._own.tick()
        append = self._markers.append
        for marker in encode_markers(self._frames.marker, cycle.markers, position.epoch):
            append(None, marker, None)
        failpoint("markers_built")
        if not self._producer.is_transactional:
            await self._send_own()  # a position must not be durable before the markers that it stands for
        self._position.append(position.key, encode_position(self._frames.position, position), None)
        await self._send_own()
        failpoint("before_commit")
        await self._producer.commit()
        return position

    async def _send_rows(self, cycle: Cycle) -> Position:
        """Send the cycle's batches as they come, until it is sealed and each one is acknowledged."""
        sent: deque[tuple[Batch, asyncio.Future[Any]]] = deque()
        sent_bytes = 0
        while True:
            while cycle.ready and sent_bytes < REQUEST_BYTES:
                batch = cycle.ready.popleft()
                sent_bytes += batch.size
                sent.append((batch, self._producer.send(batch)))
                failpoint("batch_sent")
            if sent:
                # In order: a manifest wants the pieces of a partition in order, and memory is given back steadily.
                batch, future = sent.popleft()
                sent_bytes -= batch.size
                self._note_delivered(batch, await self._producer.delivered(future))
                failpoint("batch_acked")
            elif cycle.position is not None:
                self._sealed = None
                self._busy = True
                return cycle.position
            else:
                self._wake.clear()
                await self._wake.wait()

    def _note_delivered(self, batch: Batch, base_offset: int) -> None:
        place = batch.topic, batch.partition
        for manifest, first, count in batch.pieces:
            manifest.add(place, base_offset + first, count)
        now = time.monotonic()
        # A long silence is an interruption, of the broker's or of this process, and no writing.
        self._writing_s += min(now - self._acked_at, self._producer.transaction_timeout_s / 10)
        self._acked_at = now
        self.under_way_bytes -= batch.memory_bytes
        if self.under_way_bytes <= self.memory_bytes:
            self._has_room.set()

    async def _send_own(self) -> None:
        """Markers, position or both, awaited. What the reader has filled meanwhile belongs to the next cycle."""
        self._own.close_all()
        futures = [self._producer.send(batch) for batch in self._own.ready]
        self._own.ready.clear()
        failpoint("markers_sent")
        for future in futures:
            await self._producer.delivered(future)
        failpoint("position_sent")
