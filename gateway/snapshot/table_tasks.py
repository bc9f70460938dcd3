"""Which relations are read, wait for it, or were read; and what of that is not durable yet."""

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
    """`by_oid`: those that are not done. `begun`: of these, the few that were set up, which are
    looked at again and again, where ten thousand may wait. `known`: relations that were read, or
    never will be. `left`: relations that are not published any more: should they come again, they
    are read, and replace what was there. `quarantined`: relations that are not read until an
    operator has readmitted them and asks for it."""

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
        """Of the relations that are known: what their rows stood on."""
        self.horizons: dict[int, int] = {}
        """Of the last look at which a relation was what `contents` says, where that is later than
the content's own."""
        self._queued: list[TableTask] = []
        """They wait, and that is not written yet."""
        self._finished: list[TableTask] = []
        """Done, and not written yet."""
        self._unwritten: set[int] = set()
        """Those whose content is not written yet."""
        self._begun_ids = {state.snapshot_id for state in states.tables.values()}
        self.stream_state = states.stream
        self.snapshot_id = states.stream.snapshot_id if states.stream is not None else ""
        self.is_paused = states.stream is not None and states.stream.paused

    @property
    def whole_tables(self) -> list[TableTask]:
        """Without those of which only rows are read that UPDATEs left values out of. For any
        thread."""
        return [reading for reading in list(self.by_oid.values()) if not reading.is_reselect]

    @property
    def has_work(self) -> bool:
        return any(not reading.is_set_aside for reading in self.by_oid.values())

    @property
    def has_tables(self) -> bool:
        """Of the snapshot that is under way."""
        return any(not reading.is_reselect and not reading.is_set_aside for reading in self.by_oid.values())

    def are_all(self, readings: Sequence[TableTask]) -> bool:
        """No other table is read, or waits for it."""
        oids = {reading.oid for reading in readings}
        return all(reading.is_reselect or reading.is_set_aside or oid in oids for oid, reading in self.by_oid.items())

    def begin_snapshot(self, table_count: int) -> None:
        if not self.snapshot_id:
            self.snapshot_id = new_id()
            log.info("snapshot_begins", snapshot_id=self.snapshot_id, tables=table_count)

    def join_snapshot(self, reading: TableTask) -> None:
        """It is about to begin: with the others, or in a snapshot of its own where theirs has
        ended."""
        self.begin_snapshot(1)
        reading.state = replace(reading.state, snapshot_id=self.snapshot_id)

    def set_aside(self, reading: TableTask) -> None:
        """It cannot be read: the snapshot ends without it. A comparison is not made up for
        later."""
        if reading.state.purpose == "VERIFY":
            self.cancel(reading.oid)
            return
        reading.set_aside()
        self.begun.pop(reading.oid, None)
        self._noting.end(reading.oid)
        self._queued.append(reading)

    def take_up(self, reading: TableTask) -> None:
        """One that was set aside can be read."""
        reading.forget_failures()
        reading.is_set_aside, reading.blocked_until = False, 0.0

    def is_new(self, snapshot_id: str) -> bool:
        """Whether it begins only now; once."""
        is_new = snapshot_id not in self._begun_ids
        self._begun_ids.add(snapshot_id)
        return is_new

    def wait(self, reading: TableTask) -> None:
        self.by_oid[reading.oid] = reading
        self._queued.append(reading)

    def queue(self, oid: int, namespace: str, name: str, purpose: str) -> None:
        """In place of what is under way of it."""
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
            self._forget_content(oid)  # what it is when it is looked at next, counts
        state = TableState(oid, reading.state.schema, reading.state.name, "", status=KNOWN)
        self._finished.append(TableTask(state, void_segments=void))

    def leave(self, oid: int) -> None:
        """It is not published any more: its changes do not come, and what is known of it is
        void."""
        reading = self.by_oid.pop(oid, None)
        self.begun.pop(oid, None)
        self.known.discard(oid)
        self._forget_content(oid)
        self.left.add(oid)
        name = oid if reading is None else reading.full_name
        log.info("table_left", table=name, reason="it is no longer published")
        if reading is not None and reading.table is not None:
            reading.table.begin_again()
        self._noting.end(oid)
        self._finished.append(TableTask(TableState(oid, "", "", "", purpose="REPLACE")))

    def is_read(self, reading: TableTask) -> None:
        """All of a table."""
        assert reading.table is not None and reading.recipe is not None
        reading.table.end()
        self._noting.end(reading.oid)
        self.known.add(reading.oid)
        if reading.state.purpose != "VERIFY":
            self.note_content(reading.oid, reading.recipe.surveyed.content)
        self._finished.append(self.by_oid.pop(reading.oid))
        del self.begun[reading.oid]

    def rows_read(self) -> int:
        """Rows of the current snapshot's tables that were read to their ends, by earlier processes
        too."""
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
        """All of the rows were read that UPDATEs left values out of; what was known of the table
        before counts again."""
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
        """Its rows are not ours to send."""
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
        """What goes with the Kafka transaction that is closed now. `prepared`: xids. `with_stream`:
        also what is noted of the stream."""
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
