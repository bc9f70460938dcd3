"""The ranges of blocks of a table that are still to be read.

Blocks are not counted in advance. A range has no end until a reader has locked the table and knows
how many blocks it has. The reader then takes as many blocks as a chunk should have and leaves the
rest to the next chunk. A table of any size is therefore planned at once, and outdated statistics do
no harm. The last range stays open, since rows may be in blocks that were added meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OFFSET_BITS = 16
_LINE = (1 << OFFSET_BITS) - 1
_MOST_LINES = 1 << 11
"""More line pointers than a page can have, even one of 32 kB."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows: the relation itself, or a partition of it. `blocks` is an estimate,
    which only log messages use."""

    oid: int
    filenode: int
    blocks: int


@dataclass(frozen=True, slots=True)
class TidRange:
    """The rows of one leaf from the place `first` up to the place `end`, which is excluded (None:
    up to the end of the table). `leaf` is the index of the leaf.

    A place is a ctid as a number, block << 16 | line, so that places can be compared.
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
    """Split off the first `block_count` blocks of a range. Return them and the rest, which is None
    if nothing is left. `table_blocks` is the current size of the table."""
    end_block = whole.first_block + block_count
    at = end_block << OFFSET_BITS
    if (end_block >= table_blocks) if whole.end is None else (at >= whole.end):
        return whole, None
    return TidRange(whole.leaf, whole.first, at), TidRange(whole.leaf, at, whole.end)


def halves(whole: TidRange, table_blocks: int) -> tuple[TidRange, TidRange | None]:
    """Split a range that was too large for one chunk into halves of its blocks, or of the lines of
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
    not been begun. The next one is begun when no begun range waits for a reader, so several leaves
    may be read at the same time."""

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
        """The ranges with which the next session begins: neither read nor untouched."""
        return [*self._being_read, *self._waiting]

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
