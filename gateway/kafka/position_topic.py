"""Read the newest record of every slot from the position topic, and find out whether the marker
topic was ever written to. The states of snapshots are read in the same way. Records are bytes here;
gateway/transactions/position.py encodes and decodes positions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka.structs import TopicPartition

from gateway.config.kafka import KafkaSettings
from gateway.errors import Retry
from gateway.kafka.aiokafka_internals.admin import Consumer
from gateway.kafka.partition_reader import open_reader, true_ends
from schemas.topic_names import POSITION_TOPIC, SNAPSHOT_TOPIC

_POLL_MS = 200
_NOT_TO_ITS_END = (
    "check that the broker is running. If another gateway crashed during a Kafka transaction, wait: the broker aborts that "
    "transaction after the other gateway's kafka.transaction_timeout_s, and this gateway then continues. If it does not, the "
    "brokers have lost their record of the transaction, and do not abort it: kafka-transactions.sh --bootstrap-server ... "
    "find-hanging --topic {topic} shows its StartOffset after 15 minutes, and kafka-transactions.sh --bootstrap-server ... "
    "abort --topic {topic} --partition 0 --start-offset <StartOffset> ends it"
)


class ReadIncomplete(Retry):
    """The topic could not be read to its end, perhaps because a Kafka transaction is still open.
    This error does not mean that the broker is unreachable."""


async def read_positions(
    settings: KafkaSettings, marker_topic: str, timeout_s: float, *, waits: bool = True
) -> tuple[dict[bytes, bytes], bool]:
    """Return the newest position record of every slot, by key, and whether the marker topic holds
    or has held a record.

    The marker topic is read first: with exactly_once, markers and their position are written in the
    same Kafka transaction, so the position of any marker found is found too.

    The topic is read to the partition's true end. A read_committed consumer stops before the first
    transaction that is still open, perhaps one of another gateway that died. A newer position of
    this slot could lie after that transaction, and continuing from an older one would duplicate
    rows. ReadIncomplete is therefore raised until the transaction has ended; the broker ends it
    after its timeout, unless the log of the transaction coordinator was lost (KIP-664). Without
    `waits`, what lies after that transaction is left out.
    """
    position, marker = TopicPartition(POSITION_TOPIC, 0), TopicPartition(marker_topic, 0)
    async with _reading(settings, (position, marker), timeout_s, waits=waits) as (consumer, ends):
        used = await _has_records(consumer, marker, ends[marker])
        newest = await _newest(consumer, position, ends[position])
    return newest, used


async def read_snapshot_states(settings: KafkaSettings, timeout_s: float) -> dict[bytes, bytes]:
    """Return the newest record of each key, for all slots. The topic must exist. Raises
    ReadIncomplete as `read_positions` does."""
    place = TopicPartition(SNAPSHOT_TOPIC, 0)
    async with _reading(settings, (place,), timeout_s) as (consumer, ends):
        return await _newest(consumer, place, ends[place])


@asynccontextmanager
async def _reading(
    settings: KafkaSettings, places: tuple[TopicPartition, ...], timeout_s: float, *, waits: bool = True
) -> AsyncIterator[tuple[Consumer, dict[TopicPartition, int]]]:
    """Return a consumer, and the end offset of each partition; without `waits`, the offset of the
    first transaction that is open. Errors name the topic of the first partition."""
    topic = places[0].topic
    incomplete = ReadIncomplete(
        f"{topic} could not be read to its end within {timeout_s:.0f} s", hint=_NOT_TO_ITS_END.format(topic=topic)
    )
    async with open_reader(settings, topic, timeout_s, incomplete) as consumer:
        yield consumer, await (true_ends(settings, places) if waits else consumer.end_offsets(list(places)))


async def _newest(consumer: Consumer, place: TopicPartition, end: int) -> dict[bytes, bytes]:
    """Return the newest record of each key, up to the offset `end`."""
    newest: dict[bytes, bytes] = {}
    consumer.assign([place])
    await consumer.seek_to_beginning(place)
    while await consumer.position(place) < end:
        for record in (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, []):
            if record.value is None:
                newest.pop(record.key, None)
            elif record.key is not None:
                newest[record.key] = record.value
    return newest


async def _has_records(consumer: Consumer, place: TopicPartition, end: int) -> bool:
    """Return whether the partition holds a committed record, or has held records that retention
    removed. Control records, which the abort of an interrupted first start leaves behind, have
    offsets but do not count."""
    if (await consumer.beginning_offsets([place]))[place] > 0:
        return True
    consumer.assign([place])
    await consumer.seek_to_beginning(place)
    while await consumer.position(place) < end:
        if await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=1):
            return True
    return False
