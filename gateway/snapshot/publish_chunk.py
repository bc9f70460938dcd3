"""Publishes chunks and marks where their transactions commit in the stream; they take effect only
there."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from gateway.config.settings import SnapshotSettings
from gateway.events.manifest import Manifest
from gateway.events.marker import Marker, readable_time
from gateway.kafka.transaction_delivery import Delivery
from gateway.observe import metrics
from gateway.snapshot.change_recorder import ChangeRecorder
from gateway.snapshot.chunk_reader import ReadChunk
from gateway.snapshot.pending_chunks import ChunkMark, PendingChunks
from gateway.snapshot.progress_log import count_change
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
"""Rows handed over in one step, which takes 1 to 2 ms."""


class ChunkPublisher:
    """Passes the rows of chunks to the state machine, as changes of the transaction that it has
    open."""

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
        commits at `commit_lsn`. Waits while too many bytes are on their way to Kafka.

        Nothing is published, and the chunk is given back, if since it was read its table has begun
        again, has got another read plan or was cancelled, or if the recorded keys do not suffice to
        tell which rows are stale.
        """
        chunk, table = read_chunk.chunk, read_chunk.chunk.table
        task = self._tasks.by_oid.get(read_chunk.plan.surveyed.relation.relation_oid)
        # With `keeps_tuples` (Debezium's format), rows are encoded only now, with the version that
        # was announced last.
        is_same = task is not None and task.plan is read_chunk.plan and task.table is table
        if task is None or not is_same or not table.admits(chunk):
            table.give_back(chunk)
            self._pending.done(read_chunk)
            if task is not None and chunk.whole:
                count_change(task, may_lock=self._settings.may_lock)
            return
        self._readers.chunk_came(self._machine.transaction_count)
        rows = _fresh(read_chunk)
        stale_count = len(read_chunk.rows) - len(rows)
        table.handed_over(chunk, len(rows), stale_count)
        self.row_count += len(rows)
        metrics.SNAPSHOT_ROWS.inc(len(rows))
        metrics.SNAPSHOT_STALE_ROWS.inc(stale_count)
        self._pending.done(read_chunk)
        if not rows:
            return
        transaction = self._machine.current
        assert transaction is not None
        transaction.manifest.snapshot = task.chunk(table.chunk_count - 1, len(rows), stale_count)
        for start in range(0, len(rows), SLICE_ROWS):
            with errors_of(read_chunk.plan.surveyed.relation):
                self._machine.publish_read_rows(read_chunk.plan.version, rows[start : start + SLICE_ROWS], commit_lsn)
            self._delivery.offer()
            await asyncio.sleep(0)  # let feedback and keepalives be sent
            await self._delivery.room()

    def apply_mark(self, mark: ChunkMark, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """Begin or end the tables of a mark whose transaction commits now, and owe their
        SNAPSHOT_BEGIN or SNAPSHOT_END markers. The first begin and the last end also owe that of
        the snapshot as a whole.

        Tables that were cancelled or began again since the mark was emitted are passed over. If
        everything was cancelled, the mark is discarded.
        """
        tasks = self._tasks
        if self._recorder.judge is None or not tasks.snapshot_id:  # everything was cancelled
            mark.undo()
            self._pending.done(mark)
            return
        place = commit_lsn, end_lsn, readable_time(commit_time) or 0
        if mark.kind == "begin" and tasks.note_begun(tasks.snapshot_id):
            self._owe_of_all("SNAPSHOT_BEGIN", mark.xid, *place)
        for task in mark.tasks:
            task.is_marked = False
            if tasks.by_oid.get(task.oid) is not task:  # cancelled
                continue
            table = task.table
            assert table is not None and task.plan is not None
            if mark.kind == "begin" and table.status is Status.WAITING:
                table.begin(self._machine.unfinished_xids)
                self._recorder.begin(task.oid, table, [task.plan.version.schema_id])
                self._owe("SNAPSHOT_BEGIN", task, mark.xid, *place)
            elif mark.kind == "end" and table.status is Status.ENDING:
                self._end(task, mark.xid, *place)
        if mark.is_last and not tasks.has_tables:
            self._owe_of_all("SNAPSHOT_END", mark.xid, *place)
            unread = [task.full_name for task in tasks.whole_tables]
            fields = {"tables_not_read": len(unread)} if unread else {}
            log.info("snapshot_done", snapshot_id=tasks.snapshot_id, rows=tasks.rows_read(), **fields)
            tasks.snapshot_id = ""
        if mark.kind == "begin":
            log.info("tables_begun", count=len(mark.tasks))
        self._pending.done(mark)

    def end_cancelled(self, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """End the snapshot as a whole before its tables are cancelled; they get no SNAPSHOT_END."""
        tasks, transaction = self._tasks, self._machine.current
        if tasks.snapshot_id and not tasks.note_begun(tasks.snapshot_id):
            assert transaction is not None
            self._owe_of_all("SNAPSHOT_END", transaction.xid, commit_lsn, end_lsn, readable_time(commit_time) or 0)

    def _end(self, task: TableTask, xid: int, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        table, plan = task.table, task.plan
        assert table is not None and plan is not None
        keys = task.take_owed()
        self._tasks.finish(task)
        self._owe("SNAPSHOT_END", task, xid, commit_lsn, end_lsn, commit_time)
        log.info("table_read", table=task.full_name, rows=table.row_count, stale=table.stale_count)
        if keys:
            self._reselecting.begin(plan.version.encoder.description, keys)

    def _owe(self, kind: str, task: TableTask, xid: int, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        self._machine.add_pending_marker(task.marker(kind, self._machine.epoch, xid, commit_lsn, end_lsn, commit_time))

    def _owe_of_all(self, kind: str, xid: int, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        manifest = Manifest(self._machine.epoch, snapshot=SnapshotChunk(self._tasks.snapshot_id, "FILL"))
        self._machine.add_pending_marker(Marker(kind, xid, commit_lsn, -1, end_lsn, commit_time, manifest=manifest))


def _fresh(read_chunk: ReadChunk) -> list[tuple[bytes | None, bytes]]:
    """Return the rows that are not stale."""
    chunk, table = read_chunk.chunk, read_chunk.chunk.table
    if table.track is None or table.is_read_at_once or not (table.track.keys or table.again):
        return read_chunk.rows
    is_stale = table.is_stale
    return [row for row in read_chunk.rows if row[0] is not None and not is_stale(chunk, row[0][FRAME_BYTES:])]
