"""The parts of aiokafka beyond its documented interface. No other module of the gateway touches a
private attribute of it (enforced by ruff's SLF001 and TID251), and
tests/kafka/test_aiokafka_internals.py fails for each dependency that a new version breaks.

The reason for each, and what would make it unnecessary:

* `_EndOnce`. aiokafka resends an unanswered EndTxn in the same epoch. A delayed first one could
  then end the *next* transaction (the flaw that Jepsen found in Kafka's protocol before KIP-890),
  so an unanswered one becomes an error. Unnecessary with transaction protocol 2 (KIP-890: EndTxn
  v5, the epoch grows with each transaction) in aiokafka.
* `_AddPatiently`. aiokafka waits 20 ms while the broker is still ending the previous transaction;
  with 2 ms, a whole Kafka transaction takes 7 instead of 27 ms. With hundreds of partitions, the
  broker takes a long time to end a transaction, and each refusal costs it as many lookups, so the
  intervals grow. If access to a topic is denied, everything that waits for that topic fails with
  this error: aiokafka would only report at the commit that the transaction is in the wrong state.
  Unnecessary with transaction protocol 2: partitions are added by Produce.
* `Client.bootstrap`, `_get_conn`, `get_random_node`. aiokafka tries one address after the other,
  each for the timeout of a request, and makes no other connection meanwhile: a broker that accepts
  connections and does not answer (a stopped process, a full disk) took minutes. Here addresses are
  raced, and a connection has 5 s. Unnecessary with connection timeouts
  (`socket.connection.setup.timeout.ms` of the Java client) in aiokafka.
* `Client._watch`. aiokafka gives up a request to a broker that hangs only after the request
  timeout. This client gives the broker up as soon as the cluster has (`broker.session.timeout.ms`,
  9 s by default). No version of aiokafka makes this unnecessary yet.
* `Client._metadata_update`. aiokafka asks one broker after the other for metadata too. Moreover, a
  client that knows no topic asks for those of the whole cluster, and one that knows a topic that
  was deleted recreates it. Unnecessary with options for both in `AIOKafkaClient`.
* `_Connection`. aiokafka does not reauthenticate (KIP-368), so brokers with
  `connections.max.reauth.ms`, as clouds have, close its connections; and it takes a refused token
  for an accepted one. Unnecessary with reauthentication in aiokafka.
* `lz4_encode.__defaults__`. aiokafka compresses lz4 at level 9, the slowest; at level 1 a batch of
  everyday rows takes a tenth of the time and is a tenth larger (bench/encode.py: 0.7 of 5.9 us a
  row). Unnecessary with a compression level (KIP-390).
* `DirectProducer`. `send_batch` waits until the previous batch has been sent and looks up metadata
  for each; `stop` waits for what cannot be delivered; partitions that are certain to be written can
  only be added with their first record; futures that are no longer awaited are logged as errors.
  Unnecessary with a `send_batch` that only queues, and a `close` that gives up.
* `record_appender`, `end_batch`. `BatchBuilder.append` costs 0.6 us a record more than the C
  builder behind it. Unnecessary when it takes positional arguments and does not call a serializer
  that is not there.
* `Admin`. aiokafka's own asks one broker at random and fails if that one is unreachable, creates
  the topics that it is asked to describe, and can ask neither where partitions end nor whether the
  client may write to a topic. Unnecessary with requests to any broker that answers, an option for
  the second, `list_offsets` (KIP-396), and the allowed operations (KIP-430).
* `Consumer.partitions_below`. aiokafka's `topics` reads the partitions of all topics too, and drops
  them; `partitions_for_topic` only knows those of topics that are being read. Unnecessary when
  `topics` keeps them. `Consumer` also makes the consumer's client a `Client`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any, Final, TypeVar

import aiokafka
import aiokafka.codec
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    SaslAuthenticationFailed,
)
from aiokafka.producer.sender import BACKOFF_OVERRIDE, AddPartitionsToTxnHandler, EndTxnHandler, Sender
from aiokafka.producer.transaction_manager import TransactionState
from aiokafka.protocol.admin import SaslAuthenticateRequest, SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest
from aiokafka.structs import TopicPartition

from gateway.errors import StopForOperator, WalgateError

log = structlog.get_logger()

KNOWN_VERSION: Final = "0.14."
_NO_REPLICA, _READ_UNCOMMITTED, _END = -1, 0, -1
"""Fields of ListOffsets: the request comes from a client and asks for the end of the log, open
transactions included."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.002, 0.1
CONNECT_TIMEOUT_S: Final = 5.0
"""Time limit for a connection with all that belongs to it: TCP, TLS, the first answer, the
login."""
STAGGER_S: Final = 0.5
"""Another address or broker is tried as well if one has not answered within this time."""
SILENCE_S: Final = 2.0
"""A request that has been unanswered for this long makes the client ask whether the cluster still
lists that broker."""
WATCH_S: Final = 0.5
SUSPECT_S: Final = 20.0
"""A broker that did not accept a connection is asked last for this long."""

