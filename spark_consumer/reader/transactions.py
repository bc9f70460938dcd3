"""Whole transactions without Spark: an async iterator over the topics, which proves that
transactions are complete as the data sources do.

    async with TransactionReader(servers, registry_url, prefix="cdc") as reader:
        async for transaction in reader:
            async for change in transaction.changes():
                ...
            remember(transaction.next_position)

Memory is bounded by one fetch of each topic-partition, however large the transaction: changes are
merged by ordinal while they are read. Iterating over an incomplete transaction raises an error at
the end, so act on the changes only after the loop. For example, write them in a database
transaction, and commit it after the loop.
"""

from __future__ import annotations

import asyncio
import heapq
import io
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

import fastavro
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from schemas.errors import SchemaError
from schemas.lsn import format_lsn
from schemas.topic_names import transaction_topic
from schemas.wire_format import FRAME_BYTES, read_schema_id
from spark_consumer.errors import MalformedRecord, MarkerError, RangeExpired, SourceUnavailable, TransactionIncomplete
from spark_consumer.reader.column_names import true_name, true_names
from spark_consumer.reader.completeness import TransactionCounter, decode_head
from spark_consumer.reader.markers import CommittedTransaction, MarkerDecoder, check_order
from spark_consumer.reader.read_planning import Read, reads_of
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.reader.topics import other_schema, table_of_schema, topic_may_hold
from spark_consumer.tables import TableName

_CHUNK_RECORDS = 1_000
_POLL_MS = 200
_STOP_S = 10.0
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Change:
    """A change. Rows are dicts of columns by PostgreSQL's names, with values as fastavro returns
    them. `table` is None for a logical message, whose prefix and content are in `after`."""

    table: TableName | None
    op: str
    commit_lsn: int
    ordinal: int
    change_lsn: int
    xid: int
    old_key: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    unchanged: tuple[str, ...]
    special: Mapping[str, str]


class Transaction:
    """A committed transaction; `facts` is its marker. `changes` may be iterated once, before the
    next transaction."""

    def __init__(self, facts: CommittedTransaction, reader: TransactionReader) -> None:
        self.facts = facts
        self._reader = reader

    @property
    def commit_time(self) -> datetime | None:
        micros = self.facts.commit_time_us
        return None if micros is None else _UNIX_EPOCH + timedelta(microseconds=micros)

    @property
    def next_position(self) -> int:
        """The position after this transaction, for `TransactionReader(position=...)`."""
        return self.facts.marker_offset + 1

    def changes(self) -> AsyncIterator[Change]:
        """Return the changes in the order of their ordinals. Raises TransactionIncomplete at the
        end if records are missing or surplus."""
        return self._reader.changes_of(self.facts)


