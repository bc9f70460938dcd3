"""The reading loop: bytes from PostgreSQL -> state machine -> batches; and when a cycle may end.

The order within one turn: read, take every frame, hand over full batches, seal the cycle if a transaction boundary is
reached, the broker is free and the batches are worth it, wait while too much is under way. Nothing here waits for Kafka
except through that limit, and nothing here answers PostgreSQL: that is `gateway/replication/feedback.py`, on its own timer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from gateway.kafka.delivery import Delivery
from gateway.kafka.outlet import BatchWriter
from gateway.kafka.position import Position, advance
from gateway.lsn import Lsn
from gateway.operate import metrics
from gateway.operate.errors import DataGap, Retry, StopForOperator
from gateway.operate.failpoints import failpoint
from gateway.pgoutput import (
    Begin,
    Commit,
    CommitPrepared,
    Message,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    decode,
)
from gateway.pgoutput.transaction import begin_at, commit_at
from gateway.replication.feedback import StandbyStatus
from gateway.replication.frames import KEEPALIVE, XLOG_DATA, split
from gateway.replication.stream import ReplicationStream
from gateway.service.announcer import Announcer
from gateway.transactions.machine import ROW_KINDS, TransactionMachine

SEAL_BYTES = 1 << 18
"""Within one read, a boundary ends a cycle only after so many bytes: at the end of a read any boundary does."""

OPEN_BYTES = 4 << 20
"""After so many bytes, pieces included, also batches that are not full leave: a transaction over a thousand tables has as many
open ones."""

BATCH_WORTH_BYTES = 8 << 10
"""A batch costs gateway and broker as much as dozens of rows. So while the stream has more, a cycle over many partitions
waits until its batches hold so much on average."""

HELD_S = 2.0
"""But it waits for no more than `kafka.memory_bytes`, and no longer than this."""

BEHIND_BYTES = 1 << 16
"""A read of so much says that the stream has more."""

PAUSE_S = 0.005
"""Where nothing comes for so long, it has no more after all."""

MAX_OWED_MARKERS = 20_000
"""Reading waits while a stalled broker lets more markers than this pile up: small transactions are mostly markers."""

IDLE_INTERVAL_S = 10.0
IDLE_BYTES = 16 << 20
"""An idle slot's position is made durable this often, or after so much WAL of others."""

_NOWHERE = Lsn(0)
_BEGIN, _COMMIT, _RELATION = b"BCR"
_FAILPOINTS: dict[type, str] = {
    Begin: "begin_received",
    Commit: "commit_received",
    StreamStart: "stream_start_received",
    StreamStop: "stream_stop_received",
    StreamCommit: "stream_commit_received",
    StreamAbort: "stream_abort_received",
    Prepare: "prepare_received",
    StreamPrepare: "stream_prepare_received",
    CommitPrepared: "commit_prepared_received",
    RollbackPrepared: "rollback_prepared_received",
    Truncate: "truncate_received",
    Message: "logical_message_received",
}


class WholeFirst(Retry):
    """Begin again, and deliver each transaction up to `whole_until` before the next one is read."""

    def __init__(self, error: StopForOperator, whole_until: Lsn) -> None:
        super().__init__(f"{error.message}; what was committed before is delivered first", hint=error.hint)
        self.whole_until = whole_until


