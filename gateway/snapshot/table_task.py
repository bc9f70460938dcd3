"""State of one table's snapshot: its read plan, its progress and failures, and the state that is
stored.

The state is private. Other modules read the properties. The methods that change the state are named
after what has happened, and only TableTasks calls them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Final

import structlog

from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker
from gateway.observe.table_status import TableSnapshotStatus
from gateway.snapshot.read_plan import ReadPlan
from gateway.snapshot.rules.keys_to_read_again import KeysToReadAgain
from gateway.snapshot.rules.ranges_to_read import CtidPlan
from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.table_progress import TOO_MANY_KEYS, UNKNOWN_KEYS, Chunk, Status, TableProgress
from gateway.snapshot.stored_state import RESELECT, TableState, encode_keys, encode_table, segment_key, table_key
from gateway.snapshot.table_errors import Obstacle
from schemas.markers import SnapshotChunk
from schemas.relation import RelationDescription
from schemas.topic_names import format_relation

log = structlog.get_logger()

CHANGED: Final = "its columns, files or publication have changed"
"""The reason why a table begins again if its read plan no longer fits."""
RENAMED: Final = "it was renamed, for a time or for good"

WARNED_RESTARTS: Final = 3
"""The number of times that a table has begun again from which on this is logged as a warning."""
_RESTARTS_HINT: Final = (
    "if this goes on, the snapshot of the table does not end: until it does, suspend what changes, creates, truncates or "
    "rewrites the table or its partitions, and REINDEX CONCURRENTLY of the index of its key"
)
_HINTS: Final = {
    TOO_MANY_KEYS: "if reading is paused, run `walgate snapshot resume`; otherwise raise snapshot.rows_per_s or "
    "snapshot.readers, or suspend the UPDATEs until the table has been read",
    UNKNOWN_KEYS: "if this goes on, suspend large and prepared transactions that change the table until it has been read",
}
"""Hints for the reasons that come from the stream, which are given from the first time on."""

HOPELESS_ATTEMPTS: Final = 3
"""After this many failed attempts, the snapshot of the other tables may end without the table."""


class TableTask:
    """The snapshot of one table.

    `encoded`: the state that is stored, or that need not be stored; None if no state is.
    `void_segments`: stored segments of keys to be removed. `misses_keys` and `is_dropped`: see the
    properties.
    """

    __slots__ = (
        "_attempts", "_awaits_boundary", "_blocked_until", "_changed_count", "_encoded", "_failed_chunk",
        "_failed_plan", "_is_dropped", "_is_set_aside", "_misses_keys", "_obstacle", "_plan", "_progress", "_restart_count",
        "_state", "_void_segments",
    )  # fmt: skip

    def __init__(
        self,
        state: TableState,
        *,
        encoded: TableState | None = None,
        void_segments: Iterable[int] = (),
        misses_keys: bool = False,
        is_dropped: bool = False,
    ) -> None:
        self._is_dropped = is_dropped
        self._state = state
        self._encoded = encoded
        self._void_segments = list(void_segments)
        self._misses_keys = misses_keys
        self._progress: TableProgress | None = None
        self._plan: ReadPlan | None = None
        self._blocked_until = 0.0
        self._attempts = self._changed_count = self._restart_count = 0
        self._obstacle: Obstacle | None = None
        self._failed_chunk: Chunk | None = None
        self._failed_plan: ReadPlan | None = None
        self._is_set_aside = self._awaits_boundary = False

    # -- what it is

    @property
    def oid(self) -> int:
        return self._state.relation_oid

    @property
    def full_name(self) -> str:
        return format_relation(self._state.schema, self._state.name)

    @property
    def state(self) -> TableState:
        """The state to be stored. The part that `progress` has is up to date only after
        `take_states`."""
        return self._state

    @property
    def progress(self) -> TableProgress | None:
        """The progress, or None until the table is set up."""
        return self._progress

    @property
    def plan(self) -> ReadPlan | None:
        """The read plan, or None until the table is set up, and while it is outdated."""
        return self._plan

    @property
    def status(self) -> Status:
        return Status.WAITING if self._progress is None else self._progress.status

    @property
    def is_reselect(self) -> bool:
        """Whether the task reads only rows whose UPDATEs left values out."""
        return self._state.purpose == RESELECT

    @property
    def is_dropped(self) -> bool:
        """Whether the relation was dropped, and its record is to be removed."""
        return self._is_dropped

    @property
    def is_readable(self) -> bool:
        """Whether there is a read plan whose row filter was printed. Printing fails if the table
        was locked when the gateway started."""
        return self._plan is not None and self._plan.surveyed.row_filter is not None

    @property
    def awaits_boundary(self) -> bool:
        """Whether the transaction that brings its SNAPSHOT_BEGIN or SNAPSHOT_END was emitted and
        has not arrived in the stream yet."""
        return self._awaits_boundary

    @property
    def is_set_aside(self) -> bool:
        """Whether the snapshot of the other tables has ended, or ends, without this table."""
        return self._is_set_aside

    @property
    def attempts(self) -> int:
        """Number of failed attempts since a chunk was last read."""
        return self._attempts

    @property
    def obstacle(self) -> Obstacle | None:
        """The reason why the last attempt failed."""
        return self._obstacle

    @property
    def failed(self) -> tuple[Chunk | None, ReadPlan | None]:
        """The chunk and the read plan of the last failed attempt."""
        return self._failed_chunk, self._failed_plan

    @property
    def changed_count(self) -> int:
        """Number of attempts to read the table as a whole during which it changed."""
        return self._changed_count

    @property
    def misses_keys(self) -> bool:
        """Whether UPDATEs may have left out values of rows whose keys were not recorded. Only a
        snapshot of the whole table sends these values."""
        return self._misses_keys

    @property
    def is_hopeless(self) -> bool:
        """Whether the table has failed repeatedly, for a reason that does not pass without
        intervention."""
        return self._obstacle is not None and not self._obstacle.passes and self._attempts >= HOPELESS_ATTEMPTS

    @property
    def records_keys(self) -> bool:
        """Whether the keys of UPDATEs that leave values out are being recorded for a
        reselection."""
        progress = self._progress
        return progress is not None and progress.reselects and progress.status in (Status.READING, Status.ENDING)

    @property
    def may_miss_values(self) -> bool:
        """Whether consumers may miss values of rows whose keys are not recorded."""
        return self._misses_keys or (self._progress is not None and self._progress.generation > 0)

    @property
    def begins_again(self) -> bool:
        """Whether the table waits to begin again."""
        return self._progress is not None and self._progress.generation > 0 and self.status is Status.WAITING

    def is_blocked(self, now: float) -> bool:
        """Return whether the table is not to be read yet. `now` is a time of `time.monotonic`."""
        return self._blocked_until > now

    def is_busy(self, now: float) -> bool:
        """Return whether the table has begun and its chunks can be read. It then counts towards the
        limit of tables that are read at the same time. A table that fails does not count: another
        table can take its place."""
        has_begun = not self.is_reselect and (self._awaits_boundary or self.status is not Status.WAITING)
        return has_begun and not self._attempts and not self.is_blocked(now)

    def is_read_as(self, plan: ReadPlan) -> bool:
        """Return whether the plan reads the table in the way in which it was begun: in chunks, or
        as a whole. To change the way, the table must begin again."""
        return self._progress is None or self._progress.is_read_at_once == plan.is_read_at_once

    def snapshot_status(self) -> TableSnapshotStatus:
        """Return the table's current status for the status board. This may be called in any
        thread."""
        counts = self._progress or self._state
        status = "UNREADABLE" if self.is_hopeless else self.status.value
        numbers = counts.row_count, counts.chunk_count, counts.stale_count
        return TableSnapshotStatus(self.full_name, status, self._state.purpose, *numbers)

    def marker(self, kind: str, epoch: int, xid: int, commit_lsn: int, end_lsn: int, time: int) -> Marker:
        """Return the SNAPSHOT_BEGIN or SNAPSHOT_END marker."""
        progress = self._progress
        counts = (progress.row_count, progress.stale_count) if kind == "SNAPSHOT_END" and progress else (0, 0)
        chunk = self.chunk(progress.chunk_count if progress else 0, *counts)
        return Marker(kind, xid, commit_lsn, -1, end_lsn, time, manifest=Manifest(epoch, snapshot=chunk))

    def chunk(self, number: int, row_count: int = 0, stale_count: int = 0) -> SnapshotChunk:
        """Return the description of a chunk for the manifest of its transaction."""
        state, topic = self._state, "" if self._plan is None else self._plan.topic
        names = state.schema, state.name, topic
        return SnapshotChunk(state.snapshot_id, state.purpose, self.oid, *names, number, row_count, stale_count)

    # -- its course: called by TableTasks only

    def join_snapshot(self, snapshot_id: str) -> None:
        self._state = replace(self._state, snapshot_id=snapshot_id)

    def set_up(
        self, plan: ReadPlan, judge: StalenessJudge, chunk_bytes: int, *, reselects: bool = False
    ) -> TableProgress:
        """Prepare the table to be begun with this read plan."""
        self._plan = plan
        surveyed, state = plan.surveyed, self._state
        has_changed = state.fingerprint not in ("", surveyed.fingerprint)
        is_sent_again = plan.is_read_at_once and state.row_count > 0  # such a table is not resumed
        self._state = replace(
            state,
            schema=surveyed.relation.namespace,
            name=surveyed.relation.name,
            fingerprint=surveyed.fingerprint,
            # Rows that this session or an earlier one has sent may be gone without an event.
            purpose="REPLACE" if (has_changed or is_sent_again) and state.purpose == "FILL" else state.purpose,
        )
        progress = self._progress
        if progress is not None and progress.is_read_at_once == plan.is_read_at_once and progress.judge is judge:
            progress.begin_again(surveyed.leaves)
            return progress
        self._progress = TableProgress(
            judge,
            surveyed.leaves,
            chunk_bytes,
            is_read_at_once=plan.is_read_at_once,
            reselects=reselects and plan.finds_keys,
            # A mirror compares each chunk separately, which takes 10 s whatever its size.
            in_few_chunks=state.purpose == "VERIFY",
        )
        return self._progress

    def resume(
        self,
        plan: ReadPlan,
        judge: StalenessJudge,
        chunk_bytes: int,
        segments: dict[int, list[bytes]],
        *,
        reselects: bool = False,
    ) -> TableProgress:
        """Go on where an earlier session was. Still to be read are the ranges `begun`, which that
        session had begun and not finished, and the leaves from number `untouched` on, which it had
        not begun. `segments` has the keys to be read again."""
        self._void_segments.clear()
        state = self._state
        if self.is_reselect:
            self._plan = plan
            return self.reselect(judge, chunk_bytes, KeysToReadAgain(segments))
        progress = self.set_up(plan, judge, chunk_bytes, reselects=reselects)
        ranges = CtidPlan(plan.surveyed.leaves, state.untouched, state.begun)
        counts = state.chunk_count, state.row_count, state.stale_count
        progress.resume(ranges, KeysToReadAgain(segments), state.suspects, counts)
        return progress

    def reselect(self, judge: StalenessJudge, chunk_bytes: int, keys: KeysToReadAgain) -> TableProgress:
        """Read the rows with these keys, and the rows whose UPDATEs leave values out while they are
        read."""
        self._progress = TableProgress(judge, (), chunk_bytes)
        self._progress.resume(CtidPlan(()), keys, ())
        return self._progress

    def read_whole(self, snapshot_id: str) -> None:
        """Become a snapshot of the whole table instead of a reselection."""
        if self._progress is not None:
            self._void_segments += self._progress.keys_to_read_again.pop_dirty()
            self._progress = None
        self._plan, self._misses_keys = None, True
        self._state = replace(self._state, snapshot_id=snapshot_id, purpose="REPLACE", fingerprint="")

    def plan_found(self, plan: ReadPlan) -> None:
        self._plan = plan

    def plan_outdated(self) -> None:
        self._plan = None

    def boundary_emitted(self) -> None:
        """Report that the transaction that begins or ends the table was emitted."""
        self._awaits_boundary = True

    def boundary_arrived(self) -> None:
        self._awaits_boundary = False

    def boundary_discarded(self) -> None:
        """Report that the transaction that begins or ends the table's snapshot does not count;
        another one is emitted."""
        self._awaits_boundary = False
        if self._progress is not None:
            self._progress.go_on_reading()

    def block(self, until: float) -> None:
        """Prevent the table from being read before `until`, a time on the `time.monotonic` clock. A
        table that is set aside stays so."""
        if not self._is_set_aside:
            self._blocked_until = until

    def chunk_read(self, chunk: Chunk) -> None:
        """Report that a chunk was read. Failures of another chunk are kept if their reason does not
        pass without intervention: that chunk need not have become readable."""
        obstacle, failed_chunk = self._obstacle, self._failed_chunk
        if obstacle is None or obstacle.passes or failed_chunk is None or failed_chunk.is_readable_since(chunk):
            self._forget_failures()

    def chunk_failed(self, chunk: Chunk, obstacle: Obstacle, plan: ReadPlan | None, until: float) -> None:
        """Report that a chunk could not be read; the table is not read before `until`."""
        self._attempts += 1
        self._failed_chunk, self._failed_plan, self._obstacle = chunk, plan, obstacle
        self.block(until)

    def _forget_failures(self) -> None:
        self._attempts, self._failed_chunk, self._failed_plan, self._obstacle = 0, None, None, None

    def changed_while_read(self) -> None:
        """Report that the table changed while it was read as a whole."""
        self._changed_count += 1

    def value_missed(self) -> None:
        """Report that an UPDATE left a value out. Unless its key is being recorded, only reading
        the whole table sends the value."""
        self._misses_keys = self._misses_keys or not self.records_keys

    def purpose_is_replace(self) -> None:
        """Have consumers delete the rows that are not sent again, since they may be gone without an
        event."""
        if self._state.purpose == "FILL":
            self._state = replace(self._state, purpose="REPLACE")

    def begin_again(self, reason: str) -> None:
        """Begin again, for a reason that is logged."""
        self._log_restart(reason)
        self._begin_again()

    def stream_received(self) -> None:
        """Log that the table has begun again, if a change in the stream has made it do so."""
        reason = self._progress.pop_restart_reason() if self._progress is not None else ""
        if reason:
            self._log_restart(reason)

    def _log_restart(self, reason: str) -> None:
        self._restart_count += 1
        if self._restart_count < WARNED_RESTARTS:
            log.info("table_restarted", table=self.full_name, reason=reason, hint=_HINTS.get(reason, ""))
        else:
            log.warning(
                "table_restarted",
                table=self.full_name,
                reason=reason,
                restarts=self._restart_count,
                hint=_HINTS.get(reason, _RESTARTS_HINT),
            )

    def set_aside(self) -> None:
        """Set the table aside. Once it can be read, it is read from its beginning, in the snapshot
        that is current then, or in a new one."""
        self._begin_again()
        self._state = replace(self._state, snapshot_id="")
        self._is_set_aside, self._blocked_until = True, inf

    def readable_again(self) -> None:
        """Report that a table that was set aside can be read now."""
        self._forget_failures()
        self._is_set_aside, self._blocked_until = False, 0.0

    def _begin_again(self) -> None:
        if self._progress is not None:
            if self._progress.row_count:
                self.purpose_is_replace()
            self._progress.begin_again()

    def cancelled(self) -> list[int]:
        """Stop reading the table, and return the numbers of the stored segments of keys, which are
        void."""
        if self._progress is None:
            return self._void_segments
        self._progress.begin_again()
        return [*self._void_segments, *self._progress.keys_to_read_again.pop_dirty()]

    def pop_keys_to_reselect(self) -> KeysToReadAgain:
        """Return the keys of rows whose UPDATEs left values out, and forget them, because a
        reselection reads them."""
        if self._progress is None or not self.records_keys:
            return KeysToReadAgain()
        keys = self._progress.pop_keys_to_reselect()
        if not keys:  # so there is no reselection, which would write the segments
            self._void_segments += keys.pop_dirty()
        return keys

    def take_states(self, frame: bytes, position_key: bytes, prepared: set[int]) -> dict[bytes, bytes | None]:
        """Return the records that have changed since they were last written, and None for those to
        be removed. `prepared` has the xids of prepared transactions: only these suspects outlive
        the session."""
        states: dict[bytes, bytes | None] = {}
        progress = self._progress
        if progress is None and self._encoded is not None:
            return states
        for segment in self._void_segments:
            states[segment_key(position_key, self.oid, segment)] = None
        self._void_segments.clear()
        if progress is not None:
            suspects = progress.track.suspects_to_store & prepared if progress.track is not None else ()
            self._state = replace(
                self._state,
                status=progress.status.value,
                untouched=progress.plan.untouched,
                begun=tuple(progress.plan.begun),
                suspects=tuple(sorted(suspects)),
                chunk_count=progress.chunk_count,
                row_count=progress.row_count,
                stale_count=progress.stale_count,
            )
            keys_to_read_again = progress.keys_to_read_again
            for segment, keys in keys_to_read_again.pop_dirty().items() if keys_to_read_again.is_dirty else ():
                value = encode_keys(frame, self.oid, segment, keys) if keys else None
                states[segment_key(position_key, self.oid, segment)] = value
        if self._is_dropped:
            states[table_key(position_key, self.oid)] = None
        elif self._state != self._encoded:
            self._encoded = self._state
            states[table_key(position_key, self.oid)] = encode_table(frame, self._state)
        return states


def reselection(description: RelationDescription) -> TableTask:
    """Return the task of a reselection, with keys of this version of the relation."""
    names = description.namespace, description.name
    return TableTask(TableState(description.oid, *names, "", RESELECT, fingerprint=identity_of(description)))


def identity_of(description: RelationDescription) -> str:
    """Return a text with the names and types of the key columns. It is the fingerprint of a
    reselection."""
    return str([(column.name, column.facts.oid) for column in description.identity_columns])
