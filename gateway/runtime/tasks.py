"""Run coroutines together until a given one has ended, or any of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from gateway.errors import StopForOperator, WalgateError

CANCEL_AGAIN_S = 1.0


async def run_together(*endless: Coroutine[Any, Any, None], until: Coroutine[Any, Any, None]) -> None:
    """Run all of the coroutines until `until` has ended or one of them has failed. The others are
    then cancelled and awaited, and the worst error is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in (*endless, until)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while not tasks[-1].done() and not any(task.exception() for task in done):
            done, _ = await asyncio.wait(
                [task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        await cancel(tasks)
        results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [
        error for error in results if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError)
    ]
    if errors:
        raise worst(errors)


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel the tasks, repeatedly until each has ended: a driver may mistake the cancellation of
    its caller for the cancellation of a task of its own."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)


def worst(errors: list[BaseException]) -> BaseException:
    """Return the worst of several errors: first a defect, then an error that needs the operator,
    then one that passes."""

    def rank(error: BaseException) -> int:
        return 2 if not isinstance(error, WalgateError) else 1 if isinstance(error, StopForOperator) else 0

    return max(errors, key=rank)
