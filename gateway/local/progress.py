"""Progress of a download on standard error: a bar on a terminal, a few lines elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

MEGABYTE = 1_000_000
STEPS = 4


@contextmanager
def download_progress(file_count: int, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yield `advance(byte_count)`, which any thread may call."""
    console = Console(stderr=True)
    title = f"downloading {file_count} {'file' if file_count == 1 else 'files'}"
    if not console.is_terminal:
        yield _Lines(console, title, total_bytes).advance
        return
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda byte_count: bar.advance(task, byte_count)


class _Lines:
    """Progress as text: a line at the start and one for each quarter."""

    def __init__(self, console: Console, title: str, total_bytes: int) -> None:
        self._console = console
        self._title = title
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = threading.Lock()
        self._print()

    def advance(self, byte_count: int) -> None:
        with self._lock:
            before = self._done_bytes * STEPS // self._total_bytes
            self._done_bytes += byte_count
            if self._done_bytes * STEPS // self._total_bytes > before:
                self._print()

    def _print(self) -> None:
        done, total = self._done_bytes / MEGABYTE, self._total_bytes / MEGABYTE
        self._console.print(f"{self._title}: {done:.0f} of {total:.0f} MB", highlight=False)
