"""HTTP as servers speak it: connections that stay, end early or never answer, and bodies in each form."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from schemas.http import HttpClient

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Gives each connection its own answers in turn, then closes it; `requests` are those of each connection."""

    def __init__(self, *answers: Sequence[bytes]) -> None:
        self._answers = list(answers)
        self._served: list[asyncio.Task[None] | None] = []
        self.requests: list[list[bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served.append(asyncio.current_task())
        mine: list[bytes] = []
        self.requests.append(mine)
        for answer in self._answers[len(self.requests) - 1]:
            mine.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def done(self) -> None:
        """Every connection so far is closed."""
        await asyncio.gather(*(task for task in self._served if task is not None), return_exceptions=True)


@asynccontextmanager
async def serving(*answers: Sequence[bytes]) -> AsyncIterator[tuple[Server, HttpClient]]:
    made = Server(*answers)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base/"
    client = HttpClient(url, username=None, password=None, ca_file=None, timeout_s=5.0)
    try:
        yield made, client
    finally:
        await client.close()
        server.close()
        await made.done()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 1}",
        b"HTTP/1.1 200\r\ncontent-length:8\r\n\r\n{\"a\": 1}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n5;x=y\r\n\": 1}\r\n0\r\nTrailer: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"a\": 1}",
        b"HTTP/1.0 200 OK\r\n\r\n{\"a\": 1}",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 1}",
    ],
    ids=["length", "no reason", "chunks", "until the end", "HTTP/1.0", "after an interim answer"],
)  # fmt: skip
async def test_a_body_is_read_in_each_form(answer: bytes) -> None:
    async with serving([answer]) as (server, client):
        assert await client.request("GET", "/subjects/a%2Fb") == (200, b'{"a": 1}')
        assert server.requests[0][0].startswith(b"GET /base/subjects/a%2Fb HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_a_connection_is_used_again() -> None:
    async with serving([OK, OK, OK]) as (server, client):
        for _ in range(3):
            assert await client.request("GET", "/x") == (200, b"{}")
        assert [len(requests) for requests in server.requests] == [3]


async def test_a_connection_that_ended_while_idle_is_made_anew() -> None:
    async with serving([OK], [OK]) as (server, client):
        await client.request("GET", "/x")
        await server.done()
        assert await client.request("GET", "/x") == (200, b"{}")
        assert len(server.requests) == 2


async def test_requests_at_once_take_a_connection_each() -> None:
    async with serving([OK], [OK]) as (server, client):
        answers = await asyncio.gather(client.request("GET", "/x"), client.request("GET", "/y"))
        assert list(answers) == [(200, b"{}")] * 2
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "no HTTP", "half a head", "half a body", "no length", "no chunk", "an endless head"],
)
async def test_what_is_no_whole_answer_is_a_connection_error(answer: bytes) -> None:
    async with serving([answer]) as (_, client):
        with pytest.raises(ConnectionError):
            await client.request("GET", "/x")


async def test_a_certificate_is_verified(tmp_path: Path) -> None:
    own, other = (certificate(tmp_path / name) for name in ("own", "other"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own / "certificate.pem", own / "key.pem")
    made = Server([OK])
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        for ca_file in (other / "certificate.pem", None):
            client = HttpClient(url, username=None, password=None, ca_file=ca_file, timeout_s=5.0)
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.request("GET", "/x")
        client = HttpClient(url, username=None, password=None, ca_file=own / "certificate.pem", timeout_s=5.0)
        assert await client.request("GET", "/x") == (200, b"{}")
        await client.close()
    finally:
        server.close()
        await made.done()


def certificate(folder: Path) -> Path:
    """A folder with a key and a certificate of localhost that it signed itself."""
    folder.mkdir()
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(
        [*command.split(), "-keyout", folder / "key.pem", "-out", folder / "certificate.pem"],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.mark.parametrize("url", ["", "registry:8081", "ftp://registry", "http://", "http://registry:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="(?i)address|port"):
        HttpClient(url, username=None, password=None, ca_file=None, timeout_s=1.0)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_was_reset_while_it_was_idle_is_made_anew(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """uvloop takes no write to what it has closed already."""

    async def answer_and_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        linger = struct.pack("ii", 1, 0)  # no FIN at the close, but a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    async def ask_twice() -> None:
        server = await asyncio.start_server(answer_and_reset, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}", username=None, password=None, ca_file=None, timeout_s=5.0)
        try:
            assert await client.request("GET", "/1") == (200, b"{}")
            ((_, writer),) = client._idle
            async with asyncio.timeout(5):
                while not writer.is_closing():
                    await asyncio.sleep(0.001)
            assert await client.request("GET", "/2") == (200, b"{}")
        finally:
            await client.close()
            server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask_twice())
