"""The tables that are read, wait to be read, or were read, and the changes of their state that are
not stored yet."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import structlog

from gateway.snapshot.change_recorder import ChangeRecorder
from gateway.snapshot.chunk_reader import new_id
from gateway.snapshot.rules.published_content import PublishedContent
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.stored_state import (
    KNOWN,
    RESELECT,
    StoredStates,
    StreamState,
    TableState,
    content_key,
    encode_content,
    encode_stream,
)
from gateway.snapshot.table_task import TableTask

log = structlog.get_logger()


class TableTasks:
    """The snapshots of all tables.

    `by_oid`: tasks that are not done. `begun`: the few of them that are set up; loops go over
    these, while 10,000 may wait. `known`: relations that were read, or never will be. `left`:
    relations that are no longer published; if they are published again, they are read with the
    purpose REPLACE. `quarantined`: relations that are not read until the operator readmits them and
    starts a snapshot.
    """

    def __init__(
        self,
        states: StoredStates,
        recorder: ChangeRecorder,
        quarantined: Container[int],
        *,
        position_key: bytes,
        frame: bytes,
    ) -> None:
        self._states = states
        self.quarantined = quarantined
        self._recorder = recorder
        self._position_key = position_key
        self._frame = frame
        self.by_oid: dict[int, TableTask] = {}
        self.begun: dict[int, TableTask] = {}
        self.known = {oid for oid, state in states.tables.items() if state.status in (KNOWN, Status.DONE.value)}
        self.left: set[int] = set()
        self.contents: dict[int, PublishedContent] = dict(states.contents)
        """The catalog entries and files that the rows of each known relation depend on."""
        self.horizons: dict[int, int] = {}
        """Horizon of the last look at which a relation was still as in `contents`, if it is later
        than the horizon there."""
        self._queued: list[TableTask] = []
        """Waiting tasks whose state is not written yet."""
        self._finished: list[TableTask] = []
        """Finished tasks whose state is not written yet."""
        self._unwritten: set[int] = set()
        """Relations whose entry of `contents` is not written yet."""
        self._begun_ids = {state.snapshot_id for state in states.tables.values()}
        self.stream_state = states.stream
        self.snapshot_id = states.stream.snapshot_id if states.stream is not None else ""
        self.is_paused = states.stream is not None and states.stream.paused

    @property
    def whole_tables(self) -> list[TableTask]:
        """The tasks that read tables, without reselections. May be called in any thread."""
        return [task for task in list(self.by_oid.values()) if not task.is_reselect]

    @property
    def has_work(self) -> bool:
        return any(not task.is_set_aside for task in self.by_oid.values())

    @property
    def has_tables(self) -> bool:
        """Return whether the current snapshot has tables to read."""
        return any(not task.is_reselect and not task.is_set_aside for task in self.by_oid.values())

    def are_all(self, tasks: Sequence[TableTask]) -> bool:
        """Return whether no other table is being read, or waits to be read."""
        oids = {task.oid for task in tasks}
        return all(task.is_reselect or task.is_set_aside or oid in oids for oid, task in self.by_oid.items())

    def begin_snapshot(self, table_count: int) -> None:
        if not self.snapshot_id:
            self.snapshot_id = new_id()
            log.info("snapshot_begins", snapshot_id=self.snapshot_id, tables=table_count)

    def join_snapshot(self, task: TableTask) -> None:
        """Add a table that is about to begin to the current snapshot, or to a new one if that has
        ended."""
        self.begin_snapshot(1)
        task.state = replace(task.state, snapshot_id=self.snapshot_id)

    def set_aside(self, task: TableTask) -> None:
        """Let the snapshot end without a table that cannot be read. A VERIFY of it is cancelled."""
        if task.state.purpose == "VERIFY":
            self.cancel(task.oid)
            return
        task.set_aside()
        self.begun.pop(task.oid, None)
        self._recorder.end(task.oid)
        self._queued.append(task)

    def take_up(self, task: TableTask) -> None:
        """Read a table that was set aside, because it can be read now."""
        task.forget_failures()
        task.is_set_aside, task.blocked_until = False, 0.0

    def note_begun(self, snapshot_id: str) -> bool:
        """Return whether the snapshot has only now begun. Only the first call with an id returns
        True."""
        is_new = snapshot_id not in self._begun_ids
        self._begun_ids.add(snapshot_id)
        return is_new

    def wait(self, task: TableTask) -> None:
        self.by_oid[task.oid] = task
        self._queued.append(task)

    def queue(self, oid: int, namespace: str, name: str, purpose: str) -> None:
        """Queue the table, in place of its unfinished snapshot, if any."""
        state, is_under_way = TableState(oid, namespace, name, self.snapshot_id, purpose), oid in self.by_oid
        if is_under_way:
            self.cancel(oid)
        self.known.discard(oid)
        self.wait(TableTask(state, misses_keys=is_under_way))

    def cancel(self, oid: int) -> None:
        task = self.by_oid.pop(oid)
        self.begun.pop(oid, None)
        void = task.void_segments
        if task.table is not None:
            task.table.begin_again()
            void += task.table.again.take_dirty()
        self._recorder.end(oid)
        self.known.add(oid)
        if task.state.purpose not in ("VERIFY", RESELECT):
            self._forget_content(oid)  # the state at the next look counts
        state = TableState(oid, task.state.schema, task.state.name, "", status=KNOWN)
        self._finished.append(TableTask(state, void_segments=void))

    def leave(self, oid: int, name: str = "") -> None:
        """Forget a relation that is no longer published: its changes are not sent, so what is known
        of it is void."""
        task = self.by_oid.pop(oid, None)
        self.begun.pop(oid, None)
        self.known.discard(oid)
        self._forget_content(oid)
        self.left.add(oid)
        log.info(
            "table_left",
            table=name or (oid if task is None else task.full_name),
            reason="it is no longer published",
        )
        if task is not None and task.table is not None:
            task.table.begin_again()
        self._recorder.end(oid)
        self._finished.append(TableTask(TableState(oid, "", "", "", purpose="REPLACE")))

    def finish(self, task: TableTask) -> None:
        """Finish a task that has read its whole table."""
        assert task.table is not None and task.plan is not None
        task.table.end()
        self._recorder.end(task.oid)
        self.known.add(task.oid)
        if task.state.purpose != "VERIFY":
            self.note_content(task.oid, task.plan.surveyed.content)
        self._finished.append(self.by_oid.pop(task.oid))
        del self.begun[task.oid]

    def rows_read(self) -> int:
        """Return the number of rows of those tables of the current snapshot that were read
        completely, including by earlier processes."""
        unwritten = {task.oid: task for task in self._finished if task.table is not None}
        written = (
            state.row_count
            for oid, state in self._states.tables.items()
            if state.snapshot_id == self.snapshot_id and state.status == Status.DONE.value and oid not in unwritten
        )
        return sum(written) + sum(
            task.table.row_count
            for task in unwritten.values()
            if task.table is not None and task.state.snapshot_id == self.snapshot_id
        )

    def finish_reselection(self, task: TableTask) -> None:
        """Finish a reselection whose rows were all read. The table's status from before it is
        stored again."""
        assert task.table is not None
        del self.by_oid[task.oid], self.begun[task.oid]
        self.known.add(task.oid)
        task.table.end()
        self._recorder.end(task.oid)
        before = self._states.tables.get(task.oid)
        if before is None or before.status not in (KNOWN, Status.DONE.value):
            before = replace(task.state, purpose="FILL", status=KNOWN, fingerprint="")
        self._finished.append(TableTask(before, void_segments=list(task.table.again.take_dirty())))

    def never_read(self, state: TableState) -> None:
        """Store that the rows of this table are not to be read."""
        self.known.add(state.relation_oid)
        self._finished.append(TableTask(replace(state, status=KNOWN)))

    def note_content(self, oid: int, now: PublishedContent) -> None:
        self.contents[oid] = now
        self.horizons.pop(oid, None)
        self._unwritten.add(oid)

    def _forget_content(self, oid: int) -> None:
        self.contents.pop(oid, None)
        self.horizons.pop(oid, None)
        self._unwritten.discard(oid)

    def take_states(self, prepared: set[int], *, with_stream: bool) -> dict[bytes, bytes]:
        """Return the records for the Kafka transaction that is being closed. `prepared` are xids.
        `with_stream`: include the state of the stream, if it has changed."""
        states: dict[bytes, bytes] = {}
        queued = [task for task in self._queued if self.by_oid.get(task.oid) is task]
        for task in (*self._finished, *queued, *self.begun.values()):
            if task.table is not None or task.encoded is None:
                states |= task.take_states(self._frame, self._position_key, prepared)
        self._states.tables |= {task.oid: task.state for task in self._finished}
        self._finished.clear()
        self._queued.clear()
        for oid in self._unwritten:
            states[content_key(self._position_key, oid)] = encode_content(self._frame, oid, self.contents[oid])
        self._unwritten.clear()
        if with_stream:
            states |= self._take_stream_state()
        return states

    def _take_stream_state(self) -> dict[bytes, bytes]:
        judge = self._recorder.judge
        state = StreamState(snapshot_id=self.snapshot_id, paused=self.is_paused)
        if judge is not None and self.by_oid:
            state = replace(state, floor=judge.floor, unseen=tuple(sorted(judge.unseen)), is_active=True)
        if state == self.stream_state:
            return {}
        self.stream_state = state
        return {self._position_key: encode_stream(self._frame, state)}
