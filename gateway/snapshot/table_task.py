"""State of one table's snapshot: its read plan, its progress and failures, and the state that is
stored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

import structlog

from gateway.events.manifest import Manifest
from gateway.events.marker import Marker
from gateway.observe.table_status import TableSnapshotStatus
from gateway.snapshot.read_plan import ReadPlan
from gateway.snapshot.rules.ctid_ranges import CtidPlan
from gateway.snapshot.rules.keys_to_read_again import KeyList
from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.table_progress import Chunk, Status, TableProgress
from gateway.snapshot.stored_state import RESELECT, TableState, encode_keys, encode_table, segment_key, table_key
from gateway.snapshot.table_errors import Obstacle
from schemas.markers import SnapshotChunk
from schemas.relation import RelationDescription

log = structlog.get_logger()

HOPELESS_ATTEMPTS: Final = 3
"""After this many failed attempts, the snapshot of the other tables ends without the table."""


@dataclass(slots=True, eq=False)
class TableTask:
    """The snapshot of one table. `plan` and `table` are set when it is set up. `blocked_until` is
    compared with `time.monotonic`."""

    state: TableState
    table: TableProgress | None = None
    plan: ReadPlan | None = None
    blocked_until: float = 0.0
    attempts: int = 0
    """Failed attempts since a chunk was read."""
    obstacle: Obstacle | None = None
    """The reason why the last attempt failed."""
    failed: Chunk | None = None
    failed_plan: ReadPlan | None = None
    """The chunk and the read plan of the last failed attempt."""
    is_set_aside: bool = False
    """The snapshot of the other tables has ended, or ends, without this one."""
    changed_count: int = 0
    """Number of attempts to read it as a whole during which it changed."""
    is_marked: bool = False
    """The mark of its beginning or end was emitted and has not come back."""
    void_segments: list[int] = field(default_factory=list)
    """Segments of keys that were to be read again when the table was begun before."""
    misses_keys: bool = False
    """UPDATEs may have left values out of rows that are not known: only reading the whole table
    sends these values."""
    encoded: TableState | None = None
    """The state that was written last."""

    @property
    def oid(self) -> int:
        return self.state.relation_oid

    @property
    def full_name(self) -> str:
        return f"{self.state.schema}.{self.state.name}"

    @property
    def is_reselect(self) -> bool:
        """Return whether only rows are read whose UPDATEs left values out."""
        return self.state.purpose == RESELECT

    @property
    def is_readable(self) -> bool:
        """Return whether it is known how to read the table. Its row filter is not known if the
        table was locked when the gateway started."""
        return self.plan is not None and self.plan.surveyed.row_filter is not None

    def is_busy(self, now: float) -> bool:
        """Return whether the table has begun and its chunks can be read, so that it counts towards
        the limit of tables read at a time. A table that fails does not: another one can take its
        place."""
        is_begun = not self.is_reselect and (self.is_marked or self.status is not Status.WAITING)
        return is_begun and not self.attempts and self.blocked_until <= now

    @property
    def is_hopeless(self) -> bool:
        """Return whether it failed repeatedly for a reason that does not pass without
        intervention."""
        return self.obstacle is not None and not self.obstacle.passes and self.attempts >= HOPELESS_ATTEMPTS

    def is_read_as(self, plan: ReadPlan) -> bool:
        """Return whether the plan reads the table as it was begun, in chunks or as a whole: one
        cannot be continued as the other."""
        return self.table is None or self.table.is_read_at_once == plan.is_read_at_once

    def fails(self, chunk: Chunk, obstacle: Obstacle, plan: ReadPlan | None) -> None:
        self.attempts += 1
        self.failed, self.failed_plan, self.obstacle = chunk, plan, obstacle

    def forget_failures(self) -> None:
        self.attempts, self.failed, self.failed_plan, self.obstacle = 0, None, None, None

    def succeeds(self, chunk: Chunk) -> None:
        """Note that a chunk was read. Failures of another chunk, for a reason that does not pass,
        are kept: chunks after it can be read without it becoming readable."""
        if self.failed is None or self.obstacle is None or self.obstacle.passes or self.failed.is_same(chunk):
            self.forget_failures()

    @property
    def status(self) -> Status:
        return Status.WAITING if self.table is None else self.table.status

    @property
    def notes_keys(self) -> bool:
        """Return whether the keys of UPDATEs that leave values out are being recorded."""
        return self.table is not None and self.table.reselects and self.table.status in (Status.READING, Status.ENDING)

    @property
    def may_owe_more(self) -> bool:
        """Return whether values may be missing of rows whose keys are not recorded."""
        return self.misses_keys or (self.table is not None and self.table.generation > 0)

    def take_owed(self) -> KeyList:
        """Take the keys of rows whose UPDATEs left values out, for a reselection. This task does
        not read them any more."""
        keys = KeyList()
        if self.notes_keys and self.table is not None and self.table.again:
            keys, self.table.again = self.table.again, keys
        return keys

    def snapshot_status(self) -> TableSnapshotStatus:
        """Return the table's current status for the status board."""
        found = self.state if self.table is None else self.table
        status = "UNREADABLE" if self.is_hopeless else self.status.value
        return TableSnapshotStatus(
            self.full_name, status, self.state.purpose, found.row_count, found.chunk_count, found.stale_count
        )

    def set_up(
        self, plan: ReadPlan, judge: StalenessJudge, chunk_bytes: int, *, reselects: bool = False
    ) -> TableProgress:
        """Prepare the table to be begun with this read plan."""
        self.plan = plan
        surveyed, state = plan.surveyed, self.state
        has_changed = state.fingerprint not in ("", surveyed.fingerprint)
        self.state = replace(
            state,
            schema=surveyed.relation.namespace,
            name=surveyed.relation.name,
            fingerprint=surveyed.fingerprint,
            # Rows that were sent, by this process or the one before, may be gone without an event.
            purpose="REPLACE" if has_changed and state.purpose == "FILL" else state.purpose,
        )
        if self.table is None or self.table.is_read_at_once != plan.is_read_at_once or self.table.judge is not judge:
            self.table = TableProgress(
                judge,
                surveyed.leaves,
                chunk_bytes,
                is_read_at_once=plan.is_read_at_once,
                reselects=reselects and plan.finds_keys,
                # A mirror compares each chunk separately, which takes 10 s whatever its size.
                in_few_chunks=state.purpose == "VERIFY",
            )
        else:
            self.table.begin_again(surveyed.leaves)
        return self.table

    def resume(
        self,
        plan: ReadPlan,
        judge: StalenessJudge,
        chunk_bytes: int,
        segments: dict[int, list[bytes]],
        *,
        reselects: bool = False,
    ) -> TableProgress:
        state = self.state
        if self.is_reselect:
            self.plan = plan
            return self.reselect(judge, chunk_bytes, KeyList(segments))
        table = self.set_up(plan, judge, chunk_bytes, reselects=reselects)
        table.resume(CtidPlan(plan.surveyed.leaves, state.untouched, state.begun), KeyList(segments), state.suspects)
        table.chunk_count, table.row_count, table.stale_count = state.chunk_count, state.row_count, state.stale_count
        return table

    def begin_again(self) -> None:
        """Begin again, because the columns, files or publication have changed, or its encoders
        cannot take a value."""
        log.info("table_restarted", table=self.full_name, reason="its columns, files or publication have changed")
        self._void()

    def set_aside(self) -> None:
        """Set the table aside, to be read from the beginning in another snapshot once it can be
        read."""
        self._void()
        self.state = replace(self.state, snapshot_id="")
        self.is_set_aside, self.blocked_until = True, inf

    def _void(self) -> None:
        if self.table is not None:
            if self.state.purpose == "FILL" and self.table.row_count:
                # Rows that were sent may be gone without an event.
                self.state = replace(self.state, purpose="REPLACE")
            self.table.begin_again()

    def reselect(self, judge: StalenessJudge, chunk_bytes: int, keys: KeyList) -> TableProgress:
        """Read the rows with these keys, and rows whose UPDATEs leave values out meanwhile."""
        self.table = TableProgress(judge, (), chunk_bytes)
        self.table.resume(CtidPlan(()), keys, ())
        return self.table

    def marker(self, kind: str, epoch: int, xid: int, commit_lsn: int, end_lsn: int, time: int) -> Marker:
        """Return the SNAPSHOT_BEGIN or SNAPSHOT_END marker."""
        table = self.table
        counts = (table.row_count, table.stale_count) if kind == "SNAPSHOT_END" and table is not None else (0, 0)
        chunk = self.chunk(table.chunk_count if table else 0, *counts)
        return Marker(kind, xid, commit_lsn, -1, end_lsn, time, manifest=Manifest(epoch, snapshot=chunk))

    def chunk(self, number: int, row_count: int = 0, stale_count: int = 0) -> SnapshotChunk:
        state = self.state
        topic = "" if self.plan is None else self.plan.topic
        return SnapshotChunk(
            state.snapshot_id, state.purpose, self.oid, state.schema, state.name, topic, number, row_count, stale_count
        )

    def take_states(self, frame: bytes, position_key: bytes, prepared: set[int]) -> dict[bytes, bytes]:
        """Return the records that differ from what was written last. `prepared` are xids; only
        those suspects that are prepared outlive the process."""
        states: dict[bytes, bytes] = {}
        table = self.table
        for segment in self.void_segments:
            states[segment_key(position_key, self.oid, segment)] = encode_keys(frame, self.oid, segment, [])
        self.void_segments.clear()
        if table is not None:
            self.state = replace(
                self.state,
                status=table.status.value,
                untouched=table.plan.untouched,
                begun=tuple(table.plan.begun),
                suspects=() if table.track is None else tuple(sorted(table.track.handed_on & prepared)),
                chunk_count=table.chunk_count,
                row_count=table.row_count,
                stale_count=table.stale_count,
            )
            for segment, keys in table.again.take_dirty().items() if table.again.is_dirty else ():
                states[segment_key(position_key, self.oid, segment)] = encode_keys(frame, self.oid, segment, keys)
        if self.state != self.encoded:
            self.encoded = self.state
            states[table_key(position_key, self.oid)] = encode_table(frame, self.state)
        return states


def reselection(description: RelationDescription) -> TableTask:
    """Return the task of a reselection, with keys of this version of the relation."""
    names = description.namespace, description.name
    return TableTask(TableState(description.oid, *names, "", RESELECT, fingerprint=identity_of(description)))


def identity_of(description: RelationDescription) -> str:
    """Return the columns and types that keys are made of, as the fingerprint of a reselection."""
    return str([(column.name, column.facts.oid) for column in description.identity_columns])