class TransactionReader:
    """Read committed transactions.

    `position`: marker offset to begin at; None: the first offset that Kafka has.
    `after_commit_lsn`: commit LSN of the transaction before the position. With it, a restart
    detects a topic that was recreated, and checks the order. `kafka`: additional options of
    aiokafka (security). `registry`: options of confluent_kafka's registry client. `no_progress_s`:
    seconds to wait for a record of a manifest before it counts as missing.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        registry_url: str,
        *,
        prefix: str = "cdc",
        position: int | None = None,
        after_commit_lsn: int = 0,
        no_progress_s: float = 30.0,
        kafka: Mapping[str, Any] | None = None,
        registry: Mapping[str, str] | None = None,
    ) -> None:
        options = {"isolation_level": "read_committed", "enable_auto_commit": False, **(kafka or {})}
        self._options = {
            **options,
            "bootstrap_servers": bootstrap_servers,
            "auto_offset_reset": "none",
            "group_id": None,
        }
        self._prefix = prefix
        self._position = position
        self._commit_lsn = after_commit_lsn
        self._begins_before = False  # one marker early, to check that the topic is the same
        self._no_progress_s = no_progress_s
        self._schemas = SchemaCache(Registry({**(registry or {}), "url": registry_url}))
        self._decoder = MarkerDecoder(self._schemas, transaction_topic(prefix))
        self._parsed: dict[tuple[str, int], tuple[Any, dict[str, str], TableName | None]] = {}
        self._topics: set[str] = set()  # those that Kafka had when a transaction with a new one was read
        self._markers: AIOKafkaConsumer | None = None
        self._records: AIOKafkaConsumer | None = None

    async def __aenter__(self) -> Self:
        self._markers, self._records = AIOKafkaConsumer(**self._options), AIOKafkaConsumer(**self._options)
        try:
            await self._markers.start()
            await self._records.start()
            await self._seek_markers()
        except KafkaError as problem:
            await self.__aexit__(None, None, None)
            raise SourceUnavailable(f"Kafka: {problem}") from problem
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        started = [consumer for consumer in (self._markers, self._records) if consumer is not None]
        self._markers = self._records = None
        if started:  # both stop even if one fails; asyncio logs the error, which must not replace that of the block
            stopping = [asyncio.create_task(consumer.stop()) for consumer in started]
            await asyncio.wait(stopping, timeout=_STOP_S)
            for task in stopping:
                task.cancel()  # if it hangs

    async def _seek_markers(self) -> None:
        markers = _started(self._markers)
        place = TopicPartition(transaction_topic(self._prefix), 0)
        if place.topic not in await markers.topics():
            raise _no_topic(place.topic, "Check `prefix` and `bootstrap_servers`, and that the gateway has run.")
        markers.assign([place])
        if self._position is None:
            await markers.seek_to_beginning(place)
            return
        first_kept = (await markers.beginning_offsets([place]))[place]
        self._begins_before = bool(self._commit_lsn) and first_kept < self._position
        markers.seek(place, self._position - self._begins_before)

    async def __aiter__(self) -> AsyncIterator[Transaction]:
        """Yield every committed transaction from the position on, then each new one as it
        arrives."""
        while True:
            for message in await self._next_markers():
                await self._load(read_schema_id(message.value))
                facts = self._decoder.decode(message.offset, message.value)
                if self._begins_before:
                    self._begins_before = False
                    self._check_topic(message.offset, facts)
                elif facts is not None and not facts.is_notice:
                    check_order([facts], self._commit_lsn)
                    self._commit_lsn = facts.commit_lsn
                    yield Transaction(facts, self)

    def _check_topic(self, offset: int, facts: CommittedTransaction | None) -> None:
        if facts is None or (offset + 1, facts.commit_lsn) != (self._position, self._commit_lsn):
            raise MarkerError(
                f"the marker before offset {self._position} is not that of the transaction with commit_lsn "
                f"{format_lsn(self._commit_lsn)}",
                hint="The marker topic was recreated, or belongs to another Kafka cluster: changes committed in the meantime "
                "may be missing. Check the bootstrap servers and the prefix. If they are right, start without a stored position, "
                "with a new copy of the tables.",
            )

    async def _next_markers(self) -> list[Any]:
        try:
            found = await _started(self._markers).getmany(timeout_ms=_POLL_MS, max_records=_CHUNK_RECORDS)
        except OffsetOutOfRangeError as problem:
            raise RangeExpired("the marker topic does not have the starting position") from problem
        except KafkaError as problem:
            raise SourceUnavailable(f"Kafka: {problem}") from problem
        return [message for messages in found.values() for message in messages]

    async def changes_of(self, facts: CommittedTransaction) -> AsyncIterator[Change]:
        """Implement Transaction.changes."""
        reads = reads_of(facts)
        records = _started(self._records)
        places = [TopicPartition(read.topic, read.partition) for read in reads]
        await self._check_topics({read.topic for read in reads})
        records.assign(places)
        for place, read in zip(places, reads, strict=True):
            records.seek(place, read.first_offset)
        cursors = [self._ordered(read, place) for place, read in zip(places, reads, strict=True)]
        # Each partition has the records of a transaction in order, so the change with the smallest
        # ordinal in all partitions is the next one.
        waiting: list[tuple[int, int, int, bytes]] = []
        for number, cursor in enumerate(cursors):
            async for ordinal, offset, value in cursor:
                heapq.heappush(waiting, (ordinal, number, offset, value))
                break
        while waiting:
            ordinal, number, offset, value = heapq.heappop(waiting)
            yield await self._decode(facts, reads[number], offset, value)
            async for ordinal, offset, value in cursors[number]:
                heapq.heappush(waiting, (ordinal, number, offset, value))
                break

    async def _check_topics(self, topics: set[str]) -> None:
        """Raise SourceUnavailable if Kafka does not have one of these topics. A consumer would look
        for it without end."""
        began = time.monotonic()
        while not topics <= self._topics:
            try:
                self._topics = set(await _started(self._records).topics())
            except KafkaError as problem:
                raise SourceUnavailable(f"Kafka: {problem}") from problem
            missing = topics - self._topics
            if missing and time.monotonic() - began > self._no_progress_s:
                raise _no_topic(
                    min(missing),
                    "If it was deleted, the changes of this transaction are lost: skip them, or begin at a later position.",
                )
            if missing:  # a new topic is not known to every broker at once
                await asyncio.sleep(_POLL_MS / 1000)

    async def _ordered(self, read: Read, place: TopicPartition) -> AsyncIterator[tuple[int, int, bytes]]:
        """Yield (ordinal, offset, record) of one topic-partition. Raises TransactionIncomplete if
        its ranges are not complete."""
        counter = TransactionCounter(read)
        position = read.first_offset
        waited_s = 0.0  # time spent in `_fetch` alone, without that of the caller
        while position <= read.last_offset:
            began = time.monotonic()
            messages = await self._fetch(read, place)
            if not messages:
                waited_s += time.monotonic() - began
                if waited_s > self._no_progress_s:
                    raise TransactionIncomplete(f"{read.topic}[{read.partition}]: no record at offset {position}")
                continue
            waited_s, position = 0.0, messages[-1].offset + 1
            wanted = [message for message in messages if message.offset <= read.last_offset]
            for message in wanted:
                head = decode_head(message.value, _place(read, message.offset))
                if counter.takes(message.offset, head):
                    yield head.ordinal, message.offset, message.value
        counter.finish()

    async def _fetch(self, read: Read, place: TopicPartition) -> list[Any]:
        try:
            found = await _started(self._records).getmany(place, timeout_ms=_POLL_MS, max_records=_CHUNK_RECORDS)
        except OffsetOutOfRangeError as problem:
            raise RangeExpired(f"{read.topic}[{read.partition}] no longer has offset {read.first_offset}") from problem
        except KafkaError as problem:
            raise SourceUnavailable(f"Kafka: {problem}") from problem
        messages: list[Any] = found.get(place, [])
        return messages

    async def _load(self, schema_id: int) -> None:
        """Fetch an unknown schema in a thread, since the registry's client blocks."""
        if schema_id not in self._schemas:
            await asyncio.to_thread(self._schemas.__getitem__, schema_id)

    async def _decode(self, facts: CommittedTransaction, read: Read, offset: int, value: bytes) -> Change:
        try:
            schema_id = read_schema_id(value)
        except SchemaError as problem:
            raise MalformedRecord(f"{_place(read, offset)}: {problem}") from problem
        if (read.topic, schema_id) not in self._parsed:
            await self._load(schema_id)
            schema = self._schemas[schema_id]
            table = table_of_schema(schema)
            if not topic_may_hold(self._prefix, read.topic, table):
                raise other_schema(_place(read, offset), schema_id, schema)
            self._parsed[read.topic, schema_id] = fastavro.parse_schema(schema), true_names(schema), table
        parsed, names, table = self._parsed[read.topic, schema_id]
        record = _read_record(value, parsed, f"{_place(read, offset)}, schema {schema_id}")
        after = record["after"] if table is not None else {"prefix": record["prefix"], "content": record["content"]}
        return Change(
            table=table,
            op=record["op"],
            commit_lsn=facts.commit_lsn,
            ordinal=record["ordinal"],
            change_lsn=record["change_lsn"],
            xid=record["xid"],
            old_key=_named(record.get("old_key"), names),
            before=_named(record.get("before"), names),
            after=_named(after, names),
            unchanged=tuple(true_name(name, names) for name in record.get("unchanged", ())),
            special={true_name(name, names): text for name, text in record.get("special", {}).items()},
        )


def _no_topic(topic: str, hint: str) -> SourceUnavailable:
    return SourceUnavailable(f"Kafka has no topic {topic}, or access to it is denied", hint=hint)


def _place(read: Read, offset: int) -> str:
    return f"{read.topic}[{read.partition}] offset {offset}"


def _read_record(value: bytes, parsed: Any, place: str) -> Any:
    data = io.BytesIO(value)
    data.seek(FRAME_BYTES)
    try:
        record: Any = fastavro.schemaless_reader(data, parsed, None)
    except Exception as problem:  # fastavro raises a dozen exception types
        raise MalformedRecord(f"{place}: the record cannot be decoded ({type(problem).__name__})") from problem
    if data.tell() != len(value):
        raise MalformedRecord(f"{place}: the record has {len(value) - data.tell()} extra bytes")
    return record


def _named(row: dict[str, Any] | None, names: Mapping[str, str]) -> dict[str, Any] | None:
    return row if row is None or not names else {names.get(name, name): value for name, value in row.items()}


def _started(consumer: AIOKafkaConsumer | None) -> AIOKafkaConsumer:
    assert consumer is not None, "use the reader in `async with`"
    return consumer
