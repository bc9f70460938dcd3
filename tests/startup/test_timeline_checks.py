from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DataGap, RetrySlowly
from gateway.startup.findings import OperatorWarning
from gateway.startup.timeline_checks import check_promotion, parse_history
from schemas.lsn import Lsn

# As a server writes it after two promotions.
HISTORY = "1\t0/3000148\tno recovery target specified\n\n2\t16/B374D848\tbefore 2026-01-01 00:00:00+00\n"


def test_history_gives_the_lsn_where_each_timeline_was_left() -> None:
    assert parse_history(HISTORY) == {1: Lsn.parse("0/3000148"), 2: Lsn.parse("16/B374D848")}


def test_comments_and_empty_lines_are_nothing() -> None:
    assert parse_history("# a comment\n\n 1 0/1 # and one more\n") == {1: Lsn(1)}


@pytest.mark.parametrize("content", ["x 0/1", "1", "1 zero", "1 0-1 x"])
def test_what_is_no_history_is_waited_for(content: str) -> None:
    with pytest.raises(RetrySlowly):
        parse_history(content)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_position_beyond_the_switch_is_a_gap(resume: int, idle: int, left_at: int) -> None:
    """The last `idle` bytes had no transaction for Kafka."""
    last_commit_lsn = Lsn(max(resume - idle - 1, 0))
    (finding,) = check_promotion(Lsn(resume), last_commit_lsn, 1, 2, f"1\t{Lsn(left_at)}\twhy\n")
    assert isinstance(finding, DataGap) == (resume > left_at)
    assert isinstance(finding, OperatorWarning) == (resume <= left_at)
    if isinstance(finding, DataGap):
        assert ("Kafka contains changes up to" in finding.message) == (last_commit_lsn >= left_at)


def test_timeline_that_is_no_ancestor_is_a_gap() -> None:
    (finding,) = check_promotion(Lsn(5), Lsn(4), 4, 3, HISTORY)
    assert isinstance(finding, DataGap)


def test_same_timeline_is_nothing_new() -> None:
    assert list(check_promotion(Lsn(5), Lsn(4), 3, 3, "")) == []
