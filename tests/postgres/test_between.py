"""Somebody between the gateway and the server: an attacker at the TLS handshake, a pooler.
Scripted, byte by byte."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.errors import StopForOperator, WalgateError
from gateway.local.ports import HOST
from gateway.postgres.connection import connect_replication
from schemas.lsn import Lsn
from tests.postgres.scripted_server import READY, Peer, scripted_server
from tests.postgres.test_replication_stream import OPTIONS
from tests.postgres.writer import error, message, parameter_status

SSL_REQUEST = 80877103
WELCOME = message("R", struct.pack("!i", 0)) + parameter_status("server_version", "16.0") + READY
LIMIT_S = 20.0


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("pause_s", [0.0, 0.2], ids=["with the answer", "behind it"])
async def test_data_before_the_tls_handshake_is_never_taken_for_the_server_s(pause_s: float) -> None:
    """P22: a login is played in the clear before TLS begins; nothing of it counts, and nothing is
    said in the clear."""
    heard = bytearray()

    async def inject(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert struct.unpack("!ii", await reader.readexactly(8)) == (8, SSL_REQUEST)
            writer.write(b"S")
            await asyncio.sleep(pause_s)
            writer.write(WELCOME)
            while piece := await reader.read(1000):
                heard.extend(piece)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with asyncio.timeout(LIMIT_S), listening(inject) as port:
        with pytest.raises(WalgateError):
            await connect_replication(f"postgresql://reader:geheim@{HOST}:{port}/shop?sslmode=require")
    assert b"reader" not in heard
    assert b"geheim" not in heard


async def test_a_pooler_that_refuses_the_walsender_s_parameter_is_named() -> None:
    """P26: as PgBouncer says it."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(error("08P01", "unsupported startup parameter: replication", severity="FATAL"))
        await writer.drain()
        writer.close()

    async with asyncio.timeout(LIMIT_S), listening(refuse) as port:
        with pytest.raises(StopForOperator) as caught:
            await connect_replication(f"postgresql://reader@{HOST}:{port}/shop?sslmode=disable")
    assert "pooler" in caught.value.hint


async def test_a_pooler_that_drops_the_walsender_s_parameter_is_named() -> None:
    """P26: it lets us in to an ordinary session, which knows no replication command."""

    async def ordinary(peer: Peer) -> None:
        await peer.receive()
        await peer.send(error("42601", 'syntax error at or near "START_REPLICATION"') + READY)

    async with asyncio.timeout(LIMIT_S), scripted_server(ordinary) as dsn:
        stream = await connect_replication(dsn)
        with pytest.raises(StopForOperator) as caught:
            await stream.start("s", Lsn(0), OPTIONS)
        await stream.close()
    assert "pooler" in caught.value.hint
