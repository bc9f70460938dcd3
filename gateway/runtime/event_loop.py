"""The gateway's event loop, which is uvloop's with one correction."""

from __future__ import annotations

import socket
from typing import Any

import uvloop


class EventLoop(uvloop.Loop):
    """An event loop whose `create_connection` can be cancelled while it resolves a name. uvloop's
    own does not cancel the resolution. If that then fails, asyncio logs `Future exception was never
    retrieved`, at each attempt to reach an address that cannot be resolved. This class awaits the
    resolution directly, before it connects, so that both are cancelled together."""

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if isinstance(host, str) and host:
            limits = {name: options.get(name, 0) for name in ("family", "proto", "flags")}
            await self.getaddrinfo(host, port, type=socket.SOCK_STREAM, **limits)
        return await super().create_connection(protocol_factory, host, port, **options)
