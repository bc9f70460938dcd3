"""Log in to one of the hosts of the DSN with asyncpg.

asyncpg reads the DSN, TLS files, passfile and service file, and speaks the protocol. This module
chooses the next host, and whether to use TLS (sslmode), instead of `asyncpg.connect_utils` (0.32).
There are three reasons. Each error must name its host, a host that does not answer must leave time
for the next one, and `authentication.py` authenticates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import asyncpg
import structlog

from gateway.errors import Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.names import quote_identifier, where_local_is
from gateway.postgres import asyncpg_internals
from gateway.postgres.asyncpg_internals import Address, SessionAttribute, SSLMode, SSLNegotiation
from gateway.postgres.authentication import PATIENCE_S, LoginProtocol, is_local, not_postgresql, service_at
from gateway.postgres.classify_errors import DRIVER_ERRORS, NOT_WANTED, classify_exception
from gateway.postgres.credentials import (
    Credentials,
    check_dsn,
    check_form,
    take_channel_binding,
    take_system_roots,
    unnamed_database,
    unreadable_file,
    unusable_dsn,
    without_authority,
)

log = structlog.get_logger()

LEAST_HOST_TIMEOUT_S: Final = 5.0
_PARAMETERS: Final = (
    "sslmode, sslrootcert, sslcrl, sslcert, sslkey, sslpassword, sslnegotiation, target_session_attrs, passfile, "
    "channel_binding"
)
_OF_ANOTHER_SERVICE: Final = (ConnectionError, asyncpg.ConnectionDoesNotExistError, StopForOperator)
"""Errors with which a login to a server other than PostgreSQL may fail."""
_cautioned: set[Address] = set()
"""Addresses for which a warning was logged. The process warns once for each."""


@dataclass(frozen=True, slots=True)
class _Target:
    """The content of the DSN, in asyncpg's own records."""

    addresses: Sequence[Address]
    parameters: Any
    config: Any
    channel_binding: Any
    connection_class: type[asyncpg.Connection]


class _OtherTransport(Exception):
    """An attempt failed, and the same host may be tried with TLS instead of without, or the
    reverse. `__cause__` is the failure of that attempt."""


async def log_in(
    login: Credentials,
    doing: str,
    settings: dict[str, str],
    *,
    timeout_s: float,
    connection_class: type[asyncpg.Connection] = asyncpg.Connection,
    command_timeout: float | None = None,
    statement_cache_size: int = 100,
    avoid: Sequence[Address] = (),
) -> asyncpg.Connection:
    """Return a connection to the first host that accepts the login and satisfies
    target_session_attrs; hosts in `avoid` are tried last, in its order. If `login.server` is set,
    only that host is tried. Raises WalgateError, which names the hosts."""
    options = {"command_timeout": command_timeout, "statement_cache_size": statement_cache_size}
    target = await _read_dsn(login, doing, settings, options, connection_class)
    failures: list[WalgateError] = []
    limit_s = max(timeout_s / len(target.addresses), LEAST_HOST_TIMEOUT_S)
    for address in sorted(target.addresses, key=lambda address: avoid.index(address) if address in avoid else -1):
        place = f"{doing} at {shown(address)}"
        try:
            async with asyncio.timeout(limit_s):
                return await _unless_other_service(_log_in_at(address, target, place), address, place)
        except WalgateError as error:
            failures.append(error)
        except DRIVER_ERRORS as error:
            failures.append(_classified(error, login.dsn, place))
            failures[-1].hint = _prefix(error, address, login.dsn) + _with_names(failures[-1].hint, target.parameters)
        if isinstance(failures[-1], StopForOperator):
            break
    raise _joined(failures)


async def addresses_of(login: Credentials) -> list[Address]:
    """Return the hosts that the DSN names, in its order. Raises WalgateError."""
    options = {"command_timeout": None, "statement_cache_size": 0}
    target = await _read_dsn(login, "connection to PostgreSQL", {}, options, asyncpg.Connection)
    return list(target.addresses)


def _with_names(hint: str, parameters: Any) -> str:
    """Return the hint with the names of the role and the database that were used."""
    role, database = (quote_identifier(name) for name in (parameters.user, parameters.database))
    return hint.replace("<role>", role).replace("<database>", database)