class Pump:
    """Reads one replication stream until it ends; raises WalgateError. Up to `careful_until` each transaction is delivered
    before the next one."""

    def __init__(
        self,
        stream: ReplicationStream,
        feedback: StandbyStatus,
        machine: TransactionMachine,
        writer: BatchWriter,
        announcer: Announcer,
        delivery: Delivery,
        position: Position,
        protocol_version: int,
        careful_until: Lsn = _NOWHERE,
    ) -> None:
        self._stream = stream
        self._feedback = feedback
        self._machine = machine
        self._writer = writer
        self._announcer = announcer
        self._position = position
        self._protocol_version = protocol_version
        self._careful_until = careful_until
        self._unsealed_bytes = 0
        self._open_bytes = 0
        self._behind = False
        self._sealed_at = time.monotonic()
        self._idle_position: Position | None = None
        self._sealed_counts = self._durable_counts = (0, 0)
        self._stopping = False
        self._failed = False
        self._settled = asyncio.Event()
        self._delivery = delivery
        delivery.on_durable = self._durable
        delivery.on_idle = self._kafka_is_idle
        metrics.RECEIVED_LSN.set_function(lambda: feedback.received_lsn)
        metrics.UNDER_WAY.set_function(lambda: delivery.under_way_bytes)
        metrics.OPEN_STREAMS.set_function(lambda: machine.open_streams)
        metrics.PREPARED.set_function(lambda: len(machine.prepared))

    async def run(self) -> None:
        try:
            while not self._stopping:
                await self._turn()
            self._idle()
        except StopForOperator as error:
            self._failed = True  # what is open stays open: the error may have come half way through closing it
            self._part(error)
            while not self._delivery.may_seal:
                await self._delivery.cycle_done()
            self._feedback.tell_now()
            raise
        await asyncio.Event().wait()  # the end is drain's to say

    async def _turn(self) -> None:
        data = await self._read()
        failpoint("socket_read")
        self._writer.tick()
        await self._take(data)
        self._open_bytes += len(data)
        if self._open_bytes + self._writer.pieces_bytes >= max(OPEN_BYTES, self._worthwhile_bytes):
            self._writer.close_all()
            self._open_bytes = 0
        self._delivery.offer()
        self._behind = len(data) >= BEHIND_BYTES
        self._idle()
        await self._delivery.room()
        while self._machine.owed_marker_count > MAX_OWED_MARKERS and not self._delivery.may_seal:
            await self._delivery.cycle_done()

    async def _read(self) -> bytes:
        """What the stream has, at least one frame; or nothing, where it had more until now and pauses."""
        if self._behind:
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    return await self._stream.read()
            return b""
        return await self._stream.read()

    @property
    def sealed_lsn(self) -> Lsn:
        """Behind it lies what is not on its way into a committed Kafka transaction."""
        return self._position.resume_lsn

    async def drain(self) -> None:
        """Read no more; return when what was read is durable and PostgreSQL has been told."""
        self._stopping = True
        while not (self.is_settled or (self._delivery.may_seal and not self._machine.at_boundary)):
            self._settled.clear()
            await self._settled.wait()
        self._feedback.tell_now()

    def _part(self, error: StopForOperator) -> None:
        """The stream can not go on here, but what was committed before it shall not wait for that person. Where it shares a
        cycle with the transaction that is in the way, the next attempt parts them: WholeFirst. Behind a
        gap nothing comes first."""
        if isinstance(error, DataGap):
            raise error
        whole_until = Lsn(self._machine.resume_lsn)
        if whole_until > max(self._position.resume_lsn, self._careful_until):
            raise WholeFirst(error, whole_until) from error

    async def _seal_whole(self) -> None:
        """A cycle for each transaction: wait for the one before it."""
        while self._has_whole and not self._delivery.may_seal:
            await self._delivery.cycle_done()
        if self._may_seal():
            self._seal()

    def _durable(self, position: Position) -> None:
        if position is self._idle_position:
            failpoint("after_idle_advance")
        self._feedback.acknowledge(position.resume_lsn)
        failpoint("flush_lsn_moved")
        self._measure(position)

    def _measure(self, position: Position) -> None:
        events, transactions = self._sealed_counts
        metrics.EVENTS.inc(events - self._durable_counts[0])
        metrics.TRANSACTIONS.inc(transactions - self._durable_counts[1])
        self._durable_counts = self._sealed_counts
        metrics.CYCLES.inc()
        metrics.FLUSH_LSN.set(position.resume_lsn)

    def _kafka_is_idle(self) -> None:
        try:
            self._idle()
        except StopForOperator as error:
            self._part(error)
            self._feedback.tell_now()
            raise

    def _idle(self) -> None:
        """Kafka is free, or a read is done: end the cycle if one can end here."""
        if self._may_seal() and not self._is_held:
            self._seal()
        if self._stopping:
            self._settled.set()

    async def _take(self, data: bytes) -> None:
        """Every frame of one read. The loop of the rows: see bench/ before adding to it."""
        machine = self._machine
        change = machine.change
        received_lsn = sealed_at = 0
        for kind, lsn, start, end in split(data):
            received_lsn = lsn
            if kind == XLOG_DATA:
                tag = data[start]
                if tag in ROW_KINDS:
                    change(data, start, end, lsn)
                elif tag == _BEGIN and (begin := begin_at(data, start, end)) is not None:
                    machine.begin(*begin, lsn)
                    failpoint("begin_received")
                elif tag == _RELATION:
                    await self._relation(data[start:end], lsn)
                else:
                    if tag == _COMMIT and (commit := commit_at(data, start, end)) is not None:
                        machine.commit(*commit, lsn)
                        failpoint("commit_received")
                    else:
                        self._control(data[start:end], lsn)
                    if machine.resume_lsn <= self._careful_until:
                        await self._seal_whole()
                    unsealed_bytes = self._unsealed_bytes + end - sealed_at
                    if unsealed_bytes >= SEAL_BYTES and self._may_seal() and unsealed_bytes >= self._worthwhile_bytes:
                        self._seal()
                        sealed_at = end
            elif kind == KEEPALIVE:
                self._keepalive(lsn, reply_requested=bool(start))
        self._unsealed_bytes += len(data) - sealed_at
        self._feedback.receive(received_lsn)
        failpoint("decoded")

    def _control(self, payload: bytes, change_lsn: int) -> None:
        machine = self._machine
        message = decode(payload, in_stream=machine.in_stream, protocol_version=self._protocol_version)
        if isinstance(message, Type):
            self._announcer.note_type(message)
        machine.receive(message, change_lsn)
        point = _FAILPOINTS.get(type(message))
        if point is not None:
            failpoint(point)

    async def _relation(self, payload: bytes, change_lsn: int) -> None:
        machine = self._machine
        relation = decode(payload, in_stream=machine.in_stream, protocol_version=self._protocol_version)
        assert isinstance(relation, Relation)
        version = await self._announcer.announce(relation, machine.in_force(relation.relation_oid))
        failpoint("relation_registered")
        machine.announce(relation.relation_oid, relation.xid, version)

    # -- where a cycle ends ---------------------------------------------------------------------------------------------

    @property
    def _has_whole(self) -> bool:
        machine = self._machine
        return machine.at_boundary and (
            machine.owed_marker_count > 0 or self._writer.has_records or self._delivery.holds_unsealed
        )

    def _may_seal(self) -> bool:
        return self._has_whole and self._delivery.may_seal and not self._failed

    @property
    def _worthwhile_bytes(self) -> int:
        return min(len(self._writer.open) * BATCH_WORTH_BYTES, self._delivery.memory_bytes)

    @property
    def _is_held(self) -> bool:
        """A cycle may end here, but is too small for its many batches, and more is at hand."""
        return (
            self._behind
            and not self._stopping
            and self._unsealed_bytes < self._worthwhile_bytes
            and self._machine.owed_marker_count < MAX_OWED_MARKERS
            and time.monotonic() - self._sealed_at < HELD_S
        )

    def _seal(self) -> None:
        machine = self._machine
        position = advance(
            self._position, machine.resume_lsn, machine.last_commit_lsn, tuple(machine.prepared.values())
        )
        self._delivery.seal(machine.take_markers(), position)
        self._position = position
        self._sealed_counts = (machine.event_count, machine.transaction_count)
        failpoint("cycle_sealed")
        self._unsealed_bytes = self._open_bytes = 0
        self._sealed_at = time.monotonic()

    @property
    def is_settled(self) -> bool:
        """Everything that was received and can be durable is durable."""
        return self._machine.at_boundary and self._delivery.is_quiet and self._machine.owed_marker_count == 0

    def _keepalive(self, end_lsn: int, *, reply_requested: bool) -> None:
        """The idle rule: with nothing pending, what the server has read may become our position - durable first, as the
        slot must never be ahead of the position topic. An open stream does not forbid it: it is sent again whole."""
        failpoint("keepalive_received")
        behind = end_lsn - self._machine.resume_lsn
        if behind > 0 and self.is_settled and not self._machine.in_stream:
            due = time.monotonic() - self._sealed_at >= IDLE_INTERVAL_S
            if reply_requested or due or behind >= IDLE_BYTES:
                failpoint("before_idle_advance")
                self._machine.resume_lsn = Lsn(end_lsn)
                self._seal()
                self._idle_position = self._position
