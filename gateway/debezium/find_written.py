"""Find which records a connector wrote after the offset that it stored, by comparing the ends of
its topics with the transactions that the slot still has."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from time import monotonic
from typing import Any, Final

import fastavro
import structlog
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord, TopicPartition

from gateway.config.settings import Settings
from gateway.config.source import SourceSettings
from gateway.debezium.written_checks import (
    READ,
    TOMBSTONE,
    Committed,
    Place,
    Written,
    advanced,
    committed,
    is_before,
    is_read_before,
)
from gateway.errors import Retry, StopForOperator
from gateway.kafka.aiokafka_internals.admin import Consumer
from gateway.kafka.classify_errors import READING, classify
from gateway.kafka.partition_reader import partition_reader, true_ends
from gateway.kafka.producer import STOP_TIMEOUT_S
from gateway.kafka.shutdown import close_with_timeout
from gateway.pgoutput import letters
from gateway.postgres.classify_errors import DRIVER_ERRORS, classify_exception
from gateway.postgres.connection import connect_sql, end_session
from gateway.postgres.credentials import Credentials
from gateway.postgres.slot import DECODING_TIMEOUT_S
from gateway.postgres.start_replication import quoted_identifier
from gateway.schema_errors import classified_schema_errors
from gateway.startup.connect_offset import DebeziumOffset
from schemas.errors import SchemaError
from schemas.lsn import Lsn
from schemas.registry_client import RegistryClient
from schemas.wire_format import FRAME_BYTES, read_schema_id

log = structlog.get_logger()

_FIRST_LOOK: Final = 500
"""The number of records that the first attempt reads at the end of a partition. Each further
attempt reads four times as many, until one of them precedes the offset."""
_POLL_MS: Final = 200
_LOG_INTERVAL_S: Final = 10.0
_PEEKED_BYTES: Final = 16 << 20
"""The number of bytes of WAL after the newest event in which the first attempt looks for the commit
of its transaction. Each further attempt searches four times as many."""
_HEAD_BYTES: Final = 26
_BEFORE_PREFIX: Final = 10
_PEEK: Final = f"""
SELECT (lsn - '0/0'::pg_lsn)::int8 AS lsn,
    substring(data FOR CASE get_byte(data, 0) WHEN {letters.MESSAGE}
        THEN {_BEFORE_PREFIX} + position('\\x00'::bytea IN substring(data FROM {_BEFORE_PREFIX + 1}))
        ELSE {_HEAD_BYTES} END) AS head
FROM pg_catalog.pg_logical_slot_peek_binary_changes(
    $1, $2::text::pg_lsn, NULL, 'proto_version', '1', 'publication_names', $3, 'messages', $4)
