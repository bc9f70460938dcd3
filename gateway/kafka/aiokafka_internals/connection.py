"""A connection that authenticates again, and the errors raised while connecting.

aiokafka does not reauthenticate (KIP-368), so brokers that set `connections.max.reauth.ms`, as is
common in cloud services, close its connections. aiokafka also treats a refused token as accepted.
`Connection` can be removed once aiokafka reauthenticates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from math import inf
from typing import Any, Final, TypeVar

import structlog
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError, SaslAuthenticationFailed
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest

from gateway.errors import WalgateError
from gateway.kafka.aiokafka_internals import version  # noqa: F401  # refuses another one

log = structlog.get_logger()

CONNECT_TIMEOUT_S: Final = 5.0
"""The time limit for making a connection: TCP, TLS, the login and the first answer."""
STAGGER_S: Final = 0.5
"""The time without an answer from an address or broker after which another one is tried as well."""
WATCH_S: Final = 0.5

RENEWED_AFTER: Final = 0.7
"""The fraction of a session's lifetime after which the connection logs in again."""

T = TypeVar("T")


class _Provider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, tokens: Any) -> None:
        self._tokens = tokens

    async def token(self) -> str:
        found: str = await self._tokens.token()
        return found


class Connection(AIOKafkaConnection):  # type: ignore[misc]
    """A connection that logs in again before the session ends. Brokers with
    `connections.max.reauth.ms` (KIP-368) would otherwise close the connection, and the results of
    requests in flight would be unknown. `tokens` provides the tokens for OAUTHBEARER."""

    renew_at = inf

    def __init__(self, *args: Any, tokens: Any, **options: Any) -> None:
        provider = None if tokens is None else _Provider(tokens)
        super().__init__(*args, sasl_oauth_token_provider=provider, **options)
        self._tokens = tokens
        self._logged_in = asyncio.Event()
        self._logged_in.set()

    def send(self, request: Any, expect_response: bool = True) -> Any:
        if isinstance(request, SaslAuthenticateRequest):
            return self._authenticate(request)
        if self._logged_in.is_set() or isinstance(request, SaslHandShakeRequest):
            return self._send_now(request, expect_response)
        return self._send_later(request, expect_response)

    async def _send_later(self, request: Any, expect_response: bool) -> Any:
        await self._logged_in.wait()
        return await self._send_now(request, expect_response)

    def _send_now(self, request: Any, expect_response: bool) -> Any:
        """Send a request. If the transport was closed a moment ago, uvloop raises RuntimeError,
        where aiokafka expects OSError."""
        try:
            return super().send(request, expect_response)
        except RuntimeError as error:
            if self._writer is None or not self._writer.is_closing():
                raise
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {self.host}:{self.port} closed") from error

    async def _authenticate(self, request: Any) -> Any:
        begun = time.monotonic()
        response = await super().send(request)
        if self._tokens is not None and (response.error_code or response.sasl_auth_bytes):
            # RFC 7628: a token is refused by a challenge, which aiokafka takes for acceptance.
            self._tokens.forget()
            said = response.error_message or bytes(response.sasl_auth_bytes).decode("utf-8", "replace")
            raise SaslAuthenticationFailed(f"the broker rejects the token: {said}")
        life_ms = getattr(response, "session_lifetime_ms", 0)
        self.renew_at = begun + life_ms / 1000 * RENEWED_AFTER if life_ms > 0 else inf
        return response

    async def log_in_again(self) -> None:
        """Log in again; no other request is sent meanwhile. If the login fails, the connection is
        closed. The token is fetched first, so that the broker does not wait for it."""
        self.renew_at = inf  # one login at a time: the broker would reject requests of a second one between these
        try:
            if self._tokens is not None:
                await self._tokens.token()
        except WalgateError as error:
            self.renew_at = time.monotonic() + WATCH_S * 4
            log.warning("reauthentication_failed", reason=error.message, hint=error.hint)
            return
        self._logged_in.clear()
        try:
            await self._do_sasl_handshake()
        except (KafkaError, OSError, TimeoutError, WalgateError) as error:
            self.close(reason=CloseReason.AUTH_FAILURE, exc=error)
        finally:
            self._logged_in.set()


class ConnectError(KafkaConnectionError):  # type: ignore[misc]
    """Connections to all addresses failed. `errors` has the error of each `host:port`."""

    def __init__(self, errors: dict[str, BaseException]) -> None:
        self.errors = errors
        super().__init__("; ".join(f"{address}: {words_of(error)}" for address, error in sorted(errors.items())))


class AuthenticationRequired(KafkaError):  # type: ignore[misc]
    """The broker accepted the connection and closed it at the first request that needs
    authentication."""


class ControllerPort(KafkaError):  # type: ignore[misc]
    """The server speaks Kafka's protocol, but does not serve the clients' requests."""


class TlsRefused(KafkaError):  # type: ignore[misc]
    """The connection ended during the TLS handshake."""


class AdvertisedUnreachable(NodeNotReadyError):  # type: ignore[misc]
    """Brokers that the first answer named do not accept connections. `errors` has the error of each
    `host:port` that these brokers advertise."""

    def __init__(self, errors: Mapping[str, BaseException]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(f"{address}: {words_of(error)}" for address, error in sorted(errors.items())))


def words_of(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:  # of this module, not of TCP
        return f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
    return str(error) or type(error).__name__


async def first_to_succeed(attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]], stagger_s: float) -> T | None:
    """Return the first result of the attempts, or None if all fail. The next attempt begins when a
    running one fails, or after `stagger_s`; the first success cancels the others. An attempt fails
    by raising KafkaError, OSError or TimeoutError."""
    running: set[asyncio.Task[T]] = set()
    left = list(reversed(attempts))
    try:
        while left or running:
            if left:
                attempt = asyncio.create_task(left.pop()())
                attempt.add_done_callback(mark_retrieved)  # if several end together, only one result is used
                running.add(attempt)
            done, running = await asyncio.wait(
                running, timeout=stagger_s if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                try:
                    return task.result()
                except (KafkaError, OSError, TimeoutError):
                    continue
        return None
    finally:
        for task in running:
            task.cancel()


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an error that is not awaited: when a producer fails, all of its
    futures fail, and only the first is awaited."""
    if not future.cancelled():
        future.exception()
