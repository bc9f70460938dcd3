"""Random histories of a table whose content changes unseen: see unseen_content.py."""

from __future__ import annotations

import os

import pytest

from tests.snapshot.unseen_content import CURES, run

HISTORIES = 5_000
SEED = int(os.environ.get("WALGATE_TEST_SEED", "0"))


def test_no_history_loses_a_change_or_reads_a_table_without_need() -> None:
    found = [(seed, wrong) for seed in range(SEED, SEED + HISTORIES) if (wrong := run(seed))]
    assert found[:3] == []


@pytest.mark.parametrize("cure", CURES)
def test_a_part_of_the_account_that_is_taken_out_is_missed(cure: str) -> None:
    assert any(run(seed, cure) for seed in range(SEED, SEED + HISTORIES))
