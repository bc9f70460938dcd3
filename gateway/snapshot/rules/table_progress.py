"""One relation under snapshot: what is read of it, what must be read again, and when it is
complete.

    WAITING --SNAPSHOT_BEGIN received--> READING --nothing left--> ENDING --SNAPSHOT_END received--> DONE
                  ^                         |
                  +---- begin again --------+     its blocks are not those that the plan was made for, or too many keys

`generation` counts the beginnings: a chunk of an earlier one is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.snapshot.rules.ctid_ranges import ChunkSizer, CtidPlan, Leaf, TidRange
from gateway.snapshot.rules.key_segments import KeyList
from gateway.snapshot.rules.staleness import StalenessJudge, Track
from gateway.snapshot.rules.visibility import Visibility

MAX_AGAIN = 50_000
"""So many keys are kept to be read again; beyond, the whole table is."""

KEYS_FIRST = MAX_AGAIN // 2
"""From so many on, keys are read before blocks: their number falls as long as reading is faster
than the updates."""

FEW_CHUNKS = 8
"""So many times as large is the first chunk where chunks are to be few."""


class Status(Enum):
    WAITING = "WAITING"
    READING = "READING"
    ENDING = "ENDING"
    DONE = "DONE"


@dataclass(slots=True, eq=False)
class Chunk:
    """What one reader reads in one transaction: a range of a leaf, keys of the relation, or all of
    it.

        `visibility` is its snapshot, from the moment when it was taken.
    """

    table: TableProgress
    generation: int
    range: TidRange | None = None
    keys: tuple[bytes, ...] = ()
    whole: tuple[TidRange, ...] = ()
    """All there is: of a relation without a key."""
    is_locked: bool = False
    """Writers wait while it is read."""
    visibility: Visibility | None = None

    @property
    def ranges(self) -> tuple[TidRange, ...]:
        return self.whole if self.range is None else (self.range,)

    def is_same(self, other: Chunk) -> bool:
        """It begins at the same place, however far it goes; or both are keys."""
        if self.range is None or other.range is None:
            return self.range is other.range and bool(self.keys) == bool(other.keys)
        return (self.range.leaf, self.range.first) == (other.range.leaf, other.range.first)


class TableProgress:
    """The reading of one relation. Not thread-safe, no I/O; `judge` is that of the stream. Without
    `leaves`, only keys are read. `reselects`: each row of which an UPDATE left values out is read
    again. `in_few_chunks`: they begin larger, and keys wait until no other chunk is under way."""

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
        self.judge = judge
        self.is_read_at_once = is_read_at_once
        self.reselects = reselects
        self.in_few_chunks = in_few_chunks
        self.status = Status.WAITING
        self.generation = 0
        self.plan = CtidPlan(leaves)
        self.again = KeyList()
        self.late: set[bytes] = set()
        """Of `again`: keys that are read when the table is complete."""
        self.sizer = ChunkSizer(chunk_bytes, FEW_CHUNKS if in_few_chunks else 1)
        self.track: Track | None = None
        self.chunk_count = self.row_count = self.stale_count = 0
        self._taken: set[bytes] = set()
        self._chunks: set[Chunk] = set()

    # -- its course

    def begin(self, suspects: Iterable[int] = ()) -> None:
        """Its SNAPSHOT_BEGIN came in the stream: from here on its changes are noted. `suspects`:
        see Track."""
        assert self.status is Status.WAITING
        self.status = Status.READING
        self.track = self.judge.begin(suspects)

    def resume(self, plan: CtidPlan, again: KeyList, suspects: Iterable[int]) -> None:
        """It was being read in an earlier epoch."""
        self.status = Status.READING
        self.plan, self.again = plan, again
        self.track = self.judge.begin(suspects)

    def begin_again(self, leaves: Sequence[Leaf] | None = None) -> None:
        """All that was read is void; what is under way too."""
        self.generation += 1
        self.status = Status.WAITING
        self.plan = CtidPlan(self.plan.leaves if leaves is None else leaves)
        self.again.clear()
        self.late.clear()
        self._taken.clear()
        self.chunk_count = self.row_count = self.stale_count = 0
        self._forget()

    def end(self) -> None:
        """Its SNAPSHOT_END came in the stream."""
        self.status = Status.DONE
        self._forget()

    def _forget(self) -> None:
        if self.track is not None:
            self.judge.end(self.track)
            self.track = None
        for chunk in self._chunks:
            self.judge.drop(chunk)
        self._chunks.clear()

    @property
    def is_complete(self) -> bool:
        """Nothing is left to be read: the end may be written."""
        is_read = self.plan.is_done and len(self.again) == len(self.late) and not self._chunks
        return self.status is Status.READING and is_read

    # -- what the stream changes

    def note_unchanged(self, key: bytes, old_key: bytes) -> None:
        """Rule T: an UPDATE left columns out. When all blocks are read, only a key that is still to
        be read hands that on to the key that takes its place; where every value is wanted, others
        wait until the table is complete."""
        waits = old_key in self.again and old_key not in self.late
        if self.status is Status.READING and (waits or not self.plan.is_done or not self.plan.leaves):
            self._read_again(key)
        elif self.reselects and self.status in (Status.READING, Status.ENDING) and key not in self.again:
            self.again.add(key)
            self.late.add(key)
        if len(self.again) > MAX_AGAIN:
            self.begin_again()

    def _read_again(self, key: bytes) -> None:
        self.again.add(key)
        self.late.discard(key)

    def _is_read(self, key: bytes) -> None:
        self.again.discard(key)
        self.late.discard(key)

    def prepared(self, xid: int, unchanged: Sequence[tuple[bytes, bytes]]) -> None:
        """A transaction that changed the relation was prepared. Rows that it only moved may be read
        before it ends; one that has a new key is not there until then."""
        for key, old_key in unchanged:
            if key == old_key:
                self.note_unchanged(key, key)
        renamed = [note for note in unchanged if note[0] != note[1]]
        if self.track is None or not renamed:
            return
        if len(renamed) + sum(map(len, self.track.renamed.values())) <= MAX_AGAIN:
            self.track.renamed[xid] = renamed
        else:
            self.track.suspects.add(xid)

    def rolled_back(self, xid: int) -> None:
        """A transaction that was prepared."""
        if self.track is not None:
            self.track.renamed.pop(xid, None)

    def committed_whole(self, xid: int, unchanged: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """A streamed or prepared transaction that changed the relation was committed. `unchanged`:
        for rule T."""
        if self.track is None:
            return
        renamed = self.track.renamed.pop(xid, ())
        if xid in self.track.suspects and not (self.plan.is_done and not self.again):
            self.begin_again()
            return
        self.judge.committed_whole(self.track, xid)
        for key, old_key in (*unchanged, *renamed):
            self.note_unchanged(key, old_key)

    # -- chunks

    def take(self) -> Chunk | None:
        """What to read next, if anything."""
        if self.status is not Status.READING:
            return None
        is_rest = not self.plan.has_more and not (self.in_few_chunks and self._chunks)
        if self.again and (len(self.again) >= KEYS_FIRST or is_rest):
            keys = self.again.first(self.sizer.keys, self._is_ready)
            if keys:
                self._taken.update(keys)
                return self._chunk(Chunk(self, self.generation, keys=tuple(keys)))
        if self.is_read_at_once:
            whole = tuple(iter(self.plan.take, None))
            return self._chunk(Chunk(self, self.generation, whole=whole)) if whole else None
        found = self.plan.take()
        return None if found is None else self._chunk(Chunk(self, self.generation, found))

    def _chunk(self, chunk: Chunk) -> Chunk:
        self._chunks.add(chunk)
        return chunk

    def _is_ready(self, key: bytes) -> bool:
        """A key whose last change no snapshot sees yet would only be found stale once more."""
        assert self.track is not None
        is_open = key not in self._taken and key not in self.late
        return is_open and not self.track.is_stale(key, self.judge.visibility)

    def leave(self, chunk: Chunk, part: TidRange, rest: TidRange | None) -> None:
        """Read only a part of the chunk's range."""
        if chunk.generation == self.generation and chunk.range is not None:
            self.plan.leave(chunk.range, part, rest)
            chunk.range = part

    def taken(self, chunk: Chunk, visibility: Visibility) -> bool:
        """The chunk's snapshot was taken. False: it need not be read, it would not count."""
        if chunk.generation != self.generation:
            return False
        assert self.track is not None
        chunk.visibility = visibility
        self.judge.take(chunk, visibility)
        return self.judge.admits(self.track, visibility)

    def admits(self, chunk: Chunk) -> bool:
        """At H: whether the keys tell everything about its rows. One that was given back is read
        once more."""
        if chunk.generation != self.generation or chunk.visibility is None or chunk not in self._chunks:
            return False
        assert self.track is not None
        return self.judge.admits(self.track, chunk.visibility)

    def is_stale(self, chunk: Chunk, key: bytes) -> bool:
        """At H: a row with this key is older than what was published. Else the row goes out, and
        needs nothing more."""
        assert self.track is not None and chunk.visibility is not None
        if self.track.is_stale(key, chunk.visibility):
            self._read_again(key)
            return True
        if key in self.again and key not in self._taken:
            self._is_read(key)
        return False

    def handed_over(self, chunk: Chunk, row_count: int, stale_count: int) -> None:
        """At H, behind its rows."""
        assert self.track is not None and chunk.visibility is not None
        self._chunks.discard(chunk)
        self.judge.drop(chunk)
        if row_count:
            self.chunk_count += 1
        self.row_count += row_count
        self.stale_count += stale_count
        for found in chunk.ranges:
            self.plan.done(found)
        for key in chunk.keys:
            self._taken.discard(key)
            if not self.track.is_stale(key, chunk.visibility):  # a key may be stale without a row in the chunk
                self._is_read(key)

    def give_back(self, chunk: Chunk) -> None:
        """It was not read, or does not count: read the same once more."""
        self.judge.drop(chunk)
        if chunk.generation != self.generation or chunk not in self._chunks:
            return
        self._chunks.discard(chunk)
        for found in chunk.ranges:
            self.plan.give_back(found)
        self._taken.difference_update(chunk.keys)
