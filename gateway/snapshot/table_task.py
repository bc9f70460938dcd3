"""One relation of a snapshot with all that belongs to it, and its durable state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

import structlog

from gateway.events.manifest import Manifest, SnapshotChunk
from gateway.events.marker import Marker
from gateway.observe.table_status import TableSnapshotStatus
from gateway.snapshot.read_plan import ReadPlan
from gateway.snapshot.rules.ctid_ranges import CtidPlan
from gateway.snapshot.rules.key_segments import KeyList
from gateway.snapshot.rules.staleness import StalenessJudge
from gateway.snapshot.rules.table_progress import Chunk, Status, TableProgress
from gateway.snapshot.stored_state import RESELECT, TableState, encode_keys, encode_table, segment_key, table_key
from gateway.snapshot.table_errors import Obstacle
from schemas.relation import RelationDescription

log = structlog.get_logger()

HOPELESS_ATTEMPTS: Final = 3
"""After so many the snapshot of the others ends without the table."""


@dataclass(slots=True, eq=False)
class TableTask:
    """`recipe` and `table` are there from the moment when it is begun. `blocked_until`: in the time
    of the loop."""

    state: TableState
    table: TableProgress | None = None
    recipe: ReadPlan | None = None
    blocked_until: float = 0.0
    attempts: int = 0
    """That have failed, since a chunk was read."""
    obstacle: Obstacle | None = None
    """Why the last of them has failed."""
    failed: Chunk | None = None
    failed_recipe: ReadPlan | None = None
    """What it was that failed."""
    is_set_aside: bool = False
    """The snapshot of the others has ended, or ends, without it."""
    changed_count: int = 0
    """How often it was read as a whole and had changed meanwhile."""
    is_marked: bool = False
    """The message that begins or ends it is under way."""
    void_segments: list[int] = field(default_factory=list)
    """Of keys that were to be read again when it was begun before."""
    misses_keys: bool = False
    """Rows of which UPDATEs left values out may be unknown: only the read of the whole table sends
