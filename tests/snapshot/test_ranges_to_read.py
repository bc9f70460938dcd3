"""Ranges of a table: each row's place is read once, whatever the size that statistics claim."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.snapshot.rules.ranges_to_read import (
    FIRST_BLOCKS,
    GROWTH,
    MOST_BLOCKS,
    OFFSET_BITS,
    ChunkSizer,
    CtidPlan,
    Leaf,
    TidRange,
    cut,
    halves,
    tid,
)

SIZES = st.integers(0, 3000)


def covered(ranges: list[TidRange]) -> list[tuple[int, int | None]]:
    """Neighbours joined."""
    joined: list[tuple[int, int | None]] = []
    for each in sorted(ranges, key=lambda one: one.first):
        if joined and joined[-1][1] == each.first:
            joined[-1] = (joined[-1][0], each.end)
        else:
            joined.append((each.first, each.end))
    return joined


def test_a_place_is_written_as_postgresql_writes_it() -> None:
    assert tid(7 << OFFSET_BITS | 12) == "(7,12)"


@given(SIZES, st.lists(st.integers(1, 500), min_size=1))
def test_cuts_cover_the_table_once_and_the_last_one_is_open(blocks: int, counts: list[int]) -> None:
    rest: TidRange | None = TidRange(0)
    parts: list[TidRange] = []
    while rest is not None:
        part, rest = cut(rest, counts[len(parts) % len(counts)], blocks)
        parts.append(part)
    assert covered(parts) == [(0, None)]
    assert all(part.end is not None and part.end >> OFFSET_BITS < max(blocks, 1) for part in parts[:-1])


@given(st.integers(0, 40), st.integers(1, 40), st.booleans(), st.integers(0, 200))
def test_halves_end_at_single_lines(first: int, count: int, is_open: bool, line: int) -> None:
    """Half after half, each row's place stays in one of them, and no half has nothing."""
    whole = TidRange(0, first << OFFSET_BITS | line, None if is_open else first + count << OFFSET_BITS)
    parts: list[TidRange] = []
    todo = [whole]
    while todo:
        part, rest = halves(todo.pop(), first + count)
        assert rest is None or part.first < rest.first
        if rest is None or len(parts) > 50:
            parts += [part] if rest is None else [part, rest]
        else:
            todo += [part, rest]
    assert covered(parts) == [(whole.first, whole.end)]


def test_a_plan_gives_every_leaf_and_remembers_what_was_begun() -> None:
    plan = CtidPlan([Leaf(1, 1, 10), Leaf(2, 2, 10)])
    first = plan.next_range()
    assert first == TidRange(0)
    part, rest = cut(first, 4, 10)
    plan.shorten(first, part, rest)
    second, third = plan.next_range(), plan.next_range()
    assert (second, third) == (rest, TidRange(1)) and plan.next_range() is None
    assert second is not None and third is not None
    plan.range_read(part)
    plan.give_back(third)
    again = CtidPlan(plan.leaves, plan.untouched, plan.begun)
    assert covered([each for each in again.begun if each.leaf == 0]) == [(rest.first, None)] if rest else False
    assert {again.next_range(), again.next_range()} == {second, third}
    assert not again.is_done and not again.has_more


def test_a_table_of_a_billion_rows_is_planned_as_fast_as_a_small_one() -> None:
    plan = CtidPlan([Leaf(1, 1, 12_000_000)])
    taken = plan.next_range()
    assert taken is not None
    assert cut(taken, FIRST_BLOCKS, 12_000_000)[0].end == FIRST_BLOCKS << OFFSET_BITS


@given(st.integers(1, 1 << 20), st.integers(1, 400), st.integers(1, 5000))
def test_a_chunk_gets_its_size_within_a_few_steps(chunk_bytes: int, rows_of_a_block: int, bytes_of_a_row: int) -> None:
    sizer = ChunkSizer(chunk_bytes)
    for _ in range(12):
        rows = sizer.blocks * rows_of_a_block
        sizer.read_blocks(sizer.blocks, rows, rows * bytes_of_a_row)
    of_a_block = rows_of_a_block * bytes_of_a_row
    assert sizer.blocks == max(1, min(chunk_bytes // of_a_block, sizer.max_rows // rows_of_a_block, MOST_BLOCKS))


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
