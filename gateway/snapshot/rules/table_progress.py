"""Progress of one relation's snapshot: what is being read, what must be read again, and whether
everything was read.

    WAITING --begin--> READING --nothing_left--> ENDING --end--> DONE
       ^                |   ^                     |  |
       |                |   +----- go_on_reading -+  |
       +-- begin_again -+----------------------------+

    begin           where SNAPSHOT_BEGIN is published
    nothing_left    everything is read: a boundary transaction for SNAPSHOT_END is emitted
    go_on_reading   that transaction does not count, because the server streamed it
    end             where SNAPSHOT_END is published
    begin_again     TableTasks: the read plan no longer fits, a value needs text, the table was
                    renamed or altered, or it is set aside or cancelled. The stream: an UPDATE that
                    left values out finds too many keys, or a suspect that may have changed the
                    table commits before everything is read (see KeyTrack)
    resume          in a new session: READING with the stored ranges and keys

The state is private. TableTasks moves it, and passes on which chunks were published or given back.
The chunk reader reports PostgreSQL snapshots and shortened ranges; a reader task limits the size of
chunks. The publisher asks `admits` and `is_stale`, which also notes the keys of stale rows.
change_tracking.py reports what the stream changes, after which the table may have to begin again.
All other modules only read the properties of TableProgress.

`generation` is incremented at each new beginning: chunks of an earlier generation are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gateway.snapshot.rules.chunk_size import ChunkSizer
from gateway.snapshot.rules.keys_to_read_again import KeysToReadAgain
from gateway.snapshot.rules.ranges_to_read import CtidPlan, Leaf, TidRange
from gateway.snapshot.rules.stale_rows import KeyTrack, StalenessJudge
from gateway.snapshot.rules.visibility import Visibility

MAX_KEYS_TO_READ_AGAIN = 50_000
"""If an UPDATE that left values out (rule T) finds more keys to be read again, the table begins
again. Stale rows (rule V) add at most the keys of the rows that are being read, so their number
needs no limit."""

KEYS_FIRST = MAX_KEYS_TO_READ_AGAIN // 2
"""The number of keys from which on keys are read before blocks. The number then falls as long as
reading is faster than the updates. Fewer keys wait until every range has been begun and, with
`in_few_chunks`, until no chunk is being read."""

TOO_MANY_KEYS: Final = "too many of its rows wait to be read again, since UPDATEs left TOASTed values out"
"""The reason why a table begins again at MAX_KEYS_TO_READ_AGAIN."""
UNKNOWN_KEYS: Final = (
    "a large or prepared transaction was committed that may have left TOASTed values of unknown rows out"
)
"""The reason why a table begins again if a suspect that may have changed it commits before
everything is read."""

FEW_CHUNKS = 8
"""Factor by which the first chunk is larger if there are to be few chunks."""


class Status(Enum):
    """The state of a table's snapshot. The stored state may also be NOT_TO_BE_READ
    (stored_state.py); such a table has no progress."""

    WAITING = "WAITING"
    READING = "READING"
    ENDING = "ENDING"
    DONE = "DONE"


@dataclass(slots=True, eq=False)
class Chunk:
    """The part of a relation that one transaction reads: a range of a leaf, rows with some keys, or
    all rows. Only TableProgress writes the fields of a chunk, except that a reader task may call
    `lock_writers` before the chunk is read.

    `visibility` is the PostgreSQL snapshot of the chunk; None until it is taken.
    """

    progress: TableProgress
    generation: int
    range: TidRange | None = None
    keys: tuple[bytes, ...] = ()
    all_ranges: tuple[TidRange, ...] = ()
    """All ranges of a relation that is read in one chunk, for example because it has no key. The
    transaction may take long, and the rows are in memory until they are published."""
    locks_writers: bool = False
    """Whether writers of the table wait while the chunk is read."""
    visibility: Visibility | None = None

    def lock_writers(self) -> None:
        """Have the table locked against writers while the chunk is read."""
        self.locks_writers = True

    @property
    def ranges(self) -> tuple[TidRange, ...]:
        return self.all_ranges if self.range is None else (self.range,)

    def is_readable_since(self, other: Chunk) -> bool:
        """Return whether this chunk, which could not be read, is no obstacle once the other one was
        read. Both begin at the same place, however far they go, or both have keys. A chunk of all
        ranges is no longer needed if the other one is a range."""
        if self.all_ranges and other.range is not None:
            return True
        if self.range is None or other.range is None:
            return self.range is other.range and bool(self.keys) == bool(other.keys)
        return (self.range.leaf, self.range.first) == (other.range.leaf, other.range.first)


class TableProgress:
    """The snapshot of one relation. This class is not thread-safe, and does no I/O. `judge` is the
    judge of the stream.

    Without `leaves`, only keys are read. `is_read_at_once`: all blocks are read in one chunk.
    `reselects`: each row whose UPDATE left values out is read again. `in_few_chunks`: the first
    chunks are larger, and fewer than KEYS_FIRST keys wait until no other chunk is being read.
    """

    def __init__(
        self,
        judge: StalenessJudge,
        leaves: Sequence[Leaf],
        chunk_bytes: int,
        *,
        is_read_at_once: bool = False,
        reselects: bool = False,
        in_few_chunks: bool = False,
    ) -> None:
        self.judge: Final = judge
        self.is_read_at_once: Final = is_read_at_once
        self.reselects: Final = reselects
        self.in_few_chunks: Final = in_few_chunks
        self.sizer: Final = ChunkSizer(chunk_bytes, FEW_CHUNKS if in_few_chunks else 1)
        self._status = Status.WAITING
        self._generation = 0
        self._plan = CtidPlan(leaves)
        self._keys = KeysToReadAgain()
        self._keys_to_reselect: set[bytes] = set()
        """The keys of `keys_to_read_again` that a reselection reads after the table is complete."""
        self._track: KeyTrack | None = None
        self._chunk_count = self._row_count = self._stale_count = 0
        self._keys_being_read: set[bytes] = set()
        self._chunks: set[Chunk] = set()
        self._is_too_early = False
        self._restart_reason = ""

    @property
    def status(self) -> Status:
        return self._status

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def plan(self) -> CtidPlan:
        return self._plan

    @property
    def keys_to_read_again(self) -> KeysToReadAgain:
        """The keys of stale rows, and the keys that rule T adds."""
        return self._keys

    @property
    def track(self) -> KeyTrack | None:
        """The recorded changes; None unless the table is READING or ENDING."""
        return self._track

    @property
    def chunk_count(self) -> int:
        return self._chunk_count

    @property
    def row_count(self) -> int:
        return self._row_count

    @property
    def stale_count(self) -> int:
        return self._stale_count

    # -- its course

    def begin(self, suspects: Iterable[int] = (), floor: int = 0) -> None:
        """Begin the relation where its SNAPSHOT_BEGIN is published: its changes are recorded from
        here on. `suspects` and `floor`: see KeyTrack."""
        assert self._status is Status.WAITING
        self._status = Status.READING
        self._track = self.judge.begin(suspects, floor)

    def resume(
        self, plan: CtidPlan, keys: KeysToReadAgain, suspects: Iterable[int], counts: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        """Continue a relation that was being read in an earlier epoch. `counts` has the numbers of
        chunks, rows and stale rows."""
        self._status = Status.READING
        self._plan, self._keys = plan, keys
        self._chunk_count, self._row_count, self._stale_count = counts
        self._track = self.judge.begin(suspects)

    def begin_again(self, leaves: Sequence[Leaf] | None = None) -> None:
        """Begin the relation again. Everything that was read, or is being read, is void."""
        self._generation += 1
        self._status = Status.WAITING
        self._plan = CtidPlan(self._plan.leaves if leaves is None else leaves)
        self._keys.clear()
        self._keys_to_reselect.clear()
        self._keys_being_read.clear()
        self._is_too_early = False
        self._chunk_count = self._row_count = self._stale_count = 0
        self._forget()

    def nothing_left(self) -> None:
        """Report that everything is read, and that the transaction that brings SNAPSHOT_END is
        about to be emitted."""
        assert self.is_complete
        self._status = Status.ENDING

    def go_on_reading(self) -> None:
        """Report that the transaction that should have brought SNAPSHOT_END does not count."""
        if self._status is Status.ENDING:
            self._status = Status.READING

    def end(self) -> None:
        """End the relation where its SNAPSHOT_END is published."""
        self._status = Status.DONE
        self._forget()

    def _forget(self) -> None:
        if self._track is not None:
            self.judge.end(self._track)
            self._track = None
        for chunk in self._chunks:
            self.judge.release(chunk)
        self._chunks.clear()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be read, so that the transaction for SNAPSHOT_END may be
        emitted."""
        is_read = self._plan.is_done and len(self._keys) == len(self._keys_to_reselect) and not self._chunks
        return self._status is Status.READING and is_read

    # -- what the stream changes

    def record_unchanged_toast(self, key: bytes, old_key: bytes) -> None:
        """Apply rule T (see stale_rows.py) to an UPDATE that left columns out. The rule does not
        apply to a relation that is read in one chunk, whose blocks are read again after each
        change.

        Once all blocks are read, `key` is read only if `old_key` is still to be read: the row now
        has the new key. Without `leaves`, every `key` is read. With `reselects`, other keys wait
        until the table is complete.
        """
        waits = old_key in self._keys and old_key not in self._keys_to_reselect
        reads_key = waits or not self._plan.is_done or not self._plan.leaves
        if self._status is Status.READING and reads_key and not self.is_read_at_once:
            self._read_again(key)
        elif self.reselects and self._status in (Status.READING, Status.ENDING) and key not in self._keys:
            self._keys.add(key)
            self._keys_to_reselect.add(key)
        if len(self._keys) > MAX_KEYS_TO_READ_AGAIN:
            self._restart(TOO_MANY_KEYS)

    def _restart(self, reason: str) -> None:
        """Begin again at a change in the stream. The purpose stays as it is, although rows may have
        been published: an event has deleted each of them that no longer exists."""
        self.begin_again()
        self._restart_reason = reason

    def pop_restart_reason(self) -> str:
        """Return the reason why the relation has begun again at a change in the stream, or "" if it
        has not since the last call."""
        reason, self._restart_reason = self._restart_reason, ""
        return reason

    def _read_again(self, key: bytes) -> None:
        self._keys.add(key)
        self._keys_to_reselect.discard(key)

    def _drop_key(self, key: bytes) -> None:
        self._keys.discard(key)
        self._keys_to_reselect.discard(key)

    def prepared(self, xid: int, unchanged: Sequence[tuple[bytes, bytes]]) -> None:
        """Record that a transaction that changed the relation was prepared. `unchanged` has the
        keys for rule T. Rows that the transaction moved without changing their keys may be read
        before it ends; rows with new keys do not exist until it commits."""
        for key, old_key in unchanged:
            if key == old_key:
                self.record_unchanged_toast(key, key)
        renamed = [keys for keys in unchanged if keys[0] != keys[1]]
        if self._track is None or not renamed:
            return
        if len(renamed) + sum(map(len, self._track.renamed.values())) <= MAX_KEYS_TO_READ_AGAIN:
            self._track.record_renamed(xid, renamed)
        else:
            self._track.suspects.add(xid)

    def rolled_back(self, xid: int) -> None:
        """Report that a prepared transaction was rolled back."""
        if self._track is not None:
            self._track.renamed.pop(xid, None)

    def committed_without_keys(self, xid: int, unchanged: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Report that a streamed or prepared transaction that changed the relation was committed.
        `unchanged` has the keys for rule T."""
        if self._track is None:
            return
        renamed = self._track.renamed.pop(xid, ())
        if xid in self._track.suspects and not (self._plan.is_done and not self._keys):
            self._restart(UNKNOWN_KEYS)
            return
        self.judge.committed_without_keys(self._track, xid)
        for key, old_key in (*unchanged, *renamed):
            self.record_unchanged_toast(key, old_key)

    def pop_keys_to_reselect(self) -> KeysToReadAgain:
        """Return the keys that are still to be read, and forget them, because a reselection reads
        them."""
        keys, self._keys = self._keys, KeysToReadAgain()
        self._keys_to_reselect.clear()
        return keys

    # -- chunks

    def next_chunk(self) -> Chunk | None:
        """Return the next chunk to be read, or None if there is nothing to read now."""
        if self._status is not Status.READING or self.is_too_early:
            return None
        is_rest = not self._plan.has_more and not (self.in_few_chunks and self._chunks)
        if self._keys and (len(self._keys) >= KEYS_FIRST or is_rest):
            keys = self._keys.first(self.sizer.keys, self._is_ready)
            if keys:
                self._keys_being_read.update(keys)
                return self._chunk(Chunk(self, self._generation, keys=tuple(keys)))
        if self.is_read_at_once:
            ranges = tuple(iter(self._plan.next_range, None))
            return self._chunk(Chunk(self, self._generation, all_ranges=ranges)) if ranges else None
        next_range = self._plan.next_range()
        return None if next_range is None else self._chunk(Chunk(self, self._generation, next_range))

    @property
    def is_too_early(self) -> bool:
        """Whether a chunk did not count because its snapshot did not see a transaction that it must
        see, and the latest snapshot does not see that transaction either."""
        if self._is_too_early and self._track is not None:
            self._is_too_early = not self.judge.admits(self._track, self.judge.visibility)
        return self._is_too_early

    def _chunk(self, chunk: Chunk) -> Chunk:
        self._chunks.add(chunk)
        return chunk

    def _is_ready(self, key: bytes) -> bool:
        """Return whether the key can be read now. If the latest snapshot does not see the last
        change of a key, its row would only be found stale again."""
        assert self._track is not None
        is_open = key not in self._keys_being_read and key not in self._keys_to_reselect
        return is_open and not self._track.is_stale(key, self.judge.visibility)

    def shorten(self, chunk: Chunk, part: TidRange, rest: TidRange | None) -> None:
        """Make the chunk read only a part of its range, and leave `rest` to later chunks."""
        if chunk.generation == self._generation and chunk.range is not None:
            self._plan.shorten(chunk.range, part, rest)
            chunk.range = part

    def snapshot_taken(self, chunk: Chunk, visibility: Visibility) -> bool:
        """Report that the chunk's snapshot was taken, and return whether the chunk can count. If
        not, it need not be read."""
        if chunk.generation != self._generation:
            return False
        assert self._track is not None
        chunk.visibility = visibility
        self.judge.snapshot_taken(chunk, visibility)
        self._is_too_early = not self.judge.admits(self._track, visibility)
        return not self._is_too_early

    def admits(self, chunk: Chunk) -> bool:
        """Return whether the recorded keys suffice to tell which rows of the chunk are stale. This
        is asked at the point where the chunk commits. A chunk of an earlier generation, or one that
        was given back, is not admitted."""
        if chunk.generation != self._generation or chunk.visibility is None or chunk not in self._chunks:
            return False
        assert self._track is not None
        return self.judge.admits(self._track, chunk.visibility)

    def is_stale(self, chunk: Chunk, key: bytes) -> bool:
        """Return whether a row of the chunk with this key is older than a published change. This is
        asked at the point where the chunk commits. If the row is older, the key is read again;
        otherwise, the row is published, and its key need not be read again."""
        assert self._track is not None and chunk.visibility is not None
        if self._track.is_stale(key, chunk.visibility):
            self._read_again(key)
            return True
        if key in self._keys and key not in self._keys_being_read:
            self._drop_key(key)
        return False

    def published(self, chunk: Chunk, row_count: int, stale_count: int) -> None:
        """Report that the rows of the chunk were published, at the point where it commits."""
        assert self._track is not None and chunk.visibility is not None
        self._chunks.discard(chunk)
        self.judge.release(chunk)
        if row_count:
            self._chunk_count += 1
        self._row_count += row_count
        self._stale_count += stale_count
        for tid_range in chunk.ranges:
            self._plan.range_read(tid_range)
        for key in chunk.keys:
            self._keys_being_read.discard(key)
            # A key may be stale although the chunk has no row with this key.
            if not self._track.is_stale(key, chunk.visibility):
                self._drop_key(key)

    def give_back(self, chunk: Chunk) -> None:
        """Report that a chunk was not read, or does not count. Unless the relation has begun again,
        the part that the chunk has is read again."""
        self.judge.release(chunk)
        if chunk.generation != self._generation or chunk not in self._chunks:
            return
        self._chunks.discard(chunk)
        for tid_range in chunk.ranges:
            self._plan.give_back(tid_range)
        self._keys_being_read.difference_update(chunk.keys)
