"""Status of a running stream: how far it has got, and which transactions it has open. Any thread
may query it at any time.

The status is updated once for each Kafka transaction, never for a row. `progress` computes its
result when it is called, in an order that keeps it correct while the event loop continues to run:
`received_lsn` first, then whether a commit is waiting. What was received before the call and is no
longer waiting is durable.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from gateway.kafka.transaction_delivery import Delivery
from gateway.observe import metrics
from gateway.observe.lag import Progress
from gateway.observe.status_board import StatusBoard
from gateway.observe.status_types import Counts, GapSeen, OpenStream
from gateway.observe.table_status import QuarantinedTable
from gateway.postgres.standby_status import StandbyStatus
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.position import Position

_S = 1e-6
"""Seconds in a microsecond, the unit of commit times."""


@dataclass(frozen=True, slots=True)
class _Closed:
    """A Kafka transaction that is closed and not durable yet. `undelivered_since` is 0 if no
    PostgreSQL transaction commits with it."""

    position: Position
    undelivered_since: int
    undelivered_count: int
    commit_lsn: int
    commit_time: int
    event_count: int
    transaction_count: int
    heartbeat_time: int
    marked: tuple[int, int]
    excluded_count: dict[int, int]
    left_out_count: int


def show_position(board: StatusBoard, position: Position) -> None:
    """Show the epoch, the gap and the tables in quarantine of a position on the status board."""
    gap = position.gap
    board.epoch = position.epoch
    board.gap = None if gap is None else GapSeen(gap.first_lsn, gap.end_lsn, gap.reason)
    board.quarantined = tuple(
        QuarantinedTable(each.full_name, each.reason, each.since_lsn) for each in position.quarantined
    )


class StreamStatus:
    """Status of one session's stream, which `board` queries until `StatusBoard.leave`."""

    def __init__(
        self,
        board: StatusBoard,
        feedback: StandbyStatus,
        machine: TransactionMachine,
        delivery: Delivery,
        position: Position,
    ) -> None:
        self._feedback = feedback
        self._machine = machine
        self._delivery = delivery
        self._closed: deque[_Closed] = deque()
        self._durable_lsn: int = position.resume_lsn
        self._last_commit = (int(position.last_commit_lsn), 0)
        self._counted = (0, 0)
        self._heartbeat_time = 0
        self._marked = (0, 0)
        self._excluded_count: dict[int, int] = {}
        self._left_out_count = 0
        self._stream_since: dict[int, float] = {}
        board.watch(self.progress, self.counts)

    def closed(self, position: Position) -> None:
        """Record that a Kafka transaction was closed with `position`."""
        machine = self._machine
        since, count = machine.take_undelivered()
        self._closed.append(
            _Closed(
                position,
                since,
                count,
                machine.last_commit_lsn,
                machine.last_commit_time,
                machine.event_count,
                machine.transaction_count,
                machine.heartbeat_time,
                (machine.writer.marked_lsn, machine.writer.marked_time),
                dict(machine.relations.excluded_count),
                machine.relations.left_out_count,
            )
        )

    def durable(self, position: Position) -> None:
        """Record that everything up to `position` is durable in Kafka."""
        while self._closed and self._closed[0].position.resume_lsn <= position.resume_lsn:
            found = self._closed.popleft()
            self._durable_lsn = max(self._durable_lsn, found.position.resume_lsn)
            if found.commit_time:
                self._last_commit = (found.commit_lsn, found.commit_time)
            self._heartbeat_time = found.heartbeat_time
            self._marked = found.marked
            metrics.EVENTS.inc(found.event_count - self._counted[0])
            metrics.TRANSACTIONS.inc(found.transaction_count - self._counted[1])
            self._counted = (found.event_count, found.transaction_count)
            metrics.KAFKA_TRANSACTIONS.inc()
            self._count_excluded(found)

    def _count_excluded(self, closed: _Closed) -> None:
        """Count the changes that were not written, since the last Kafka transaction."""
        for relation_oid, count in closed.excluded_count.items():
            more = count - self._excluded_count.get(relation_oid, 0)
            if more:
                name = self._machine.relations.quarantined[relation_oid].full_name
                metrics.EXCLUDED.labels(metrics.quarantined_label(name)).inc(more)
        self._excluded_count = closed.excluded_count
        if closed.left_out_count != self._left_out_count:
            metrics.LEFT_OUT.inc(closed.left_out_count - self._left_out_count)
            self._left_out_count = closed.left_out_count

    def stream_begins(self, xid: int) -> None:
        """Record that rows of an in-progress transaction follow. This is called for each segment of
        the transaction."""
        self._stream_since.setdefault(xid, time.time())
        if len(self._stream_since) > 2 * self._machine.open_streams + 16:
            known = {xid for xid, _ in self._machine.stream_sizes} | {xid}
            self._stream_since = {each: since for each, since in self._stream_since.items() if each in known}

    def progress(self) -> Progress:
        received_lsn = max(int(self._feedback.received_lsn), self._durable_lsn)
        closed = list(self._closed)
        machine = self._machine
        waiting = [one.undelivered_since for one in closed if one.undelivered_since]
        waiting += [moment for moment in (machine.undelivered_since, machine.receiving_since) if moment]
        commit_lsn, commit_time = self._last_commit
        marked_lsn, marked_time = self._marked
        return Progress(
            received_lsn=received_lsn,
            delivered_lsn=self._durable_lsn if waiting else received_lsn,
            undelivered_since=min(waiting) * _S if waiting else None,
            last_commit_lsn=commit_lsn,
            last_commit_time=commit_time * _S if commit_time else None,
            marked_lsn=marked_lsn,
            marked_time=marked_time * _S if marked_time else None,
            undelivered_transactions=sum(one.undelivered_count for one in closed) + machine.undelivered_count,
            heartbeat_time=self._heartbeat_time * _S if self._heartbeat_time else None,
        )

    def counts(self) -> Counts:
        streams = tuple(
            OpenStream(xid, self._stream_since.get(xid, time.time()), count)
            for xid, count in self._machine.stream_sizes
        )
        return Counts(
            in_flight_bytes=self._delivery.in_flight_bytes,
            stalled_s=self._delivery.stalled_s(time.monotonic()),
            open_streams=streams,
            prepared=len(self._machine.prepared),
        )
