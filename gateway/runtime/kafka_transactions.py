"""Received transactions -> consecutive Kafka transactions. All Kafka transactions of a stream are
closed here, and nowhere else.

Two tasks call this object, and share nothing but it:

    the replication loop  reports what it has received (`message_ended`, `end_read`, `keepalive`),
                          and waits while too much is in flight
    deliver               delivers what was closed, and acknowledges what is durable

A Kafka transaction may be due to be closed at the end of a PostgreSQL transaction within a read, or
after a read. It may also be due when Kafka has become free, or at a keepalive of an idle stream. In
each case, the commit policy (gateway/transactions/commit_policy.py) is asked with the same facts
(`_filling`), and `_close` closes. What is durable is acknowledged to PostgreSQL by the task of
gateway/postgres/standby_status.py, which `acknowledge` wakes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Protocol

import structlog

from gateway.errors import DataGap, NextSession, Retry, StopForOperator
from gateway.failpoints import failpoint
from gateway.kafka.batches import BatchWriter
from gateway.kafka.transaction_delivery import Delivery
from gateway.postgres.classify_errors import CannotDecode, LossReported
from gateway.postgres.standby_status import StandbyStatus
from gateway.runtime.assign_column_rules import ColumnsUnknown
from gateway.runtime.stream_status import StreamStatus
from gateway.startup.server_notices import LeftOut
from gateway.transactions.commit_policy import Filling
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.position import Position, advance
from schemas.lsn import Lsn

_NOWHERE = Lsn(0)
log = structlog.get_logger()


class WholeFirst(Retry):
    """Begin again, and deliver each transaction up to `whole_until` before the next one is read."""

    def __init__(self, error: StopForOperator | CannotDecode | LossReported | ColumnsUnknown, whole_until: Lsn) -> None:
        super().__init__(f"{error.message}; everything committed before it will be delivered first", hint=error.hint)
        self.whole_until = whole_until
        self._reported = error.reported if isinstance(error, LossReported) else None

    def change(self, next_session: NextSession) -> None:
        next_session.deliver_one_by_one(self.whole_until)
        if isinstance(self._reported, LeftOut):
            # Otherwise the next start would wait for the publication.
            next_session.remember_report(replace(self._reported, whole_until=self.whole_until))


class SnapshotStates(Protocol):
    """States of snapshots, which become durable with a Kafka transaction."""

    @property
    def has_unwritten(self) -> bool:
        """Whether there is a state that must not wait for a Kafka transaction with records, because
        the check that found it is not repeated."""

    def take_states(self) -> dict[bytes, bytes | None]:
        """Return the states, by key, that belong to the Kafka transaction that is closed now. The
        record of a key with None is removed."""


class KafkaTransactions:
    """The Kafka transactions of one stream, after `position`. Up to `careful_until`, each
    PostgreSQL transaction gets a Kafka transaction of its own. `states` is None if there are no
    snapshots."""

    def __init__(
        self,
        machine: TransactionMachine,
        writer: BatchWriter,
        delivery: Delivery,
        feedback: StandbyStatus,
        position: Position,
        status: StreamStatus,
        careful_until: Lsn = _NOWHERE,
        *,
        states: SnapshotStates | None = None,
    ) -> None:
        self.careful_until = careful_until
        self.is_stopping = False
        self._machine = machine
        self._writer = writer
        self._delivery = delivery
        self._policy = delivery.policy
        self._close_bytes = delivery.policy.close_bytes
        self._feedback = feedback
        self._position = self._durable = position
        self._status = status
        self._states = states
        self._unclosed_bytes = 0
        self._unflushed_bytes = 0
        self._more_at_hand = False
        self._closed_at = time.monotonic()
        self._idle_position: Position | None = None
        self._failed = False
        self._progressed = asyncio.Event()

    @property
    def closed_lsn(self) -> Lsn:
        """The resume LSN of the last closed Kafka transaction. Later changes are not part of a
        closed one yet."""
        return self._position.resume_lsn

    @property
    def durable_lsn(self) -> Lsn:
        """The resume LSN of the last durable Kafka transaction."""
        return self._durable.resume_lsn

    @property
    def received_until(self) -> Lsn:
        """An LSN: every transaction that commits before this LSN has been received in full."""
        return Lsn(self._machine.resume_lsn)

    @property
    def is_settled(self) -> bool:
        """Whether everything that was received and can be made durable is durable."""
        return (
            self._machine.at_boundary
            and self._delivery.is_quiet
            and self._machine.writer.pending_count == 0
            and not self._has_unwritten_states
        )

    @property
    def _has_unwritten_states(self) -> bool:
        return self._states is not None and self._states.has_unwritten

    # -- called by the replication loop

    def begin_read(self) -> None:
        """Give the records that follow the time of this read."""
        self._writer.tick()

    def message_ended(self, received_bytes: int) -> None:
        """Note the end of a message that may have ended a PostgreSQL transaction, `received_bytes`
        after the last such message. Close the Kafka transaction if it is large."""
        self._unclosed_bytes += received_bytes
        self._unflushed_bytes += received_bytes
        if self._unclosed_bytes < self._close_bytes or not self._delivery.is_free or self._failed:
            return  # checked before the policy is asked: its facts cost 1 us
        if self._policy.closes_within_read(self._filling()):
            self._close()

    async def close_alone(self) -> None:
        """Close a Kafka transaction for the PostgreSQL transaction that ended, after the previous
        one is durable."""
        filling = self._filling(one_by_one=True)
        while filling.at_boundary and filling.has_content and not self._delivery.is_free:
            await self._delivery.commit_done()
            filling = self._filling(one_by_one=True)
        if self._policy.closes_within_read(filling) and not self._failed:
            self._close()

    async def end_read(self, received_bytes: int, *, more_at_hand: bool) -> None:
        """Note the end of a read, `received_bytes` after the last message that was noted. Hand full
        batches over, close the Kafka transaction if it is due, and wait while too much is in
        flight. `more_at_hand` means that the stream has more that can be read at once."""
        self._unclosed_bytes += received_bytes
        self._unflushed_bytes += received_bytes
        self._more_at_hand = more_at_hand
        if self._policy.flushes(self._unflushed_bytes + self._writer.pieces_bytes, len(self._writer.open)):
            self._writer.close_all()
            self._unflushed_bytes = 0
        self._delivery.offer()
        self._close_if_due()
        # A server that is behind sends no keepalives, even if all that it sends is left out.
        self._advance_if_idle()
        await self._delivery.room()
        while self._policy.waits_for_kafka(self._machine.writer.pending_count, kafka_is_free=self._delivery.is_free):
            await self._delivery.commit_done()

    def keepalive(self, end_lsn: int, *, reply_requested: bool) -> None:
        """If nothing is pending, advance the position to `end_lsn`, up to which the server has read
        the WAL."""
        failpoint("keepalive_received")
        self._advance_if_idle(end_lsn, reply_requested=reply_requested)

    def _advance_if_idle(self, end_lsn: int = 0, *, reply_requested: bool = False) -> None:
        """Advance the position to `end_lsn`, or to the end of the last transaction, if nothing is
        pending. The new position is made durable first, as the slot must never be ahead of the
        position topic. A streamed transaction that is in progress does not prevent this, because it
        is sent again from its beginning."""
        machine = self._machine
        end_lsn = max(end_lsn, machine.resume_lsn)  # a transaction without events closes no Kafka transaction
        passed_bytes = end_lsn - self._position.resume_lsn
        if passed_bytes > 0 and self.is_settled and not machine.in_stream:
            age_s = time.monotonic() - self._closed_at
            if self._policy.advances(passed_bytes, age_s, reply_requested=reply_requested):
                failpoint("before_idle_advance")
                machine.resume_lsn = Lsn(end_lsn)
                self._close()
                self._idle_position = self._position

    def end_stream(self) -> None:
        """Close the Kafka transaction if it is due, now that nothing more is read."""
        self._close_if_due()

    async def give_up(self, error: StopForOperator | CannotDecode | LossReported | ColumnsUnknown) -> None:
        """Close no further Kafka transaction, because closing may be what failed. Return when all
        those that were closed before are durable and acknowledged. Raises WholeFirst if
        transactions that committed before `error` share a Kafka transaction with the one that
        failed. The next session delivers them separately, so that they need not wait for the
        operator. A DataGap is raised unchanged: nothing is delivered ahead of it."""
        self._failed = True
        if isinstance(error, DataGap):
            raise error
        whole_until = self.received_until
        if whole_until > max(self._position.resume_lsn, self.careful_until):
            raise WholeFirst(error, whole_until) from error
        await self.until_durable()
        self._feedback.send_now()

    async def until_durable(self) -> None:
        """Return when every closed Kafka transaction is durable, with its position. `deliver` and
        `confirm` must run meanwhile: if the broker fails, they end the session, and this wait."""
        while self._durable is not self._position:
            self._progressed.clear()
            await self._progressed.wait()

    # -- called by the session

    async def deliver(self) -> None:
        """Deliver closed Kafka transactions until cancelled. Raises WalgateError on the first
        failed or unknown result."""
        while True:
            position = await self._delivery.deliver()
            if position is not None:
                self._acknowledge(position)
            await self._delivery.rest()
            try:
                self._close_if_due()
            except StopForOperator as error:
                await self.give_up(error)
                raise

    async def confirm(self) -> None:
        """Make positions durable while the next rows are delivered, until cancelled; used with
        kafka.delivery = at_least_once."""
        while True:
            self._acknowledge(await self._delivery.commit_position())

    async def drain(self) -> None:
        """Let the loop read no more; return when what was read is durable and acknowledged to
        PostgreSQL."""
        self.is_stopping = True
        self._close_if_due()  # states may be left, without records that would close it
        while not (self.is_settled or (not self._machine.at_boundary and self._durable is self._position)):
            self._progressed.clear()
            await self._progressed.wait()
        self._feedback.send_now()

    # -- where a Kafka transaction ends

    @property
    def _has_content(self) -> bool:
        """Whether the Kafka transaction that is filled contains records or markers."""
        has_records = self._writer.has_records or self._delivery.holds_unclosed
        return has_records or self._machine.writer.pending_count > 0

    def _filling(self, *, one_by_one: bool = False) -> Filling:
        """Return the facts from which the policy decides."""
        machine, writer, delivery = self._machine, self._writer, self._delivery
        return Filling(
            machine.at_boundary,
            machine.undelivered_count > 0 or self._has_content or self._has_unwritten_states,
            delivery.is_free,
            self._unclosed_bytes,
            len(writer.open),
            machine.writer.pending_count,
            time.monotonic() - self._closed_at,
            self._more_at_hand,
            self.is_stopping,
            one_by_one,
        )

    def _close_if_due(self) -> None:
        """Close the Kafka transaction if the policy says so. This is called when Kafka has become
        free, and after each read."""
        if not self._failed and self._policy.closes(self._filling()):
            self._close()
        if self.is_stopping:
            self._progressed.set()

    def _close(self) -> None:
        machine = self._machine
        for lost in machine.pop_ended_in_gap():
            log.warning("prepared_transaction_forgotten", gid=lost.gid, xid=lost.xid, reason="it ended within a gap")
        position = advance(
            self._position,
            machine.resume_lsn,
            machine.last_commit_lsn,
            tuple(machine.prepared.values()),
            has_content=self._has_content,
            marked_lsn=machine.writer.marked_lsn,
        )
        states = {} if self._states is None else self._states.take_states()
        self._delivery.close(machine.take_markers(), position, states)
        if self._position.skip_lsn and not position.skip_lsn:
            log.warning("transaction_skipped", commit_lsn=str(self._position.skip_lsn))
        self._position = position
        self._status.closed(position)
        failpoint("transaction_closed")
        self._unclosed_bytes = self._unflushed_bytes = 0
        self._closed_at = time.monotonic()

    def _acknowledge(self, position: Position) -> None:
        """Let PostgreSQL forget what precedes `position`, which is durable."""
        self._durable = position
        if position is self._idle_position:
            failpoint("after_idle_advance")
        self._feedback.acknowledge(position.resume_lsn)
        failpoint("flush_lsn_moved")
        self._status.durable(position)
        self._progressed.set()
