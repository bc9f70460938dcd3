"""The tables that wait to be read, are being read, or were read, and the changes of their states
that are not stored yet.

All snapshots of a session are one state machine, which TableTasks moves. (A table may also begin
again after a change in the stream, which change_tracking reports to its progress.) Reader tasks,
the publisher, discovery, reselection and the coordinator read properties, and report here what has
happened (`chunk_read`, `begin`, `no_longer_published`, ...). A test holds that no other module
writes a field of a task, or calls the methods of TableTask that change one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import structlog

from gateway.snapshot.change_recorder import ChangeRecorder
from gateway.snapshot.discovery.stored_contents import StoredContents
from gateway.snapshot.read_plan import ReadPlan
from gateway.snapshot.rules.keys_to_read_again import KeysToReadAgain
from gateway.snapshot.rules.published_content import PublishedContent, unsent
from gateway.snapshot.rules.table_progress import Chunk, Status
from gateway.snapshot.stored_state import (
    NOT_TO_BE_READ,
    RESELECT,
    StoredStates,
    TableState,
)
from gateway.snapshot.table_errors import Obstacle
from gateway.snapshot.table_task import TableTask, reselection
from gateway.snapshot.whole_snapshot import WholeSnapshot
from schemas.relation import RelationDescription

log = structlog.get_logger()

SETTLED = NOT_TO_BE_READ, Status.DONE.value


class TableTasks:
    """The snapshots of all tables. `chunk_bytes`: the size of chunks. `reselects`: rows whose
    UPDATEs left values out are read again, even after all rows of their table were read."""

    def __init__(
        self,
        states: StoredStates,
        recorder: ChangeRecorder,
        quarantined: Container[int],
        *,
        position_key: bytes,
        frame: bytes,
        chunk_bytes: int,
        reselects: bool,
    ) -> None:
        self._states = states
        self.quarantined = quarantined
        """Relations that are not read until the operator readmits them and starts a snapshot."""
        self._recorder = recorder
        self._position_key = position_key
        self._frame = frame
        self._chunk_bytes = chunk_bytes
        self._reselects = reselects
        self._by_oid: dict[int, TableTask] = {}
        self._active: dict[int, TableTask] = {}
        self._settled = {oid for oid, state in states.tables.items() if state.status in SETTLED}
        self._unpublished: set[int] = set()
        self.contents = StoredContents(states.contents)
        self._contents_before: dict[int, PublishedContent] = {}
        """The relations as they were when recording began."""
        self._queued: list[TableTask] = []
        """Tasks that wait, and whose state is not written yet."""
        self._finished: list[TableTask] = []
        """Finished tasks whose state is not written yet."""
        self.snapshot = WholeSnapshot(states)

    # -- what there is

    @property
    def by_oid(self) -> Mapping[int, TableTask]:
        """The tasks that are not finished, including those that wait."""
        return self._by_oid

    @property
    def active(self) -> Mapping[int, TableTask]:
        """The tasks that were set up, including those that wait to begin again, and reselections.
        There are usually at most a few dozen, while 10,000 may wait."""
        return self._active

    @property
    def settled(self) -> Set[int]:
        """Relations of which nothing is to be read: they are DONE or NOT_TO_BE_READ."""
        return self._settled

    @property
    def unpublished(self) -> Set[int]:
        """Relations that the last check has not found in the publications, although consumers may
        have rows of them. If a check finds them, they are read with the purpose REPLACE, if new
        tables are read at all."""
        return self._unpublished

    @property
    def waiting_without_content(self) -> list[int]:
        """The relations that wait to be read for the first time and have no stored content."""
        return [
            oid
            for oid, task in self._by_oid.items()
            if task.state.purpose == "FILL" and task.status is Status.WAITING and oid not in self.contents.by_oid
        ]

    @property
    def whole_tables(self) -> list[TableTask]:
        """The tasks that read tables, without reselections. They may be queried in any thread."""
        return [task for task in list(self._by_oid.values()) if not task.is_reselect]

    @property
    def has_work(self) -> bool:
        """Whether a table or a reselection is unfinished, apart from tables that are set aside."""
        return any(not task.is_set_aside for task in self._by_oid.values())

    @property
    def has_tables(self) -> bool:
        """Whether the current snapshot has tables to read."""
        return any(not task.is_reselect and not task.is_set_aside for task in self._by_oid.values())

    def is_current(self, task: TableTask) -> bool:
        """Return whether the task is still that of its table, and not cancelled or finished."""
        return self._by_oid.get(task.oid) is task

    def are_all(self, tasks: Sequence[TableTask]) -> bool:
        """Return whether no other table of the snapshot is being read or waits to be read. A table
        whose boundary was emitted, and comes first in the stream, ends before these."""
        oids = {task.oid for task in tasks}
        return all(
            task.is_reselect or task.is_set_aside or task.status is Status.ENDING or oid in oids
            for oid, task in self._by_oid.items()
        )

    def rows_read(self) -> int:
        """Return the number of rows in the tables of the current snapshot that were read
        completely, also in earlier sessions."""
        unwritten = {task.oid: task for task in self._finished if task.progress is not None}
        written = (
            state.row_count
            for oid, state in self._states.tables.items()
            if state.snapshot_id == self.snapshot.id and state.status == Status.DONE.value and oid not in unwritten
        )
        return sum(written) + sum(
            task.progress.row_count
            for task in unwritten.values()
            if task.progress is not None and task.state.snapshot_id == self.snapshot.id
        )

    # -- which tables are read

    def restore(self, state: TableState, *, is_after_gap: bool) -> TableTask:
        """Add a table that an earlier session has not finished. `is_after_gap`: changes were lost
        since then, so rows that were read may be gone. The table then begins again, unless it is a
        reselection; its new state is stored before anything that follows the gap."""
        oid = state.relation_oid
        if is_after_gap and state.purpose != RESELECT:
            self.wait(state.begun_again())
        else:
            segments = self._states.keys.get(oid, {})
            self._by_oid[oid] = TableTask(state, encoded=state, void_segments=segments, misses_keys=True)
        return self._by_oid[oid]

    def resume(self, task: TableTask, plan: ReadPlan) -> None:
        """Go on with a restored table where the earlier session was."""
        judge = self._recorder.judge
        assert judge is not None
        segments = self._states.keys.get(task.oid, {})
        progress = task.resume(plan, judge, self._chunk_bytes, segments, reselects=self._reselects)
        self._active[task.oid] = task
        self._recorder.begin(task.oid, progress, [plan.version.schema_id])

    def add(self, state: TableState, *, misses_keys: bool) -> None:
        """Add a table that was never read. It has no table record until it is set up, since a
        published table that is not settled is read in any case. Discovery stores its content before
        it is set up."""
        self._by_oid[state.relation_oid] = TableTask(state, encoded=state, misses_keys=misses_keys)

    def wait(self, state: TableState, *, misses_keys: bool = True) -> None:
        """Add a table that is waiting for its snapshot; its record is stored even before the
        snapshot begins. Keys that an earlier snapshot of the table stored are void."""
        oid = state.relation_oid
        task = TableTask(state, void_segments=self._states.keys.get(oid, {}), misses_keys=misses_keys)
        self._by_oid[oid] = task
        self._queued.append(task)

    def queue(self, oid: int, namespace: str, name: str, purpose: str) -> None:
        """Queue a published table; its unfinished snapshot, if any, is cancelled. (`choose` in
        commands.py keeps a VERIFY from cancelling a FILL or a REPLACE.) Perhaps no check has found
        the table yet."""
        is_under_way = oid in self._by_oid
        if is_under_way:
            self.cancel(oid)
        self._settled.discard(oid)
        self._unpublished.discard(oid)
        self.wait(TableState(oid, namespace, name, self.snapshot.id, purpose), misses_keys=is_under_way)

    def never_read(self, state: TableState) -> None:
        """Store that the rows of this table are not to be read."""
        self._settled.add(state.relation_oid)
        self._finished.append(TableTask(replace(state, status=NOT_TO_BE_READ)))

    def cancel(self, oid: int) -> None:
        task = self._by_oid.pop(oid)
        self._active.pop(oid, None)
        void_segments = task.cancelled()
        self._recorder.end(oid)
        self._settled.add(oid)
        if task.state.purpose not in ("VERIFY", RESELECT):
            self.contents.forget(oid)  # the state at the next check counts
        state = TableState(oid, task.state.schema, task.state.name, "", status=NOT_TO_BE_READ)
        self._finished.append(TableTask(state, void_segments=void_segments))

    def restored_is_unpublished(self, oid: int) -> None:
        """Report that a table is no longer published although an earlier session has not finished
        it, or that no check of that session has found the table."""
        self._unpublished.add(oid)

    def not_found_yet(self, oid: int) -> None:
        """Store that consumers get rows of a relation that no check has found yet. The record is
        void once a check finds the relation. If the gateway ends before that, the relation may
        leave the publications and come back while the gateway is not running."""
        if oid not in self._states.tables:
            self._finished.append(TableTask(TableState.not_found(oid)))

    def no_longer_published(self, oid: int, name: str = "") -> None:
        """Forget a relation that is no longer published. Its changes are not sent, so the stored
        state of its rows is void."""
        task = self._by_oid.pop(oid, None)
        self._active.pop(oid, None)
        self._settled.discard(oid)
        self.contents.forget(oid)
        self._unpublished.add(oid)
        table = name or (oid if task is None else task.full_name)
        log.info("table_left", table=table, reason="it is no longer published")
        void_segments = [] if task is None else task.cancelled()
        self._recorder.end(oid)
        self._finished.append(TableTask(TableState.not_found(oid), void_segments=void_segments))

    def dropped(self, oid: int) -> None:
        """Remove the records of a relation that no longer exists and is not published. A relation
        that gets its oid later is read with the purpose REPLACE (`WholeSnapshot.may_reuse`)."""
        self._unpublished.discard(oid)
        self.contents.forget(oid)
        self.snapshot.dropped(oid)
        void_segments = self._states.keys.pop(oid, {})
        self._finished.append(TableTask(TableState.not_found(oid), void_segments=void_segments, is_dropped=True))

    def published_again(self, oid: int) -> bool:
        """Report that a relation is published, and return whether it was in `unpublished`."""
        was_unpublished = oid in self._unpublished
        self._unpublished.discard(oid)
        return was_unpublished

    # -- the course of a table

    def set_up(self, task: TableTask, plan: ReadPlan) -> None:
        """Prepare a waiting table to be begun, as part of the current snapshot or, if there is
        none, of a new one."""
        judge = self._recorder.judge
        assert judge is not None
        self.snapshot.begin(1)
        task.join_snapshot(self.snapshot.id)
        if task.state.purpose != "VERIFY":
            before, now = self.contents.by_oid.get(task.oid), plan.surveyed.content
            if before is not None and unsent(before, now):
                task.purpose_is_replace()
            self.contents.is_now(task.oid, now)
        task.set_up(plan, judge, self._chunk_bytes, reselects=self._reselects)
        self._active[task.oid] = task

    def is_replaced(self, oid: int, reason: str) -> None:
        """Report that a table that waits or is being read was altered, so that consumers may have
        other rows: its changes may have gone to another topic, for example."""
        task = self._by_oid[oid]
        task.purpose_is_replace()
        if task.status is not Status.WAITING and not task.is_reselect:
            task.begin_again(reason)

    def plan_found(self, task: TableTask, plan: ReadPlan) -> None:
        task.plan_found(plan)

    def plan_outdated(self, task: TableTask) -> None:
        """Report that the table can only be read with a new plan."""
        task.plan_outdated()

    def block(self, tasks: Iterable[TableTask], until: float) -> None:
        """Do not read the tables before `until`."""
        for task in tasks:
            task.block(until)

    def boundary_emitted(self, tasks: Iterable[TableTask]) -> None:
        """Report that the transaction that begins or ends the tables was emitted."""
        for task in tasks:
            task.boundary_emitted()

    def boundary_arrived(self, tasks: Iterable[TableTask]) -> None:
        for task in tasks:
            task.boundary_arrived()

    def boundary_discarded(self, tasks: Iterable[TableTask]) -> None:
        for task in tasks:
            task.boundary_discarded()

    def recording_begins(self) -> None:
        """Report that changes are about to be recorded."""
        self._contents_before = dict(self.contents.by_oid)

    def begin(self, task: TableTask, unfinished_xids: Iterable[int], boundary_xid: int) -> None:
        """Begin a table where its SNAPSHOT_BEGIN is published. Its changes are recorded from here
        on."""
        judge = self._recorder.judge
        assert judge is not None and task.progress is not None and task.plan is not None
        before, now = self._contents_before.get(task.oid), task.plan.surveyed.content
        is_published_as_before = before is not None and before.is_published_as(now)
        floor = self._recorder.first_xid if is_published_as_before else judge.visibility.widen(boundary_xid)
        task.progress.begin(unfinished_xids, floor)
        self._recorder.begin(task.oid, task.progress, [task.plan.version.schema_id])

    def nothing_left(self, task: TableTask) -> None:
        """Report that all rows of the table are published, and that only its SNAPSHOT_END
        remains."""
        assert task.progress is not None
        task.progress.nothing_left()

    def finish(self, task: TableTask) -> KeysToReadAgain:
        """Finish a table where its SNAPSHOT_END is published. Return the keys of rows that a
        reselection must still read."""
        assert task.progress is not None and task.plan is not None
        keys = task.pop_keys_to_reselect()
        task.progress.end()
        self._recorder.end(task.oid)
        self._settled.add(task.oid)
        if task.oid not in self.contents.by_oid:  # a release that did not store it has begun the table
            self.contents.is_now(task.oid, task.plan.surveyed.content)
        self._finished.append(self._by_oid.pop(task.oid))
        del self._active[task.oid]
        return keys

    def begin_again(self, task: TableTask, reason: str) -> None:
        task.begin_again(reason)

    def log_restarts(self) -> None:
        """Log the tables that have begun again at a change in the stream."""
        for task in self._active.values():
            task.stream_received()

    def changed_while_read(self, task: TableTask) -> None:
        """Report that a table changed while it was read as a whole."""
        task.changed_while_read()

    def set_aside(self, task: TableTask) -> None:
        """Let the snapshot end without a table that cannot be read. If its purpose is VERIFY, it is
        cancelled."""
        if task.state.purpose == "VERIFY":
            self.cancel(task.oid)
            return
        task.set_aside()
        self._active.pop(task.oid, None)
        self._recorder.end(task.oid)
        self._queued.append(task)

    def readable_again(self, task: TableTask) -> None:
        """Report that a table that was set aside can be read now."""
        task.readable_again()

    # -- chunks

    def next_chunk(self, now: float) -> tuple[TableTask, Chunk] | None:
        """Return the next chunk to be read, or None if there is nothing to read now."""
        for task in self._ready(now):
            assert task.progress is not None
            chunk = task.progress.next_chunk()
            if chunk is not None:
                return task, chunk
        return None

    def waits_for_transactions(self, now: float) -> bool:
        """Return whether a table waits for a transaction to end that the PostgreSQL snapshots of
        its chunks must see."""
        return any(task.progress is not None and task.progress.is_too_early for task in self._ready(now))

    def _ready(self, now: float) -> Iterator[TableTask]:
        for task in () if self.snapshot.is_paused else self._active.values():
            if task.status is Status.READING and task.is_readable and not task.is_blocked(now):
                yield task

    def chunk_read(self, task: TableTask, chunk: Chunk) -> None:
        task.chunk_read(chunk)

    def chunk_failed(
        self, task: TableTask, chunk: Chunk, obstacle: Obstacle, plan: ReadPlan | None, until: float
    ) -> None:
        """Report that a chunk could not be read; the table is not read before `until`."""
        task.chunk_failed(chunk, obstacle, plan, until)

    def partitions_left_out(self, task: TableTask, chunk: Chunk) -> None:
        """Read the table now, since its plan leaves out the partitions that cannot be read."""
        task.chunk_read(chunk)
        task.block(0.0)

    def give_back(self, chunk: Chunk) -> None:
        """Report that a chunk was not read, or does not count. Unless the table has begun again,
        the part that the chunk has is read again."""
        chunk.progress.give_back(chunk)

    def published(self, chunk: Chunk, row_count: int, stale_count: int) -> None:
        """Report that a chunk was published, where its transaction commits."""
        chunk.progress.published(chunk, row_count, stale_count)

    # -- reselections

    def begin_reselection(self, description: RelationDescription, keys: KeysToReadAgain) -> None:
        """Begin to read the rows with these keys, and the rows whose UPDATEs leave values out from
        now on. Changes of the relation are recorded until the reselection ends."""
        judge = self._recorder.judge
        assert judge is not None
        task = reselection(description)
        self._by_oid[task.oid] = self._active[task.oid] = task
        self._recorder.begin(task.oid, task.reselect(judge, self._chunk_bytes, keys), [])

    def finish_reselection(self, task: TableTask) -> None:
        """Finish a reselection whose rows were all read, and store the state that the table had
        before."""
        assert task.progress is not None
        del self._by_oid[task.oid], self._active[task.oid]
        self._settled.add(task.oid)
        task.progress.end()
        self._recorder.end(task.oid)
        before = self._states.tables.get(task.oid)
        if before is None or before.status not in SETTLED:
            before = replace(task.state, purpose="FILL", status=NOT_TO_BE_READ, fingerprint="")
        self._finished.append(TableTask(before, void_segments=task.progress.keys_to_read_again.pop_dirty()))

    def read_whole(self, task: TableTask) -> None:
        """Read the whole table instead of single rows."""
        self.snapshot.begin(1)
        task.read_whole(self.snapshot.id)

    def value_missed(self, task: TableTask) -> None:
        """Report that an UPDATE of the table left a value out."""
        task.value_missed()

    def cancel_keeping_keys(self, task: TableTask) -> KeysToReadAgain:
        """Cancel the snapshot of a table. Return the keys of rows that a reselection must still
        read."""
        keys = task.pop_keys_to_reselect()
        self.cancel(task.oid)
        return keys

    # -- what becomes durable

    @property
    def has_unwritten(self) -> bool:
        """Whether states of waiting or finished tables, or what a check of the catalog has found,
        are not stored yet. A pause and the progress of active tables do not count: they are stored
        with the next Kafka transaction, before their own transactions are acknowledged."""
        return bool(self._finished or self._queued or self.contents.has_unwritten)

    def take_states(self, prepared: set[int], *, with_stream: bool) -> dict[bytes, bytes | None]:
        """Return the records for the Kafka transaction that is being closed, and None for those to
        be removed. `prepared` has the xids of prepared transactions. `with_stream`: include the
        state of the stream, if it has changed."""
        states: dict[bytes, bytes | None] = {}
        queued = [task for task in self._queued if self.is_current(task)]
        for task in (*self._finished, *queued, *self._active.values()):
            states |= task.take_states(self._frame, self._position_key, prepared)
        tables = self._states.tables
        for task in self._finished:
            if task.is_dropped:
                tables.pop(task.oid, None)
            else:
                tables[task.oid] = task.state
        self._finished.clear()
        self._queued.clear()
        states |= self.contents.take_states(self._frame, self._position_key)
        if with_stream:
            judge, has_tables = self._recorder.judge, bool(self._by_oid)
            states |= self.snapshot.take_states(self._frame, self._position_key, judge, has_tables=has_tables)
        return states
