"""Open connections to PostgreSQL with asyncpg, for SQL and for replication.

Up to ReadyForQuery, the replication connection belongs to asyncpg; login.py opens it. asyncpg does
not know CopyBoth, so the transport is then handed over to the gateway's own protocol
(`ReplicationStream`), and asyncpg's connection object is left empty.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg

from gateway.errors import Retry, WalgateError
from gateway.names import APPLICATION_NAME
from gateway.postgres.asyncpg_internals import Address, TransportHandover, address_of, transport_of
from gateway.postgres.classify_errors import DRIVER_ERRORS, classify_exception
from gateway.postgres.credentials import Credentials
from gateway.postgres.login import log_in, shown
from gateway.postgres.receive_buffer import CAPACITY, LARGEST_MESSAGE, LARGEST_ROW
from gateway.postgres.replication_stream import PINNED_REPORTS, ReplicationStream, check_report
from gateway.postgres.standby_status import LEAVE_AFTER_S, LONGEST_SILENCE_S

_COMMAND_TIMEOUT_S: Final = 60.0
_CANCELLATION_S: Final = 1.0
# The session's settings override those of server, database and role. All other settings that a role
# may carry are harmless: the test of all of pg_settings (tests/snapshot/test_every_setting.py)
# gives each its minimum and maximum.
PINNED_SETTINGS: Final = {
    # Text formats of values that the gateway reads.
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    # Statements have their standard meaning: literals of keys, arrays with nulls, comparisons with
    # null.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    # The rights are those of the role that logs in; its transactions may write, and see what was
    # committed before each statement.
    "role": "none",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # A chunk is read as a range of blocks, and a row by its key: without these, each would read the
    # whole table.
    "enable_tidscan": "on",
    "enable_indexscan": "on",
    "enable_bitmapscan": "on",
    # If work_mem is terabytes, a query of the catalog can take all memory of the server, because a
    # hash table is as large as the planner's estimate. With the minimum, the query would sort on
    # disk.
    "work_mem": "16MB",
    "hash_mem_multiplier": "2",
    # Costs that are infinite or zero make all plans equal, and the first one is taken.
    "seq_page_cost": "1",
    "random_page_cost": "1.1",
    "cpu_tuple_cost": "0.01",
    "cpu_index_tuple_cost": "0.005",
    "cpu_operator_cost": "0.0025",
    # The server's parallel workers are for others.
    "max_parallel_workers_per_gather": "0",
    # With higher limits, planning a query of the catalog that joins many tables can take minutes.
    "from_collapse_limit": "8",
    "join_collapse_limit": "8",
    # A statement is run once: compiling it takes longer than it saves.
    "jit": "off",
    # A notice in the stream is taken as bad news (see classify_notice), so no debug message may
    # appear.
    "client_min_messages": "warning",
    "exit_on_error": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # If the gateway is a synchronous standby, its own COMMITs (heartbeats, commands) would wait for
    # itself.
    "synchronous_commit": "local",
    "application_name": APPLICATION_NAME,
}
_PINNED_SINCE_17: Final = "SET transaction_timeout = 0"
"""An older server does not know the setting and would refuse the login if it were in
PINNED_SETTINGS."""


async def connect_sql(
    login: Credentials | str, *, timeout_s: float = 30.0, search_path: str = "", avoid: Sequence[Address] = ()
) -> asyncpg.Connection:
    """Return an ordinary connection for catalog queries, which may take a minute each. Raises
    WalgateError.

    `login` may be a DSN alone. Hosts in `avoid` are tried last. With an empty search_path no user's
    function or operator can take the place of one of pg_catalog's.
    """
    settings = {**PINNED_SETTINGS, "search_path": search_path}
    connection = await log_in(
        _login(login),
        "connection to PostgreSQL",
        settings,
        timeout_s=timeout_s,
        command_timeout=_COMMAND_TIMEOUT_S,
        avoid=avoid,
    )
    await _pin_newer_settings(connection, "connection to PostgreSQL")
    _detect_dead_peer(transport_of(connection).get_extra_info("socket"), LONGEST_SILENCE_S)
    return connection


@asynccontextmanager
async def sql_session(
    login: Credentials | str, *, timeout_s: float = 30.0, avoid: Sequence[Address] = ()
) -> AsyncIterator[asyncpg.Connection]:
    """Open a connection as `connect_sql` does, and terminate it at the end."""
    sql = await connect_sql(login, timeout_s=timeout_s, avoid=avoid)
    try:
        yield sql
    finally:
        sql.terminate()


async def _pin_newer_settings(connection: asyncpg.Connection, doing: str) -> None:
    if connection.get_server_version().major < 17:
        return
    try:
        await connection.execute(_PINNED_SINCE_17)
    except BaseException as error:
        connection.terminate()
        if isinstance(error, DRIVER_ERRORS):
            raise classify_exception(error, doing) from error
        raise


@asynccontextmanager
async def transaction(sql: asyncpg.Connection, **options: Any) -> AsyncIterator[None]:
    """Run the block as `sql.transaction(**options)` does. Close the session if the block ends with
    an exception that is neither an error from the server nor one of the gateway's own, above all
    with a cancellation. Raises what the block and the driver raise."""
    begun = sql.transaction(**options)
    try:
        await begun.start()
        yield
        await begun.commit()
    except BaseException as error:
        is_ours = isinstance(error, (asyncpg.PostgresError, WalgateError))
        if is_ours and not sql.is_closed() and sql.is_in_transaction():
            with suppress(*DRIVER_ERRORS):
                await begun.rollback()
        else:
            await end_session(sql)
        raise


async def end_session(sql: asyncpg.Connection) -> None:
    """Close the session after a statement that was cancelled or got no answer. asyncpg sends a
    CancelRequest, so that the server does not complete the statement. But before ROLLBACK, or
    before the end of COPY, asyncpg then waits up to 60 s for an answer that may have arrived
    already. Therefore the session is closed, and the answer is awaited for at most
    `_CANCELLATION_S`."""
    with suppress(*DRIVER_ERRORS):
        await sql.close(timeout=_CANCELLATION_S)


async def connect_replication(
    login: Credentials | str,
    *,
    timeout_s: float = 30.0,
    capacity: int = CAPACITY,
    largest_row: int = LARGEST_ROW,
    largest_message: int = LARGEST_MESSAGE,
    silence_limit_s: float = LONGEST_SILENCE_S,
    wal_sender_timeout_s: float | None = None,
) -> ReplicationStream:
    """Open a logical replication connection to the database that `login` names. `capacity` is the
    size of the receive buffer in bytes. Only the head is kept of rows larger than `largest_row` and
    of logical messages larger than `largest_message` (receive_buffer.py).

    TCP gives up the connection if data that was sent is not acknowledged for `silence_limit_s`. The
    server closes it if it gets no status for `wal_sender_timeout_s` (None: the server's setting).
    Raises WalgateError.
    """
    doing = "replication connection to PostgreSQL"
    # The text of a regclass depends on search_path: with an empty one, names outside pg_catalog
    # have their schema.
    settings = {**PINNED_SETTINGS, "search_path": "", "replication": "database"}
    if wal_sender_timeout_s is not None:
        settings["wal_sender_timeout"] = f"{wal_sender_timeout_s * 1000:.0f}ms"
    connection: Any = await log_in(
        _login(login),
        doing,
        settings,
        timeout_s=timeout_s,
        connection_class=TransportHandover,
        statement_cache_size=0,
    )
    reports = connection.get_settings()
    for name in PINNED_REPORTS:
        error = check_report(name, getattr(reports, name, "unknown"), doing)
        if error is not None:
            connection.terminate()
            raise error
    await _pin_newer_settings(connection, doing)
    stream = ReplicationStream(
        doing,
        capacity=capacity,
        largest_row=largest_row,
        largest_message=largest_message,
        backend_pid=connection.get_server_pid(),
        server_major=connection.get_server_version().major,
    )
    _detect_dead_peer(transport_of(connection).get_extra_info("socket"), silence_limit_s)
    connection.hand_over(stream)
    return stream


def address_text(connection: asyncpg.Connection) -> str:
    """Return host:port, or the path of the socket."""
    return shown(address_of(connection))


def _login(login: Credentials | str) -> Credentials:
    return Credentials(login) if isinstance(login, str) else login


def _detect_dead_peer(connected: Any, silence_limit_s: float) -> None:
    """Set TCP keepalive and TCP_USER_TIMEOUT, so that the connection ends when the peer disappears
    without closing it."""
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
    """End the stream soon after the server has ended the SQL connection.

    A server that shuts down ends its ordinary sessions at once. It ends its walsenders last, when
    the standbys have confirmed everything. While reading is paused, nothing else shows the
    shutdown: the walsender's requests lie unread in the socket.
    """
    loop = asyncio.get_running_loop()

    def leave() -> None:
        if stream.failure is None:
            stream.fail(
                Retry(
                    "PostgreSQL closed the regular connection: it is shutting down, or an administrator terminated it"
                )
            )

    def ended(_: Any) -> None:
        loop.call_later(LEAVE_AFTER_S, leave)

    sql.add_termination_listener(ended)
