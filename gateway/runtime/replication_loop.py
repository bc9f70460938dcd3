"""The replication loop: bytes from PostgreSQL -> messages -> state machine.

In each turn, the loop reads what has arrived and processes every frame of it. It reports each end
of a transaction and of a read to kafka_transactions.py, which decides where a Kafka transaction
ends. The loop waits for Kafka only if too much is in flight, or if transactions are delivered one
by one. PostgreSQL is answered by another task (gateway/postgres/standby_status.py), on its own
timer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from gateway.errors import NextSession, Retry, RetrySlowly, StopForOperator
from gateway.failpoints import failpoint
from gateway.pgoutput.decode import decode
from gateway.pgoutput.letters import BEGIN, COMMIT, RELATION, ROW_MESSAGES
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.relation import Relation, Type
from gateway.pgoutput.row import Truncate
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.transaction import Begin, Commit, begin_at, commit_at
from gateway.pgoutput.two_phase import CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from gateway.postgres.classify_errors import CannotDecode, LossReported
from gateway.postgres.copy_frames import DRAINED, KEEPALIVE, XLOG_DATA, Frame, Received, drained_size
from gateway.postgres.replication_stream import ReplicationStream
from gateway.postgres.standby_status import StandbyStatus
from gateway.runtime.assign_column_rules import ColumnsUnknown
from gateway.runtime.kafka_transactions import KafkaTransactions
from gateway.runtime.quarantine import QuarantinePolicy
from gateway.runtime.relation_registrar import RelationRegistrar, RowsOfPartition
from gateway.runtime.stream_status import StreamStatus
from gateway.snapshot.discovery.published_tables import ALTERED
from gateway.snapshot.progress_log import log_unsent_at_all
from gateway.transactions.error_context import add_context
from gateway.transactions.machine import TransactionMachine
from schemas.lsn import Lsn

MORE_AT_HAND_BYTES = 1 << 16
"""A read of at least this size shows that the stream has more."""

PAUSE_S = 0.005
"""The stream has no more if nothing arrives for this long after such a read."""

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


class ReadWhole(Retry):
    """Begin again without streaming, to learn the commit LSN of the failing transaction, whether it
    commits, and the columns that its ALTER TABLE has left."""

    def __init__(self, error: StopForOperator | ColumnsUnknown) -> None:
        super().__init__(
            f"{error.message}; the transaction will be received again, with the streaming of in-progress transactions off",
            hint=error.hint,
        )

    def change(self, next_session: NextSession) -> None:
        next_session.read_whole()


class HandOver(Protocol):
    """The part of a snapshot that the loop calls (gateway/snapshot/coordinator.py)."""

    async def at_commit(self, arrived: object, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """Apply `arrived`, which was received in the transaction that is about to be committed in
        the state machine."""
        ...

    def relation_received(self, relation: Relation, *, is_again: bool, is_excluded: bool) -> None:
        """Report a Relation message. `is_again` means that it is not the first one of this relation
        in this session, `is_excluded` that source.excluded_tables leaves the relation out."""
        ...

    def partition_received(self, relation_oid: int, root: int) -> None:
        """Report a Relation message of a partition whose changes are sent as those of `root`."""
        ...

    def rows_in_doubt(self, relation_oid: int, namespace: str, name: str) -> None:
        """Report that consumers do not know what the ALTER TABLE of a streamed or prepared
        transaction, which is about to end, does to the relation's existing rows."""
        ...


