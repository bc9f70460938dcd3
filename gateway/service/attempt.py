"""One attempt: from the checks to the stream, until something ends it. Every failure leaves by an exception.

    checks -> topics -> producer (fences an earlier gateway) -> position -> slot -> epoch -> stream

The producer is started only when nobody else reads the slot: a second gateway waits for the first one rather than fence it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from importlib.metadata import version as package_version
from typing import Any

import asyncpg
import structlog

from gateway.events.logical_message import LogicalMessageEncoder
from gateway.events.marker import Marker
from gateway.kafka.delivery import Delivery, Frames, TransactionTimedOut
from gateway.kafka.goodbye import say_goodbye, to_the_end
from gateway.kafka.outlet import RECORD_OVERHEAD_BYTES, BatchWriter
from gateway.kafka.position import Position, read_positions
from gateway.kafka.producer import Producer
from gateway.kafka.topics import Topics, deleted_topics
from gateway.lsn import Lsn
from gateway.operate import metrics
from gateway.operate.errors import NeedsText, Retry, RetrySlowly, StopForOperator
from gateway.operate.failpoints import failpoint
from gateway.operate.http import Health
from gateway.operate.settings import Settings
from gateway.replication.connection import connect_replication, connect_sql, leave_with
from gateway.replication.facts import Caution
from gateway.replication.feedback import StandbyStatus
from gateway.replication.options import pgoutput_options, protocol_version
from gateway.replication.slot import create_slot
from gateway.replication.stream import ReplicationStream
from gateway.service.announcer import Announcer
from gateway.service.checks import Checks
from gateway.service.pump import Pump, WholeFirst
from gateway.service.schema_errors import classified_schema_errors
from gateway.service.start import decide_start
from gateway.service.tasks import run_together
from gateway.transactions.machine import RolledBackMessages, TransactionMachine
from gateway.transactions.transaction import MessageTopic
from schemas.errors import RegistryRefused
from schemas.framing import frame
from schemas.names import POSITION_TOPIC, message_topic, transaction_topic, value_subject
from schemas.records import LOGICAL_MESSAGE, POSITION, TRANSACTION_MARKER
from schemas.registry import RegistryClient

log = structlog.get_logger()

DRAIN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
_START = Lsn(0)


@dataclass(slots=True)
class Learned:
    """What the attempts of one process tell later ones."""

    seen_topics: set[str] = field(default_factory=set)
    told: set[Caution] = field(default_factory=set)
    """Cautions that the log has."""
    text_only: bool = False
    """A value has no binary form, or one that has no decoder."""
    careful_until: Lsn = _START
    """Up to there transactions are delivered one by one: behind it something needs a person."""
    timed_out_behind: Lsn | None = None
    """The transaction that begins there outlived its Kafka transaction."""
    whole_once: bool = False
    """The next attempt reads without streaming: in a stream, nobody can tell which messages were rolled back."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the position topic holds; `fresh` is the position of a slot that was never read."""

    positions: Mapping[bytes, Position]
    marker_end: int
    fresh: Position