RENEWED_AFTER: Final = 0.7
"""Fraction of a session's lifetime after which the connection logs in again."""

T = TypeVar("T")


def check_version(installed: str) -> None:
    """Raise StopForOperator unless the version is the known one: another may behave differently
    without any error."""
    if not installed.startswith(KNOWN_VERSION):
        raise StopForOperator(
            f"aiokafka {installed} is installed, but the gateway relies on internals of {KNOWN_VERSION}x",
            hint=f"pip install 'aiokafka=={KNOWN_VERSION}*'",
        )


check_version(aiokafka.__version__)
aiokafka.codec.lz4_encode.__defaults__ = (1,)


class _EndOnce(EndTxnHandler):  # type: ignore[misc]  # aiokafka has no types
    """EndTxn that is not resent if it was not answered. The answer "not now" is not an unknown
    result, so it leads to another attempt."""

    async def do(self, node_id: int) -> bool:
        response = await self._sender.client.send(node_id, self.create_request(), group=self.group)
        backoff_s = self.handle_response(response)
        if backoff_s is not None:
            await asyncio.sleep(backoff_s)
        return backoff_s is None


class _AddPatiently(AddPartitionsToTxnHandler):  # type: ignore[misc]
    """AddPartitionsToTxn that is retried at growing intervals, at most 0.1 s apart, while the
    broker is still ending the previous transaction."""

    def handle_response(self, response: Any) -> float | None:
        backoff_s: float | None = super().handle_response(response)
        sender = self._sender
        if backoff_s != BACKOFF_OVERRIDE:
            sender.refused_since = None
            if (
                sender._txn_manager.state is TransactionState.ABORTABLE_ERROR
            ):  # access to a topic is denied: aiokafka would wait forever
                sender._message_accumulator.fail_all(sender._txn_manager.wait_for_transaction_end().exception())
            return backoff_s
        now = time.monotonic()
        if sender.refused_since is None:
            sender.refused_since = now
        waited_s: float = now - sender.refused_since
        return min(max(FIRST_BACKOFF_S, waited_s / 4), LONGEST_BACKOFF_S)


class _Sender(Sender):  # type: ignore[misc]
    """The sender with the handlers above; the two methods that use them are otherwise aiokafka's.
    `request`: the last request of the transaction."""

    refused_since: float | None = None
    request: asyncio.Task[Any] | None = None

    def _maybe_do_transactional_request(self) -> asyncio.Task[Any] | None:
        self.request = super()._maybe_do_transactional_request()
        return self.request

    async def _do_add_partitions_to_txn(self, tps: Any) -> bool:
        done: bool = await _AddPatiently(self, tps).do(await self._transaction_coordinator())
        return done

    async def _do_txn_commit(self, commit_result: Any) -> None:
        await self._message_accumulator.flush_for_commit()
        if self._txn_manager.is_empty_transaction():
            self._txn_manager.complete_transaction()
        else:
            await _EndOnce(self, commit_result).do(await self._transaction_coordinator())

    async def _transaction_coordinator(self) -> int:
        found: int = await self._find_coordinator(CoordinationType.TRANSACTION, self._txn_manager.transactional_id)
        return found


