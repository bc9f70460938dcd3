"""The tables that are read, wait to be read, or were read, and the changes of their state that are
not stored yet."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import structlog

from gateway.snapshot.change_recorder import ChangeRecorder
from gateway.snapshot.chunk_reader import new_id
from gateway.snapshot.rules.relation_files import RelationFiles
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
        noting: ChangeRecorder,
        quarantined: Container[int],
        *,
        position_key: bytes,
        frame: bytes,
    ) -> None:
        self._states = states
        self.quarantined = quarantined
        self._noting = noting
        self._position_key = position_key
        self._frame = frame
        self.by_oid: dict[int, TableTask] = {}
        self.begun: dict[int, TableTask] = {}
        self.known = {oid for oid, state in states.tables.items() if state.status in (KNOWN, Status.DONE.value)}
        self.left: set[int] = set()
        self.contents: dict[int, RelationFiles] = dict(states.contents)
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
        return [reading for reading in list(self.by_oid.values()) if not reading.is_reselect]

    @property
    def has_work(self) -> bool:
        return any(not reading.is_set_aside for reading in self.by_oid.values())

    @property
    def has_tables(self) -> bool:
        """Return whether the current snapshot has tables to read."""
        return any(not reading.is_reselect and not reading.is_set_aside for reading in self.by_oid.values())

    def are_all(self, readings: Sequence[TableTask]) -> bool:
        """Return whether no other table is being read, or waits to be read."""
        oids = {reading.oid for reading in readings}
        return all(reading.is_reselect or reading.is_set_aside or oid in oids for oid, reading in self.by_oid.items())

    def begin_snapshot(self, table_count: int) -> None:
        if not self.snapshot_id:
            self.snapshot_id = new_id()
            log.info("snapshot_begins", snapshot_id=self.snapshot_id, tables=table_count)

    def join_snapshot(self, reading: TableTask) -> None:
        """Add a table that is about to begin to the current snapshot, or to a new one if that has
        ended."""
        self.begin_snapshot(1)
        reading.state = replace(reading.state, snapshot_id=self.snapshot_id)

    def set_aside(self, reading: TableTask) -> None:
        """Let the snapshot end without a table that cannot be read. A VERIFY of it is cancelled."""
        if reading.state.purpose == "VERIFY":
            self.cancel(reading.oid)
            return
        reading.set_aside()
        self.begun.pop(reading.oid, None)
        self._noting.end(reading.oid)
        self._queued.append(reading)

    def take_up(self, reading: TableTask) -> None:
        """Read a table that was set aside, because it can be read now."""
        reading.forget_failures()
        reading.is_set_aside, reading.blocked_until = False, 0.0

    def is_new(self, snapshot_id: str) -> bool:
        """Return whether the snapshot has only now begun. Only the first call with an id returns
        True."""
        is_new = snapshot_id not in self._begun_ids
        self._begun_ids.add(snapshot_id)
        return is_new

    def wait(self, reading: TableTask) -> None:
        self.by_oid[reading.oid] = reading
        self._queued.append(reading)

    def queue(self, oid: int, namespace: str, name: str, purpose: str) -> None:
        """Queue the table, in place of its unfinished snapshot, if any."""
        state, is_under_way = TableState(oid, namespace, name, self.snapshot_id, purpose), oid in self.by_oid
        if is_under_way:
            self.cancel(oid)
        self.known.discard(oid)
        self.wait(TableTask(state, misses_keys=is_under_way))

    def cancel(self, oid: int) -> None:
        reading = self.by_oid.pop(oid)
        self.begun.pop(oid, None)
        void = reading.void_segments
        if reading.table is not None:
            reading.table.begin_again()
            void += reading.table.again.take_dirty()
        self._noting.end(oid)
        self.known.add(oid)
        if reading.state.purpose not in ("VERIFY", RESELECT):
            self._forget_content(oid)  # the state at the next look counts
        state = TableState(oid, reading.state.schema, reading.state.name, "", status=KNOWN)
        self._finished.append(TableTask(state, void_segments=void))

    def leave(self, oid: int, name: str = "") -> None:
        """Forget a relation that is no longer published: its changes are not sent, so what is known
        of it is void."""
        reading = self.by_oid.pop(oid, None)
        self.begun.pop(oid, None)
        self.known.discard(oid)
        self._forget_content(oid)
        self.left.add(oid)
        log.info(
            "table_left",
            table=name or (oid if reading is None else reading.full_name),
            reason="it is no longer published",
        )
        if reading is not None and reading.table is not None:
            reading.table.begin_again()
        self._noting.end(oid)
        self._finished.append(TableTask(TableState(oid, "", "", "", purpose="REPLACE")))

    def is_read(self, reading: TableTask) -> None:
        """Finish a task that has read its whole table."""
        assert reading.table is not None and reading.recipe is not None
        reading.table.end()
        self._noting.end(reading.oid)
        self.known.add(reading.oid)
        if reading.state.purpose != "VERIFY":
            self.note_content(reading.oid, reading.recipe.surveyed.content)
        self._finished.append(self.by_oid.pop(reading.oid))
        del self.begun[reading.oid]

    def rows_read(self) -> int:
        """Return the number of rows of those tables of the current snapshot that were read
        completely, including by earlier processes."""
        unwritten = {reading.oid: reading for reading in self._finished if reading.table is not None}
        written = (
            state.row_count
            for oid, state in self._states.tables.items()
            if state.snapshot_id == self.snapshot_id and state.status == Status.DONE.value and oid not in unwritten
        )
        return sum(written) + sum(
            reading.table.row_count
            for reading in unwritten.values()
            if reading.table is not None and reading.state.snapshot_id == self.snapshot_id
        )

    def is_reselected(self, reading: TableTask) -> None:
        """Finish a reselection whose rows were all read. The table's status from before it is
        stored again."""
        assert reading.table is not None
        del self.by_oid[reading.oid], self.begun[reading.oid]
        self.known.add(reading.oid)
        reading.table.end()
        self._noting.end(reading.oid)
        before = self._states.tables.get(reading.oid)
        if before is None or before.status not in (KNOWN, Status.DONE.value):
            before = replace(reading.state, purpose="FILL", status=KNOWN, fingerprint="")
        self._finished.append(TableTask(before, void_segments=list(reading.table.again.take_dirty())))

    def never_read(self, state: TableState) -> None:
        """Store that the rows of this table are not to be read."""
        self.known.add(state.relation_oid)
        self._finished.append(TableTask(replace(state, status=KNOWN)))

    def note_content(self, oid: int, now: RelationFiles) -> None:
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
        queued = [reading for reading in self._queued if self.by_oid.get(reading.oid) is reading]
        for reading in (*self._finished, *queued, *self.begun.values()):
            if reading.table is not None or reading.encoded is None:
                states |= reading.take_states(self._frame, self._position_key, prepared)
        self._states.tables |= {reading.oid: reading.state for reading in self._finished}
        self._finished.clear()
        self._queued.clear()
        for oid in self._unwritten:
            states[content_key(self._position_key, oid)] = encode_content(self._frame, oid, self.contents[oid])
        self._unwritten.clear()
        if with_stream:
            states |= self._take_stream_state()
        return states

    def _take_stream_state(self) -> dict[bytes, bytes]:
        judge = self._noting.judge
        state = StreamState(snapshot_id=self.snapshot_id, paused=self.is_paused)
        if judge is not None and self.by_oid:
            state = replace(state, floor=judge.floor, unseen=tuple(sorted(judge.unseen)), is_active=True)
        if state == self.stream_state:
            return {}
        self.stream_state = state
        return {self._position_key: encode_stream(self._frame, state)}
