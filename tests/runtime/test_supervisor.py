from __future__ import annotations

from gateway.errors import Retry, RetrySlowly
from gateway.runtime.supervisor import HEALTHY_S, Backoff


def test_delays_double_up_to_their_limit_until_an_attempt_was_healthy() -> None:
    for error, first, longest in ((Retry("away"), 0.2, 2.0), (RetrySlowly("refused"), 2.0, 60.0)):
        backoff, expected = Backoff(), first
        for _ in range(10):
            assert expected / 2 <= backoff.delay_s(error, 0.0) <= expected
            expected = min(2 * expected, longest)
        assert backoff.delay_s(error, HEALTHY_S) <= first


def test_a_standby_that_has_waited_for_long_does_not_wait_long_for_what_is_new() -> None:
    backoff = Backoff()
    for _ in range(100):
        backoff.delay_s(Retry("slot s is in use by process 7"), 0.1)
    assert backoff.delay_s(RetrySlowly("this server is an old primary"), 0.1) <= 2.0
