"""Serve health, status and metrics over HTTP, on the server of http_server.py.

/          the live page (web_ui.py)
/livez     200 while the process runs
/readyz    200 while the replication stream is read and delivered, otherwise 503 with what it
           waits for
/status    the whole status, as JSON (gateway/observe/status_types.py)
/metrics   Prometheus
"""

from __future__ import annotations

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.observe.http_server import start_server
from gateway.observe.metrics import REGISTRY
from gateway.observe.status_board import StatusBoard
from gateway.observe.web_ui import page_routes


def start_http(host: str, port: int, board: StatusBoard) -> int:
    """Serve until the process ends; return the port. A `port` of 0 requests a free one. Raises
    StopForOperator."""

    async def livez(_: Request) -> Response:
        return _text("ok")

    async def readyz(_: Request) -> Response:
        waiting = board.waiting_for()
        return _text(waiting, 503) if waiting else _text("ok")

    async def status(_: Request) -> Response:
        return JSONResponse(board.snapshot().as_json())

    routes = [
        *page_routes(board),
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/status", status),
        Route("/metrics", _metrics),
    ]
    return start_server(host, port, Starlette(routes=routes, exception_handlers={404: _not_found}))


async def _metrics(request: Request) -> Response:
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(REGISTRY), headers={"Content-Type": content_type})


async def _not_found(_: Request, __: Exception) -> Response:
    return _text("/ /livez /readyz /status /metrics", 404)


def _text(text: str, status: int = 200) -> Response:
    return PlainTextResponse(text + "\n", status)
