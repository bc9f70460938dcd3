"""Log in through asyncpg's protocol, but with a separate SCRAM implementation. A password in
cleartext is only sent over TLS or within this host.

asyncpg (0.32, coreproto.pyx) sends the password in cleartext to any server that asks for it, with
or without TLS, and does SCRAM without channel binding. Therefore the server's messages up to
AuthenticationOk are read here first, and the remaining ones are passed to asyncpg. A login that was
completed here looks to asyncpg like one that needed no password.

If the server does not speak PostgreSQL's protocol, `service_at` finds out what it is. A server that
waits for the rest of a request, as HTTP servers do after an SSLRequest, would otherwise look like a
slow PostgreSQL server.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from ipaddress import ip_address
from typing import Any, Final

from gateway.errors import RetrySlowly, StopForOperator, WalgateError
from gateway.postgres.asyncpg_internals import BoundedProtocol
from gateway.postgres.scram import PLAIN, PLUS, Scram, ScramError, certificate_hash

_LARGEST: Final = 1 << 16
"""The maximum length of a message before authentication. libpq accepts an error of at most 30,000
bytes."""
_HEADER: Final = struct.Struct("!ci")
PATIENCE_S: Final = 2.0
"""A server that has not answered for this long is examined by `service_at`."""
_LISTENING_S: Final = 0.4
"""The time to wait for a greeting."""
_ANSWER_S: Final = 1.0
_SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
_GET: Final = b"GET / HTTP/1.0\r\n\r\n"
_API_VERSIONS: Final = struct.pack("!ihhih", 12, 18, 0, 1, 2) + b"wg"
_NOTHING: Final = (OSError, TimeoutError, asyncio.IncompleteReadError)


class ChannelBinding(enum.Enum):
    """`channel_binding` of the DSN, with libpq's meaning."""

    DISABLE = "disable"
    PREFER = "prefer"
    REQUIRE = "require"


class LoginProtocol(BoundedProtocol):
    """asyncpg's protocol, except that this class authenticates. `admitted` is asyncpg's future, and
    `doing` names the connection in errors. `is_bound` says whether the login proved that there is
    no man in the middle with another certificate."""

    def __init__(
        self,
        address: Any,
        admitted: asyncio.Future[Any],
        parameters: Any,
        record_class: type,
        loop: asyncio.AbstractEventLoop,
        *,
        doing: str,
        channel_binding: ChannelBinding,
    ) -> None:
        super().__init__(address, admitted, parameters, record_class, loop)
        self.is_bound = False
        self._admitted = admitted
        self._login_password: str = parameters.password or ""
        self._doing = doing
        self._channel_binding = channel_binding
        self._is_in = False
        self._pending = b""
        self._scram: Scram | None = None
        self._is_verified = False

    def data_received(self, data: bytes) -> None:
        if self._is_in:
            super().data_received(data)
            return
        self._pending += data
        try:
            self._log_in()
        except WalgateError as error:
            if not self._admitted.done():
                self._admitted.set_exception(error)
            self._wire.abort()

    def _log_in(self) -> None:
        """Handle the messages that have arrived; those after AuthenticationOk are left to
        asyncpg."""
        while message := self._next_message():
            if self._is_asyncpgs(message):
                super().data_received(message)
            if self._is_in:
                rest, self._pending = self._pending, b""
                if rest:
                    super().data_received(rest)
                return

    def _next_message(self) -> bytes:
        """Return the next whole message, or b"" if there is none."""
        if len(self._pending) < _HEADER.size:
            return b""
        _, length = _HEADER.unpack_from(self._pending)
        if not 4 <= length <= _LARGEST:
            raise StopForOperator(
                f"{self._doing}: this is not a PostgreSQL server: it sent a message of {length} bytes before authentication",
                hint="check the host and the port in source.dsn",
            )
        if len(self._pending) < 1 + length:
            return b""
        message, self._pending = self._pending[: 1 + length], self._pending[1 + length :]
        return message

    def _is_asyncpgs(self, message: bytes) -> bool:
        """Act on an authentication request. Return whether asyncpg must see the message."""
        if message[:1] != b"R" or len(message) < 9:
            return True
        (request,) = struct.unpack_from("!i", message, 5)
        content = message[9:]
        match request:
            case 0:
                self._check_admission()
                self._is_in = True
            case 10:
                return self._begin_scram(content)
            case 11 | 12 if self._scram is not None:
                self._continue_scram(self._scram, content, is_final=request == 12)
                return False
            case 3:
                self._refuse_cleartext()
            case _:
                self._demand_binding()
        return True

    def _check_admission(self) -> None:
        if self._scram is not None and not self._is_verified:
            raise self._refused("the server accepted the login without proving that it knows the password")
        if not self.is_bound:
            self._demand_binding()

    def _demand_binding(self) -> None:
        if self._channel_binding is ChannelBinding.REQUIRE:
            raise self._refused(
                "channel_binding=require is set, but the server did not prove its identity by channel binding"
            )

    def _refuse_cleartext(self) -> None:
        self._demand_binding()
        if self._wire.get_extra_info("ssl_object") is None and not is_local(self._wire):
            raise RetrySlowly(
                f"{self._doing}: the server requests the password in cleartext over a connection without TLS: refused",
                hint="set sslmode=verify-full and sslrootcert in source.dsn, or require scram-sha-256 in pg_hba.conf",
            )

    def _begin_scram(self, content: bytes) -> bool:
        offered = [name.decode("ascii", "replace") for name in content.split(b"\0") if name]
        if PLAIN not in offered and PLUS not in offered:
            return True  # asyncpg's error names the mechanisms that the server wants
        if not self._login_password:
            raise RetrySlowly(
                f"{self._doing}: the server requests a password, but none is configured",
                hint="set it in source.dsn or a passfile, or with source.password_file or source.password_command",
            )
        binding = None if self._channel_binding is ChannelBinding.DISABLE else self._binding()
        self._scram = Scram(self._login_password, offered, binding)
        if not self._scram.is_bound:
            self._demand_binding()
        first = self._scram.first()
        self._answer(self._scram.mechanism.encode() + b"\0" + struct.pack("!i", len(first)) + first)
        return False

    def _binding(self) -> bytes | None:
        encrypted = self._wire.get_extra_info("ssl_object")
        certificate = None if encrypted is None else encrypted.getpeercert(binary_form=True)
        return None if certificate is None else certificate_hash(certificate)

    def _continue_scram(self, scram: Scram, content: bytes, *, is_final: bool) -> None:
        try:
            if is_final:
                scram.verify(content)
                self._is_verified, self.is_bound = True, scram.is_bound
            else:
                self._answer(scram.final(content))
        except ScramError as error:
            raise self._refused(str(error)) from error

    def _answer(self, content: bytes) -> None:
        self._wire.write(b"p" + struct.pack("!i", len(content) + 4) + content)

    def _refused(self, reason: str) -> WalgateError:
        return RetrySlowly(
            f"{self._doing}: login aborted: {reason}",
            hint="check that this is the intended server, and that there is no proxy in between. For channel binding, the "
            "server must use TLS, and pg_hba.conf must require scram-sha-256",
        )


