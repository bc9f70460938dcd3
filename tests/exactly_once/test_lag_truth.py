"""The judge of the lag: what it lets pass and what it does not."""

from __future__ import annotations

import pytest

from tests.exactly_once.lag_truth import FEWEST_ANSWERS, Answer, Commit, LagTruth, bounds

COMMITS = [Commit(10.0, 10.1, 10.2), Commit(11.0, 30.0, 30.2), Commit(12.0, 30.0, 30.2)]


def test_the_oldest_that_is_not_durable_gives_the_bounds() -> None:
    assert bounds(COMMITS, Answer(20.0, 20.5, 0.0)) == (9.0, 9.5)
    assert bounds(COMMITS, Answer(30.0625, 30.125, 0.0)) == (0.0, 19.125)  # between appended and seen
    assert bounds(COMMITS, Answer(10.5, 10.6, 0.0)) == (0.0, 0.0)
    assert bounds(COMMITS, Answer(31.0, 31.1, 0.0)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("lag_s", "is_true"), [(9.0, True), (8.6, True), (9.5, True), (8.4, False), (9.7, False), (0.0, False)]
)
def test_a_lag_that_is_wrong_is_found(lag_s: float, is_true: bool) -> None:
    truth = LagTruth(0, {"an outage": [Answer(20.0, 20.1, lag_s)] * FEWEST_ANSWERS}, COMMITS)
    if is_true:
        truth.is_within(0.5)
    else:
        with pytest.raises(AssertionError, match="off by"):
            truth.is_within(0.5)


def test_too_few_answers_prove_nothing() -> None:
    with pytest.raises(AssertionError, match="an outage"):
        LagTruth(0, {"an outage": [Answer(20.0, 20.1, 9.0)]}, COMMITS).is_within(0.5)
