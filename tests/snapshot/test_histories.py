"""Truth under load, as a model: each rule is needed, and together they are enough."""

from __future__ import annotations

import os
import random

import pytest

from gateway.snapshot.rules import stale_rows, table_progress
from tests.snapshot import reselecting
from tests.snapshot.world import RULES, first_wrong

SEED = int(os.environ.get("WALGATE_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 40)
PARTS = 4
"""Long runs in pieces, so that one says early where it went wrong."""


@pytest.fixture
def small_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale_rows, "MAX_KEYS", 4)
    monkeypatch.setattr(stale_rows, "MAX_KEYS_OF_ONE", 3)
    monkeypatch.setattr(stale_rows, "MAX_UNSEEN", 3)
    monkeypatch.setattr(table_progress, "MAX_KEYS_TO_READ_AGAIN", 4)
    monkeypatch.setattr(table_progress, "KEYS_FIRST", 2)


@pytest.mark.parametrize(
    "count",
    [1_000, *(pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)]) for _ in range(PARTS))],
)
def test_no_history_makes_a_table_that_differs_from_the_source(count: int) -> None:
    seed = SEED if count == 1_000 else random.SystemRandom().randrange(1 << 40)
    assert first_wrong(range(seed, seed + count)) is None


@pytest.mark.parametrize("count", [1_000, pytest.param(50_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_nor_does_one_in_which_every_list_overflows(count: int, small_lists: None) -> None:
    assert first_wrong(range(SEED, SEED + count)) is None


BEGINS_AT = {
    "stored floor": 4_700,
    "handed on": 2_100,
    "suspects": 900,
    "kept keys": 1_400,
    "filenode": 1_000,
    "durable keys": 2_500,
}
"""Seeds shortly before the first history that goes wrong, for rules that few histories need."""


@pytest.mark.parametrize("rule", RULES)
def test_without_one_rule_a_history_goes_wrong(rule: str) -> None:
    assert first_wrong(range(BEGINS_AT.get(rule, 0), 40_000), rule) is not None


@pytest.mark.parametrize("count", [400, pytest.param(30_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_every_value_that_an_update_left_out_is_read_again(count: int) -> None:
    assert reselecting.first_wrong(range(SEED, SEED + count)) is None


@pytest.mark.parametrize("count", [200, pytest.param(15_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_so_it_is_where_every_list_overflows(count: int, small_lists: None) -> None:
    assert reselecting.first_wrong(range(SEED, SEED + count)) is None


@pytest.mark.parametrize("rule", reselecting.RULES)
def test_without_one_rule_a_value_is_missing_or_wrong(rule: str) -> None:
    assert reselecting.first_wrong(range(BEGINS_AT.get(rule, 0), 20_000), rule) is not None