def _prefix(error: BaseException, address: Address, dsn: str) -> str:
    """Return the beginning of a hint about a likely mistake in the DSN (localhost in a container,
    or no database), or ""."""
    if isinstance(error, ConnectionRefusedError) and not isinstance(address, str):
        return where_local_is(address[0])
    return unnamed_database(dsn) if isinstance(error, asyncpg.InvalidCatalogNameError) else ""


async def _unless_other_service(
    attempt: Coroutine[Any, Any, asyncpg.Connection], address: Address, place: str
) -> asyncpg.Connection:
    """Return the result of `attempt`, or raise an error that names the service at the address as
    soon as it is known not to be PostgreSQL."""
    if isinstance(address, str):
        return await attempt
    logging_in = asyncio.create_task(attempt)
    asking: asyncio.Task[str] | None = None
    try:
        await asyncio.wait({logging_in}, timeout=PATIENCE_S)
        if not logging_in.done() or _may_be_of_another_service(logging_in.exception()):
            asking = asyncio.create_task(service_at(*address))
            waited_for: set[asyncio.Task[Any]] = {asking} if logging_in.done() else {asking, logging_in}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and asking.result():
                raise not_postgresql(place, asking.result())
        return await logging_in
    finally:
        for task in filter(None, (logging_in, asking)):
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            task.cancel()


def _may_be_of_another_service(error: BaseException | None) -> bool:
    """Return whether a service other than PostgreSQL may have caused the error. If the connection
    was refused, there is no service."""
    return isinstance(error, _OF_ANOTHER_SERVICE) and not isinstance(error, ConnectionRefusedError)


def shown(address: Address) -> str:
    if isinstance(address, str):
        return address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _joined(failures: list[WalgateError]) -> WalgateError:
    """Return one error for several hosts. The host to be retried soonest determines how long to
    wait."""
    if len(failures) == 1 or isinstance(failures[-1], StopForOperator):
        return failures[-1]
    kind = Retry if any(isinstance(failure, Retry) for failure in failures) else RetrySlowly
    hints = dict.fromkeys(failure.hint for failure in failures if failure.hint)
    return kind("; ".join(failure.message for failure in failures), hint="; ".join(hints))


async def _read_dsn(
    login: Credentials,
    doing: str,
    settings: dict[str, str],
    options: dict[str, Any],
    connection_class: type[asyncpg.Connection],
) -> _Target:
    check_form(login.dsn, doing)
    check_dsn(login.dsn, doing)
    password = await login.password()
    try:
        dsn, channel_binding = take_channel_binding(login.dsn)
        dsn, with_system_roots = take_system_roots(dsn, doing)
        addresses, parameters, config = asyncpg_internals.parse_dsn(
            dsn, password, settings, options, with_system_roots=with_system_roots
        )
    except OSError as error:
        raise unreadable_file(login.dsn, doing) or classify_exception(error, doing) from error
    except (asyncpg.ClientConfigurationError, ValueError):
        raise without_authority(login.dsn, doing) or unusable_dsn(doing) from None
    if login.server is not None:
        addresses = [login.server]
    return _Target(addresses, parameters, config, channel_binding, connection_class)


async def _log_in_at(address: Address, target: _Target, place: str) -> asyncpg.Connection:
    wanted = target.parameters.target_session_attrs
    connection = await _connect(address, target, place)
    try:
        is_wanted = await asyncpg_internals.is_wanted(connection, wanted)
    except BaseException:
        connection.terminate()
        raise
    if not is_wanted and wanted != SessionAttribute.prefer_standby:
        connection.terminate()
        raise RetrySlowly(f"{place}: this server does not satisfy target_session_attrs={wanted.value}", hint=NOT_WANTED)
    _caution(address, target, connection)
    return connection


