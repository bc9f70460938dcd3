"""A TCP proxy that lets the server's bytes through at a set rate; the client's pass at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def throttle(host: str, port: int, bytes_per_s: int) -> AsyncIterator[int]:
    """Yields the port to connect to."""
    tasks: set[asyncio.Task[None]] = set()

    async def replication_loop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: int | None) -> None:
        try:
            while data := await reader.read(64 << 10):
                writer.write(data)
                await writer.drain()
                if rate is not None:
                    await asyncio.sleep(len(data) / rate)
        except ConnectionError:
            pass  # one side has left
        finally:
            writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, port)
        for task in (
            asyncio.create_task(replication_loop(reader, server_writer, None)),
            asyncio.create_task(replication_loop(server_reader, writer, bytes_per_s)),
        ):
            tasks.add(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
