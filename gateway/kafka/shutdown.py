"""Close clients and tasks that may never finish closing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

log = structlog.get_logger()
T = TypeVar("T")


async def close_with_timeout(ending: Coroutine[Any, Any, object], timeout_s: float) -> None:
    """Run `ending` for at most `timeout_s`, then go on without it: what cannot be closed ends with
    the process.

    `asyncio.timeout` is not enough: it cancels once and waits. aiokafka's `close` takes that
    cancellation for the end of one of its own tasks, and goes on waiting for the broker.
    """
    task = asyncio.create_task(ending)
    await asyncio.wait({task}, timeout=timeout_s)
    if not task.done():
        task.cancel()
        task.add_done_callback(_note)
    else:
        _note(task)


async def to_the_end(ending: Coroutine[Any, Any, T]) -> T:
    """Run `ending` to its end, however often the caller is cancelled meanwhile. `ending` must have
    a time limit of its own."""
    task = asyncio.create_task(ending)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def _note(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("goodbye", error=type(error).__name__)