async def _connect(address: Address, target: _Target, place: str) -> asyncpg.Connection:
    """Connect with TLS or without it, or try one and then the other, as sslmode demands (PostgreSQL
    manual, 32.1.2)."""
    with_tls, without_tls = target.parameters, target.parameters._replace(ssl=None)
    mode = None if isinstance(address, str) else target.parameters.sslmode
    ways = {SSLMode.allow: [without_tls, with_tls], SSLMode.prefer: [with_tls, without_tls]}.get(mode, [with_tls])
    try:
        return await _attempt(address, ways[0], target, place, may_change=len(ways) > 1)
    except _OtherTransport as first:
        reason = first.__cause__
    try:
        return await _attempt(address, ways[1], target, place, may_change=False)
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.ConnectionDoesNotExistError) as error:
        # The first error was about a wrong password: that pg_hba.conf has no entry for the other
        # transport must not hide it.
        if isinstance(reason, asyncpg.InvalidPasswordError) and not isinstance(error, asyncpg.InvalidPasswordError):
            raise reason from None
        raise


async def _attempt(
    address: Address, parameters: Any, target: _Target, place: str, *, may_change: bool
) -> asyncpg.Connection:
    """Connect with or without TLS, as `parameters` says. Raises _OtherTransport if `may_change` is
    true and the failure may be due to this choice."""
    loop = asyncio.get_running_loop()
    admitted: asyncio.Future[Any] = loop.create_future()

    def new_protocol() -> LoginProtocol:
        return LoginProtocol(
            address, admitted, parameters, asyncpg.Record, loop, doing=place, channel_binding=target.channel_binding
        )

    try:
        transport, protocol = await _open(address, parameters, new_protocol, may_change=may_change)
    except BaseException:
        admitted.cancel()
        raise
    try:
        await admitted
    except asyncpg.PostgresError as error:
        transport.close()
        if may_change and not asyncpg_internals.was_asked(protocol):
            raise _OtherTransport from error
        raise
    except BaseException:
        transport.close()
        raise
    connection = target.connection_class(protocol, transport, loop, address, target.config, parameters)
    protocol.set_connection(connection)
    return connection


async def _open(address: Address, parameters: Any, new_protocol: Any, *, may_change: bool) -> tuple[Any, Any]:
    loop: Any = asyncio.get_running_loop()
    if isinstance(address, str):
        return await loop.create_unix_connection(new_protocol, address)  # type: ignore[no-any-return]
    if not parameters.ssl:
        return await loop.create_connection(new_protocol, *address)  # type: ignore[no-any-return]
    if parameters.ssl_negotiation is SSLNegotiation.direct:
        return await loop.create_connection(new_protocol, *address, ssl=parameters.ssl)  # type: ignore[no-any-return]
    try:
        return await asyncpg_internals.open_with_tls(new_protocol, address, parameters, may_change=may_change)
    except asyncpg_internals.TryOtherTransport as signal:
        raise _OtherTransport from signal.__cause__


def _caution(address: Address, target: _Target, connection: asyncpg.Connection) -> None:
    """Warn if the server's identity is not verified: a man in the middle, or a server that pretends
    to be the right one, could read every row."""
    protocol = asyncpg_internals.protocol_of(connection)
    verified = target.parameters.sslmode >= SSLMode.verify_full and protocol.is_ssl
    if verified or protocol.is_bound or is_local(asyncpg_internals.transport_of(connection)) or address in _cautioned:
        return
    _cautioned.add(address)
    log.warning(
        "unverified_server",
        address=shown(address),
        tls=protocol.is_ssl,
        note="the identity of the PostgreSQL server is not verified",
        hint="set sslmode=verify-full and sslrootcert, or channel_binding=require, in source.dsn",
    )


def _classified(error: BaseException, dsn: str, place: str) -> WalgateError:
    if isinstance(error, asyncpg.UndefinedObjectError) and not getattr(error, "context", None):
        near = get_close_matches(str(error.args[0]).partition('"')[2].strip('"'), _PARAMETERS.split(", "), 1)
        meant = f"did you mean {near[0]}? " if near else ""
        return StopForOperator(
            f"{place}: source.dsn has a parameter that the server does not know: {error.args[0]}",
            hint=f"{meant}Allowed parameters: {_PARAMETERS}, and configuration parameters of the server. libpq's "
            "connect_timeout and keepalives are not allowed: the "
            "gateway uses values of its own",
        )
    if isinstance(error, (FileNotFoundError, PermissionError)):
        return unreadable_file(dsn, place) or classify_exception(error, place)
    return classify_exception(error, place, at_login=True)
