"""Observers of a gateway while it is measured: Prometheus's scrape once a second, `walgate status
--watch`, and the live page in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

SCRAPE_S = 1.0
STATUS_S = 2.0
HEARTBEAT_S = 1.0
_HOST = "127.0.0.1"


@dataclass
class Watched:
    """Numbers of answers that the observers have received."""

    scrapes: int = 0
    statuses: int = 0
    page_updates: int = 0


@asynccontextmanager
async def watching(port: int, scrape_s: float = SCRAPE_S) -> AsyncIterator[Watched]:
    """Run the observers. Raises an error if one got no answer, since its cost was then not
    measured."""
    watched = Watched()
    watchers = (_scrape(port, watched, scrape_s), _read_status(port, watched), _read_page(port, watched))
    tasks = [asyncio.create_task(watcher) for watcher in watchers]
    try:
        yield watched
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
    if not (watched.scrapes and watched.statuses and watched.page_updates):
        raise RuntimeError(f"nobody was answered: {watched}")


async def _scrape(port: int, watched: Watched, interval_s: float) -> None:
    while True:
        async with _asked(port, "/metrics", "Connection: close") as reader:
            text = await reader.read()
        if b"walgate_lag_seconds" not in text:
            raise RuntimeError(f"/metrics says: {text[:200]!r}")
        watched.scrapes += 1
        await asyncio.sleep(interval_s)


async def _read_status(port: int, watched: Watched) -> None:
    while True:
        async with _asked(port, "/status", "Connection: close") as reader:
            text = await reader.read()
        if b"lag_seconds" not in text:
            raise RuntimeError(f"/status says: {text[:200]!r}")
        watched.statuses += 1
        await asyncio.sleep(STATUS_S)


async def _read_page(port: int, watched: Watched) -> None:
    async with _asked(port, "/events", "Accept: text/event-stream") as reader:
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                json.loads(line.removeprefix(b"data: "))
                watched.page_updates += 1
    raise RuntimeError("the page's stream has ended")


@asynccontextmanager
async def _asked(port: int, path: str, header: str) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection(_HOST, port, limit=1 << 22)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {_HOST}\r\n{header}\r\n\r\n".encode())
        yield reader
    finally:
        writer.close()
