"""Records of one stretch of a topic-partition, from consumers that are kept as long as the process lives.

Spark keeps its Python workers, so a consumer (0.1-0.3 s to start) serves many tasks. Two are kept: with fetches of several
megabytes an 11-record read took 70-270 ms, with small fetches 7-22 ms; large reads want the opposite.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from spark_consumer.columnar.arrays import binaries
from spark_consumer.columnar.cursor import Longs
from spark_consumer.errors import MalformedRecord, RangeExpired, SourceUnavailable, TransactionIncomplete

_SMALL_READ_RECORDS = 2_000
_CHUNK_BYTES = 8 << 20
_CHUNK_RECORDS = 10_000
POLL_S = 0.2

_ALWAYS: dict[str, Any] = {
    "group.id": "walgate-spark",  # librdkafka wants one; we neither join a group nor commit offsets
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    "log_level": 2,  # what goes wrong is raised
}
_SMALL = {
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 4_096,
    "fetch.max.bytes": 1 << 20,
    "max.partition.fetch.bytes": 256 << 10,
}
_LARGE = {
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32_768,
    "fetch.max.bytes": 4 << 20,
    "max.partition.fetch.bytes": 1 << 20,
}

_consumers: dict[tuple[tuple[tuple[str, str], ...], str], Consumer] = {}


@dataclass(frozen=True, slots=True)
class Broker:
    """How to reach Kafka. `settings` are librdkafka's, `bootstrap.servers` and security among them; it pickles into tasks.

    `no_progress_s`: a read that gets no record for so long has failed. It must be longer than Kafka takes to make a committed
    transaction visible in all its partitions, since the marker's may come first.
    """

    settings: Mapping[str, str]
    no_progress_s: float = 30.0

    def consumer(self, size: str) -> Consumer:
        """This process's consumer for `size` "small" or "large" reads."""
        key = (tuple(sorted(self.settings.items())), size)
        found = _consumers.get(key)
        if found is None:
            sizes = _SMALL if size == "small" else _LARGE
            found = _consumers[key] = Consumer({**_ALWAYS, **sizes, **self.settings})
        return found

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """First offset kept, and the offset behind the last committed record (the last stable offset)."""
        try:
            low, high = self.consumer("small").get_watermark_offsets(
                TopicPartition(topic, partition), timeout=self.no_progress_s
            )
        except KafkaException as problem:
            raise unavailable(f"the offsets of {topic}[{partition}]", problem.args[0]) from problem
        return low, high

    def read(self, topic: str, partition: int, first_offset: int, last_offset: int) -> Iterator[tuple[Longs, pa.Array]]:
        """Chunks (offsets, values as pa.binary()) of all committed records from `first_offset` to `last_offset`.

        Raises RangeExpired, SourceUnavailable, and TransactionIncomplete when the end is not reached.
        """
        size = "small" if last_offset - first_offset < _SMALL_READ_RECORDS else "large"
        consumer = self.consumer(size)
        try:
            consumer.assign([TopicPartition(topic, partition, first_offset)])
            yield from self._chunks(consumer, topic, partition, first_offset, last_offset)
        except KafkaException as problem:
            raise unavailable(f"{topic}[{partition}]", problem.args[0]) from problem
        finally:
            consumer.unassign()

    def _chunks(
        self, consumer: Consumer, topic: str, partition: int, position: int, last_offset: int
    ) -> Iterator[tuple[Longs, pa.Array]]:
        chunk_records = min(1_000, _CHUNK_RECORDS)
        last_progress = time.monotonic()
        while position <= last_offset:
            messages = _next_messages(consumer, chunk_records, last_offset - position + 1)
            offsets, values, reached = _sort_out(messages, topic, partition, position, last_offset)
            if reached > position:
                position, last_progress = reached, time.monotonic()
            elif time.monotonic() - last_progress > self.no_progress_s:
                raise TransactionIncomplete(
                    f"{topic}[{partition}]: no record at offset {position} for {self.no_progress_s:g} s, "
                    f"but a manifest reaches to {last_offset}",
                    hint="The topic is shorter than its manifests say, or the broker is slow: see the option noProgressTimeout.",
                )
            if values:
                array = binaries(values)
                yield np.array(offsets, np.int64), array
                # Rows may have 16 MiB each: size the next chunk by this one's records.
                chunk_records = max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES * len(values) // max(1, array.nbytes)))


def _next_messages(consumer: Consumer, chunk_records: int, offsets_left: int) -> list[Message]:
    """`consume` waits until it has all it was asked for. Kafka's control records make fewer messages than offsets, so near the
    end it would wait in vain for the whole time: there one message is awaited, and what is at hand is taken with it."""
    if offsets_left > chunk_records:
        return consumer.consume(chunk_records, POLL_S)
    messages = consumer.consume(1, POLL_S)
    return messages + consumer.consume(offsets_left, 0) if messages else messages


def _sort_out(
    messages: list[Message], topic: str, partition: int, position: int, last_offset: int
) -> tuple[list[int], list[bytes], int]:
    """Offsets and values up to `last_offset`, and the offset that has been reached."""
    offsets: list[int] = []
    values: list[bytes] = []
    for message in messages:
        error = message.error()
        offset = message.offset()
        if error is not None:
            position = max(position, _reached_by(error, offset, topic, partition, position, last_offset))
            continue
        assert offset is not None
        if offset > last_offset:
            return offsets, values, offset
        value = message.value()
        if value is None:
            raise MalformedRecord(f"{topic}[{partition}] {offset}: a record without a value")
        offsets.append(offset)
        values.append(value)
        position = offset + 1
    return offsets, values, position


def _reached_by(
    error: KafkaError, offset: int | None, topic: str, partition: int, position: int, last_offset: int
) -> int:
    """An event of the consumer: the end of the partition moves us only when it lies beyond the range."""
    code = error.code()
    if code == KafkaError._PARTITION_EOF:
        return offset if offset is not None and offset > last_offset else position
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise RangeExpired(
            f"{topic}[{partition}] has no offset {position} any more, but a manifest names {position}..{last_offset}",
            hint="Retention has removed records that were never read, or the topic was made anew. "
            "Raise the retention; start again from a later position.",
        )
    if error.retriable() or code in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
        return position  # librdkafka reconnects; the no-progress time ends it
    raise unavailable(f"{topic}[{partition}]", error)


def unavailable(what: str, error: KafkaError) -> SourceUnavailable:
    hint = ""
    if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        hint = (
            "The topic is missing: check the options prefix and kafka.bootstrap.servers, and that the gateway has run."
        )
    return SourceUnavailable(f"Kafka did not give {what}: {error.name()}: {error.str()}", hint=hint)