class _Provider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, tokens: Any) -> None:
        self._tokens = tokens

    async def token(self) -> str:
        found: str = await self._tokens.token()
        return found


class _Connection(AIOKafkaConnection):  # type: ignore[misc]
    """A connection that logs in again before the session ends, as brokers with
    `connections.max.reauth.ms` demand (KIP-368): they would otherwise close it, and the results of
    requests in flight would be unknown. `tokens`: for OAUTHBEARER."""

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
            return super().send(request, expect_response)
        return self._send_later(request, expect_response)

    async def _send_later(self, request: Any, expect_response: bool) -> Any:
        await self._logged_in.wait()
        return await super().send(request, expect_response)

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
    """Connections to all addresses failed. `errors`: the error of each `host:port`."""

    def __init__(self, errors: dict[str, BaseException]) -> None:
        self.errors = errors
        super().__init__("; ".join(f"{address}: {_words(error)}" for address, error in sorted(errors.items())))


class AuthenticationRequired(KafkaError):  # type: ignore[misc]
    """The broker accepted the connection and closed it at the first request that needs
    authentication."""


class ControllerPort(KafkaError):  # type: ignore[misc]
    """The server speaks Kafka's protocol, but does not serve the clients' requests."""


class TlsRefused(KafkaError):  # type: ignore[misc]
    """The connection ended during the TLS handshake."""


class AdvertisedUnreachable(NodeNotReadyError):  # type: ignore[misc]
    """Brokers that the first answer named do not accept connections. `errors`: the error of each
    `host:port` that they advertise."""

    def __init__(self, errors: Mapping[str, BaseException]) -> None:
        self.errors = dict(errors)
        super().__init__("; ".join(f"{address}: {_words(error)}" for address, error in sorted(errors.items())))


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
    return str(error) or type(error).__name__


async def first_to_succeed(attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]], stagger_s: float) -> T | None:
    """Return the first result of the attempts, or None if all fail. Each attempt begins when those
    before it have failed, or after `stagger_s`; the first success cancels the others. An attempt
    fails by KafkaError, OSError or TimeoutError."""
    running: set[asyncio.Task[T]] = set()
    left = list(reversed(attempts))
    try:
        while left or running:
            if left:
                attempt = asyncio.create_task(left.pop()())
                attempt.add_done_callback(_mark_retrieved)  # if several end together, only one result is used
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


