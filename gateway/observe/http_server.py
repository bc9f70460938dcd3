"""The HTTP server for the endpoints of http_routes.py. Clients cannot exhaust this server, and it
cannot exhaust the gateway: it limits connections, header bytes and seconds.

uvicorn serves the requests. On its own, it waits forever for the rest of a request, and accepts
connections until no file descriptor is left (docs/decisions/0030). Therefore each connection here
serves one request, and must complete within `REQUEST_S`, including the response. There are at most
`max_connections()` connections; a new one replaces the oldest, so that a probe is answered however
many others are incomplete. The endpoint of a response that continues indefinitely (server-sent
events) sets `request.state.is_stream = True`. The connection then has no time limit, and is
replaced last.

The server runs in a thread with an event loop of its own, so it answers even while the gateway's
event loop does not respond.
"""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.observe.http_socket import listen

REQUEST_S: Final = 10.0
HEADER_BYTES: Final = 8 << 10
MOST_CONNECTIONS: Final = 64
BACKLOG: Final = 128
"""The number of connections that the kernel queues. At most this many are accepted at once before
the oldest ones are closed."""
RESERVED_DESCRIPTORS: Final = BACKLOG + 256
"""The number of file descriptors that are reserved for connections to PostgreSQL, Kafka's brokers
and the registry, and for files."""


def max_connections() -> int:
    """Return the limit on connections. The limit is low if the process may open few files, because
    the reserved descriptors take precedence."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(4, min(MOST_CONNECTIONS, limit - RESERVED_DESCRIPTORS))


class _Connection(H11Protocol):
    """A connection within the limits. `connections` are all connections of the server."""

    since = 0.0
    _expiry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.since = time.monotonic()
        self._expiry = self.loop.call_later(REQUEST_S, self._expire)
        if len(self.connections) > max_connections():
            oldest = min((one for one in self.connections if one is not self), key=_gives_way)
            oldest.transport.abort()
            self.connections.discard(oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        super().connection_lost(exc)

    def _expire(self) -> None:
        if not _is_stream(self):
            self.transport.abort()


class _Server(uvicorn.Server):
    """A server that runs until the process ends. uvicorn's own loop wakes ten times a second to
    check whether to end."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the header `date`
            await asyncio.sleep(1.0)


def _is_stream(connection: Any) -> bool:
    scope = connection.scope
    return scope is not None and bool(scope["state"].get("is_stream"))


def _gives_way(connection: Any) -> tuple[bool, float]:
    return _is_stream(connection), connection.since


def start_server(host: str, port: int, app: ASGIApp) -> int:
    """Serve `app` until the process ends; return the port. A `port` of 0 requests a free one.
    Raises StopForOperator."""
    listener = listen(host, port, BACKLOG)
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEADER_BYTES,
        headers=[("Connection", "close")],
        server_header=False,
        proxy_headers=False,
        access_log=False,
        log_config=None,
        log_level="error",  # invalid requests are not logged
    )
    server = _Server(config)
    threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listener]),), name="http", daemon=True).start()
    return int(listener.getsockname()[1])
