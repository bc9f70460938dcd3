"""Log in to PostgreSQL with asyncpg: for SQL, and for replication.

The replication connection is asyncpg's up to ReadyForQuery: TLS, SCRAM, password file, several hosts. asyncpg does not know
CopyBoth, so then its transport gets a protocol of ours (`ReplicationStream`) and asyncpg's connection is left empty.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from gateway.operate.errors import Retry, StopForOperator, WalgateError
from gateway.replication.errors import DRIVER_ERRORS, classify_exception
from gateway.replication.feedback import LEAVE_AFTER_S, LONGEST_SILENCE_S
from gateway.replication.inbox import CAPACITY
from gateway.replication.stream import PINNED_REPORTS, ReplicationStream, check_report

APPLICATION_NAME: Final = "walgate"
_COMMAND_TIMEOUT_S: Final = 60.0
# Values are read as text in these forms; the session's settings win over those of server, database and role.
PINNED_SETTINGS: Final = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    # A notice within the stream is taken as bad news (see classify_notice): let no debug message be one.
    "client_min_messages": "warning",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "application_name": APPLICATION_NAME,
}


class _HandedOver(asyncpg.Connection):  # type: ignore[misc]  # asyncpg's own stubs are partial
    """A connection whose transport can be taken away."""

    def hand_over(self, stream: ReplicationStream) -> None:
        """Give the authenticated transport to `stream`; this object is closed from then on."""
        transport: asyncio.Transport = self._transport  # type: ignore[has-type]
        # uvloop chooses between its two ways to read when reading starts, so it must stop for the change.
        transport.pause_reading()
        stream.connection_made(transport)
        transport.set_protocol(stream)
        transport.resume_reading()
        # asyncpg's destructor would otherwise warn and abort the transport.
        self._aborted = True
        self._protocol = None
        self._transport = None


async def connect_sql(dsn: str, *, timeout_s: float = 30.0, search_path: str = "") -> asyncpg.Connection:
    """An ordinary connection for catalog queries, which may take a minute each. Raises classified errors.

    With an empty search_path nobody's function or operator can take the place of one of pg_catalog's.
    """
    settings = {**PINNED_SETTINGS, "search_path": search_path}
    connection: asyncpg.Connection = await _connect(
        dsn, timeout_s, "connection to PostgreSQL", settings, command_timeout=_COMMAND_TIMEOUT_S
    )
    _detect_dead_peer(connection._transport.get_extra_info("socket"), LONGEST_SILENCE_S)
    return connection


async def connect_replication(
    dsn: str, *, timeout_s: float = 30.0, capacity: int = CAPACITY, silence_limit_s: float = LONGEST_SILENCE_S
) -> ReplicationStream:
    """Log in as a walsender of the DSN's database. `capacity` is the size of the receive buffer in bytes.

    TCP gives the connection up when something we sent is not acknowledged for `silence_limit_s`. Raises classified errors.
    """
    doing = "replication connection to PostgreSQL"
    # What a regclass shows depends on search_path; so names have their schema, but for those in pg_catalog.
    settings = {**PINNED_SETTINGS, "search_path": "", "replication": "database"}
    connection = await _connect(dsn, timeout_s, doing, settings, connection_class=_HandedOver, statement_cache_size=0)
    reports = connection.get_settings()
    for name in PINNED_REPORTS:
        error = check_report(name, getattr(reports, name, "unknown"), doing)
        if error is not None:
            connection.terminate()
            raise error
    stream = ReplicationStream(doing, capacity=capacity, backend_pid=connection.get_server_pid())
    _detect_dead_peer(connection._transport.get_extra_info("socket"), silence_limit_s)
    connection.hand_over(stream)
    return stream


async def _connect(dsn: str, timeout_s: float, doing: str, settings: dict[str, str], **options: Any) -> Any:
    try:
        return await asyncpg.connect(dsn, timeout=timeout_s, server_settings=settings, **options)
    except asyncpg.UndefinedObjectError as error:
        raise StopForOperator(
            f"{doing}: source.dsn has a parameter that the server does not know: {error.args[0]}",
            hint="behind the ? may stand sslmode, sslrootcert, sslcert, sslkey, target_session_attrs, passfile and settings of "
            "the server; not libpq's connect_timeout or keepalives: the gateway has its own",
        ) from error
    except (FileNotFoundError, PermissionError) as error:
        raise _unreadable_file(dsn, doing) or classify_exception(error, doing) from error
    except DRIVER_ERRORS as error:
        if isinstance(error, asyncpg.ClientConfigurationError):
            raise _unusable_dsn(doing) from None
        raise classify_exception(error, doing) from error
    except ValueError:
        raise _unusable_dsn(doing) from None


def _unusable_dsn(doing: str) -> WalgateError:
    """What asyncpg or urllib says of it may quote the password."""
    return StopForOperator(
        f"{doing}: source.dsn can not be used",
        hint="postgresql://user:password@host:port/database?sslmode=...: percent-encode / ? # @ : % in the password; ports are "
        "numbers; sslmode is disable, allow, prefer, require, verify-ca or verify-full, the last two with sslrootcert=FILE",
    )


def _unreadable_file(dsn: str, doing: str) -> WalgateError | None:
    """Which certificate is missing the error does not say; and it looks like that of a socket whose server is starting."""
    named = dict(parse_qsl(urlsplit(dsn).query))
    for parameter in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        variable = f"PG{parameter.upper()}"
        path = named.get(parameter) or os.environ.get(variable)
        if path and not os.access(path, os.R_OK):
            return StopForOperator(f"{doing}: {parameter} (source.dsn, {variable}) can not be read: {path}")
    return None


def _detect_dead_peer(connected: Any, silence_limit_s: float) -> None:
    """TCP keepalive and TCP_USER_TIMEOUT: a peer that is gone without a word ends the connection."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(int(silence_limit_s / 2), 1)),
        ("TCP_KEEPINTVL", max(int(silence_limit_s / 6), 1)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(silence_limit_s * 1000)),
    ):
        option = getattr(socket, name, None)  # macOS has other names, and its own defaults
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def leave_with(sql: asyncpg.Connection, stream: ReplicationStream) -> None:
    """When the server ends the SQL connection, end the stream soon after.

    A stopping server ends its ordinary sessions at once and its walsenders last, when they are confirmed. While reading
    is paused nothing else tells of it: the requests of the walsender lie unread in the socket.
    """
    loop = asyncio.get_running_loop()

    def leave() -> None:
        if stream.failure is None:
            stream.fail(Retry("PostgreSQL ended the SQL connection: it is stopping, or an administrator did so"))

    def ended(_: Any) -> None:
        loop.call_later(LEAVE_AFTER_S, leave)

    sql.add_termination_listener(ended)
