"""The event loop of the gateway and its commands, which is uvloop's with two corrections."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import uvloop

from gateway.kafka.aiokafka_internals.connection import STAGGER_S, first_to_succeed

ANSWER_S: Final = 4.0
"""The time limit for a connection to any address of a name. It is shorter than the limits of the
callers, whose errors do not name the addresses."""


class EventLoop(uvloop.Loop):
    """An event loop whose `create_connection` differs from uvloop's in two ways.

    It can be cancelled while it resolves a name. uvloop's own does not cancel the resolution. If
    that then fails, asyncio logs `Future exception was never retrieved`, at each attempt to reach
    an address that cannot be resolved. This class awaits the resolution directly, before it
    connects, so that both are cancelled together.

    It does not wait long for one address of a name that has several (RFC 8305). uvloop's own tries
    them one after the other. One that drops packets would use up the time limit of the caller."""

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if isinstance(host, str) and host:
            limits = {name: options.get(name, 0) for name in ("family", "proto", "flags")}
            addresses = await self.getaddrinfo(host, port, type=socket.SOCK_STREAM, **limits)
            if len(addresses) > 1:
                if options.get("ssl"):
                    options["server_hostname"] = options.get("server_hostname") or host
                options["sock"] = await self._connect_to_any(addresses)
                host = port = None
        return await super().create_connection(protocol_factory, host, port, **options)

    async def _connect_to_any(self, addresses: Sequence[tuple[Any, ...]]) -> socket.socket:
        """Return a socket that is connected to the first address that answers. The next one is
        tried when an attempt fails, or after STAGGER_S. Raises OSError, which names all of them."""
        codes = dict.fromkeys((address[0] for *_, address in addresses), errno.ETIMEDOUT)
        opened: list[socket.socket] = []
        connected = None

        async def connect(family: int, kind: int, proto: int, _: str, address: Any) -> socket.socket:
            try:
                opened.append(attempt := socket.socket(family, kind, proto))
                attempt.setblocking(False)
                await self.sock_connect(attempt, address)
            except OSError as error:
                codes[address[0]] = error.errno or errno.ETIMEDOUT
                raise
            return attempt

        try:
            async with asyncio.timeout(ANSWER_S):
                connected = await first_to_succeed([partial(connect, *each) for each in addresses], STAGGER_S)
        except TimeoutError:
            pass
        finally:
            for attempt in opened:
                if attempt is not connected:
                    attempt.close()
        if connected is None:
            said = ", ".join(f"{address}: {os.strerror(code)}" for address, code in codes.items())
            raise OSError(next(iter(codes.values())), said)
        return connected