class ReplicationLoop:
    """Read one replication stream until it ends. Methods raise WalgateError."""

    def __init__(
        self,
        stream: ReplicationStream,
        feedback: StandbyStatus,
        machine: TransactionMachine,
        registrar: RelationRegistrar,
        kafka: KafkaTransactions,
        protocol_version: int,
        *,
        status: StreamStatus,
        snapshot: HandOver | None = None,
        table_errors: QuarantinePolicy,
    ) -> None:
        self._stream = stream
        self._feedback = feedback
        self._machine = machine
        self._registrar = registrar
        self._kafka = kafka
        self._protocol_version = protocol_version
        self._status = status
        self._snapshot = snapshot
        self._table_errors = table_errors
        self._relation_names: dict[int, tuple[str, str]] = {}
        self._announced_last: Relation | None = None

    async def run(self) -> None:
        kafka = self._kafka
        more_at_hand = False
        try:
            while not kafka.is_stopping:
                data, frames = await self._read(more_at_hand=more_at_hand)
                failpoint("socket_read")
                kafka.begin_read()
                rest = await self._take(data, frames)
                more_at_hand = len(data) >= MORE_AT_HAND_BYTES
                await kafka.end_read(rest, more_at_hand=more_at_hand)
            kafka.end_stream()
        except (StopForOperator, CannotDecode, LossReported, ColumnsUnknown) as error:
            await kafka.give_up(error)
            if isinstance(error, StopForOperator):
                self._decide(error)
            raise
        except (Retry, RetrySlowly):
            # The server may have crashed, and may crash as soon after the next start.
            await kafka.until_durable()
            raise
        await asyncio.Event().wait()  # `KafkaTransactions.drain` decides when the session ends

    async def _read(self, *, more_at_hand: bool) -> Received:
        """Return at least one frame from the stream. If the last read was large (`more_at_hand`),
        more is expected: return nothing if nothing arrives within `PAUSE_S`."""
        if more_at_hand:
            with suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    return await self._stream.read()
            return Received(b"", [])
        return await self._stream.read()

    def _decide(self, error: StopForOperator) -> None:
        """Raise QuarantineRelation for the table of the error, or add the operator's choices to the
        error's hint. Everything that committed before the failing transaction has been delivered.
        Raises ReadWhole within a streamed transaction."""
        machine = self._machine
        name = self._relation_names.get(error.relation_oid or 0)
        if name is None:
            return
        if machine.in_stream:
            raise ReadWhole(error) from error
        commit_lsn = machine.current_commit_lsn or Lsn(machine.resume_lsn)
        self._table_errors.of_change(error, name, commit_lsn, self._kafka.closed_lsn)

    async def _take(self, data: bytes, frames: list[Frame]) -> int:
        """Process every frame of one read. Return the number of bytes after the last message that
        was reported to the Kafka transactions. Every row passes through this loop: see bench/
        before adding to it."""
        machine, kafka = self._machine, self._kafka
        change = machine.change
        received_lsn = counted = 0
        kind = lsn = start = end = 0
        try:
            for kind, lsn, start, end in frames:
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
                            await self._control(data[start:end], lsn)
                        kafka.message_ended(end - counted)
                        counted = end
                        if machine.resume_lsn <= kafka.careful_until:
                            await kafka.close_alone()
                elif kind == KEEPALIVE:
                    kafka.keepalive(lsn, reply_requested=bool(start))
                elif kind == DRAINED:
                    machine.drained(data, start, end, drained_size(data, start))
        except Exception as error:
            if kind != KEEPALIVE:
                add_context(error, machine, data[start:end], lsn)
            raise
        self._feedback.receive(received_lsn)
        failpoint("decoded")
        return len(data) - counted

    async def _control(self, payload: bytes, change_lsn: int) -> None:
        machine = self._machine
        message = decode(payload, in_stream=machine.in_stream, protocol_version=self._protocol_version)
        if isinstance(message, Type):
            self._registrar.note_type(message)
        elif isinstance(message, StreamStart):
            self._status.stream_begins(message.xid)
        elif isinstance(message, StreamAbort) and message.xid == message.subxid:
            self._registrar.sent_before_commit.rolled_back(message.xid)
        in_doubt: list[int] = []
        if isinstance(message, StreamCommit | StreamPrepare | Prepare):
            is_commit = isinstance(message, StreamCommit)
            in_doubt = await self._registrar.sent_before_commit.in_doubt(message.xid, has_committed=is_commit)
        machine.receive(message, change_lsn)
        # No await in between: a table that is to be read again becomes durable with the end of the transaction.
        for relation_oid in in_doubt:
            name = self._relation_names[relation_oid]
            if self._snapshot is None:
                log_unsent_at_all(*name, ALTERED)
            else:
                self._snapshot.rows_in_doubt(relation_oid, *name)
        point = _FAILPOINTS.get(type(message))
        if point is not None:
            failpoint(point)

    async def _relation(self, payload: bytes, change_lsn: int) -> None:
        machine = self._machine
        relation = decode(payload, in_stream=machine.in_stream, protocol_version=self._protocol_version)
        assert isinstance(relation, Relation)
        relation_oid = relation.relation_oid
        previous, self._announced_last = self._announced_last, relation
        quarantined = machine.relations.quarantined.get(relation_oid)
        if quarantined is not None:
            present = replace(quarantined, namespace=relation.namespace, name=relation.name)
            machine.announce(relation_oid, relation.xid, present)
            return
        comes_as_root = await self._registrar.comes_as_root(relation, previous)
        if previous is not None:
            await self._registrar.compare_identity(relation, previous, machine.in_force(previous.relation_oid))
        if comes_as_root:
            if self._snapshot is not None and previous is not None:
                self._snapshot.partition_received(relation_oid, previous.relation_oid)
            name = f"{relation.namespace}.{relation.name}"
            machine.relations.refuse(
                relation_oid, RowsOfPartition(f"partition {name} has rows of its own: it gets a topic")
            )
            return
        excluded = await self._registrar.excluded_tables.find(relation)
        if self._snapshot is not None:
            is_again = relation_oid in self._relation_names
            self._snapshot.relation_received(relation, is_again=is_again, is_excluded=excluded is not None)
        self._relation_names[relation_oid] = relation.namespace, relation.name
        if excluded is not None:
            machine.announce(relation_oid, relation.xid, excluded)
            return
        try:
            current = machine.current
            version = await self._registrar.announce(
                relation,
                machine.in_force(relation_oid),
                None if current is None else current.xid,
                is_uncommitted=current is not None and (machine.in_stream or current.prepare is not None),
            )
        except (StopForOperator, ColumnsUnknown) as error:
            if isinstance(error, ColumnsUnknown) and machine.in_stream:
                raise ReadWhole(error) from error
            if not machine.is_skipping:
                raise
            machine.relations.refuse(relation_oid, error)
            return
        failpoint("relation_registered")
        machine.announce(relation_oid, relation.xid, version)
