"""Sizes of chunks: as many blocks as give the bytes that are wanted, found within a few steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.snapshot.rules.chunk_size import GROWTH, MOST_BLOCKS, ChunkSizer


@given(st.integers(1, 1 << 20), st.integers(1, 400), st.integers(1, 5000))
def test_a_chunk_gets_its_size_within_a_few_steps(chunk_bytes: int, rows_of_a_block: int, bytes_of_a_row: int) -> None:
    sizer = ChunkSizer(chunk_bytes)
    for _ in range(12):
        rows = sizer.blocks * rows_of_a_block
        sizer.read_blocks(sizer.blocks, rows, rows * bytes_of_a_row)
    of_a_block = rows_of_a_block * bytes_of_a_row
    assert sizer.blocks == max(1, min(chunk_bytes // of_a_block, sizer.wanted_rows // rows_of_a_block, MOST_BLOCKS))


def test_the_last_blocks_of_a_table_make_no_chunk_larger() -> None:
    sizer = ChunkSizer(1 << 20)
    before = sizer.blocks
    sizer.read_blocks(2, 10, 100)
    assert sizer.blocks == before
    sizer.read_blocks(before, 10, 100)
    assert sizer.blocks == before * GROWTH
    sizer.chunk_was_too_large()
    assert sizer.blocks == before


def test_chunks_become_smaller_and_large_again() -> None:
    sizer = ChunkSizer(4 << 20)
    for chunk_bytes in (4 << 20, 1 << 20, 4 << 20):
        sizer.chunk_bytes = chunk_bytes
        for _ in range(4):
            sizer.read_blocks(sizer.blocks, sizer.blocks * 80, sizer.blocks * 8000)
        assert sizer.blocks == chunk_bytes // 8000
