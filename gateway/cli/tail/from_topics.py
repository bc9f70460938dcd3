"""Committed records of all topics with a prefix. They are read without joining a consumer group or
writing anything."""

from __future__ import annotations

import time
from typing import Any, Final

import structlog
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from gateway.cli.tail.filters import MessageFilter
from gateway.cli.tail.message_json import Shown
from gateway.cli.tail.output import Output
from gateway.cli.tail.record_json import RecordRenderer, UnreadableRecord
from gateway.config.kafka import KafkaSettings
from gateway.errors import StopForOperator
from gateway.kafka.aiokafka_internals.admin import Consumer
from gateway.kafka.classify_errors import READING, classify
from gateway.kafka.producer import STOP_TIMEOUT_S
from gateway.kafka.shutdown import close_with_timeout
from schemas.topic_names import (
    format_relation,
    may_hold,
    message_topic,
    relation_of_topic,
    transaction_topic,
)

log = structlog.get_logger()

_POLL_MS: Final = 300
_MOST_RECORDS: Final = 1000
_LOOK_S: Final = 5.0
"""Seconds between searches for new topics."""


async def tail_topics(
    settings: KafkaSettings, records: RecordRenderer, chosen: MessageFilter, output: Output, *, from_beginning: bool
) -> None:
    """Show records until `output` has ended. They are in order only within a partition. Raises
    WalgateError."""
    consumer = Consumer(
        **settings.client_options(),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # retention may delete records before they are read
    )
    try:
        await consumer.start()
        await _copy(consumer, settings.prefix, records, chosen, output, from_beginning=from_beginning)
    except (KafkaError, OSError) as error:
        raise classify(error, "reading topics", READING) from error
    finally:
        await close_with_timeout(consumer.stop(), STOP_TIMEOUT_S)


async def _copy(
    consumer: Consumer,
    prefix: str,
    records: RecordRenderer,
    chosen: MessageFilter,
    output: Output,
    *,
    from_beginning: bool,
) -> None:
    offsets: dict[TopicPartition, int] = {}
    looked_at: float | None = None
    while not output.ended.is_set():
        if looked_at is None or time.monotonic() - looked_at > _LOOK_S:
            at_end = looked_at is None and not from_beginning
            there = await consumer.partitions_below(f"{prefix}.")
            await _follow_new(consumer, there, offsets, at_end=at_end)
            if not offsets:
                raise StopForOperator(
                    f"there is no topic {prefix}.*", hint="set kafka.prefix to the prefix that the gateway writes to"
                )
            if looked_at is None:
                _warn_of_tables({place.topic for place in there}, prefix, chosen)
            looked_at = time.monotonic()
        found = await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MOST_RECORDS)
        for place, batch in found.items():
            offsets[place] = batch[-1].offset + 1
            shown = [await _shown(place, record, records, prefix) for record in batch]
            await output.write([one for each in shown for one in chosen.choose(each)])


def _warn_of_tables(topics: set[str], prefix: str, chosen: MessageFilter) -> None:
    """Log table patterns that match no topic. A topic that is created later is shown as well.
    Nothing is logged if the name of a topic does not show its table."""
    tables = topics - {transaction_topic(prefix), message_topic(prefix)}
    relations = [relation_of_topic(prefix, topic) for topic in tables]
    if None not in relations:
        for pattern, near in chosen.unmatched([format_relation(*relation) for relation in relations if relation]):
            log.warning("no_topic_of_table", table=pattern, hint=f"did you mean {near}?" if near else "")


async def _follow_new(
    consumer: Consumer, there: set[TopicPartition], offsets: dict[TopicPartition, int], *, at_end: bool
) -> None:
    """Begin to read new partitions. `offsets` has the next offset of each partition that is read;
    the new ones are added to it."""
    new = sorted(there - offsets.keys())
    if not new:
        return
    offsets |= await (consumer.end_offsets(new) if at_end else consumer.beginning_offsets(new))
    consumer.assign(sorted(offsets))
    for place, offset in offsets.items():
        consumer.seek(place, offset)


async def _shown(place: TopicPartition, record: Any, records: RecordRenderer, prefix: str) -> Shown:
    at = {"topic": place.topic, "partition": place.partition, "offset": record.offset}
    if record.value is not None and record.value[:1] != b"\0":
        # Without Confluent's framing, it was not written by a gateway.
        return {"message": "Foreign", **at, "bytes": len(record.value)}
    try:
        shown = await records.show(record.value, record.key)
    except UnreadableRecord as error:
        error.message = f"{place.topic}[{place.partition}] offset {record.offset}: {error.message}"
        raise
    relation = None if record.value is None else await records.native_relation(record.value, prefix)
    if relation is not None and not may_hold(prefix, place.topic, *relation):
        raise StopForOperator(
            f"{place.topic}[{place.partition}] offset {record.offset}: the record has the schema {shown['schema_id']}, which "
            f"is that of {format_relation(*relation)}",
            hint="the schema registry has lost schemas and given their IDs to others, or registry.url is not that of the "
            "gateway: correct registry.url, or restore the registry from a backup that has all schemas",
        )
    return {"message": shown.pop("message"), **at, **shown}
