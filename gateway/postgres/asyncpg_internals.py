"""The parts of asyncpg (0.32) beyond its documented interface. No other module of the gateway
touches a private attribute of asyncpg (enforced by ruff's SLF001 and TID251).
tests/postgres/test_login.py fails if a new version breaks one of these.

The reason for each, and what would make it unnecessary:

* `Protocol`, `was_asked`. asyncpg sends the password in cleartext to any server that asks for it,
  and does SCRAM without channel binding (authentication.py). Unnecessary when asyncpg can refuse
  cleartext and use channel binding.
* `BoundedProtocol`. asyncpg holds a message until it is whole, and a row of COPY is one message of
  up to 1 GB. Unnecessary when asyncpg can limit the size of messages.
* `parse_dsn`, `open_with_tls`, `is_wanted`. In asyncpg, all hosts of a DSN share one time limit and
  one error (login.py). Unnecessary when each host has its own.
* `transport_of`, `TransportHandover`. asyncpg does not know CopyBoth, and sets no keepalive
  (connection.py). Unnecessary with replication connections in asyncpg.
* `address_of`. No documented attribute says which of the hosts was chosen. Unnecessary with a
  public attribute.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

import asyncpg
from asyncpg import connect_utils
from asyncpg.connect_utils import SessionAttribute, SSLMode, SSLNegotiation
from asyncpg.protocol import Protocol
from librt.strings import read_i32_be

from gateway.postgres.copy_frames import HEADER_BYTES, skip_messages

__all__ = ["SSLMode", "SSLNegotiation", "SessionAttribute"]

Address = tuple[str, int] | str
"""Host and port, or the path of a socket."""

TryOtherTransport: Final[type[Exception]] = connect_utils._RetryConnectSignal

_LIMITS: Final = {"max_cached_statement_lifetime": 300, "max_cacheable_statement_size": 15 * 1024}
"""asyncpg's own defaults."""
_ROOTS: Final = "PGSSLROOTCERT"
_FROM_DSN: Final = (
    "host", "port", "user", "passfile", "database", "ssl", "direct_tls", "target_session_attrs", "krbsrvname", "gsslib",
    "service", "servicefile",
)  # fmt: skip


def parse_dsn(
    dsn: str,
    password: str | None,
    settings: Mapping[str, str],
    options: Mapping[str, Any],
    *,
    with_system_roots: bool = False,
) -> tuple[list[Address], Any, Any]:
    """Return addresses, connection parameters and configuration, in asyncpg's own records. With
    `with_system_roots`, the server's certificate is verified in full by the authorities that the
    operating system trusts, although the DSN has sslmode=require."""
    variable = os.environ.pop(_ROOTS, None) if with_system_roots else None
    try:
        addresses, parameters, config = connect_utils._parse_connect_arguments(
            dsn=dsn, password=password, server_settings=settings, **options, **_LIMITS, **dict.fromkeys(_FROM_DSN)
        )
    finally:
        if variable is not None:
            os.environ[_ROOTS] = variable
    if with_system_roots and parameters.ssl:
        context: ssl.SSLContext = parameters.ssl
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = True
        parameters = parameters._replace(sslmode=SSLMode.verify_full)
    return addresses, parameters, config


async def is_wanted(connection: asyncpg.Connection, wanted: SessionAttribute) -> bool:
    """Return whether the server meets target_session_attrs."""
    return bool(await connect_utils._can_use_connection(connection, wanted))


async def open_with_tls(
    new_protocol: Callable[[], Protocol], address: tuple[str, int], parameters: Any, *, may_change: bool
) -> tuple[asyncio.Transport, Any]:
    """Open a connection with TLS. Raises TryOtherTransport if the server has no TLS and
    `may_change` is true."""
    opened: tuple[asyncio.Transport, Any] = await connect_utils._create_ssl_connection(
        new_protocol,
        *address,
        loop=asyncio.get_running_loop(),
        ssl_context=parameters.ssl,
        ssl_is_advisory=parameters.sslmode == SSLMode.prefer,
        retry=may_change,
    )
    return opened


class BoundedProtocol(Protocol):  # type: ignore[misc]  # asyncpg's stubs are partial
    """asyncpg's protocol, except that it closes the connection when a message begins that is larger
    than `largest_message`. The size of that message is then in `refused_bytes`. A subclass passes
    it the messages from the first one on."""

    largest_message = 1 << 30
    refused_bytes = 0
    _wire: Any = None
    _until_next = 0
    _begun_header = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = transport
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._look_at_headers(data)
        if self.refused_bytes:
            self._wire.abort()
        else:
            super().data_received(data)

    def _look_at_headers(self, data: bytes) -> None:
        if self._begun_header:
            data = self._begun_header + data
            self._begun_header = b""
        at, end = skip_messages(data, self._until_next, self.largest_message), len(data)
        if at + HEADER_BYTES <= end:
            self.refused_bytes = max(read_i32_be(data, at + 1), 0)
        self._begun_header, self._until_next = data[at:], max(at - end, 0)


def was_asked(protocol: Protocol) -> bool:
    """Return whether the server has accepted the authentication (AuthenticationOk)."""
    return bool(protocol._auth_received)


def protocol_of(connection: asyncpg.Connection) -> Any:
    return connection._protocol


def limit_messages(connection: asyncpg.Connection, largest_message: int) -> None:
    """Have the connection closed when the server sends a larger message, instead of holding it."""
    connection._protocol.largest_message = largest_message


def refused_bytes(connection: asyncpg.Connection) -> int:
    """Return the size of the message that closed the connection because it is too large, or 0."""
    size: int = connection._protocol.refused_bytes
    return size


def transport_of(connection: asyncpg.Connection) -> asyncio.Transport:
    transport: asyncio.Transport = connection._transport
    return transport


def address_of(connection: asyncpg.Connection) -> Address:
    """Return which host of the DSN the connection was made to."""
    address: Address = connection._addr
    return address


class TransportHandover(asyncpg.Connection):  # type: ignore[misc]  # asyncpg's own stubs are partial
    """A connection whose transport can be taken away."""

    def hand_over(self, successor: asyncio.BufferedProtocol) -> None:
        """Give the authenticated transport to `successor`; this object is closed from then on."""
        transport = transport_of(self)
        # uvloop chooses between its two ways of reading when reading starts, so reading must stop
        # before the protocol is changed.
        transport.pause_reading()
        successor.connection_made(transport)
        transport.set_protocol(successor)
        transport.resume_reading()
        # asyncpg's destructor would otherwise warn and abort the transport.
        self._aborted = True
        self._protocol = None
        self._transport = None
