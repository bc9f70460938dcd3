"""Carry out the steps of a start; `gateway/startup/start.py` defines their order and meaning.

A start returns what it created for the stream as a frozen StartResult: the position, the clients of
Kafka and the registry, and the replication connection. The exit stack closes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg
import structlog

from gateway.config.kafka import KafkaSettings
from gateway.config.settings import Settings
from gateway.events.marker_encoder import Marker
from gateway.failpoints import failpoint
from gateway.kafka.batches import HELD_FACTOR, RECORD_OVERHEAD_BYTES, BatchWriter
from gateway.kafka.classify_errors import TopicDenied
from gateway.kafka.fixed_topics import FixedSchemas, message_selection, open_message_topic
from gateway.kafka.last_commit import newest_commit_lsn
from gateway.kafka.position_topic import read_positions, read_snapshot_states
from gateway.kafka.producer import Producer
from gateway.kafka.shutdown import close_with_timeout, to_the_end
from gateway.kafka.topics import Topics
from gateway.kafka.transaction_delivery import Delivery
from gateway.observe.status_board import StatusBoard
from gateway.postgres.connection import connect_replication
from gateway.postgres.replication_stream import ReplicationStream
from gateway.postgres.slot_creation_blockers import SlotCreationBlocker, naming_blockers
from gateway.postgres.standby_status import wal_sender_timeout_of
from gateway.postgres.wal_retention import cause_of
from gateway.runtime.dialect import Dialect
from gateway.runtime.relation_registrar import RelationRegistrar
from gateway.runtime.session_memory import SessionMemory
from gateway.runtime.snapshot_status import load_states
from gateway.runtime.source_catalog import SourceCatalog
from gateway.runtime.stored_positions import (
    decode_positions,
    fresh_position,
    refuse_lost_schemas,
    refuse_other_dialect,
)
from gateway.schema_errors import classified_schema_errors, log_level_change
from gateway.snapshot.resume import unwatched
from gateway.snapshot.stored_state import StoredStates, of_slot
from gateway.startup.facts import Stored
from gateway.startup.start import (
    BeginEpoch,
    CreateSlot,
    DropSlot,
    Fence,
    FenceFormer,
    FindWritten,
    Identify,
    LoadFacts,
    LookAtPositions,
    PrepareKafka,
    ProveFence,
    ReadPositions,
    Record,
    Step,
    Steps,
    TimelineHistory,
    Warn,
    WithdrawIntent,
    WriteIntent,
    start,
)
from gateway.transactions.commit_policy import CommitPolicy
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.position import Position
from gateway.transactions.record_writer import RecordWriter
from schemas.records import SNAPSHOT_STATE
from schemas.registry_client import RegistryClient
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC, transaction_topic, value_subject
from schemas.wire_format import frame

log = structlog.get_logger()

CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class StartResult:
    """Everything that a start has created for the stream. The exit stack of the start closes it."""

    position: Position
    catalog: SourceCatalog
    topics: Topics
    registry: RegistryClient
    producer: Producer
    writer: BatchWriter
    delivery: Delivery
    schemas: FixedSchemas
    stream: ReplicationStream
    _settings: Settings
    _dialect: Dialect
    _memory: SessionMemory
    _board: StatusBoard

    def record_writer(self) -> RecordWriter:
        """Return the writer of the stream's records."""
        return self._dialect.record_writer(self.position, self.topics, self.writer, self.schemas)

    def machine(self, writer: RecordWriter) -> TransactionMachine:
        """Return the state machine of the stream."""
        position = self.position
        return TransactionMachine(
            epoch=position.epoch,
            resume_lsn=position.resume_lsn,
            last_commit_lsn=position.last_commit_lsn,
            prepared=position.prepared,
            writer=writer,
            messages=message_selection(self._settings.source, records_exclusions=self._dialect.records_exclusions),
            quarantined=position.quarantined,
            skip_lsn=position.skip_lsn,
        )

    def registrar(self, sql: asyncpg.Connection, writer: RecordWriter) -> RelationRegistrar:
        """Return a registrar, which queries over a connection of its own. The stream has one, and
        the relations whose existing rows are read have another: their encoders are separate from
        those of the changes."""
        return RelationRegistrar(
            sql,
            self.registry,
            self.topics,
            self.producer,
            self.writer,
            self._settings,
            is_first_epoch=self.position.epoch == 1,
            on_announced=self._board.announced,
            dialect=self._dialect.relations(sql, writer, self._memory.optional_fields),
            marks_excluded=self._dialect.records_exclusions,
            partitions_have_topics=self._memory.partitions_have_topics,
        )

    async def snapshot_states(self) -> tuple[StoredStates, bytes]:
        """Return the stored states of the slot's snapshots, and the frame with which the next ones
        are written. Call it after the fence, when no other gateway writes them any more."""
        kafka = self._settings.kafka
        values = await _snapshot_values(kafka, self.topics, self.producer)
        await self.topics.check_compacted(SNAPSHOT_TOPIC)
        return await self._decoded(of_slot(self.position.key, values))

    async def _decoded(self, values: dict[bytes, bytes]) -> tuple[StoredStates, bytes]:
        with classified_schema_errors():
            schema_id = await self.registry.register(value_subject(SNAPSHOT_TOPIC), SNAPSHOT_STATE)
            return await load_states(values, self.registry), frame(schema_id)

    async def go_without_snapshots(self) -> None:
        """Store that this session takes no snapshots, before it delivers changes. Call it after the
        fence."""
        kafka, key = self._settings.kafka, self.position.key
        values = of_slot(key, await _earlier_snapshot_values(kafka, self.topics, self.producer))
        records = unwatched(*await self._decoded(values), key) if values else {}
        if records:
            await self.delivery.deliver_now([], self.position, states=records)


