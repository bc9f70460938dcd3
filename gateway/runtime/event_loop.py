"""The gateway's event loop: uvloop's, with one correction."""

from __future__ import annotations

import socket
from typing import Any

import uvloop


class EventLoop(uvloop.Loop):
    """uvloop's `create_connection` does not cancel the resolution of a name when it is cancelled
    itself. If the resolution then fails, asyncio logs `Future exception was never retrieved`, at
    each attempt to reach an address that cannot be resolved. Here the name is resolved before:
    awaited directly, the resolution is cancelled too."""

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if isinstance(host, str) and host:
            limits = {name: options.get(name, 0) for name in ("family", "proto", "flags")}
            await self.getaddrinfo(host, port, type=socket.SOCK_STREAM, **limits)
        return await super().create_connection(protocol_factory, host, port, **options)
