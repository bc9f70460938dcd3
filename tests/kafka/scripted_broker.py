"""As much of a broker as a client's connections need, which can be silent at any place: a real one
cannot be made so."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka.protocol.admin import ApiVersionResponse_v0, SaslAuthenticateResponse_v1, SaslHandShakeResponse_v1
from aiokafka.protocol.metadata import MetadataResponse_v5

from gateway.local.ports import HOST

METADATA, HANDSHAKE, VERSIONS, AUTHENTICATE = 3, 17, 18, 36
"""The requests that it knows, by their numbers in the protocol."""
_VERSION = {METADATA: 5, HANDSHAKE: 1, VERSIONS: 0, AUTHENTICATE: 1}


class _Gate(asyncio.Event):
    def __init__(self) -> None:
        super().__init__()
        self.set()


class ScriptedBroker:
    """`listed`: the brokers that its metadata name, with their ports. `asked`: the requests that it
    got, in order. While `answers[request]` is cleared, that request gets no answer. `session_ms`,
    `challenge`: of its answer to a login."""

    def __init__(self) -> None:
        self.port = 0
        self.listed: dict[int, int] = {}
        self.asked: list[int] = []
        self.connections = 0
        self.answers: defaultdict[int, asyncio.Event] = defaultdict(_Gate)
        self.session_ms = 0
        self.challenge = b""
        self.login_code = 0
        self._serving: dict[asyncio.Task[Any] | None, asyncio.StreamWriter] = {}

    def _answer(self, request: int) -> Any:
        if request == VERSIONS:
            return ApiVersionResponse_v0(0, [(key, version, version) for key, version in _VERSION.items()])
        if request == HANDSHAKE:
            return SaslHandShakeResponse_v1(0, ["PLAIN", "OAUTHBEARER"])
        if request == AUTHENTICATE:
            return SaslAuthenticateResponse_v1(self.login_code, None, self.challenge, self.session_ms)
        return MetadataResponse_v5(0, [(node, HOST, port, None) for node, port in self.listed.items()], None, 1, [])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving[asyncio.current_task()] = writer
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size: int = struct.unpack(">i", await reader.readexactly(4))[0]
                request, _, number = struct.unpack_from(">hhi", await reader.readexactly(size))
                self.asked.append(request)
                await self.answers[request].wait()
                content = struct.pack(">i", number) + self._answer(request).encode()
                writer.write(struct.pack(">i", len(content)) + content)
        writer.close()

    async def stop(self) -> None:
        for writer in self._serving.values():
            writer.close()
        for gate in self.answers.values():
            gate.set()
        await asyncio.gather(*filter(None, self._serving))


@asynccontextmanager
async def scripted_brokers(count: int) -> AsyncIterator[list[ScriptedBroker]]:
    """Each lists all, numbered from 1."""
    brokers = [ScriptedBroker() for _ in range(count)]
    servers = [await asyncio.start_server(broker.serve, HOST, 0) for broker in brokers]
    for broker, server in zip(brokers, servers, strict=True):
        broker.port = server.sockets[0].getsockname()[1]
    for broker in brokers:
        broker.listed = {node: other.port for node, other in enumerate(brokers, 1)}
    try:
        yield brokers
    finally:
        for broker, server in zip(brokers, servers, strict=True):
            server.close()
            await broker.stop()
        for server in servers:
            await server.wait_closed()
