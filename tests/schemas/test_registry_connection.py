"""The way to the registry: connections that stay, end early or give no answer, and certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from schemas.errors import RegistryDenied, RegistryRefused, RegistryUnavailable
from schemas.registry_client import RegistryClient

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"id":1,"schema":"{}"}'


class Server:
    """Gives each connection its own answers in turn, then closes it; `requests` are those of each
    connection."""

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
async def serving(*answers: Sequence[bytes]) -> AsyncIterator[tuple[Server, RegistryClient]]:
    made = Server(*answers)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base/"
    client = RegistryClient(url, timeout_s=5.0)
    try:
        yield made, client
    finally:
        await client.close()
        server.close()
        await made.done()


async def test_a_connection_is_used_again() -> None:
    async with serving([OK, OK, OK]) as (server, client):
        for _ in range(3):
            assert await client.latest("x") == {}
        assert [len(requests) for requests in server.requests] == [3]


async def test_a_connection_that_ended_while_idle_is_opened_again() -> None:
    async with serving([OK], [OK]) as (server, client):
        await client.latest("x")
        await server.done()
        assert await client.latest("x") == {}
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
    ],
    ids=["nothing", "no HTTP", "half a head", "half a body", "no length", "no chunk"],
)
async def test_what_is_no_whole_answer_is_asked_for_once_more(answer: bytes) -> None:
    async with serving([answer], [answer]) as (_, client):
        with pytest.raises(RegistryUnavailable):
            await client.latest("x")


async def test_a_certificate_is_verified(tmp_path: Path) -> None:
    own, other = (certificate(tmp_path / name) for name in ("own", "other"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own / "certificate.pem", own / "key.pem")
    made = Server([OK])
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        for ca_file in (other / "certificate.pem", None):
            client = RegistryClient(url, ca_file=ca_file, timeout_s=5.0)
            with pytest.raises(RegistryDenied, match="CERTIFICATE_VERIFY_FAILED"):
                await client.latest("x")
            await client.close()
        client = RegistryClient(url, ca_file=own / "certificate.pem", timeout_s=5.0)
        assert await client.latest("x") == {}
        await client.close()
    finally:
        server.close()
        await made.done()


async def test_a_server_without_tls_is_not_called_silent() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = RegistryClient(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=5.0)
    try:
        with pytest.raises(RegistryDenied, match="the TLS handshake .* failed") as raised:
            await client.latest("x")
        assert "use http:// instead of https://" in raised.value.hint
    finally:
        await client.close()
        server.close()


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


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry:8081",
        "ftp://registry",
        "http://",
        "http://registry:port",
        "http://me:pa/geheim@h",
        "http://h:geheim",
    ],
)
def test_what_is_no_address_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(RegistryRefused, match="registry.url") as caught:
        RegistryClient(url)
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


def test_a_certificate_that_is_not_there_is_named() -> None:
    with pytest.raises(RegistryRefused, match=r"registry\.ca_file .*/not/there\.pem: No such file"):
        RegistryClient("https://registry", ca_file=Path("/not/there.pem"))


@pytest.mark.parametrize("pause_s", [0, 0.01])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_was_reset_while_it_was_idle_is_opened_again(
    new_loop: Callable[[], asyncio.AbstractEventLoop], pause_s: float
) -> None:
    """uvloop takes no write to what it has closed already."""
    reset = asyncio.Event()

    async def answer_and_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        linger = struct.pack("ii", 1, 0)  # no FIN at the close, but a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()
        await writer.wait_closed()
        reset.set()

    async def ask() -> None:
        server = await asyncio.start_server(answer_and_reset, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = RegistryClient(f"http://127.0.0.1:{port}", timeout_s=5.0)
        try:
            for _ in range(5):
                assert await client.latest("x") == {}
                await reset.wait()
                await asyncio.sleep(pause_s)  # heard of in the meantime, or not
                reset.clear()
        finally:
            await client.close()
            server.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask())
