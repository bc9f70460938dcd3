"""The ranges of blocks that are still to be read of a table, and the size of the next chunk.

Blocks are not counted in advance. A range has no end until a reader has locked the table and knows
how many blocks it has. The reader then takes as many as a chunk should have and leaves the rest to
the next one. A table of any size is therefore planned at once, and outdated statistics do no harm.
The last range stays open, since rows may be in blocks that were added meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OFFSET_BITS = 16
_LINE = (1 << OFFSET_BITS) - 1
_MOST_LINES = 1 << 11
"""More line pointers than a page can have, even one of 32 kB."""

FIRST_BLOCKS = 64
"""Blocks of the first chunk of a table: 512 kB if they are full."""

FIRST_KEYS = 64
MOST_ROWS = 100_000
MOST_BLOCKS = 1 << 17
"""1 GB: limits what a chunk reads of a table that was emptied and not vacuumed."""

GROWTH = 4
"""A chunk has at most this many times the blocks or keys of the one before."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows: the relation itself, or a partition of it. `blocks` is an estimate,
    used for progress only."""

    oid: int
    filenode: int
    blocks: int


@dataclass(frozen=True, slots=True)
class TidRange:
    """The rows of one leaf from the place `first` up to, and without, the place `end` (None: to the
    end of the table). `leaf` is the index of the leaf.

    A place is a ctid as a number, block << 16 | line, so that places are compared as numbers.
    """

    leaf: int
    first: int = 0
    end: int | None = None

    @property
    def first_block(self) -> int:
        return self.first >> OFFSET_BITS


def tid(place: int) -> str:
    """Return the place as PostgreSQL prints a ctid."""
    return f"({place >> OFFSET_BITS},{place & _LINE})"


def cut(whole: TidRange, block_count: int, table_blocks: int) -> tuple[TidRange, TidRange | None]:
    """Split off the first `block_count` blocks of a range; returns them and the rest, if any.
    `table_blocks` is the current size of the table."""
    end_block = whole.first_block + block_count
    at = end_block << OFFSET_BITS
    if (end_block >= table_blocks) if whole.end is None else (at >= whole.end):
        return whole, None
    return TidRange(whole.leaf, whole.first, at), TidRange(whole.leaf, at, whole.end)


def halves(whole: TidRange, table_blocks: int) -> tuple[TidRange, TidRange | None]:
    """Split a range that was too large for one chunk: into halves of its blocks, or of the lines of
    its only block. A single line is not split."""
    end_block = table_blocks if whole.end is None else -(-whole.end >> OFFSET_BITS)
    if end_block - whole.first_block > 1:
        return cut(whole, (end_block - whole.first_block) // 2, end_block)
    first_line = whole.first & _LINE
    last_line = _MOST_LINES if whole.end is None else whole.end & _LINE or _MOST_LINES
    middle = (first_line + last_line) // 2
    if middle <= max(first_line, 1):
        return whole, None
    at = whole.first_block << OFFSET_BITS | middle
    return TidRange(whole.leaf, whole.first, at), TidRange(whole.leaf, at, whole.end)


class CtidPlan:
    """The ranges of one relation that are still to be read. Leaves from index `untouched` on have
    not been begun; they are read after the `begun` ranges."""

    def __init__(self, leaves: Sequence[Leaf], untouched: int = 0, begun: Iterable[TidRange] = ()) -> None:
        self.leaves = tuple(leaves)
        self.untouched = untouched
        self._waiting = deque(begun)
        self._being_read: list[TidRange] = []

    @property
    def is_done(self) -> bool:
        return not self._being_read and not self.has_more

    @property
    def has_more(self) -> bool:
        return bool(self._waiting) or self.untouched < len(self.leaves)

    @property
    def begun(self) -> list[TidRange]:
        """Return the ranges that a restart begins with: everything that is neither read nor
        untouched."""
        return [*self._being_read, *self._waiting]

    @property
    def blocks(self) -> int:
        return sum(leaf.blocks for leaf in self.leaves)

    def next_range(self) -> TidRange | None:
        if self._waiting:
            found = self._waiting.popleft()
        elif self.untouched < len(self.leaves):
            found = TidRange(self.untouched)
            self.untouched += 1
        else:
            return None
        self._being_read.append(found)
        return found

    def shorten(self, tid_range: TidRange, part: TidRange, rest: TidRange | None) -> None:
        """Read only `part` of a range that is being read, and `rest` later."""
        self._being_read[self._being_read.index(tid_range)] = part
        if rest is not None:
            self._waiting.appendleft(rest)

    def give_back(self, tid_range: TidRange) -> None:
        self._being_read.remove(tid_range)
        self._waiting.appendleft(tid_range)

    def range_read(self, tid_range: TidRange) -> None:
        self._being_read.remove(tid_range)


class ChunkSizer:
    """Determines how many blocks or keys a chunk has: as many as give `chunk_bytes`, which may be
    lowered, and at most `max_rows` rows."""

    def __init__(self, most_bytes: int, first: int = 1) -> None:
        """`first` multiplies FIRST_BLOCKS and FIRST_KEYS."""
        self.chunk_bytes = self.most_bytes = most_bytes
        self.max_rows = MOST_ROWS
        self.blocks = max(1, min(FIRST_BLOCKS * first, most_bytes >> 13))
        self.keys = FIRST_KEYS * first

    def limit_bytes(self, byte_count: int | None) -> None:
        """Make the next chunks at most this large; None for the size that was set."""
        self.chunk_bytes = self.most_bytes if byte_count is None else min(byte_count, self.most_bytes)

    def read_blocks(self, count: int, row_count: int, byte_count: int) -> None:
        self.blocks = self._next(self.blocks, count, row_count, byte_count)

    def read_keys(self, count: int, row_count: int, byte_count: int) -> None:
        self.keys = self._next(self.keys, count, row_count, byte_count)

    def chunk_was_too_large(self) -> None:
        self.blocks = max(1, self.blocks // GROWTH)
        self.keys = max(1, self.keys // GROWTH)

    def _next(self, allowed: int, count: int, row_count: int, byte_count: int) -> int:
        """Return the next limit, after `count` blocks or keys gave this many rows and bytes. If
        there were fewer than allowed, they were the last ones, which is no reason to grow."""
        wanted = min(count * self.chunk_bytes // max(byte_count, 1), count * self.max_rows // max(row_count, 1))
        return max(1, min(wanted, allowed if count < allowed else allowed * GROWTH, MOST_BLOCKS))
