"""What the server asks for before it lets us in, scripted: what we say, and what we never say."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.errors import RetrySlowly, StopForOperator, WalgateError
from gateway.postgres import authentication
from gateway.postgres.connection import connect_replication, connect_sql
from gateway.postgres.scram import PLAIN, PLUS
from tests.postgres.scripted_server import READY, REPORTS
from tests.postgres.writer import error, message, parameter_status

PASSWORD = "geheim"
LIMIT_S = 20.0
CLEARTEXT, MD5 = struct.pack("!i", 3), struct.pack("!i", 5) + b"salt"
OK = message("R", struct.pack("!i", 0))
Asks = Callable[["Server"], Awaitable[None]]


def own_address() -> str:
    """Of this computer, and not of its loopback; empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address that is not loopback, as that of a server elsewhere."""
    address = own_address()
    if not address:
        monkeypatch.setattr(authentication, "is_local", lambda _: False)
    return address or "127.0.0.1"


class Server:
    """A login, seen from the server. `heard` is all that the client said after its startup
    message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.heard = b""

    async def ask(self, request: bytes) -> bytes:
        """Send an authentication request; what the client answers, empty when it leaves."""
        self.writer.write(message("R", request))
        try:
            _, length = struct.unpack("!ci", await self.reader.readexactly(5))
            body = await self.reader.readexactly(length - 4)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        self.heard += body
        return body

    async def admit(self) -> None:
        reports = b"".join(parameter_status(*report) for report in REPORTS.items())
        self.writer.write(OK + reports + message("K", struct.pack("!ii", 4711, 1)) + READY)
        await self.reader.read()


