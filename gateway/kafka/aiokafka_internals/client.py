"""The client that the producer, consumer and admin client share: brokers, metadata, connections,
and when to give up on a broker that does not answer.

* `Client.bootstrap`, `_get_conn`, `get_random_node`. aiokafka tries one address after the other,
  each for the timeout of a request, and makes no other connection meanwhile. A broker that accepts
  connections but does not answer (a stopped process, a full disk) would delay the client by
  minutes. Here, the next address is tried after 0.5 s, and a connection must be made within 5 s.
  This becomes unnecessary once aiokafka has connection timeouts, like the Java client's
  `socket.connection.setup.timeout.ms`.
* `Client._watch`. If a broker hangs, aiokafka abandons a request to it only after the request
  timeout. This client gives up on the broker as soon as the cluster has
  (`broker.session.timeout.ms`, 9 s by default). No version of aiokafka makes this unnecessary yet.
* `Client._metadata_update`. aiokafka also asks for metadata one broker after the other. Moreover, a
  client that knows no topic asks for all topics of the cluster, and a client that knows a deleted
  topic recreates it. This becomes unnecessary once `AIOKafkaClient` has options for both.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import structlog
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import CloseReason
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, KafkaError, NodeNotReadyError
from aiokafka.protocol.metadata import MetadataRequest

from gateway.errors import WalgateError
from gateway.kafka.aiokafka_internals.connection import (
    CONNECT_TIMEOUT_S,
    STAGGER_S,
    WATCH_S,
    AdvertisedUnreachable,
    AuthenticationRequired,
    ConnectError,
    Connection,
    ControllerPort,
    TlsRefused,
    first_to_succeed,
    words_of,
)

log = structlog.get_logger()

SILENCE_S: Final = 2.0
"""A request that has been unanswered for this long makes the client ask whether the cluster still
lists that broker."""
SUSPECT_S: Final = 20.0
"""A broker that did not accept a connection, or did not answer, is asked last for this long."""


@dataclass(slots=True)
class _State:
    """The attributes that a Client adds. They are created at the first use, because a Client is an
    AIOKafkaClient whose class was changed."""

    locks: dict[Any, asyncio.Lock] = field(default_factory=dict)
    renewals: set[asyncio.Task[None]] = field(default_factory=set)
    suspects: dict[Any, float] = field(default_factory=dict)
    """The brokers that did not accept a connection or did not answer, each with the time of its
    last failure."""
    refusals: dict[Any, tuple[str, BaseException]] = field(default_factory=dict)
    """The address that each broker advertises, and why the last connection to it failed."""


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
        connection = Connection(
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
            async with self._own.locks.setdefault(place, asyncio.Lock()):
                known = self._conns.get(place)
                if known is None or not known.connected():
                    self._conns.pop(place, None)
                    self._conns[place] = await self._connect(broker.host, broker.port, self._on_connection_closed)
            self._own.suspects.pop(node_id, None)
            self._own.refusals.pop(node_id, None)
            return self._conns[place]
        except (KafkaError, OSError, TimeoutError, WalgateError) as error:
            log.debug("no_connection", broker=node_id, reason=words_of(error))
            self._own.suspects[node_id] = time.monotonic()
            if broker is not None:
                self._own.refusals[node_id] = (f"{broker.host}:{broker.port}", error)
            self.force_metadata_update()
            return None

    @cached_property
    def _own(self) -> _State:
        return _State()

    async def send(self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        """Send a request to the broker. Raises AdvertisedUnreachable, which has the address and the
        cause; aiokafka's error would only have the broker's number."""
        try:
            return await super().send(node_id, request, group=group)
        except NodeNotReadyError:
            if node_id not in self._own.refusals:
                raise
            address, error = self._own.refusals[node_id]
            raise AdvertisedUnreachable({address: error}) from error

    def silence(self) -> KafkaError:
        """Return the error to raise when no broker answers."""
        return (
            AdvertisedUnreachable(dict(self._own.refusals.values()))
            if self._own.refusals
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
        return sorted(ids, key=lambda node_id: now - self._own.suspects.get(node_id, -SUSPECT_S) < SUSPECT_S)

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
                    self._own.renewals.add(renewal := asyncio.create_task(connection.log_in_again()))
                    renewal.add_done_callback(self._own.renewals.discard)
            asked = {place: conn._requests[0][0] for place, conn in self._conns.items() if conn._requests}
            waiting = {
                place: waiting[place] if waiting.get(place, (None,))[0] == oldest else (oldest, now)
                for place, oldest in asked.items()
            }
            silent = [place for place, (_, since) in waiting.items() if now - since >= SILENCE_S]
            if silent:
                for node_id, _ in silent:
                    self._own.suspects[node_id] = now
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
        for task in (self._watching, *self._own.renewals):
            if task is not None:
                task.cancel()
        await super().close()

    async def learn(self, topics: Iterable[str]) -> None:
        """Read where the partitions of new topics are, with one request for these topics alone."""
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
        """Wake the task that waits for metadata; call this after `close`. A closed client never
        gets metadata, so that task and its batches would otherwise never be freed."""
        waiting = self._md_update_fut
        if waiting is not None and not waiting.done():
            waiting.set_result(False)