def is_local(transport: Any) -> bool:
    """Return whether the other end is on this host."""
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family == getattr(socket, "AF_UNIX", None):
        return True
    peer = transport.get_extra_info("peername")
    try:
        address = ip_address(peer[0].partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def not_postgresql(doing: str, service: str) -> StopForOperator:
    return StopForOperator(
        f"{doing}: this is not a PostgreSQL server, but {service}", hint="check the host and the port in source.dsn"
    )


async def service_at(host: str, port: int) -> str:
    """Return the kind of service at this address, with an article; "" if it is PostgreSQL, a
    pooler, or unknown. Never raises."""
    greeting = await _answer(host, port, b"", _LISTENING_S)
    if greeting.startswith(b"SSH-"):
        return "an SSH server"
    if len(greeting) > 5 and greeting[3] == 0 and greeting[4] in (0x0A, 0xFF):
        return "a MySQL or MariaDB server"
    if greeting.startswith((b"220", b"+OK", b"* OK")):
        return "a mail or FTP server"
    if await _answer(host, port, _SSL_REQUEST, _ANSWER_S, most=4) in (b"S", b"N"):
        return ""
    answer = await _answer(host, port, _GET, _ANSWER_S)
    if answer.startswith(b"HTTP/"):
        return "an HTTP server"
    if answer.startswith((b"-ERR", b"-DENIED", b"-NOAUTH")):
        return "a Redis server"
    if answer[:2] == b"\x15\x03":
        return "a TLS server of another service"
    answer = await _answer(host, port, _API_VERSIONS, _ANSWER_S)
    if len(answer) > 10 and struct.unpack_from("!i", answer, 4) == (1,):
        return "a Kafka broker"
    return ""


async def _answer(host: str, port: int, request: bytes, timeout_s: float, *, most: int = 512) -> bytes:
    """Send a request. Return the first bytes of the answer, or b"" if none arrive."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            return await reader.read(most)
    except _NOTHING:
        return b""
    finally:
        if writer is not None:
            writer.close()
