"""Progress of one relation's snapshot: what is being read, what must be read again, and when it is
complete.

    WAITING --SNAPSHOT_BEGIN--> READING --nothing left--> ENDING --SNAPSHOT_END--> DONE
       ^                         |   ^                     |  |
       |                         |   +--- mark discarded --+  |
       +------ begin again ------+----------------------------+

    begin again       the plan's blocks are no longer the table's, or there are too many keys, or a
                      suspect committed before everything was read (see KeyTrack)
    mark discarded    the transaction that was to bring SNAPSHOT_END does not count

A table that a restart resumes begins as READING. SNAPSHOT_BEGIN and SNAPSHOT_END take effect where
they are received in the stream.

`generation` counts the beginnings: a chunk of an earlier one is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.snapshot.rules.ctid_ranges import ChunkSizer, CtidPlan, Leaf, TidRange
from gateway.snapshot.rules.keys_to_read_again import KeyList
from gateway.snapshot.rules.stale_rows import KeyTrack, StalenessJudge
from gateway.snapshot.rules.visibility import Visibility

MAX_AGAIN = 50_000
"""Maximum number of keys to be read again; beyond it, an UPDATE that left values out begins the
whole table again."""

KEYS_FIRST = MAX_AGAIN // 2
"""From this many keys on, keys are read before blocks: their number falls as long as reading is
faster than the updates."""

FEW_CHUNKS = 8
"""Factor by which the first chunk is larger if chunks are to be few."""


class Status(Enum):
    WAITING = "WAITING"
    READING = "READING"
    ENDING = "ENDING"
    DONE = "DONE"


@dataclass(slots=True, eq=False)
class Chunk:
    """The part of a relation that one transaction reads: a range of a leaf, keys of the relation,
    or all of it.

    `visibility` is its PostgreSQL snapshot, once it is taken.
    """

    table: TableProgress
    generation: int
    range: TidRange | None = None
    keys: tuple[bytes, ...] = ()
    whole: tuple[TidRange, ...] = ()
    """All ranges, of a relation that is read at once, for example because it has no key."""
    is_locked: bool = False
    """Writers of the table wait while it is read."""
    visibility: Visibility | None = None

    @property
    def ranges(self) -> tuple[TidRange, ...]:
        return self.whole if self.range is None else (self.range,)

    def is_same(self, other: Chunk) -> bool:
        """Return whether both begin at the same place, however far they go, or both are of keys."""
        if self.range is None or other.range is None:
            return self.range is other.range and bool(self.keys) == bool(other.keys)
        return (self.range.leaf, self.range.first) == (other.range.leaf, other.range.first)


class TableProgress:
    """The snapshot of one relation. Not thread-safe, no I/O; `judge` is that of the stream.

    Without `leaves`, only keys are read. `reselects`: each row whose UPDATE left values out is read
    again. `in_few_chunks`: chunks begin larger, and keys wait until no other chunk is being read.
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
        self.judge = judge
        self.is_read_at_once = is_read_at_once
        self.reselects = reselects
        self.in_few_chunks = in_few_chunks
        self.status = Status.WAITING
        self.generation = 0
        self.plan = CtidPlan(leaves)
        self.again = KeyList()
        self.late: set[bytes] = set()
        """The keys of `again` that are read only after the table is complete, by a reselection."""
        self.sizer = ChunkSizer(chunk_bytes, FEW_CHUNKS if in_few_chunks else 1)
        self.track: KeyTrack | None = None
        self.chunk_count = self.row_count = self.stale_count = 0
        self._taken: set[bytes] = set()
        self._chunks: set[Chunk] = set()
        self._is_too_early = False

    # -- its course

    def begin(self, suspects: Iterable[int] = ()) -> None:
        """Begin the relation where its SNAPSHOT_BEGIN arrives in the stream: its changes are
        recorded from here on. `suspects`: see KeyTrack."""
        assert self.status is Status.WAITING
        self.status = Status.READING
        self.track = self.judge.begin(suspects)

    def resume(self, plan: CtidPlan, again: KeyList, suspects: Iterable[int]) -> None:
        """Continue a relation that was being read in an earlier epoch."""
        self.status = Status.READING
        self.plan, self.again = plan, again
        self.track = self.judge.begin(suspects)

    def begin_again(self, leaves: Sequence[Leaf] | None = None) -> None:
        """Begin again: everything that was read, or is being read, is void."""
        self.generation += 1
        self.status = Status.WAITING
        self.plan = CtidPlan(self.plan.leaves if leaves is None else leaves)
        self.again.clear()
        self.late.clear()
        self._taken.clear()
        self._is_too_early = False
        self.chunk_count = self.row_count = self.stale_count = 0
        self._forget()

    def end(self) -> None:
        """End the relation where its SNAPSHOT_END arrives in the stream."""
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
        """Return whether nothing is left to be read, so that the end may be written."""
        is_read = self.plan.is_done and len(self.again) == len(self.late) and not self._chunks
        return self.status is Status.READING and is_read

    # -- what the stream changes

    def note_unchanged(self, key: bytes, old_key: bytes) -> None:
        """Apply rule T (see stale_rows.py) to an UPDATE that left columns out.

        Once all blocks are read, only a key that is still to be read passes this on to the key that
        takes its place. With `reselects`, other keys wait until the table is complete.
        """
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

    def _drop_key(self, key: bytes) -> None:
        self.again.discard(key)
        self.late.discard(key)

    def prepared(self, xid: int, unchanged: Sequence[tuple[bytes, bytes]]) -> None:
        """Note that a transaction that changed the relation was prepared. Rows that it moved
        without changing their keys may be read before it ends; rows with new keys do not exist
        until then."""
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
        """Note that a prepared transaction was rolled back."""
        if self.track is not None:
            self.track.renamed.pop(xid, None)

    def committed_whole(self, xid: int, unchanged: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Note that a streamed or prepared transaction that changed the relation was committed.
        `unchanged` has the keys for rule T."""
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
        """Take the next chunk to be read; None if there is nothing to read now."""
        if self.status is not Status.READING or self.is_too_early:
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

    @property
    def is_too_early(self) -> bool:
        """Return whether a chunk did not count because a transaction that it must see had not
        ended, and the latest snapshot does not see that transaction either."""
        if self._is_too_early and self.track is not None:
            self._is_too_early = not self.judge.admits(self.track, self.judge.visibility)
        return self._is_too_early

    def _chunk(self, chunk: Chunk) -> Chunk:
        self._chunks.add(chunk)
        return chunk

    def _is_ready(self, key: bytes) -> bool:
        """Return whether the key can be read now. A key whose last change no snapshot sees yet
        would only be found stale again."""
        assert self.track is not None
        is_open = key not in self._taken and key not in self.late
        return is_open and not self.track.is_stale(key, self.judge.visibility)

    def leave(self, chunk: Chunk, part: TidRange, rest: TidRange | None) -> None:
        """Read only a part of the chunk's range."""
        if chunk.generation == self.generation and chunk.range is not None:
            self.plan.leave(chunk.range, part, rest)
            chunk.range = part

    def taken(self, chunk: Chunk, visibility: Visibility) -> bool:
        """Note that the chunk's snapshot was taken. Returns False if the chunk would not count and
        need not be read."""
        if chunk.generation != self.generation:
            return False
        assert self.track is not None
        chunk.visibility = visibility
        self.judge.take(chunk, visibility)
        self._is_too_early = not self.judge.admits(self.track, visibility)
        return not self._is_too_early

    def admits(self, chunk: Chunk) -> bool:
        """Return, where the chunk commits, whether the keys tell everything about the chunk's rows.
        A chunk that was given back does not count."""
        if chunk.generation != self.generation or chunk.visibility is None or chunk not in self._chunks:
            return False
        assert self.track is not None
        return self.judge.admits(self.track, chunk.visibility)

    def is_stale(self, chunk: Chunk, key: bytes) -> bool:
        """Return, where the chunk commits, whether a row with this key is older than what was
        published; its key is then read again. If not, the row is published, and its key need not be
        read again."""
        assert self.track is not None and chunk.visibility is not None
        if self.track.is_stale(key, chunk.visibility):
            self._read_again(key)
            return True
        if key in self.again and key not in self._taken:
            self._drop_key(key)
        return False

    def handed_over(self, chunk: Chunk, row_count: int, stale_count: int) -> None:
        """Note, where the chunk commits, that the chunk's rows were published."""
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
            # A key may be stale although the chunk has no row with it.
            if not self.track.is_stale(key, chunk.visibility):
                self._drop_key(key)

    def give_back(self, chunk: Chunk) -> None:
        """Take back a chunk that was not read, or does not count, to be read again."""
        self.judge.drop(chunk)
        if chunk.generation != self.generation or chunk not in self._chunks:
            return
        self._chunks.discard(chunk)
        for found in chunk.ranges:
            self.plan.give_back(found)
        self._taken.difference_update(chunk.keys)