class Client(AIOKafkaClient):  # type: ignore[misc]
    """The part that producer, consumer and admin client share: connections and metadata."""

    _sync_task: asyncio.Task[None] | None
    _watching: asyncio.Task[None] | None = None

    async def bootstrap(self) -> None:
        """Read the metadata from the first address that answers. Raises ConnectError."""
        errors: dict[str, BaseException] = {}
        addresses = [(host, port) for host, port, _ in self.hosts]
        attempts = [partial(self._ask_address, host, port, errors) for host, port in addresses]
        metadata = await first_to_succeed(attempts, STAGGER_S)
        if metadata is None:
            raise ConnectError(errors)
        self.cluster.update_metadata(metadata)
        if self._sync_task is None:
            self._sync_task = asyncio.create_task(self._md_synchronizer())
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def _ask_address(self, host: str, port: int, errors: dict[str, BaseException]) -> Any:
        connection = None
        try:
            await self._have_token()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._connect(host, port)
                try:
                    metadata = await connection.send(MetadataRequest([]))
                except KafkaConnectionError as error:
                    raise AuthenticationRequired("it closed the connection after the first request") from error
                except IncompatibleBrokerVersion as error:  # every broker serves this request
                    raise ControllerPort("it is the port of a KRaft controller") from error
            if not metadata.brokers:
                raise KafkaConnectionError("it does not know any broker yet")
            return metadata
        except (KafkaError, OSError, TimeoutError) as error:
            errors[f"{host}:{port}"] = error
            raise
        finally:
            if connection is not None:
                connection.close(reason=CloseReason.SHUTDOWN)

    async def _connect(self, host: str, port: int, on_close: Any = None) -> Any:
        connection = _Connection(
            host,
            port,
            client_id=self._client_id,
            request_timeout_ms=self._request_timeout_ms,
            ssl_context=self._ssl_context,
            security_protocol=self._security_protocol,
            max_idle_ms=self._connections_max_idle_ms,
            on_close=on_close,
            sasl_mechanism=self._sasl_mechanism,
            sasl_plain_username=self._sasl_plain_username,
            sasl_plain_password=self._sasl_plain_password,
            tokens=self._sasl_oauth_token_provider,
        )
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            try:
                await connection.connect()
            except (ConnectionResetError, ConnectionAbortedError) as error:
                if self._ssl_context is None:
                    raise
                raise TlsRefused("it closed the connection during the TLS handshake") from error
        return connection

    async def _have_token(self) -> None:
        """Fetch the token before the connection's time limit begins: the delay of a token provider
        is not the broker's. Raises WalgateError."""
        if self._sasl_oauth_token_provider is not None:
            await self._sasl_oauth_token_provider.token()

    async def _get_conn(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        """Return a connection to the broker, or None if there is none. A slow attempt delays only
        other connections to the same broker."""
        place = node_id, group
        known = self._conns.get(place)
        if known is not None and known.connected():
            return known
        broker = self.cluster.broker_metadata(node_id)
        try:
            if broker is None:
                raise KafkaConnectionError(f"broker {node_id} is not known")
            await self._have_token()
            async with self._locks.setdefault(place, asyncio.Lock()):
                known = self._conns.get(place)
                if known is None or not known.connected():
                    self._conns.pop(place, None)
                    self._conns[place] = await self._connect(broker.host, broker.port, self._on_connection_closed)
            self._suspects.pop(node_id, None)
            self._refusals.pop(node_id, None)
            return self._conns[place]
        except (KafkaError, OSError, TimeoutError, WalgateError) as error:
            log.debug("no_connection", broker=node_id, reason=_words(error))
            self._suspects[node_id] = time.monotonic()
            if broker is not None:
                self._refusals[node_id] = (f"{broker.host}:{broker.port}", error)
            self.force_metadata_update()
            return None

    @property
    def _locks(self) -> dict[Any, asyncio.Lock]:
        locks: dict[Any, asyncio.Lock] = self.__dict__.setdefault("_own_locks", {})
        return locks

    @property
    def _renewals(self) -> set[asyncio.Task[None]]:
        renewals: set[asyncio.Task[None]] = self.__dict__.setdefault("_own_renewals", set())
        return renewals

    @property
    def _suspects(self) -> dict[Any, float]:
        """Brokers that did not accept a connection, and when."""
        suspects: dict[Any, float] = self.__dict__.setdefault("_own_suspects", {})
        return suspects

    @property
    def _refusals(self) -> dict[Any, tuple[str, BaseException]]:
        """The address that each broker advertises, and why the last connection to it failed."""
        refusals: dict[Any, tuple[str, BaseException]] = self.__dict__.setdefault("_own_refusals", {})
        return refusals

    async def send(self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        """Send a request to the broker. Raises AdvertisedUnreachable with the address and the
        cause, where aiokafka's error would only hold the broker's number."""
        try:
            return await super().send(node_id, request, group=group)
        except NodeNotReadyError:
            if node_id not in self._refusals:
                raise
            address, error = self._refusals[node_id]
            raise AdvertisedUnreachable({address: error}) from error

    def silence(self) -> KafkaError:
        """Return the error to raise when no broker answers."""
        return (
            AdvertisedUnreachable(dict(self._refusals.values()))
            if self._refusals
            else KafkaConnectionError("no broker answers")
        )

    @property
    def addresses(self) -> list[str]:
        """The addresses that the brokers advertise."""
        return sorted(f"{broker.host}:{broker.port}" for broker in self.cluster.brokers())

    def _brokers(self) -> list[Any]:
        """Return the brokers' ids in random order, the suspected ones last."""
        ids = [broker.nodeId for broker in self.cluster.brokers()]
        random.shuffle(ids)
        now = time.monotonic()
        return sorted(ids, key=lambda node_id: now - self._suspects.get(node_id, -SUSPECT_S) < SUSPECT_S)

    def get_random_node(self) -> Any:
        return next(iter(self._brokers()), None)

    async def _metadata_update(self, cluster_metadata: ClusterMetadata, topics: Iterable[str] | None) -> bool:
        request = MetadataRequest(None if topics is None else list(topics), allow_auto_topic_creation=False)
        metadata = await self._ask_any(request)
        if metadata is None:
            cluster_metadata.failed_update(None)
        elif metadata.brokers:
            cluster_metadata.update_metadata(metadata)
            return True
        return False

    async def _ask_any(self, request: Any) -> Any:
        """Return the answer of the first broker that gives one; None if none does."""
        return await first_to_succeed([partial(self.send, node_id, request) for node_id in self._brokers()], STAGGER_S)

    async def _watch(self) -> None:
        """Renew logins. Close connections to brokers that do not answer once the cluster's metadata
        no longer lists them."""
        waiting: dict[Any, tuple[int, float]] = {}
        while True:
            await asyncio.sleep(WATCH_S)
            now = time.monotonic()
            for connection in self._conns.values():
                if connection.connected() and now >= connection.renew_at:
                    self._renewals.add(renewal := asyncio.create_task(connection.log_in_again()))
                    renewal.add_done_callback(self._renewals.discard)
            asked = {place: conn._requests[0][0] for place, conn in self._conns.items() if conn._requests}
            waiting = {
                place: waiting[place] if waiting.get(place, (None,))[0] == oldest else (oldest, now)
                for place, oldest in asked.items()
            }
            silent = [place for place, (_, since) in waiting.items() if now - since >= SILENCE_S]
            if silent:
                for node_id, _ in silent:
                    self._suspects[node_id] = now
                await self.force_metadata_update()
                alive = {broker.nodeId for broker in self.cluster.brokers()}
                for place in silent:
                    if place[0] not in alive and place in self._conns:
                        log.info(
                            "broker_given_up",
                            broker=place[0],
                            reason="it does not answer, and the cluster's metadata no longer lists it",
                        )
                        self._conns[place].close(reason=CloseReason.CONNECTION_TIMEOUT)

    async def close(self) -> None:
        for task in (self._watching, *self._renewals):
            if task is not None:
                task.cancel()
        await super().close()

    async def learn(self, topics: Iterable[str]) -> None:
        """Read where the partitions of new topics are, by one request for these topics alone."""
        new = [topic for topic in topics if topic not in self._topics]
        if new:
            self._topics.update(new)
            request = MetadataRequest(new, allow_auto_topic_creation=False)
            found = ClusterMetadata()
            answer = await self._ask_any(request)
            if answer is None:
                raise self.silence()
            found.update_metadata(answer)
            self.cluster._partitions.update(found._partitions)

    def release(self) -> None:
        """Wake what waits for metadata; call it after `close`. A closed client never gets metadata,
        so the waiting task and its batches would never be freed."""
        waiting = self._md_update_fut
        if waiting is not None and not waiting.done():
            waiting.set_result(False)


class DirectProducer(AIOKafkaProducer):  # type: ignore[misc]
    """A producer that queues batches without waiting and can be given up in any state."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.client.__class__ = Client
        self._sender.__class__ = _Sender

    @property
    def is_in_transaction(self) -> bool:
        return bool(self._txn_manager.is_in_transaction())

    @property
    def failure(self) -> Exception | None:
        """The error that ended the sending of batches for good, if any."""
        failure: Exception | None = self._message_accumulator._exception
        return failure

    def add_to_transaction(self, topic: str, partition: int) -> None:
        """Add a partition to the transaction with the next request that adds partitions, before
        anything is written to it."""
        self._txn_manager.maybe_add_partition_to_txn(TopicPartition(topic, partition))

    def queue(self, builder: Any, topic: str, partition: int) -> asyncio.Future[Any]:
        """Queue a batch; the future is done when it is delivered. The metadata of the topic must be
        known or already requested."""
        self.client._topics.add(topic)
        batch = self._message_accumulator._append_batch(builder, TopicPartition(topic, partition))
        delivery: asyncio.Future[Any] = batch.future
        delivery.add_done_callback(_mark_retrieved)
        return delivery

    def stop_sending(self) -> None:
        """Stop sending for good; what is queued remains undelivered."""
        for task in (self._sender.sender_task, self._sender.request):  # a request would look for a coordinator forever
            if task is not None and not task.done():
                task.cancel()
        self._closed = True
        batches = chain(self._message_accumulator._pending_batches, *self._message_accumulator._batches.values())
        waiters = [batch._drain_waiter for batch in batches]
        if self._txn_manager is not None and self._txn_manager._transaction_waiter is not None:
            waiters.append(self._txn_manager._transaction_waiter)
        for waiter in waiters:  # the sender may fail only now
            waiter.add_done_callback(_mark_retrieved)


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an error that is not awaited: when a producer fails, all of its
    futures do, and only the first is awaited."""
    if not future.cancelled():
        future.exception()


class Admin(AIOKafkaAdminClient):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._client.__class__ = Client

    @property
    def broker_count(self) -> int:
        """Number of brokers that were alive when the metadata was last read."""
        return len(self._client.cluster.brokers())

    @property
    def addresses(self) -> list[str]:
        """The addresses that the brokers advertise to clients, from the answer to the first
        request."""
        addresses: list[str] = self._client.addresses
        return addresses

    async def _send_request(self, request: Any, node_id: Any = None) -> Any:
        """Send a request to the given broker, or else return the answer of the first broker that
        gives one. aiokafka asks one at random: with one of three brokers unreachable, every third
        start would fail."""
        if node_id is not None:
            return await super()._send_request(request, node_id)
        answer = await self._client._ask_any(request)
        if answer is None:
            raise self._client.silence()
        return answer

    async def metadata(self, topics: list[str]) -> list[dict[str, Any]]:
        """Return a broker's metadata of these topics, with fields named as in Kafka's protocol. No
        topic is created."""
        answer = await self._send_request(MetadataRequest(topics, allow_auto_topic_creation=False))
        found: list[dict[str, Any]] = answer.to_object()["topics"]
        return found

    async def without_log(self, leader: int, partitions: Mapping[str, Iterable[int]]) -> set[str]:
        """Return the topics for which the leader cannot report where a partition ends."""
        asked = [(topic, [(partition, _END) for partition in numbers]) for topic, numbers in partitions.items()]
        answer = await self._send_request(OffsetRequest(_NO_REPLICA, _READ_UNCOMMITTED, asked), leader)
        return {topic for topic, found in answer.topics if any(code for _, code, *_ in found)}

    async def add_to_no_transaction(self, transactional_id: str, topics: Iterable[str]) -> dict[str, int]:
        """Ask the broker to add topics to a transaction of a producer that does not exist; return
        the answer's error code for each topic. Nothing is added, but the broker checks the client's
        permissions first."""
        wanted = [(topic, [0]) for topic in topics]
        if not wanted:
            return {}
        answer = await self._send_request(AddPartitionsToTxnRequest(transactional_id, 0, 0, wanted))
        return {topic: code for topic, partitions in answer.errors for _, code in partitions}


class Consumer(AIOKafkaConsumer):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._client.__class__ = Client

    async def partitions_below(self, prefix: str) -> set[TopicPartition]:
        """Return the current partitions of all topics whose names begin with `prefix`."""
        cluster = await self._client.fetch_all_metadata()
        return {
            TopicPartition(topic, partition)
            for topic in cluster.topics()
            if topic.startswith(prefix)
            for partition in cluster.partitions_for_topic(topic) or ()
        }


def record_appender(builder: Any) -> Callable[..., Any]:
    """Return `append(offset, timestamp_ms, key, value, headers)` of a batch builder. It returns
    None when the batch is full."""
    append: Callable[..., Any] = builder._builder.append
    return append


def end_batch(builder: Any, record_count: int) -> None:
    """Close a batch to which `record_appender` has added `record_count` records."""
    builder._relative_offset = record_count  # what BatchBuilder.append would have counted
    builder.close()
