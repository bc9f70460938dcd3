"""Runs a command's coroutine on the gateway's event loop: what the gateway can reach, its commands
can reach too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_on_loop(main: Coroutine[Any, Any, T]) -> T:
    from gateway.runtime.event_loop import EventLoop  # slow, and not needed by each command

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        return runner.run(main)
