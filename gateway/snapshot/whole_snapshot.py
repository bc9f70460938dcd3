"""The snapshot as a whole, to which all tables belong that are read at the same time. This module
keeps its id, whether reading is paused, and the stored state of the stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from gateway.snapshot.chunk_reader import new_id
from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.stored_state import StoredStates, StreamState, encode_stream

log = structlog.get_logger()


PAUSED: Final = "reading is paused: walgate snapshot resume"


class WholeSnapshot:
    """The current snapshot of a slot. A snapshot ends with its last table, or when it is cancelled.
    A pause ends with the snapshot; if there is none, it applies to the next one."""

    def __init__(self, states: StoredStates) -> None:
        stream = states.stream
        self._stream_state = stream
        self._id = stream.snapshot_id if stream is not None else ""
        self._is_paused = stream is not None and stream.paused
        self._has_unwatched = stream is not None and stream.has_unwatched
        self._oids_dropped = (stream.first_dropped, stream.last_dropped) if stream is not None else (0, 0)
        # A table has the id from its set-up on, and is WAITING until SNAPSHOT_BEGIN is published.
        begun = [state for state in states.tables.values() if state.status != Status.WAITING.value]
        self._published_ids = {state.snapshot_id for state in begun}
        """Ids of snapshots whose SNAPSHOT_BEGIN is certainly published. A second SNAPSHOT_BEGIN of
        a snapshot does no harm."""

    @property
    def id(self) -> str:
        """The id of the snapshot, or "" if there is none."""
        return self._id

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def pause_fields(self) -> dict[str, object]:
        """The fields that log events about the snapshot have while reading is paused."""
        return {"paused": True, "hint": PAUSED} if self._is_paused else {}

    @property
    def has_unwatched(self) -> bool:
        """Whether changes were delivered without snapshots since the last check of the catalog."""
        return self._has_unwatched

    def dropped(self, oid: int) -> None:
        """Record the oid of a relation that was dropped and whose records are removed."""
        first, last = self._oids_dropped
        self._oids_dropped = min(first or oid, oid), max(last, oid)

    def may_reuse(self, oid: int) -> bool:
        """Return whether a relation without a record may have the oid of one that was dropped, so
        that consumers may have rows with this oid. Oids begin again from the lowest after 2^32 of
        them, and go back when a standby without the newest WAL is promoted."""
        first, last = self._oids_dropped
        return first <= oid <= last

    def catalog_checked(self) -> None:
        """Report that a check has found all published tables."""
        self._has_unwatched = False

    @property
    def stream_state(self) -> StreamState | None:
        """The state of the stream as it was written last."""
        return self._stream_state

    def begin(self, table_count: int) -> None:
        """Begin a snapshot, unless one has begun and not ended."""
        if not self._id:
            self._id = new_id()
            log.info("snapshot_begins", snapshot_id=self._id, tables=table_count, **self.pause_fields)

    def record_begin(self) -> bool:
        """Record that the SNAPSHOT_BEGIN of the snapshot as a whole is published. Return False if
        this was recorded before, in which case it is not published again."""
        is_new = self._id not in self._published_ids
        self._published_ids.add(self._id)
        return is_new

    def end(self) -> None:
        self._id, self._is_paused = "", False

    def pause(self) -> None:
        """Read no further chunks, not even of reselections, until `go_on` or `end`. Tables still
        begin, unless they have begun before in this session, and complete ones end."""
        self._is_paused = True

    def go_on(self) -> None:
        self._is_paused = False

    def take_states(
        self, frame: bytes, position_key: bytes, judge: StalenessJudge | None, *, has_tables: bool
    ) -> dict[bytes, bytes]:
        """Return the record of the stream's state, if it has changed. `has_tables`: there are
        unfinished tables, which need what `judge` has recorded."""
        first, last = self._oids_dropped
        state = StreamState(
            snapshot_id=self._id, paused=self._is_paused, has_unwatched=self._has_unwatched,
            first_dropped=first, last_dropped=last,
        )  # fmt: skip
        if judge is not None and has_tables:
            state = replace(state, floor=judge.floor_to_store, unseen=tuple(sorted(judge.unseen)), is_active=True)
        if state == self._stream_state:
            return {}
        self._stream_state = state
        return {position_key: encode_stream(frame, state)}