these values."""
    encoded: TableState | None = None
    """What is durable, or on its way."""

    @property
    def oid(self) -> int:
        return self.state.relation_oid

    @property
    def full_name(self) -> str:
        return f"{self.state.schema}.{self.state.name}"

    @property
    def is_reselect(self) -> bool:
        """Only rows of which an UPDATE left values out."""
        return self.state.purpose == RESELECT

    @property
    def is_readable(self) -> bool:
        """It is known how. A row filter is not, of a table that somebody had locked when the
        gateway started."""
        return self.recipe is not None and self.recipe.surveyed.row_filter is not None

    def is_busy(self, now: float) -> bool:
        """It is begun, and chunks of it can be read: another table that cannot be may be read in
        its place."""
        is_begun = not self.is_reselect and (self.is_marked or self.status is not Status.WAITING)
        return is_begun and not self.attempts and self.blocked_until <= now

    @property
    def is_hopeless(self) -> bool:
        """It failed again and again at something that does not pass by itself."""
        return self.obstacle is not None and not self.obstacle.passes and self.attempts >= HOPELESS_ATTEMPTS

    def is_read_as(self, recipe: ReadPlan) -> bool:
        """In chunks, or as a whole: what was begun in one way does not go on in the other."""
        return self.table is None or self.table.is_read_at_once == recipe.is_read_at_once

    def fails(self, chunk: Chunk, obstacle: Obstacle, recipe: ReadPlan | None) -> None:
        self.attempts += 1
        self.failed, self.failed_recipe, self.obstacle = chunk, recipe, obstacle

    def forget_failures(self) -> None:
        self.attempts, self.failed, self.failed_recipe, self.obstacle = 0, None, None, None

    def succeeds(self, chunk: Chunk) -> None:
        """What follows a chunk that fails can be read, perhaps: that does not help."""
        if self.failed is None or self.obstacle is None or self.obstacle.passes or self.failed.is_same(chunk):
            self.forget_failures()

    @property
    def status(self) -> Status:
        return Status.WAITING if self.table is None else self.table.status

    @property
    def notes_keys(self) -> bool:
        """Of UPDATEs that leave values out, those that come now."""
        return self.table is not None and self.table.reselects and self.table.status in (Status.READING, Status.ENDING)

    @property
    def may_owe_more(self) -> bool:
        """Values of rows whose keys are not noted."""
        return self.misses_keys or (self.table is not None and self.table.generation > 0)

    def take_owed(self) -> KeyList:
        """Keys of rows of which values were left out, for a reselection: they are no longer of this
        reading."""
        keys = KeyList()
        if self.notes_keys and self.table is not None and self.table.again:
            keys, self.table.again = self.table.again, keys
        return keys

    def told(self) -> TableSnapshotStatus:
        """For the status, as of now."""
        found = self.state if self.table is None else self.table
        status = "UNREADABLE" if self.is_hopeless else self.status.value
        return TableSnapshotStatus(
            self.full_name, status, self.state.purpose, found.row_count, found.chunk_count, found.stale_count
        )

    def set_up(
        self, recipe: ReadPlan, judge: StalenessJudge, chunk_bytes: int, *, reselects: bool = False
    ) -> TableProgress:
        """It will be begun, with this."""
        self.recipe = recipe
        surveyed, state = recipe.surveyed, self.state
        has_changed = state.fingerprint not in ("", surveyed.fingerprint)
        self.state = replace(
            state,
            schema=surveyed.relation.namespace,
            name=surveyed.relation.name,
            fingerprint=surveyed.fingerprint,
            # Rows may be gone without an event that were sent, by this process or the one before.
            purpose="REPLACE" if has_changed and state.purpose == "FILL" else state.purpose,
        )
        if self.table is None or self.table.is_read_at_once != recipe.is_read_at_once or self.table.judge is not judge:
            self.table = TableProgress(
                judge,
                surveyed.leaves,
                chunk_bytes,
                is_read_at_once=recipe.is_read_at_once,
                reselects=reselects and recipe.finds_keys,
                in_few_chunks=state.purpose == "VERIFY",  # a mirror compares each by itself, in 10 s whatever its size
            )
        else:
            self.table.begin_again(surveyed.leaves)
        return self.table

    def resume(
        self,
        recipe: ReadPlan,
        judge: StalenessJudge,
        chunk_bytes: int,
        segments: dict[int, list[bytes]],
        *,
        reselects: bool = False,
    ) -> TableProgress:
        state = self.state
        if self.is_reselect:
            self.recipe = recipe
            return self.reselect(judge, chunk_bytes, KeyList(segments))
        table = self.set_up(recipe, judge, chunk_bytes, reselects=reselects)
        table.resume(CtidPlan(recipe.surveyed.leaves, state.untouched, state.begun), KeyList(segments), state.suspects)
        table.chunk_count, table.row_count, table.stale_count = state.chunk_count, state.row_count, state.stale_count
        return table

    def begin_again(self) -> None:
        """Its columns, files or publication have changed, or a value came that its encoders do not
        take."""
        log.info("table_restarted", table=self.full_name, reason="its columns, files or publication have changed")
        self._void()

    def set_aside(self) -> None:
        """It is read from the beginning when it can be, in another snapshot."""
        self._void()
        self.state = replace(self.state, snapshot_id="")
        self.is_set_aside, self.blocked_until = True, inf

    def _void(self) -> None:
        if self.table is not None:
            if self.state.purpose == "FILL" and self.table.row_count:
                # Rows may be gone without an event that were sent.
                self.state = replace(self.state, purpose="REPLACE")
            self.table.begin_again()

    def reselect(self, judge: StalenessJudge, chunk_bytes: int, keys: KeyList) -> TableProgress:
        """Rows with these keys are read, and those of which UPDATEs leave values out meanwhile."""
        self.table = TableProgress(judge, (), chunk_bytes)
        self.table.resume(CtidPlan(()), keys, ())
        return self.table

    def marker(self, kind: str, epoch: int, xid: int, commit_lsn: int, end_lsn: int, time: int) -> Marker:
        """SNAPSHOT_BEGIN or SNAPSHOT_END."""
        manifest = Manifest(epoch, snapshot=self.chunk(self.table.chunk_count if self.table else 0))
        assert manifest.snapshot is not None
        if kind == "SNAPSHOT_END" and self.table is not None:
            manifest.snapshot.row_count, manifest.snapshot.stale_count = self.table.row_count, self.table.stale_count
        return Marker(kind, xid, commit_lsn, -1, end_lsn, time, manifest=manifest)

    def chunk(self, number: int, row_count: int = 0, stale_count: int = 0) -> SnapshotChunk:
        state = self.state
        topic = "" if self.recipe is None else self.recipe.topic
        return SnapshotChunk(
            state.snapshot_id, state.purpose, self.oid, state.schema, state.name, topic, number, row_count, stale_count
        )

    def take_states(self, frame: bytes, position_key: bytes, prepared: set[int]) -> dict[bytes, bytes]:
        """Records that differ from what was written last. `prepared`: xids; of suspects, only they
        outlive the process."""
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
    """Of rows with keys of this version of a relation."""
    names = description.namespace, description.name
    return TableTask(TableState(description.oid, *names, "", RESELECT, fingerprint=identity_of(description)))


def identity_of(description: RelationDescription) -> str:
    """What keys are made of."""
    return str([(column.name, column.facts.oid) for column in description.identity_columns])
