"""When a slot is moved on although its changes were not delivered, and when that would be a loss
for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.startup.facts import Facts
from gateway.startup.wal_release import ReleasedWal, release_to
from schemas.lsn import Lsn
from tests.startup.facts import ACTIVE, SERVER, with_server, with_slot, without_slot

END = SERVER.flush_lsn


def held(*, restart: int, confirmed: int) -> Facts:
    return with_slot(restart_lsn=Lsn(restart), confirmed_flush_lsn=Lsn(confirmed))


def test_within_the_budget_the_slot_stays() -> None:
    assert release_to(held(restart=900, confirmed=1000), ACTIVE, None, 1101) is None
    assert release_to(held(restart=900, confirmed=1000), ACTIVE, None, 1100) == END


def test_what_an_open_transaction_holds_is_not_given_up() -> None:
    assert release_to(held(restart=100, confirmed=1900), ACTIVE, None, 1000) is None


@pytest.mark.parametrize(
    "facts",
    [
        without_slot(),
        with_slot(confirmed_flush_lsn=None),
        with_server(in_recovery=True),
        with_server(system_identifier="72"),
        with_server(timeline=2),
        with_server(database="other"),
    ],
)
def test_only_the_slot_whose_position_was_read_is_moved(facts: Facts) -> None:
    assert release_to(facts, ACTIVE, None, 1) is None


def test_the_gap_names_the_setting_and_where_it_ends() -> None:
    reason = ReleasedWal(Lsn(16), Lsn(32)).reason
    assert "source.wal_budget_bytes" in reason and "was advanced to 0/20" in reason


def test_without_a_position_nothing_is_moved() -> None:
    assert release_to(held(restart=900, confirmed=1000), None, None, 1) is None


def test_nothing_more_is_given_up_before_the_last_release_has_freed_something() -> None:
    facts = held(restart=100, confirmed=1200)
    futile = ReleasedWal(Lsn(1000), Lsn(1200))
    assert release_to(facts, ACTIVE, futile, 500) == 1200
    assert release_to(facts, ACTIVE, replace(futile, has_freed=True), 500) is None
    assert release_to(held(restart=300, confirmed=1200), ACTIVE, replace(futile, has_freed=True), 500) is None
    assert release_to(held(restart=1000, confirmed=1200), ACTIVE, replace(futile, has_freed=True), 500) == END
    assert release_to(held(restart=100, confirmed=1300), ACTIVE, futile, 500) is None


@given(st.integers(0, END), st.integers(0, END), st.integers(1, 3000))
def test_a_release_goes_forward_and_could_free_half_of_what_is_held(restart: int, confirmed: int, budget: int) -> None:
    facts = held(restart=restart, confirmed=confirmed)
    end_lsn = release_to(facts, ACTIVE, None, budget)
    is_worth_it = END - restart >= budget and 2 * (END - confirmed) >= END - restart
    assert end_lsn == (END if is_worth_it else None)
