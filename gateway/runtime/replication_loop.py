"""The replication loop: bytes from PostgreSQL -> state machine -> batches, grouped into consecutive
Kafka transactions.

`run` reads. In each turn it reads, takes every frame, hands over full batches, closes the Kafka
transaction if the commit policy says so (gateway/transactions/commit_policy.py), and waits while
too much is in flight. Only that limit makes it wait for Kafka. `deliver` is the other task: it
delivers what was closed, and asks the policy again when Kafka is free. Neither answers PostgreSQL:
`gateway/postgres/standby_status.py` does, on its own timer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Protocol

import structlog

from gateway.errors import DataGap, Retry, StopForOperator
from gateway.failpoints import failpoint
from gateway.kafka.batches import BatchWriter
from gateway.kafka.transaction_delivery import Delivery
from gateway.observe import metrics
from gateway.observe.status_board import StatusBoard
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
from gateway.pgoutput.letters import BEGIN, COMMIT, RELATION, ROW_MESSAGES
from gateway.pgoutput.transaction import begin_at, commit_at
from gateway.postgres.classify_errors import CannotDecode
from gateway.postgres.copy_frames import DRAINED, KEEPALIVE, XLOG_DATA, FrameError, drained_size, split
from gateway.postgres.replication_stream import ReplicationStream
from gateway.postgres.standby_status import StandbyStatus
from gateway.runtime.quarantine import QuarantinePolicy
from gateway.runtime.relation_registrar import RelationRegistrar, RowsOfPartition
from gateway.runtime.stream_status import StreamStatus
from gateway.transactions.commit_policy import Filling
from gateway.transactions.error_context import add_context
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.position import Position, advance
from schemas.lsn import Lsn

MORE_AT_HAND_BYTES = 1 << 16
"""A read of at least this size shows that the stream has more."""

PAUSE_S = 0.005
"""If nothing arrives for this long after such a read, the stream has no more."""

_NOWHERE = Lsn(0)
log = structlog.get_logger()
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

    def __init__(self, error: StopForOperator | CannotDecode, whole_until: Lsn) -> None:
        super().__init__(f"{error.message}; everything committed before it will be delivered first", hint=error.hint)
        self.whole_until = whole_until


class ReadWhole(Retry):
    """Begin again without streaming, to learn the commit LSN of the failing transaction, and
    whether it commits."""

    def __init__(self, error: StopForOperator) -> None:
        super().__init__(
            f"{error.message}; the transaction will be received again, with the streaming of in-progress transactions off",
            hint=error.hint,
        )


class HandOver(Protocol):
    """The part of a snapshot that the loop calls (gateway/snapshot/coordinator.py)."""

    async def at_commit(self, arrived: object, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """Apply `arrived`, which was received in the transaction that is about to be committed in
        the state machine."""
        ...

    def relation_received(self, relation: Relation, *, is_again: bool) -> None:
        """Report a Relation message: the first one of this relation in this session, or
        (`is_again`) a later one."""
        ...

    def partition_received(self, relation_oid: int, root: int) -> None:
        """Report a Relation message of a partition; its changes come as those of `root`."""
        ...

    def take_states(self) -> dict[bytes, bytes]:
        """Return the states, by key, that become durable with the Kafka transaction that is closed
        now."""
        ...


class ReplicationLoop:
    """Reads one replication stream until it ends; raises WalgateError. Up to `careful_until`, each
    transaction is delivered before the next one."""

    def __init__(
        self,
        stream: ReplicationStream,
        feedback: StandbyStatus,
        machine: TransactionMachine,
        writer: BatchWriter,
        registrar: RelationRegistrar,
        delivery: Delivery,
        position: Position,
        protocol_version: int,
        careful_until: Lsn = _NOWHERE,
        *,
        board: StatusBoard | None = None,
        snapshot: HandOver | None = None,
        table_errors: QuarantinePolicy,
    ) -> None:
        self._stream = stream
        self._feedback = feedback
        self._machine = machine
        self._writer = writer
        self._registrar = registrar
        self._position = position
        self._protocol_version = protocol_version
        self._careful_until = careful_until
        self._snapshot = snapshot
        self._table_errors = table_errors
        self._excluded: dict[int, int] = {}
        self._excluded_before: dict[int, int] = {}
        self._left_out = self._left_out_before = 0
        self._relation_names: dict[int, tuple[str, str]] = {}
        self._announced_last: Relation | None = None
        self._policy = delivery.policy
        self._unclosed_bytes = 0
        self._unflushed_bytes = 0
        self._more_at_hand = False
        self._closed_at = time.monotonic()
        self._idle_position: Position | None = None
        self._stopping = False
        self._failed = False
        self._settled = asyncio.Event()
        self._delivery = delivery
        self._status = StreamStatus(board or StatusBoard(), feedback, machine, delivery, position)

    async def run(self) -> None:
        try:
            while not self._stopping:
                await self._turn()
            self._close_if_due()
        except (StopForOperator, CannotDecode) as error:
            self._failed = True  # leave it open: closing it may be what failed
            self._part(error)
            while not self._delivery.is_free:
                await self._delivery.commit_done()
            self._feedback.send_now()
            if isinstance(error, StopForOperator):
                self._decide(error)
            raise
        await asyncio.Event().wait()  # `drain` decides when to return

    async def deliver(self) -> None:
        """Deliver closed Kafka transactions until cancelled. Raises WalgateError on the first
        failed or unknown result."""
        while True:
            position = await self._delivery.deliver()
            if position is not None:
                self._note_durable(position)
            await self._delivery.rest()
            try:
                self._close_if_due()
            except StopForOperator as error:
                self._part(error)
                self._feedback.send_now()
                raise

    async def confirm(self) -> None:
        """Make positions durable while the next rows are delivered, until cancelled; used with
        kafka.delivery = at_least_once."""
        while True:
            self._note_durable(await self._delivery.commit_position())
            if self._stopping:
                self._settled.set()

    async def _turn(self) -> None:
        data = await self._read()
        failpoint("socket_read")
        self._writer.tick()
        await self._take(data)
        self._unflushed_bytes += len(data)
        if self._policy.flushes(self._unflushed_bytes + self._writer.pieces_bytes, len(self._writer.open)):
            self._writer.close_all()
            self._unflushed_bytes = 0
        self._delivery.offer()
        self._more_at_hand = len(data) >= MORE_AT_HAND_BYTES
        self._close_if_due()
        await self._delivery.room()
        while self._policy.waits_for_kafka(self._machine.pending_marker_count, kafka_is_free=self._delivery.is_free):
            await self._delivery.commit_done()

    async def _read(self) -> bytes:
        """Return at least one frame from the stream. If the last read was large, so that more was
        expected, return no bytes when nothing arrives within `PAUSE_S`."""
        if self._more_at_hand:
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    return await self._stream.read()
            return b""
        return await self._stream.read()

    @property
    def closed_lsn(self) -> Lsn:
        """Resume LSN of the last closed Kafka transaction: later changes are not part of a closed
        one yet."""
        return self._position.resume_lsn

    async def drain(self) -> None:
        """Read no more; return when what was read is durable and acknowledged to PostgreSQL."""
        self._stopping = True
        while not (self.is_settled or (self._delivery.is_free and not self._machine.at_boundary)):
            self._settled.clear()
            await self._settled.wait()
        self._feedback.send_now()

    @property
    def received_until(self) -> Lsn:
        """LSN such that every transaction that commits before it was received as a whole."""
        return Lsn(self._machine.resume_lsn)

    def _part(self, error: StopForOperator | CannotDecode) -> None:
        """Raise WholeFirst if transactions that committed before the error share a Kafka
        transaction with the one that failed: the next session delivers them separately, so that
        they need not wait for the operator. A DataGap is raised unchanged: nothing is delivered
        ahead of it."""
        if isinstance(error, DataGap):
            raise error
        whole_until = Lsn(self._machine.resume_lsn)
        if whole_until > max(self._position.resume_lsn, self._careful_until):
            raise WholeFirst(error, whole_until) from error

    def _decide(self, error: StopForOperator) -> None:
        """Raise QuarantineRelation for the table of the error, or add the operator's choices to the
        error's hint. Everything that committed before has been delivered. Raises ReadWhole within a
        streamed transaction."""
        machine = self._machine
        name = self._relation_names.get(error.relation_oid or 0)
        if name is None:
            return
        if machine.in_stream:
            raise ReadWhole(error) from error
        self._table_errors.of_change(error, name, machine.current_commit_lsn or Lsn(machine.resume_lsn))

    async def _close_alone(self) -> None:
        """Close a Kafka transaction for the PostgreSQL transaction that ended, after the previous
        one is durable."""
        filling = self._filling(self._unclosed_bytes, one_by_one=True)
        while filling.at_boundary and filling.has_content and not self._delivery.is_free:
            await self._delivery.commit_done()
            filling = self._filling(self._unclosed_bytes, one_by_one=True)
        if self._policy.closes_within_read(filling) and not self._failed:
            self._close()

    def _note_durable(self, position: Position) -> None:
        if position is self._idle_position:
            failpoint("after_idle_advance")
        self._feedback.acknowledge(position.resume_lsn)
        failpoint("flush_lsn_moved")
        self._status.durable(position)
        self._measure_excluded()

    def _measure_excluded(self) -> None:
        for relation_oid, count in self._excluded.items():
            more = count - self._excluded_before.get(relation_oid, 0)
            if more:
                name = self._machine.quarantined[relation_oid].full_name
                metrics.EXCLUDED.labels(metrics.quarantined_label(name)).inc(more)
        self._excluded_before = self._excluded
        if self._left_out != self._left_out_before:
            metrics.LEFT_OUT.inc(self._left_out - self._left_out_before)
            self._left_out_before = self._left_out

    def _close_if_due(self) -> None:
        """Close the Kafka transaction if the policy says so. Called when Kafka has become free, and
        after each read."""
        if not self._failed and self._policy.closes(self._filling(self._unclosed_bytes)):
            self._close()
        if self._stopping:
            self._settled.set()

    async def _take(self, data: bytes) -> None:
        """Process every frame of one read. This is the loop of the rows: see bench/ before adding
        to it."""
        machine = self._machine
        change = machine.change
        received_lsn = closed_at = 0
        close_bytes = self._policy.close_bytes
        kind = lsn = start = end = 0
        try:
            for kind, lsn, start, end in split(data):
                received_lsn = lsn
                if kind == XLOG_DATA:
                    tag = data[start]
                    if tag in ROW_MESSAGES:
                        change(data, start, end, lsn)
                    elif tag == BEGIN and (begin := begin_at(data, start, end)) is not None:
                        machine.begin(*begin)
                        failpoint("begin_received")
                    elif tag == RELATION:
                        await self._relation(data[start:end], lsn)
                    else:
                        if tag == COMMIT and (commit := commit_at(data, start, end)) is not None:
                            if machine.arrived is not None and self._snapshot is not None:
                                await self._snapshot.at_commit(machine.arrived, *commit)
                            machine.commit(*commit)
                            failpoint("commit_received")
                        else:
                            self._control(data[start:end], lsn)
                        if machine.resume_lsn <= self._careful_until:
                            await self._close_alone()
                        unclosed_bytes = self._unclosed_bytes + end - closed_at
                        if unclosed_bytes >= close_bytes and self._closes_within_read(unclosed_bytes):
                            self._close()
                            closed_at = end
                elif kind == KEEPALIVE:
                    self._keepalive(lsn, reply_requested=bool(start))
                elif kind == DRAINED:
                    machine.drained(data, start, end, drained_size(data, start))
        except FrameError:
            raise
        except Exception as error:
            if kind != KEEPALIVE:
                add_context(error, machine, data[start:end], lsn)
            raise
        self._unclosed_bytes += len(data) - closed_at
        self._feedback.receive(received_lsn)
        failpoint("decoded")

    def _control(self, payload: bytes, change_lsn: int) -> None:
        machine = self._machine
        message = decode(payload, in_stream=machine.in_stream, protocol_version=self._protocol_version)
        if isinstance(message, Type):
            self._registrar.note_type(message)
        elif isinstance(message, StreamStart):
            self._status.stream_begins(message.xid)
        machine.receive(message, change_lsn)
        point = _FAILPOINTS.get(type(message))
        if point is not None:
            failpoint(point)

    async def _relation(self, payload: bytes, change_lsn: int) -> None:
        machine = self._machine
        relation = decode(payload, in_stream=machine.in_stream, protocol_version=self._protocol_version)
        assert isinstance(relation, Relation)
        relation_oid = relation.relation_oid
        if relation_oid in machine.quarantined:
            return
        previous, self._announced_last = self._announced_last, relation
        if await self._registrar.comes_as_root(relation, previous):
            if self._snapshot is not None and previous is not None:
                self._snapshot.partition_received(relation_oid, previous.relation_oid)
            name = f"{relation.namespace}.{relation.name}"
            machine.refuse(relation_oid, RowsOfPartition(f"partition {name} has rows of its own: it gets a topic"))
            return
        if self._snapshot is not None:
            self._snapshot.relation_received(relation, is_again=relation_oid in self._relation_names)
        self._relation_names[relation_oid] = relation.namespace, relation.name
        excluded = await self._registrar.excluded_tables.find(relation)
        if excluded is not None:
            machine.announce(relation_oid, relation.xid, excluded)
            return
        try:
            xids = machine.current_xids
            version = await self._registrar.announce(relation, machine.in_force(relation_oid), xids and xids[0])
        except StopForOperator as error:
            if not machine.is_skipping:
                raise
            machine.refuse(relation_oid, error)
            return
        failpoint("relation_registered")
        machine.announce(relation_oid, relation.xid, version)

    # -- where a Kafka transaction ends
    # ---------------------------------------------------------------------------------

    def _filling(self, unclosed_bytes: int, *, one_by_one: bool = False) -> Filling:
        """Return the facts from which the policy decides."""
        machine, writer, delivery = self._machine, self._writer, self._delivery
        return Filling(
            machine.at_boundary,
            machine.undelivered_count > 0
            or machine.pending_marker_count > 0
            or writer.has_records
            or delivery.holds_unclosed,
            delivery.is_free,
            unclosed_bytes,
            len(writer.open),
            machine.pending_marker_count,
            time.monotonic() - self._closed_at,
            self._more_at_hand,
            self._stopping,
            one_by_one,
        )

    def _closes_within_read(self, unclosed_bytes: int) -> bool:
        if self._failed or not self._delivery.is_free:  # checked first: the facts cost 1 us
            return False
        return self._policy.closes_within_read(self._filling(unclosed_bytes))

    def _close(self) -> None:
        machine = self._machine
        position = advance(
            self._position, machine.resume_lsn, machine.last_commit_lsn, tuple(machine.prepared.values())
        )
        states = {} if self._snapshot is None else self._snapshot.take_states()
        self._delivery.close(machine.take_markers(), position, states)
        self._excluded = dict(machine.excluded_count)
        self._left_out = machine.left_out_count
        if self._position.skip_lsn and not position.skip_lsn:
            log.warning("transaction_skipped", commit_lsn=str(self._position.skip_lsn))
        self._position = position
        self._status.closed(position)
        failpoint("transaction_closed")
        self._unclosed_bytes = self._unflushed_bytes = 0
        self._closed_at = time.monotonic()

    @property
    def is_settled(self) -> bool:
        """Return whether everything that was received and can be durable is durable."""
        return self._machine.at_boundary and self._delivery.is_quiet and self._machine.pending_marker_count == 0

    def _keepalive(self, end_lsn: int, *, reply_requested: bool) -> None:
        """Advance an idle position: if nothing is pending, the LSN that the server has read becomes
        the position. It is made durable first, as the slot must never be ahead of the position
        topic. A streamed transaction that is in progress does not prevent it: it is sent again from
        its beginning."""
        failpoint("keepalive_received")
        machine = self._machine
        end_lsn = max(end_lsn, machine.resume_lsn)  # of a transaction without events: it closes no Kafka transaction
        passed_bytes = end_lsn - self._position.resume_lsn
        if passed_bytes > 0 and self.is_settled and not machine.in_stream:
            age_s = time.monotonic() - self._closed_at
            if self._policy.advances(passed_bytes, age_s, reply_requested=reply_requested):
                failpoint("before_idle_advance")
                machine.resume_lsn = Lsn(end_lsn)
                self._close()
                self._idle_position = self._position
