"""Random schedules of two gateways, a primary with a standby, a broker and a registry: see
simulation.py."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.startup.simulation import CURES, run

SCHEDULES = 5_000
SOME_SCHEDULES = 2_000
MANY_SCHEDULES = 200_000
SEED = int(os.environ.get("WALGATE_TEST_SEED", "0"))


def violations(first_seed: int, count: int = SCHEDULES) -> list[tuple[int, list[str]]]:
    seeds = range(first_seed, first_seed + count)
    return [(seed, found) for seed in seeds if (found := run(seed, with_loss=seed % 3 == 0, with_poison=seed % 2 == 0))]


def test_no_schedule_doubles_loses_or_stops_without_a_reason() -> None:
    assert violations(SEED, SOME_SCHEDULES)[:3] == []


@pytest.mark.long
def test_no_schedule_of_many_doubles_loses_or_stops_without_a_reason() -> None:
    begun = time.monotonic()
    with ProcessPoolExecutor() as processes:
        found = processes.map(violations, range(SEED, SEED + MANY_SCHEDULES, SCHEDULES))
        assert [each for several in found for each in several][:3] == []
    print(f"{MANY_SCHEDULES:,} schedules in {time.monotonic() - begun:.0f} s")


@pytest.mark.parametrize("cure", CURES)
def test_a_cure_that_is_taken_out_is_missed(cure: str) -> None:
    assert any(run(seed, cure, with_poison=seed % 2 == 0) for seed in range(SEED, SEED + SCHEDULES))