@asynccontextmanager
async def serving(asks: Asks, host: str = "127.0.0.1") -> AsyncIterator[tuple[str, list[Server]]]:
    """Yields the DSN, and each login. TLS is not there."""
    servers: list[Server] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            length, code = struct.unpack("!ii", await reader.readexactly(8))
            if code == 80877103:  # SSLRequest
                writer.write(b"N")
                length, _ = struct.unpack("!ii", await reader.readexactly(8))
            await reader.readexactly(length - 8)
            servers.append(Server(reader, writer))
            await asks(servers[-1])
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async with asyncio.timeout(LIMIT_S), await asyncio.start_server(serve, host, 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql://user:{PASSWORD}@{host}:{port}/db", servers


async def ask_in_the_clear(server: Server) -> None:
    if await server.ask(CLEARTEXT):
        await server.admit()


@pytest.mark.parametrize("connect", [connect_sql, connect_replication])
async def test_a_password_is_not_sent_in_the_clear(elsewhere: str, connect: Callable[[str], Awaitable[object]]) -> None:
    async with serving(ask_in_the_clear, elsewhere) as (dsn, servers):
        with pytest.raises(RetrySlowly, match=r"cleartext .* without TLS: refused") as caught:
            await connect(dsn)
    assert elsewhere in str(caught.value) and "sslmode=verify-full" in caught.value.hint
    assert [server.heard for server in servers] == [b""]


async def test_within_the_computer_it_may_be_sent_in_the_clear() -> None:
    async with serving(ask_in_the_clear) as (dsn, servers):
        connection = await connect_sql(dsn)
        connection.terminate()
    assert servers[0].heard == PASSWORD.encode() + b"\0"


async def test_md5_is_answered_as_before(elsewhere: str) -> None:
    async def ask(server: Server) -> None:
        assert (await server.ask(MD5)).startswith(b"md5")
        await server.admit()

    async with serving(ask, elsewhere) as (dsn, servers):
        (await connect_sql(dsn)).terminate()
    assert PASSWORD.encode() not in servers[0].heard


def sasl(*mechanisms: str) -> bytes:
    return struct.pack("!i", 10) + b"".join(name.encode() + b"\0" for name in mechanisms) + b"\0"


async def begin_scram(server: Server) -> bytes:
    """The server's first answer."""
    first = await server.ask(sasl(PLAIN))
    nonce = first.rpartition(b"r=")[2]
    return struct.pack("!i", 11) + b"r=" + nonce + b"more,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


async def let_in_without_a_proof(server: Server) -> None:
    assert await server.ask(await begin_scram(server))
    await server.admit()


async def let_in_at_once(server: Server) -> None:
    await begin_scram(server)
    await server.admit()


async def prove_wrongly(server: Server) -> None:
    assert await server.ask(await begin_scram(server))
    await server.ask(struct.pack("!i", 12) + b"v=AAAA")


async def take_our_nonce_for_its_own(server: Server) -> None:
    first = await server.ask(sasl(PLAIN))
    nonce = first.rpartition(b"r=")[2]
    await server.ask(struct.pack("!i", 11) + b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")


@pytest.mark.parametrize("asks", [let_in_without_a_proof, let_in_at_once, prove_wrongly, take_our_nonce_for_its_own])
async def test_a_server_that_does_not_prove_that_it_knows_the_password_is_refused(asks: Asks) -> None:
    async with serving(asks) as (dsn, _):
        with pytest.raises(RetrySlowly, match="login aborted") as caught:
            await connect_replication(dsn)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("asks", [ask_in_the_clear, let_in_at_once, lambda server: server.admit()])
async def test_where_channel_binding_is_required_nothing_else_will_do(asks: Asks) -> None:
    async with serving(asks) as (dsn, servers):
        with pytest.raises(RetrySlowly, match="channel_binding=require"):
            await connect_replication(f"{dsn}?channel_binding=require")
    assert servers[0].heard == b""


async def test_without_tls_plus_is_not_chosen() -> None:
    async def ask(server: Server) -> None:
        assert (await server.ask(sasl(PLUS, PLAIN))).startswith(PLAIN.encode() + b"\0")

    async with serving(ask) as (dsn, servers):
        with pytest.raises(WalgateError):
            await connect_sql(dsn)
    assert b"n,,n=" in servers[0].heard


async def test_no_password_where_one_is_asked_for_is_said() -> None:
    async def ask(server: Server) -> None:
        await server.ask(sasl(PLAIN))

    async with serving(ask) as (dsn, _):
        with pytest.raises(RetrySlowly, match="requests a password, but none is configured"):
            await connect_sql(dsn.replace(f":{PASSWORD}", ""))


async def test_a_mechanism_that_nobody_knows_is_named() -> None:
    async def ask(server: Server) -> None:
        await server.ask(sasl("OAUTHBEARER"))

    async with serving(ask) as (dsn, _):
        with pytest.raises(WalgateError, match="OAUTHBEARER"):
            await connect_sql(dsn)


async def test_an_answer_of_something_else_is_not_waited_for() -> None:
    async def greet(server: Server) -> None:
        server.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await server.reader.read()

    async with serving(greet) as (dsn, _):
        with pytest.raises(StopForOperator, match="not a PostgreSQL server"):
            await connect_sql(f"{dsn}?sslmode=disable")


async def test_a_login_that_arrives_byte_by_byte_is_the_same() -> None:
    async def drip(server: Server) -> None:
        reports = b"".join(parameter_status(*report) for report in REPORTS.items())
        for byte in OK + reports + message("K", struct.pack("!ii", 4711, 1)) + READY:
            server.writer.write(bytes([byte]))
            await server.writer.drain()
            await asyncio.sleep(0)
        await server.reader.read()

    async with serving(drip) as (dsn, _):
        (await connect_sql(dsn)).terminate()


async def test_an_error_before_the_login_is_classified_with_its_host() -> None:
    async def refuse(server: Server) -> None:
        server.writer.write(error("53300", "too many clients", severity="FATAL"))
        await server.reader.read()

    async with serving(refuse) as (dsn, _):
        with pytest.raises(RetrySlowly, match=r"at 127\.0\.0\.1:\d+: FATAL 53300"):
            await connect_sql(dsn)