"""
_FLUSHED: Final = "SELECT (pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::int8"

Event = tuple[str, int, int, int]
"""Operation, xid, end LSN of the last commit before the event, LSN of the event."""


async def find_written(
    settings: Settings,
    registry: RegistryClient,
    topics: Collection[str],
    offset: DebeziumOffset,
    login: Credentials,
) -> DebeziumOffset:
    """Return the offset after the last change whose records were all written. `topics` are the
    topics of the published tables, and `login` that to the server of the slot. Raises
    WalgateError."""
    found = await _written(settings, registry, topics, offset)
    total = sum(each.total() for place, each in found.items() if place != (offset.written_xid, offset.lsn))
    if not total:
        return offset
    through, count = offset, 0
    skipped = set(settings.debezium.skipped_operations)
    if skipped <= {"t"}:
        transactions = await _transactions(settings.source, login, found, skips_truncates="t" in skipped)
        through, count = advanced(offset, transactions, found, tombstones=settings.debezium.tombstones_on_delete)
    log.info("records_beyond_offset", count=total, through_lsn=str(through.lsn), written_again=total - count)
    return through


# -- the topics


async def _written(
    settings: Settings, registry: RegistryClient, topics: Collection[str], offset: DebeziumOffset
) -> Written:
    schemas, limit_s = _Schemas(registry), settings.kafka.delivery_timeout_s
    progress = _Progress()
    found: dict[Place, Counter[str]] = {}
    consumer = partition_reader(settings.kafka)
    try:
        await consumer.start()
        places = [place for place in await consumer.partitions_below("") if place.topic in topics]
        first, ends = await consumer.beginning_offsets(places), await true_ends(settings.kafka, places)
        _refuse_open_transactions(ends, stable_ends=await consumer.end_offsets(places))
        for place in places:
            consumer.assign([place])
            events = await _end_of(consumer, place, first[place], ends[place], schemas, offset, limit_s, progress)
            for operation, xid, _, lsn in events:
                found.setdefault((xid, lsn), Counter())[operation] += 1
    except (KafkaError, OSError) as error:
        raise classify(error, "reading the connector's topics", READING) from error
    finally:
        await close_with_timeout(consumer.stop(), STOP_TIMEOUT_S)
    return found


def _refuse_open_transactions(ends: Mapping[TopicPartition, int], stable_ends: Mapping[TopicPartition, int]) -> None:
    """Raise Retry if a partition has a Kafka transaction that may still be committed or aborted. A
    Kafka Connect worker with exactly-once support leaves one if it is killed."""
    for place, end in ends.items():
        if stable_ends[place] < end:
            raise Retry(
                f"adopt: a transaction of the connector is still open in {place.topic}, partition {place.partition}",
                hint="wait until Kafka has aborted it, which it does after the transaction.timeout.ms of the connector's "
                "producer (60 s unless it was set), and run the command again",
            )


async def _end_of(
    consumer: Consumer,
    place: TopicPartition,
    first: int,
    end: int,
    schemas: _Schemas,
    offset: DebeziumOffset,
    limit_s: float,
    progress: _Progress,
) -> list[Event]:
    """Return the events of a partition that do not precede the offset. Rows that a snapshot has
    read are no events, but the first record of an attempt may be one. It may show, as an event
    does, that everything before it precedes the offset."""
    look = _FIRST_LOOK
    while True:
        start = max(first, end - look)
        events: list[Event] = []
        consumer.seek(place, start)
        async for record in read_to(consumer, place, end, limit_s):
            progress.count(record)
            event = await schemas.event(record, events[-1] if events else None)
            if event is not None and (event[0] != READ or not events):
                events.append(event)
        if start == first or (events and _is_before(offset, events[0])):
            return [event for event in events if event[0] != READ and not _is_before(offset, event)]
        look *= 4


def _is_before(offset: DebeziumOffset, event: Event) -> bool:
    operation, _, commit_lsn, lsn = event
    return (is_read_before if operation == READ else is_before)(offset, commit_lsn, lsn)


class _Progress:
    """Log at intervals how many records were read."""

    def __init__(self) -> None:
        self._records = 0
        self._logged = monotonic()

    def count(self, record: ConsumerRecord) -> None:
        self._records += 1
        if monotonic() - self._logged >= _LOG_INTERVAL_S:
            self._logged = monotonic()
            log.info(
                "reading_topics_of_connector",
                topic=record.topic,
                partition=record.partition,
                records_read=self._records,
            )


async def read_to(consumer: Consumer, place: TopicPartition, end: int, limit_s: float) -> AsyncIterator[ConsumerRecord]:
    """Yield the records from the consumer's position to `end`. Raises Retry if none arrives for
    `limit_s` seconds."""
    since = monotonic()
    while (reached := await consumer.position(place)) < end:
        records = (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, [])
        for record in records:
            yield record
        if await consumer.position(place) > reached:
            since = monotonic()
        elif monotonic() - since > limit_s:
            raise Retry(
                f"adopt: {place.topic}, partition {place.partition}, could not be read beyond offset {reached} for "
                f"{limit_s:.0f} s",
                hint="check that the partition has a leader and that the broker is reachable",
            )


class _Schemas:
    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry
        self._known: dict[int, Any] = {}

    async def event(self, record: ConsumerRecord, before: Event | None) -> Event | None:
        """Return the record's event, or None if the record has no place in the stream. A tombstone
        belongs to the event `before` it. Raises WalgateError."""
        if record.value is None:
            return None if before is None else (TOMBSTONE, *before[1:])
        try:
            value = await self._decoded(record.value)
            source, operation = value["source"], value["op"]
            commit_lsn, lsn = json.loads(source.get("sequence") or "[null, null]")
            if lsn is None if operation == READ else source["txId"] is None:
                return None
            return operation, source["txId"] or 0, int(commit_lsn or 0), int(lsn)
        except (
            SchemaError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            EOFError,
            RecursionError,
        ) as error:
            raise StopForOperator(
                f"adopt: the record at offset {record.offset} of {record.topic} was not written by a Debezium "
                "connector for PostgreSQL",
                hint="use the topics that the connector wrote to, and set debezium.format to the format in which it wrote the "
                "records",
            ) from error

    async def _decoded(self, value: bytes) -> Any:
        if value.startswith(b"{"):
            found = json.loads(value)
            return found.get("payload", found)
        number = read_schema_id(value)
        if number not in self._known:
            with classified_schema_errors():
                self._known[number] = fastavro.parse_schema(_plain(await self._registry.schema(number)))
        return fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), self._known[number], None)


def _plain(schema: Any) -> Any:
    """Return the schema without logical types, because Python cannot represent dates before year
    1."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _plain(each) for name, each in schema.items() if name != "logicalType"}


# -- the slot


async def _transactions(
    source: SourceSettings, login: Credentials, written: Written, *, skips_truncates: bool
) -> list[Committed]:
    """Return the transactions that the slot still has, at least up to the one that made the newest
    change in `written`."""
    newest_xid, newest_lsn = max(written, key=lambda place: place[1])
    names = ",".join(map(quoted_identifier, source.publications))
    peeked = _PEEKED_BYTES
    sql = await connect_sql(login)
    try:
        flushed = int(await sql.fetchval(_FLUSHED))
        while True:
            until = newest_lsn + peeked
            messages = "on" if source.messages else "off"
            rows = await sql.fetch(_PEEK, source.slot, str(Lsn(until)), names, messages, timeout=DECODING_TIMEOUT_S)
            found = list(committed(rows, source.message_prefixes, skips_truncates=skips_truncates))
            if until >= flushed or any(each.xid == newest_xid for each in found):
                return found
            peeked *= 4
    except DRIVER_ERRORS as error:
        raise classify_exception(error, "peeking at the slot") from error
    finally:
        await end_session(sql)
