"""Health and metrics over HTTP, from a thread of its own: it answers also while the event loop does not.

/livez     200 while the process runs
/readyz    200 while the replication stream is read, else 503 with what it waits for
/metrics   Prometheus
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from http.client import HTTPException
from socketserver import ThreadingMixIn
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from gateway.operate.errors import StopForOperator
from gateway.operate.metrics import REGISTRY

Answer = Callable[[str, list[tuple[str, str]]], Any]
PROBE_TIMEOUT_S = 3.0


class Health:
    """`waiting_for` is "" while all is well; written by the event loop, read by the thread."""

    def __init__(self) -> None:
        self.waiting_for = "the first start"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        """No line per request: probes come every few seconds."""


def start_http(host: str, port: int, health: Health) -> int:
    """Serve until the process ends; returns the port (0 asks for a free one). Raises StopForOperator."""
    metrics = make_wsgi_app(REGISTRY)

    def app(environ: dict[str, Any], answer: Answer) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                body: Iterable[bytes] = metrics(environ, answer)
                return body
            case "/livez":
                return _text(answer, "200 OK", "ok")
            case "/readyz":
                waiting = health.waiting_for
                return _text(answer, "503 Service Unavailable" if waiting else "200 OK", waiting or "ok")
        return _text(answer, "404 Not Found", "/livez /readyz /metrics")

    try:
        server = make_server(host, port, app, server_class=_Server, handler_class=_Quiet)
    except OSError as error:
        raise StopForOperator(f"http: {host}:{port}: {error.strerror}", hint="set another http.port") from error
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server.server_port


def _text(answer: Answer, status: str, text: str) -> Iterable[bytes]:
    answer(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode() + b"\n"]


def probe(host: str, port: int) -> str:
    """What /readyz of a running gateway says, or what is wrong with the way there: "" when it is ready."""
    try:
        try:
            with urlopen(f"http://{host}:{port}/readyz", timeout=PROBE_TIMEOUT_S):
                return ""
        except HTTPError as error:
            return str(error.read().decode("utf-8", "replace").strip() or error)
    except (OSError, HTTPException) as error:
        return f"{host}:{port}: {getattr(error, 'reason', error) or type(error).__name__}"
