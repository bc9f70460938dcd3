from __future__ import annotations

import asyncio
import gc

from gateway.errors import Retry, RetrySlowly
from gateway.observe.status_board import StatusBoard
from gateway.runtime.session import Session
from gateway.runtime.supervisor import HEALTHY_S, Backoff, _sessions
from tests.runtime.test_session import settings_of


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


async def test_a_failed_session_takes_no_memory_while_the_next_one_is_waited_for() -> None:
    """No automatic collection takes place: the gateway makes them rare."""
    board, stop = StatusBoard(), asyncio.Event()
    others = [each for each in gc.get_objects() if isinstance(each, Session)]
    gc.disable()
    running = asyncio.create_task(_sessions(settings_of(dsn="postgresql://127.0.0.1:1/x"), board, stop))
    try:
        async with asyncio.timeout(20):
            while not board.error_count:
                await asyncio.sleep(0)
        assert [each for each in gc.get_objects() if isinstance(each, Session) and each not in others] == []
        stop.set()
        await running
    finally:
        running.cancel()
        gc.enable()
