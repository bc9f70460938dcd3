"""The size of the next chunk of a table, in blocks or keys, from the size of the previous
chunks."""

from __future__ import annotations

FIRST_BLOCKS = 64
"""Blocks of the first chunk of a table in a session: 512 kB if they are full. They are fewer if
`chunk_bytes` is lower."""

FIRST_KEYS = 64
WANTED_ROWS = 100_000
MOST_BLOCKS = 1 << 17
"""Maximum number of blocks of a chunk, 1 GB, for tables that were emptied and not vacuumed."""

GROWTH = 4
"""A chunk raises the limit on blocks or keys at most by this factor. A chunk that was too large
lowers it by this factor."""


class ChunkSizer:
    """Determine how many blocks or keys a chunk has: as many as should give about `chunk_bytes`,
    which may be lowered, or about `wanted_rows` rows, whichever are fewer. The previous chunk shows
    what a block or key should give, so a chunk may have more."""

    def __init__(self, most_bytes: int, first: int = 1) -> None:
        """`first` multiplies FIRST_BLOCKS and FIRST_KEYS."""
        self.chunk_bytes = self.most_bytes = most_bytes
        self.wanted_rows = WANTED_ROWS
        self.blocks = max(1, min(FIRST_BLOCKS * first, most_bytes >> 13))
        self.keys = FIRST_KEYS * first

    def limit_bytes(self, byte_count: int | None) -> None:
        """Set the size from which later limits are computed; None restores the configured size. The
        next chunk still has the limit that was computed after the previous one."""
        self.chunk_bytes = self.most_bytes if byte_count is None else min(byte_count, self.most_bytes)

    def read_blocks(self, count: int, row_count: int, byte_count: int) -> None:
        self.blocks = self._next(self.blocks, count, row_count, byte_count)

    def read_keys(self, count: int, row_count: int, byte_count: int) -> None:
        self.keys = self._next(self.keys, count, row_count, byte_count)

    def chunk_was_too_large(self) -> None:
        self.blocks = max(1, self.blocks // GROWTH)
        self.keys = max(1, self.keys // GROWTH)

    def _next(self, allowed: int, count: int, row_count: int, byte_count: int) -> int:
        """Return the next limit, after `count` blocks or keys gave this many rows and bytes. The
        limit does not grow if `count` is less than `allowed`: there were no more, or another reader
        has raised the limit meanwhile."""
        wanted = min(count * self.chunk_bytes // max(byte_count, 1), count * self.wanted_rows // max(row_count, 1))
        return max(1, min(wanted, allowed if count < allowed else allowed * GROWTH, MOST_BLOCKS))