class Attempt:
    """Reads and writes `learned`."""

    def __init__(self, settings: Settings, health: Health, learned: Learned) -> None:
        self.is_streaming = False
        self._settings = settings
        self._health = health
        self._learned = learned

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set and everything received is durable; raises WalgateError."""
        async with AsyncExitStack() as stack:
            stack.callback(self._wait_for, "the next attempt")
            try:
                await self._run(stack, stop)
            except NeedsText:
                self._learned.text_only = True
                raise
            except RolledBackMessages:
                self._learned.whole_once = True
                raise
            except WholeFirst as error:
                self._learned.careful_until = error.whole_until
                raise

    def _wait_for(self, what: str) -> None:
        self._health.waiting_for = what
        metrics.CONNECTED.set(0 if what else 1)

    async def _run(self, stack: AsyncExitStack, stop: asyncio.Event) -> None:
        """Long, because the order of the steps is what matters: each may only come when the one before it has held."""
        settings = self._settings
        dsn = settings.source.dsn.get_secret_value()
        self._wait_for("PostgreSQL")
        failpoint("before_preflight")
        sql = await self._connect_sql(stack, dsn)
        checks = await Checks.load(sql, settings.source, self._learned.told)
        checks.before_start()
        failpoint("after_preflight")

        self._wait_for("Kafka")
        topics = await self._topics(stack)
        producer = await self._start_producer(stack, checks.transactional_id)
        stored = await self._stored(checks)
        self._wait_for("the schema registry")
        registry = self._registry()
        stack.push_async_callback(_close, registry.close)
        await self._same_registry(registry, stored)
        frames, messages_id = await self._register_fixed(registry)

        writer = BatchWriter(producer.create_batch, settings.kafka.max_record_bytes - RECORD_OVERHEAD_BYTES)
        delivery = Delivery(
            producer, writer, frames, transaction_topic(settings.kafka.prefix), settings.kafka.memory_bytes
        )
        position = await self._position(sql, checks, delivery, stored)
        messages = await self._message_topic(topics, writer, messages_id, is_new=position.epoch == 0)
        await checks.before_stream(position)
        self._wait_for("the replication stream")
        stream = await connect_replication(dsn)
        stack.push_async_callback(_close, stream.close)
        timeline = await checks.same_server(stream, position)
        position = await self._begin_epoch(position, delivery, timeline)

        # A connection beside the periodic check's: asyncpg runs one query at a time.
        announcer_sql = await self._connect_sql(stack, dsn)
        is_first_epoch = position.epoch == 1
        announcer = Announcer(
            announcer_sql, registry, topics, producer, writer, settings, is_first_epoch=is_first_epoch
        )
        await announcer.prepare(checks.relations)
        machine = TransactionMachine(
            epoch=position.epoch,
            resume_lsn=position.resume_lsn,
            last_commit_lsn=position.last_commit_lsn,
            prepared=position.prepared,
            messages=messages,
        )
        feedback = await self._start_stream(stream, checks, position)
        leave_with(sql, stream)
        protocol = protocol_version(checks.server.version_num)
        pump = Pump(
            stream, feedback, machine, writer, announcer, delivery, position, protocol, self._learned.careful_until
        )
        self._wait_for("")
        self.is_streaming = True
        log.info("streaming", slot=position.slot, epoch=position.epoch, resume_lsn=str(position.resume_lsn))
        try:
            await run_together(
                pump.run(),
                delivery.run(),
                feedback.run(),
                checks.watch(stream, feedback),
                self._rest(producer),
                until=self._drain(stop, pump),
            )
        except TransactionTimedOut as error:
            self._stop_if_again(pump.sealed_lsn, error)
            raise

    def _stop_if_again(self, behind: Lsn, error: TransactionTimedOut) -> None:
        """Once may be chance; the same transaction a second time will not fit a third time either."""
        if self._learned.timed_out_behind == behind:
            streams = self._settings.source.large_transactions == "stream"
            smaller = "source.messages = false" if streams else "source.large_transactions = stream"
            raise StopForOperator(
                f"the transaction behind {behind} took longer than kafka.transaction_timeout_s = "
                f"{self._settings.kafka.transaction_timeout_s} to be received and delivered, twice",
                hint=f"set {smaller}, so that it need not fit into one Kafka transaction; or raise "
                "kafka.transaction_timeout_s (with the broker's transaction.max.timeout.ms)",
            ) from error
        self._learned.timed_out_behind = behind

    async def _connect_sql(self, stack: AsyncExitStack, dsn: str) -> asyncpg.Connection:
        sql = await connect_sql(dsn)
        stack.callback(sql.terminate)
        return sql

    async def _topics(self, stack: AsyncExitStack) -> Topics:
        prefix = self._settings.kafka.prefix
        topics = Topics(self._settings.kafka, transaction_topic(prefix), self._learned.seen_topics)
        await topics.start()
        stack.push_async_callback(_close, topics.close)
        await topics.ensure([POSITION_TOPIC, transaction_topic(prefix)])
        await topics.check_position_topic()
        return topics

    async def _start_producer(self, stack: AsyncExitStack, transactional_id: str) -> Producer:
        failpoint("before_producer_start")
        producer = Producer(self._settings.kafka, transactional_id)

        async def end(error: BaseException | None) -> None:
            if not isinstance(error, (Retry, RetrySlowly)):  # then nobody ends its transaction soon
                await producer.abort()
            await producer.abandon()
            failpoint("producer_abandoned")

        async def leave(_: object, error: BaseException | None, *__: object) -> None:
            await to_the_end(end(error))

        stack.push_async_exit(leave)
        await producer.start()
        failpoint("after_producer_start")
        return producer

    def _registry(self) -> RegistryClient:
        settings = self._settings.registry
        with classified_schema_errors():
            return RegistryClient(
                settings.url,
                username=settings.username,
                password=settings.password.get_secret_value() if settings.password else None,
                ca_file=settings.ca_file,
                timeout_s=settings.timeout_s,
                on_incompatible=self._settings.schemas.on_incompatible,
            )

    async def _register_fixed(self, registry: RegistryClient) -> tuple[Frames, int]:
        prefix = self._settings.kafka.prefix
        with classified_schema_errors():
            marker_id = await registry.register(value_subject(transaction_topic(prefix)), TRANSACTION_MARKER)
            position_id = await registry.register(value_subject(POSITION_TOPIC), POSITION)
            messages_id = await registry.register(value_subject(message_topic(prefix)), LOGICAL_MESSAGE)
        return Frames(frame(marker_id), frame(position_id)), messages_id

    async def _message_topic(
        self, topics: Topics, writer: BatchWriter, schema_id: int, *, is_new: bool
    ) -> MessageTopic:
        topic = message_topic(self._settings.kafka.prefix)
        if not is_new and await topics.missing([topic]):
            raise deleted_topics([topic])
        partition_count = (await topics.ensure([topic]))[topic]
        encoder = LogicalMessageEncoder(frame(schema_id))
        return MessageTopic(schema_id, encoder.encode, writer.outlet(topic, partition_count, "logical messages"))

    async def _stored(self, checks: Checks) -> Stored:
        kafka = self._settings.kafka
        failpoint("before_position_read")
        positions, marker_end = await read_positions(kafka, transaction_topic(kafka.prefix), kafka.delivery_timeout_s)
        failpoint("after_position_read")
        fresh = Position(
            system_identifier=checks.server.system_identifier,
            timeline=checks.server.timeline,
            database=checks.server.database,
            slot=self._settings.source.slot,
            prefix=kafka.prefix,
            publications=self._settings.source.publications,
            version=package_version("walgate"),
        )
        return Stored(positions, marker_end, fresh)

    async def _same_registry(self, registry: RegistryClient, stored: Stored) -> None:
        """Before anything is registered: does the id that our position was written with still mean a position?"""
        known = stored.positions.get(stored.fresh.key)
        if known is None:
            return
        with classified_schema_errors():
            try:
                found: object = (await registry.schema(known.schema_id)).get("name")
            except RegistryRefused as error:
                if error.hint:  # credentials
                    raise
                found = error.message
        if found != POSITION["name"]:
            raise StopForOperator(
                f"schema {known.schema_id} is not the one that {POSITION_TOPIC} was written with: {found}",
                hint="is registry.url another registry than before, or was it emptied? Readers need the ids that the records "
                "carry: set the former one, or restore it",
            )

    async def _position(self, sql: asyncpg.Connection, checks: Checks, delivery: Delivery, stored: Stored) -> Position:
        """The position to go on from; the first start makes the slot."""
        source = self._settings.source
        start = decide_start(
            stored.positions, stored.fresh, checks.slot_flush_lsn, stored.marker_end, adopt_slot=source.adopt_slot
        )
        position = start.position
        if start.write_intent:
            failpoint("before_slot_intent")
            await delivery.deliver_now([], position)
            failpoint("after_slot_intent")
        if start.create_slot:
            failpoint("before_slot_creation")
            log.info("creating_slot", slot=source.slot, note="waits for every open transaction that writes")
            lsn = await create_slot(
                sql,
                source.slot,
                version_num=checks.server.version_num,
                two_phase=source.two_phase,
                failover=source.failover,
            )
            failpoint("after_slot_creation")
            log.info("slot_created", slot=source.slot, resume_lsn=str(lsn))
            position = replace(position, resume_lsn=lsn)
        return position

    async def _begin_epoch(self, position: Position, delivery: Delivery, timeline: int) -> Position:
        failpoint("before_epoch_marker")
        position = replace(position, state="ACTIVE", epoch=position.epoch + 1, timeline=timeline)
        await delivery.deliver_now([Marker("EPOCH", 0, position.resume_lsn)], position)
        failpoint("after_epoch_marker")
        metrics.EPOCH.set(position.epoch)
        return position

    async def _start_stream(self, stream: ReplicationStream, checks: Checks, position: Position) -> StandbyStatus:
        source = self._settings.source
        failpoint("before_start_replication")
        whole, self._learned.whole_once = self._learned.whole_once, False
        options = pgoutput_options(
            checks.server.version_num,
            source.publications,
            binary=await checks.use_binary(text_only=self._learned.text_only),
            streaming=source.large_transactions == "stream" and not whole,
            two_phase=source.two_phase,
            messages=source.messages,
            origin=source.origin,
        )
        feedback = StandbyStatus(stream, position.resume_lsn, checks.server.wal_sender_timeout_s)
        await stream.start(source.slot, position.resume_lsn, options)
        failpoint("after_start_replication")
        return feedback

    async def _rest(self, producer: Producer) -> None:
        """A producer near the end of its sequence numbers is given up like a failed one."""
        while not producer.is_worn:
            await asyncio.sleep(10)
        raise Retry("the producer's sequence numbers come near their end: a new one takes over")

    async def _drain(self, stop: asyncio.Event, pump: Pump) -> None:
        """After `stop`: read no more, wait until what was read is durable where a transaction ends, tell PostgreSQL."""
        await stop.wait()
        failpoint("shutdown_requested")
        log.info("stopping")
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await pump.drain()
                failpoint("shutdown_drained")
        except TimeoutError:
            log.warning("stopped_with_work_under_way", note="it will be sent again")


async def _close(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await say_goodbye(close(), CLOSE_TIMEOUT_S)
