"""Ending things that may never end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger()


async def say_goodbye(ending: Coroutine[Any, Any, object], timeout_s: float) -> None:
    """Let `ending` run for so long, then go on without it: what can not be closed is left to the process.

    `asyncio.timeout` is not enough: it cancels once and waits, and aiokafka's `close` takes that cancellation for the end of
    one of its own tasks and goes on waiting for the broker.
    """
    task = asyncio.create_task(ending)
    await asyncio.wait({task}, timeout=timeout_s)
    if not task.done():
        task.cancel()
        task.add_done_callback(_note)
    else:
        _note(task)


def _note(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("goodbye", error=type(error).__name__)
