"""Where lines go: stdout, until its reader has enough, a signal comes, or the limit is reached."""

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
    """`ended` is set when nothing more is wanted."""

    def __init__(self, *, as_json_lines: bool, limit: int | None = None) -> None:
        self.ended = asyncio.Event()
        self._render = as_json if as_json_lines else as_line
        self._left = limit

    async def write(self, many: Iterable[Shown]) -> None:
        """In a thread: a slow reader of stdout must not keep the loop from answering PostgreSQL."""
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
    """False when nobody reads any more (`| head`)."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's own flush would fail
        return False
    return True


@asynccontextmanager
async def ended_by_signals(output: Output, seconds: float | None) -> AsyncIterator[None]:
    """SIGINT, SIGTERM and the time-out end the output, not the process."""
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
