"""Rates of tables, from a clock that is moved by hand."""

from __future__ import annotations

from gateway.observe.table_status import SAMPLE_S, Rates


def test_a_rate_is_that_of_the_last_seconds() -> None:
    rates = Rates()
    assert rates.per_s(0.0, "t", 5) == 0.0
    for second in range(61):
        rates.sample(float(second), {"t": 100 * min(second, 50)})
    assert rates.per_s(60.0, "t", 5000) == 0.0
    rates.sample(60.0 + SAMPLE_S, {"t": 6000})
    assert rates.per_s(60.0 + SAMPLE_S, "t", 6000) == 1000 / SAMPLE_S
    assert rates.per_s(60.0 + SAMPLE_S, "new", 10) == 10 / SAMPLE_S


def test_a_count_that_begins_again_has_no_rate_below_zero() -> None:
    rates = Rates()
    rates.sample(0.0, {"t": 100})
    rates.sample(SAMPLE_S, {"t": 100})
    assert rates.per_s(SAMPLE_S, "t", 3) == 0.0
