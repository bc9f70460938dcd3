"""A server that speaks just enough to let anyone in, and then does as the test says: legal and
illegal orders of messages.

It is no stand-in for PostgreSQL, which never does most of this; what PostgreSQL does is tested on
real ones.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.postgres.writer import COPY_BOTH, message, parameter_status

Script = Callable[["Peer"], Awaitable[None]]
REPORTS = {
    "server_version": "16.0",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "standard_conforming_strings": "on",
}
READY = message("Z", b"I")


class Peer:
    """One client, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.startup: dict[str, str] = {}

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self) -> tuple[str, bytes]:
        """One message of the client: its kind and body."""
        kind, length = struct.unpack("!ci", await self.reader.readexactly(5))
        return kind.decode(), await self.reader.readexactly(length - 4)

    async def admit(self, reports: dict[str, str]) -> None:
        length, code = struct.unpack("!ii", await self.reader.readexactly(8))
        if code == 80877103:  # SSLRequest
            await self.send(b"N")
            length, code = struct.unpack("!ii", await self.reader.readexactly(8))
        words = (await self.reader.readexactly(length - 8)).decode().split("\0")
        self.startup = dict(zip(words[::2], words[1::2], strict=False))
        await self.send(
            message("R", struct.pack("!i", 0))
            + b"".join(parameter_status(*report) for report in reports.items())
            + message("K", struct.pack("!ii", 4711, 1))
            + READY
        )

    async def agree(self) -> str:
        """Answer START_REPLICATION; returns the query."""
        kind, body = await self.receive()
        assert kind == "Q"
        await self.send(COPY_BOTH)
        return body.rstrip(b"\0").decode()


@asynccontextmanager
async def scripted_server(script: Script, reports: dict[str, str] | None = None) -> AsyncIterator[str]:
    """Yields a DSN. `script` runs for each client that was let in; what it raises is raised at the
    end."""
    failures: list[BaseException] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        try:
            await peer.admit({**REPORTS, **(reports or {})})
            await script(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left, which most tests are about
        except Exception as error:
            failures.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"postgresql://user@127.0.0.1:{port}/db?sslmode=disable"
    finally:
        server.close()
    if failures:
        raise failures[0]
