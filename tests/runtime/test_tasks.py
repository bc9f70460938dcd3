"""Nothing waits for ever for something that does not end: drivers may swallow a cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from gateway.errors import Retry
from gateway.kafka.shutdown import close_with_timeout, to_the_end
from gateway.runtime import tasks
from gateway.runtime.tasks import run_together


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CANCEL_AGAIN_S", 0.01)


async def _swallows_one_cancellation() -> None:
    """As aiokafka's `client.close` does."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


async def _fails() -> None:
    await asyncio.sleep(0)
    raise Retry("gone")


async def test_a_failure_ends_the_others_also_one_that_swallows_a_cancellation() -> None:
    async with asyncio.timeout(5):
        with pytest.raises(Retry, match="gone"):
            await run_together(_swallows_one_cancellation(), _fails(), until=asyncio.sleep(3600))


async def test_a_goodbye_takes_no_longer_than_its_limit() -> None:
    begun = time.monotonic()
    await close_with_timeout(_swallows_one_cancellation(), 0.05)
    assert time.monotonic() - begun < 1


async def test_a_goodbye_that_fails_is_one_too() -> None:
    await close_with_timeout(_fails(), 1)


async def test_an_ending_is_brought_to_its_end_though_its_caller_is_cancelled_again_and_again() -> None:
    ended = asyncio.Event()

    async def ends() -> None:
        await asyncio.sleep(0.1)
        ended.set()

    task = asyncio.create_task(to_the_end(ends()))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await tasks.cancel([task])
    assert task.cancelled() and ended.is_set()
