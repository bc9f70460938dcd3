"""The gateway's event loop."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import uvloop

from gateway.runtime.event_loop import EventLoop

NOWHERE = "nowhere.invalid"
"""A name that no resolver knows (RFC 6761)."""


async def _cancelled_while_a_name_is_resolved() -> list[dict[str, Any]]:
    loop, noted = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: noted.append(context))
    for _ in range(8):
        connecting = asyncio.create_task(asyncio.open_connection(NOWHERE, 9092))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connecting.cancel()
        await asyncio.wait([connecting])
    for _ in range(8):  # resolutions end in their order, but for the few that run at the same time
        await asyncio.gather(asyncio.open_connection(NOWHERE, 9092), return_exceptions=True)
    gc.collect()
    await asyncio.sleep(0)
    return noted


def test_a_connection_that_is_cancelled_leaves_no_exception_behind() -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert runner.run(_cancelled_while_a_name_is_resolved()) == []


def test_uvloop_needs_the_correction() -> None:
    """When this fails, EventLoop is no longer needed."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_cancelled_while_a_name_is_resolved())
