"""Output of lines to stdout, until its reader closes it, a signal arrives, or a limit is
reached."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from gateway.cli.tail.format import as_json, as_line
from gateway.cli.tail.message_json import Shown


class Output:
    """Output of lines. `ended` is set when no more lines are wanted."""

    def __init__(self, *, as_json_lines: bool, limit: int | None = None) -> None:
        self.ended = asyncio.Event()
        self._render = as_json if as_json_lines else as_line
        self._left = limit

    async def write(self, many: Iterable[Shown]) -> None:
        """Write lines in a thread, because a slow reader of stdout must not prevent the event loop
        from replying to PostgreSQL."""
        if self.ended.is_set():
            return
        chosen = list(many) if self._left is None else list(many)[: self._left]
        if not chosen:
            return
        if self._left is not None:
            self._left -= len(chosen)
        text = "".join(f"{self._render(one)}\n" for one in chosen)
        if not await asyncio.to_thread(_print, text) or self._left == 0:
            self.ended.set()


def _print(text: str) -> bool:
    """Print `text`; return False if stdout is no longer read (`| head`)."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the interpreter's final flush fails
        return False
    return True


@asynccontextmanager
async def ended_by_signals(output: Output, seconds: float | None) -> AsyncIterator[None]:
    """Let SIGINT, SIGTERM and the timeout end the output, not the process."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, output.ended.set)
    timer = None if seconds is None else loop.call_later(seconds, output.ended.set)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
