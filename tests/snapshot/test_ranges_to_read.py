"""Ranges of a table: each row's place is read once, whatever the size that statistics claim."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.snapshot.rules.chunk_size import FIRST_BLOCKS
from gateway.snapshot.rules.ranges_to_read import OFFSET_BITS, CtidPlan, Leaf, TidRange, cut, halves, tid

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