class Bootstrap:
    """Carry out one start. `board` shows what the start is waiting for."""

    # Each is set by a step that precedes those that need it (gateway/startup/start.py).
    _catalog: SourceCatalog
    _topics: Topics
    _registry: RegistryClient
    _producer: Producer
    _writer: BatchWriter
    _delivery: Delivery
    _schemas: FixedSchemas
    _stream: ReplicationStream

    def __init__(
        self, settings: Settings, dialect: Dialect, memory: SessionMemory, stack: AsyncExitStack, board: StatusBoard
    ) -> None:
        self._settings = settings
        self._dialect = dialect
        self._memory = memory
        self._stack = stack
        self._board = board
        self._wait_for = board.wait_for
        self.fresh_position = partial(fresh_position, settings)

    async def run(self, catalog: SourceCatalog) -> StartResult:
        """Carry out a start up to START_REPLICATION. Raises WalgateError."""
        steps = start(
            catalog.expected,
            self.fresh_position,
            adopt_slot=self._settings.source.adopt_slot,
            reported=self._memory.reported,
            quarantine=tuple(self._memory.quarantine.values()),
        )
        position = await self.carry_out(catalog, steps)
        return StartResult(
            position,
            catalog,
            self._topics,
            self._registry,
            self._producer,
            self._writer,
            self._delivery,
            self._schemas,
            self._stream,
            self._settings,
            self._dialect,
            self._memory,
            self._board,
        )

    async def carry_out(self, catalog: SourceCatalog, steps: Steps) -> Position:
        """Carry out the steps of a start or of a position change
        (gateway/startup/position_changes.py), and return the position. Raises WalgateError."""
        self._catalog = catalog
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                position: Position = end.value
                return position
            answer = await self._carry_out(step)

    async def _carry_out(self, step: Step) -> Any:
        match step:
            case LoadFacts():
                return await self._catalog.look()
            case PrepareKafka():
                failpoint("after_preflight")
                await self._prepare_kafka()
            case Fence():
                self._wait_for("Kafka")
                await self._fence()
            case ReadPositions():
                stored = await self._read_positions()
                await self._register_fixed_schemas()
                return stored
            case LookAtPositions(waits):
                return await self._read_positions(waits=waits)
            case ProveFence():
                await self._delivery.prove_fence()
            case WriteIntent(position):
                failpoint("before_slot_intent")
                await self._delivery.deliver_now([], position)
                failpoint("after_slot_intent")
            case WithdrawIntent(position):
                await self._delivery.deliver_now([], position, forgets=position.key)
            case CreateSlot():
                # The topics come first: creating ten thousand takes minutes, and a slot retains WAL
                # from its creation.
                self._wait_for("the topics")
                await self._topics.ensure_relations(self._catalog.relations)
                failpoint("before_slot_creation")
                catalog = self._catalog
                pid = await catalog.backend_pid()
                async with naming_blockers(catalog.login, pid, self._wait_for, self._note_blockers):
                    lsn = await catalog.create_slot()
                failpoint("after_slot_creation")
                return lsn
            case Identify():
                self._wait_for("the replication stream")
                largest = self._settings.kafka.max_record_bytes
                self._stream = await connect_replication(
                    self._catalog.login,
                    largest_row=HELD_FACTOR * largest,
                    largest_message=largest,
                    wal_sender_timeout_s=wal_sender_timeout_of(self._catalog.server.wal_sender_timeout_s),
                )
                self._stack.push_async_callback(close, self._stream.close)
                await self._stream.find_backend_pid()
                return await self._stream.identify()
            case TimelineHistory(timeline):
                return await self._stream.timeline_history(timeline)
            case Record(position, markers, forgets):
                await self._record(position, markers, forgets)
            case FindWritten(offset):
                described = await self._catalog.describe_relations()
                relations = {self._topics.possible_names((each.namespace, each.name))[0]: each for each in described}
                return await self._dialect.find_written(self._registry, relations, offset, self._catalog.login)
            case DropSlot():
                await self._catalog.drop_slot()
            case FenceFormer(system_identifier):
                await self._fence_former(system_identifier)
            case BeginEpoch(position, forgets):
                await self._begin_epoch(position, forgets)
            case Warn(warnings):
                self._catalog.warn(warnings)
        return None

    def _note_blockers(self, found: tuple[SlotCreationBlocker, ...]) -> None:
        now = time.time()
        self._board.blocked_by = tuple(cause_of(blocker, now) for blocker in found)

    async def _prepare_kafka(self) -> None:
        """Do whatever may take long before an earlier gateway is fenced."""
        self._wait_for("Kafka")
        prefix = self._settings.kafka.prefix
        self._topics = Topics(
            self._settings.kafka,
            transaction_topic(prefix),
            self._memory.seen_topics,
            self._catalog.warn,
            compacted=self._settings.debezium.compacted_topics,
            writes_truncates=self._settings.writes_truncates,
        )
        await self._topics.start()
        self._stack.push_async_callback(close, self._topics.close)
        await self._topics.ensure([POSITION_TOPIC, transaction_topic(prefix)])
        await self._topics.check_compacted(POSITION_TOPIC)
        self._wait_for("the schema registry")
        self._registry = self._registry_client()
        self._stack.push_async_callback(close, self._registry.close)
        with classified_schema_errors():
            await self._registry.latest(value_subject(POSITION_TOPIC))  # make sure that it answers

    def _registry_client(self) -> RegistryClient:
        settings = self._settings.registry
        with classified_schema_errors():
            return RegistryClient(
                settings.url,
                **settings.client_options(),
                timeout_s=settings.timeout_s,
                on_incompatible=self._settings.schemas.on_incompatible,
                on_level_change=log_level_change,
            )

    async def _fence(self) -> None:
        failpoint("before_producer_start")
        kafka = self._settings.kafka
        self._producer = Producer(kafka, self._catalog.transactional_id)
        self._stack.push_async_callback(self._give_up_producer)
        await self._producer.start()
        failpoint("after_producer_start")

    async def _fence_former(self, system_identifier: str) -> None:
        """Fence the slot's gateway on the former server. This also aborts its open Kafka
        transaction, which would keep readers from later records."""
        former = Producer(self._settings.kafka, self._catalog.transactional_id_of(system_identifier))
        try:
            await former.start()
        finally:
            await former.abandon()

    async def _give_up_producer(self) -> None:
        await to_the_end(self._end_producer())

    async def _end_producer(self) -> None:
        await self._producer.abort()
        await self._producer.abandon()
        failpoint("producer_abandoned")

    async def _read_positions(self, *, waits: bool = True) -> Stored:
        kafka = self._settings.kafka
        if waits:
            failpoint("before_position_read")
        markers = transaction_topic(kafka.prefix)
        values, used = await read_positions(kafka, markers, kafka.delivery_timeout_s, waits=waits)
        newest = None
        if waits and self._dialect.has_markers:
            newest = await newest_commit_lsn(kafka, markers, kafka.delivery_timeout_s)
        moment = self._memory.next_moment()
        fresh = self.fresh_position(self._catalog.facts)
        positions = await decode_positions(values, fresh, self._registry)
        await refuse_lost_schemas(positions.values(), kafka.prefix, self._registry, self._topics.missing)
        used = self._dialect.is_used(positions.values(), fresh, used)
        if waits:
            failpoint("after_position_read")
        return Stored(positions, used, moment, newest, kafka.delivery == "at_least_once")

    async def _register_fixed_schemas(self) -> None:
        """Register the schemas of the fixed topics, after the position has shown that this is still
        the same registry."""
        kafka = self._settings.kafka
        markers = transaction_topic(kafka.prefix)
        with classified_schema_errors():
            await refuse_other_dialect(self._registry, kafka)
            self._schemas = await self._dialect.register_fixed_schemas(self._registry)
        self._writer = BatchWriter(self._producer.create_batch, kafka.max_record_bytes - RECORD_OVERHEAD_BYTES)
        policy = CommitPolicy(kafka.memory_bytes, kafka.commit_interval_ms / 1000)
        marker_frame, position_frame = frame(self._schemas.transaction), frame(self._schemas.position)
        self._delivery = Delivery(
            self._producer,
            self._writer,
            marker_frame,
            position_frame,
            markers,
            policy,
            self._board.count,
            self._registry.used,
        )

    async def _states_of_former(self, position: Position, former: bytes | None) -> dict[bytes, bytes]:
        """Return the snapshot states of a position that is being replaced, under the keys of the
        new one."""
        if former is None:
            return {}
        read = _snapshot_values if self._settings.takes_snapshots else _earlier_snapshot_values
        values = of_slot(former, await read(self._settings.kafka, self._topics, self._producer))
        return {position.key + key.removeprefix(former): value for key, value in values.items()}

    async def _begin_epoch(self, position: Position, forgets: bytes | None) -> None:
        failpoint("before_epoch_marker")
        await open_message_topic(self._settings.kafka.prefix, self._topics, is_new=position.epoch == 1)
        await self._record(position, (Marker("EPOCH", 0, position.resume_lsn),), forgets)
        failpoint("after_epoch_marker")

    async def _record(self, position: Position, markers: tuple[Marker, ...], forgets: bytes | None) -> None:
        states = await self._states_of_former(position, forgets)
        written = list(markers) if self._dialect.has_markers else []
        await self._delivery.deliver_now(written, position, forgets, states)


async def _snapshot_values(kafka: KafkaSettings, topics: Topics, producer: Producer) -> dict[bytes, bytes]:
    await topics.ensure([SNAPSHOT_TOPIC])
    await producer.learn([SNAPSHOT_TOPIC])
    return await read_snapshot_states(kafka, kafka.delivery_timeout_s)


async def _earlier_snapshot_values(kafka: KafkaSettings, topics: Topics, producer: Producer) -> dict[bytes, bytes]:
    """Return the values without creating the topic. A principal that may not describe or read the
    topic has never taken snapshots."""
    with suppress(TopicDenied):
        if not await topics.missing([SNAPSHOT_TOPIC]):
            return await _snapshot_values(kafka, topics, producer)
    return {}


async def close(closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await close_with_timeout(closing(), CLOSE_TIMEOUT_S)
