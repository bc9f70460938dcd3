"""The live page: `/` is one file without external resources (page.html); `/events` supplies it with
server-sent events.

    event: history    once: [[Unix time, lag in seconds or null, retained WAL in bytes or null,
                      records/s], ...], oldest first
    event: status     each second: /status, with the SHOWN_TOPICS topics that have the most records

All streams share one status text, which is renewed at most twice a second. When the port has too
many connections, streams are closed last (http_server.py); the browser then reconnects.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.observe.status_board import StatusBoard

INTERVAL_S: Final = 1.0
HISTORY_INTERVAL_S: Final = 2.0
HISTORY_POINTS: Final = 450
"""The number of points in a quarter of an hour."""
SHOWN_TOPICS: Final = 100

Point = tuple[float, float | None, int | None, float]


def page_routes(board: StatusBoard) -> list[Route]:
    """Return the routes. Start to record the history in a separate thread, which continues while
    the gateway's event loop does not respond."""
    history: deque[Point] = deque(maxlen=HISTORY_POINTS)
    threading.Thread(target=_keep, args=(board, history), name="history", daemon=True).start()
    shared = _SharedStatus(board)

    async def page(_: Request) -> Response:
        html, policy = _page()
        return HTMLResponse(html, headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"})

    async def events(request: Request) -> Response:
        request.state.is_stream = True

        async def stream() -> AsyncIterator[str]:
            yield _event("history", json.dumps(list(history)))
            while True:
                yield _event("status", shared.status())
                await asyncio.sleep(INTERVAL_S)

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return [Route("/", page), Route("/events", events)]


class _SharedStatus:
    """The text of one status, for all requests within half an interval."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._text = ""
        self._made_at = -INTERVAL_S

    def status(self) -> str:
        now = time.monotonic()
        if now - self._made_at >= INTERVAL_S / 2:
            self._text = json.dumps(_shown(self._board))
            self._made_at = now
        return self._text


def _shown(board: StatusBoard) -> dict[str, Any]:
    counts = list(board.topic_records.values())  # a copy: the gateway's loop adds to it
    return board.snapshot(SHOWN_TOPICS).as_json() | {"topic_count": len(counts), "records": sum(counts)}


def _keep(board: StatusBoard, history: deque[Point]) -> None:
    while True:
        board.sample_rates()
        held = board.held
        retained = None if held is None else held.retained_bytes
        history.append((time.time(), board.lag_seconds(), retained, board.records_per_s()))
        time.sleep(HISTORY_INTERVAL_S)


def _event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"


@cache
def _page() -> tuple[str, str]:
    """Return the content of the file, and a policy that allows the browser to use only the script
    and the style in this file."""
    html = files("gateway.observe").joinpath("page.html").read_text("utf-8")
    script, style = (_hash(html, element) for element in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


def _hash(html: str, element: str) -> str:
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.S)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
