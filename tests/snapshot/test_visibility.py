"""Snapshots as `pg_current_snapshot()` prints them, and transaction ids on both sides of a wrap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.snapshot.rules.stale_rows import StalenessJudge
from gateway.snapshot.rules.visibility import UnreadableSnapshot, Visibility, parse_visibility
from tests.conftest import Database


def test_a_snapshot_sees_what_had_ended() -> None:
    found = parse_visibility("10:20:12,14")
    assert [xid for xid in range(8, 23) if found.sees(xid)] == [8, 9, 10, 11, 13, 15, 16, 17, 18, 19]
    assert parse_visibility("10:10:") == Visibility(10, 10)


@pytest.mark.parametrize("text", ["", "10:20", "10:20:x", "a:b:"])
def test_anything_else_is_no_snapshot(text: str) -> None:
    with pytest.raises(UnreadableSnapshot):
        parse_visibility(text)


@given(st.integers(1 << 32, 1 << 50), st.integers(-(1 << 31) + 1, (1 << 31) - 1))
def test_the_wires_32_bits_are_widened_to_the_nearest_id(xmax: int, away: int) -> None:
    xid = xmax + away
    assert Visibility(xmax, xmax).widen(xid & 0xFFFFFFFF) == xid


def test_the_first_ids_of_a_cluster_are_not_widened_below_zero() -> None:
    assert [Visibility(900, 900).widen(xid) for xid in (3, 899, 1200)] == [3, 899, 1200]


async def test_a_real_snapshot_is_read(database: Database) -> None:
    writer, reader = await database.connect(), await database.connect()
    await writer.execute("BEGIN")
    xid = int(await writer.fetchval("SELECT pg_current_xact_id()::text"))
    later = int(await reader.fetchval("SELECT pg_current_xact_id()::text"))
    found = parse_visibility(await reader.fetchval("SELECT pg_current_snapshot()::text"))
    assert later > xid and found.sees(later) and not found.sees(xid) and not found.sees(later + 100)
    await writer.execute("COMMIT")


def test_what_is_known_of_two_relations_is_two_things_also_where_it_is_the_same() -> None:
    judge = StalenessJudge(Visibility(10, 10), 0)
    one, two = judge.begin(), judge.begin()
    judge.end(two)
    judge.committed_without_keys(one, 12)
    judge.observe(Visibility(20, 20))
    assert not one.xids_without_keys
    judge.committed_without_keys(one, 22)
    judge.end(one)
