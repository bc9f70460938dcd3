"""Publish chunks and apply boundaries. Both take effect only where their transactions commit in the
stream."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog

from gateway.config.settings import SnapshotSettings
from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker, readable_time
from gateway.kafka.transaction_delivery import Delivery
from gateway.observe import metrics
from gateway.snapshot.change_recorder import ChangeRecorder
from gateway.snapshot.chunk_reader import ReadChunk
from gateway.snapshot.pending_chunks import PendingChunks, SnapshotBoundary
from gateway.snapshot.progress_log import log_changed
from gateway.snapshot.reader_tasks import ReaderTasks
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.table_errors import errors_of
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks
from gateway.snapshot.toast_reselection import Reselection
from gateway.transactions.machine import TransactionMachine
from schemas.markers import SnapshotChunk
from schemas.wire_format import FRAME_BYTES

log = structlog.get_logger()

SLICE_ROWS: Final = 2000
"""Rows published in one step, which takes 1 to 2 ms."""


def pause_s(changed_count: int) -> float:
    """Return the seconds to wait after a table has changed in so many attempts to read it as a
    whole. They double from 1/8 after the first to 64 from the tenth on."""
    return float(2.0 ** (min(changed_count, 10) - 4))


class ChunkPublisher:
    """Pass the rows of chunks to the state machine, as changes of its open transaction."""

    def __init__(
        self,
        settings: SnapshotSettings,
        machine: TransactionMachine,
        delivery: Delivery,
        pending: PendingChunks,
        recorder: ChangeRecorder,
        tasks: TableTasks,
        readers: ReaderTasks,
        reselecting: Reselection,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._delivery = delivery
        self._pending = pending
        self._recorder = recorder
        self._tasks = tasks
        self._readers = readers
        self._reselecting = reselecting
        self.row_count = 0

    async def publish(self, read_chunk: ReadChunk, commit_lsn: int) -> None:
        """Publish the rows of a chunk that are not stale, as changes of its transaction, which
        commits at `commit_lsn`. If there are none, the chunk leaves no trace in the transaction.
        Wait while too many bytes are on their way to Kafka. No Kafka transaction is closed
        meanwhile, since the chunk's transaction is open. The progress, which is reported first, is
        therefore stored with all rows, or after them (kafka.delivery = at_least_once).

        Nothing is published if its table was given another read plan, has begun again or was
        cancelled since the chunk was read. The same applies if the recorded keys do not suffice to
        tell which rows are stale. The part that the chunk has is then read again, unless the table
        was cancelled or has begun again.
        """
        tasks, chunk, progress = self._tasks, read_chunk.chunk, read_chunk.chunk.progress
        task = tasks.by_oid.get(read_chunk.plan.surveyed.relation.relation_oid)
        # With `keeps_tuples` (Debezium's format), rows are encoded only now, with the version that
        # the last Relation message described.
        is_same = task is not None and task.plan is read_chunk.plan and task.progress is progress
        if task is None or not is_same or not progress.admits(chunk):
            if task is not None and chunk.all_ranges:
                tasks.changed_while_read(task)
                tasks.block([task], time.monotonic() + pause_s(task.changed_count))
                log_changed(task, may_lock=self._settings.may_lock)
            self._pending.discard(read_chunk)
            return
        self._readers.chunk_arrived(self._machine.transaction_count)
        rows = _fresh(read_chunk)
        stale_count = len(read_chunk.rows) - len(rows)
        tasks.published(chunk, len(rows), stale_count)
        self.row_count += len(rows)
        metrics.SNAPSHOT_ROWS.inc(len(rows))
        metrics.SNAPSHOT_STALE_ROWS.inc(stale_count)
        self._pending.done(read_chunk)
        if not rows:
            return
        transaction = self._machine.current
        assert transaction is not None
        transaction.manifest.snapshot = task.chunk(progress.chunk_count - 1, len(rows), stale_count)
        for start in range(0, len(rows), SLICE_ROWS):
            with errors_of(read_chunk.plan.surveyed.relation):
                self._machine.publish_read_rows(read_chunk.plan.version, rows[start : start + SLICE_ROWS], commit_lsn)
            self._delivery.offer()
            await asyncio.sleep(0)  # let feedback and keepalives be sent
            await self._delivery.room()

    def apply_boundary(self, boundary: SnapshotBoundary, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """Begin or end the tables of a boundary whose transaction commits now, and add their
        SNAPSHOT_BEGIN or SNAPSHOT_END markers. The first boundary, and the one that ends the last
        table, also add the marker of the snapshot as a whole.

        Tables that were cancelled or have begun again since the boundary was emitted are passed
        over. If everything was cancelled, the boundary is discarded.
        """
        tasks, snapshot, xid = self._tasks, self._tasks.snapshot, boundary.xid
        if self._recorder.judge is None or not snapshot.id:  # everything was cancelled
            self._pending.discard(boundary)
            return
        place = commit_lsn, end_lsn, readable_time(commit_time) or 0
        self._begin_whole(xid, *place)
        tasks.boundary_arrived(boundary.tasks)
        for task in boundary.tasks:
            if not tasks.is_current(task):  # cancelled
                continue
            assert task.progress is not None and task.plan is not None
            if boundary.kind == "begin" and task.status is Status.WAITING:
                tasks.begin(task, self._machine.unfinished_xids, xid)
                self._add_marker("SNAPSHOT_BEGIN", task, xid, *place)
            elif boundary.kind == "end" and task.status is Status.ENDING:
                self._end(task, xid, *place)
        if boundary.is_last and not tasks.has_tables:
            self._add_marker_of_all("SNAPSHOT_END", xid, *place)
            unread = [task.full_name for task in tasks.whole_tables]
            fields = {"tables_not_read": len(unread)} if unread else {}
            log.info("snapshot_done", snapshot_id=snapshot.id, rows=tasks.rows_read(), **fields)
            snapshot.end()
        if boundary.kind == "begin":
            log.info("tables_begun", count=len(boundary.tasks))
        self._pending.done(boundary)

    def end_cancelled(self, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """Add the SNAPSHOT_END of the snapshot as a whole, before its tables are cancelled. The
        tables get no SNAPSHOT_END."""
        snapshot, transaction = self._tasks.snapshot, self._machine.current
        if snapshot.id:
            assert transaction is not None
            place = commit_lsn, end_lsn, readable_time(commit_time) or 0
            self._begin_whole(transaction.xid, *place)
            self._add_marker_of_all("SNAPSHOT_END", transaction.xid, *place)

    def _begin_whole(self, xid: int, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """Add the SNAPSHOT_BEGIN of the snapshot as a whole, unless it is known to be published. It
        precedes the SNAPSHOT_BEGIN of the first table, or the end of the snapshot if no table has
        begun."""
        if self._tasks.snapshot.record_begin():
            self._add_marker_of_all("SNAPSHOT_BEGIN", xid, commit_lsn, end_lsn, commit_time)

    def _end(self, task: TableTask, xid: int, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        progress, plan = task.progress, task.plan
        assert progress is not None and plan is not None
        keys = self._tasks.finish(task)
        self._add_marker("SNAPSHOT_END", task, xid, commit_lsn, end_lsn, commit_time)
        log.info("table_read", table=task.full_name, rows=progress.row_count, stale=progress.stale_count)
        if keys:
            self._reselecting.begin(plan.version.encoder.description, keys)

    def _add_marker(
        self, kind: str, task: TableTask, xid: int, commit_lsn: int, end_lsn: int, commit_time: int
    ) -> None:
        self._machine.add_pending_marker(task.marker(kind, self._machine.epoch, xid, commit_lsn, end_lsn, commit_time))

    def _add_marker_of_all(self, kind: str, xid: int, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        # FILL, although the tables may differ in purpose: consumers then take each new table to be
        # incomplete until the table or the whole snapshot has ended.
        manifest = Manifest(self._machine.epoch, snapshot=SnapshotChunk(self._tasks.snapshot.id, "FILL"))
        self._machine.add_pending_marker(Marker(kind, xid, commit_lsn, -1, end_lsn, commit_time, manifest=manifest))


def _fresh(read_chunk: ReadChunk) -> list[tuple[bytes | None, bytes]]:
    """Return the rows that are not stale. The keys of stale rows are read again."""
    chunk, progress = read_chunk.chunk, read_chunk.chunk.progress
    if progress.track is None or progress.is_read_at_once or not (progress.track.keys or progress.keys_to_read_again):
        return read_chunk.rows
    is_stale = progress.is_stale
    return [row for row in read_chunk.rows if row[0] is not None and not is_stale(chunk, row[0][FRAME_BYTES:])]
