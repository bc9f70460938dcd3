from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DataGap, RetrySlowly
from gateway.events.manifest import Manifest
from gateway.startup.findings import OperatorWarning
from gateway.startup.timeline_checks import check_promotion, parse_history, position_at_fork
from gateway.transactions.position import advance
from gateway.transactions.transaction import Prepared
from schemas.lsn import Lsn
from tests.startup.facts import ACTIVE

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
    (finding,) = check_promotion("s", Lsn(resume), last_commit_lsn, 1, 2, f"1\t{Lsn(left_at)}\twhy\n")
    assert isinstance(finding, DataGap) == (resume > left_at)
    assert isinstance(finding, OperatorWarning) == (resume <= left_at)
    if isinstance(finding, DataGap):
        assert ("Kafka contains changes up to" in finding.message) == (last_commit_lsn >= left_at)


@given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 200), st.integers(0, 400), st.integers(1, 500))
def test_an_idle_position_goes_back_to_the_fork_if_all_that_was_delivered_precedes_it(
    content: int, idle: int, empty: int, skip: int, left_at: int
) -> None:
    """The last `idle` bytes had nothing for Kafka, but perhaps commits without events."""
    resume = content + idle
    last_commit_lsn = Lsn(min(content - 1 + empty, resume - 1))
    position = replace(
        ACTIVE,
        resume_lsn=Lsn(resume),
        content_lsn=Lsn(content),
        last_commit_lsn=last_commit_lsn,
        skip_lsn=Lsn(skip),
    )
    found = position_at_fork(position, Lsn(left_at))
    (finding,) = check_promotion("s", found.resume_lsn, found.last_commit_lsn, 1, 2, f"1\t{Lsn(left_at)}\twhy\n")
    assert isinstance(finding, DataGap) == (content > left_at)
    if content <= left_at < resume:
        # Whatever commits on the new timeline is sent, follows all commits in Kafka, and is not skipped.
        assert found.resume_lsn == left_at and found.last_commit_lsn < content and found.skip_lsn < left_at
    else:
        assert found == position


def test_an_earlier_release_did_not_store_what_was_delivered() -> None:
    position = replace(ACTIVE, content_lsn=Lsn(0))
    assert position_at_fork(position, Lsn(position.resume_lsn - 1)) == position
    assert position_at_fork(position, None) == position
    idle = advance(position, 1600, 1400, (), has_content=False)
    assert (idle.resume_lsn, idle.content_lsn) == (1600, position.resume_lsn)
    assert advance(idle, 1700, 1400, (), has_content=False).content_lsn == position.resume_lsn
    assert advance(idle, 1700, 1650, ()).content_lsn == 1700


def test_the_end_of_an_empty_prepared_transaction_counts_as_delivered() -> None:
    """The new primary may still have it."""
    prepared = Prepared("gid", 7, Lsn(1450), None, Manifest(4))
    position = replace(ACTIVE, content_lsn=Lsn(1500), prepared=(prepared,))
    assert advance(position, 1600, 1400, (), has_content=False).content_lsn == 1600


def test_timeline_that_is_no_ancestor_is_a_gap() -> None:
    (finding,) = check_promotion("s", Lsn(5), Lsn(4), 4, 3, HISTORY)
    assert isinstance(finding, DataGap)


def test_same_timeline_is_nothing_new() -> None:
    assert list(check_promotion("s", Lsn(5), Lsn(4), 3, 3, "")) == []
