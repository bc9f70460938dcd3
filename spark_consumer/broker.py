"""Records of one stretch of a topic-partition, from consumers that are kept as long as the process lives.

Spark keeps its Python workers, so a consumer (0.1-0.3 s to start) serves many tasks. Two are kept: with fetches of several
megabytes an 11-record read took 70-270 ms, with small fetches 7-22 ms; large reads want the opposite.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from spark_consumer.columnar.arrays import binaries
from spark_consumer.columnar.cursor import Longs
from spark_consumer.errors import (
    ConsumerError,
    MalformedRecord,
    RangeExpired,
    SourceRefused,
    SourceUnavailable,
    TransactionIncomplete,
)

_SMALL_READ_RECORDS = 2_000
_CHUNK_BYTES = 8 << 20
_CHUNK_RECORDS = 10_000
POLL_S = 0.2
_ASK_S = 5.0  # for one question; a consumer says only between two what went wrong

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

# A broker that starts again, or the leader of a partition that moves.
_PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
# A broker that has just started says so of topics that it has, too.
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


class _Trouble:
    """Why the connections of a consumer failed: the request itself says only that all brokers are down."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN and not self.is_refusal:
            self.last = error

    @property
    def is_refusal(self) -> bool:
        return self.last is not None and self.last.code() in _REFUSED


class _Kept(NamedTuple):
    consumer: Consumer
    trouble: _Trouble
    known: set[tuple[str, int]]  # topic-partitions that were there


_consumers: dict[tuple[tuple[tuple[str, str], ...], str], _Kept] = {}


@dataclass(frozen=True, slots=True)
class Broker:
    """How to reach Kafka. `settings` are librdkafka's, `bootstrap.servers` and security among them; it pickles into tasks.

    `no_progress_s`: a read that gets no record for so long has failed. It must be longer than Kafka takes to make a committed
    transaction visible in all its partitions, since the marker's may come first.
    """

    settings: Mapping[str, str]
    no_progress_s: float = 30.0

    def _kept(self, size: str) -> _Kept:
        """This process's consumer for `size` "small" or "large" reads."""
        key = (tuple(sorted(self.settings.items())), size)
        found = _consumers.get(key)
        if found is None:
            sizes = _SMALL if size == "small" else _LARGE
            trouble = _Trouble()
            consumer = Consumer({**_ALWAYS, **sizes, "error_cb": trouble, **self.settings})
            found = _consumers[key] = _Kept(consumer, trouble, set())
        return found

    def offsets(self, topic: str, partition: int = 0, *, patience_s: float | None = None) -> tuple[int, int]:
        """First offset kept, and the offset behind the last committed record (the last stable offset).

        Asks for `patience_s` (None: `no_progress_s`) where no broker answers. Raises SourceUnavailable, SourceRefused.
        """
        consumer, trouble, known = self._kept("small")
        deadline = time.monotonic() + (self.no_progress_s if patience_s is None else patience_s)
        while True:
            trouble.last = None
            patience = max(1.0, min(_ASK_S, deadline - time.monotonic()))
            try:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=patience)
            except KafkaException as problem:
                error: KafkaError = problem.args[0]
                consumer.poll(0)  # calls `trouble`
                passes = error.code() in _PASSING or (error.code() in _MISSING and (topic, partition) in known)
                if not passes or trouble.is_refusal or time.monotonic() > deadline:
                    raise unavailable(f"the offsets of {topic}[{partition}]", error, trouble.last) from problem
                time.sleep(POLL_S)  # a leader that moves is told at once
            else:
                known.add((topic, partition))
                return low, high

    def read(
        self, topic: str, partition: int, first_offset: int, last_offset: int, *, skip_tombstones: bool = False
    ) -> Iterator[tuple[Longs, pa.Array]]:
        """Chunks (offsets, values as pa.binary()) of all committed records from `first_offset` to `last_offset`.

        Raises RangeExpired, SourceUnavailable, SourceRefused, and TransactionIncomplete when the end is not reached.
        """
        kept = self._kept("small" if last_offset - first_offset < _SMALL_READ_RECORDS else "large")
        stretch = _Stretch(topic, partition, last_offset, skip_tombstones, kept.trouble)
        try:
            kept.consumer.assign([TopicPartition(topic, partition, first_offset)])
            yield from self._chunks(kept.consumer, stretch, first_offset)
        except KafkaException as problem:
            raise unavailable(str(stretch), problem.args[0]) from problem
        finally:
            kept.consumer.unassign()

    def _chunks(self, consumer: Consumer, stretch: _Stretch, position: int) -> Iterator[tuple[Longs, pa.Array]]:
        chunk_records = min(1_000, _CHUNK_RECORDS)
        last_progress = time.monotonic()
        stretch.trouble.last = None
        while position <= stretch.last_offset:
            messages = _next_messages(consumer, chunk_records, stretch.last_offset - position + 1)
            offsets, values, reached = _sort_out(messages, stretch, position)
            if reached > position:
                position, last_progress = reached, time.monotonic()
                stretch.trouble.last = None
            elif time.monotonic() - last_progress > self.no_progress_s:
                raise stretch.stands_still(position, self.no_progress_s)
            if values:
                array = binaries(values)
                yield np.array(offsets, np.int64), array
                # Rows may have 16 MiB each: size the next chunk by this one's records.
                chunk_records = max(1, min(_CHUNK_RECORDS, _CHUNK_BYTES * len(values) // max(1, array.nbytes)))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """What is being read."""

    topic: str
    partition: int
    last_offset: int
    skip_tombstones: bool
    trouble: _Trouble

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    def stands_still(self, position: int, no_progress_s: float) -> ConsumerError:
        if self.trouble.last is not None:
            return unavailable(f"{self} from offset {position} on", self.trouble.last)
        return TransactionIncomplete(
            f"{self}: no record at offset {position} for {no_progress_s:g} s, but a manifest reaches to {self.last_offset}",
            hint="The topic is shorter than its manifests say, or the broker is slow: see the option noProgressTimeout.",
        )


def _next_messages(consumer: Consumer, chunk_records: int, offsets_left: int) -> list[Message]:
    """`consume` waits until it has all it was asked for. Kafka's control records make fewer messages than offsets, so near the
    end it would wait in vain for the whole time: there one message is awaited, and what is at hand is taken with it."""
    if offsets_left > chunk_records:
        return consumer.consume(chunk_records, POLL_S)
    messages = consumer.consume(1, POLL_S)
    return messages + consumer.consume(offsets_left, 0) if messages else messages


def _sort_out(messages: list[Message], stretch: _Stretch, position: int) -> tuple[list[int], list[bytes], int]:
    """Offsets and values up to `last_offset`, and the offset that has been reached."""
    offsets: list[int] = []
    values: list[bytes] = []
    last_offset = stretch.last_offset
    for message in messages:
        error = message.error()
        offset = message.offset()
        if error is not None:
            position = max(position, _reached_by(error, offset, stretch, position))
            continue
        assert offset is not None
        if offset > last_offset:
            return offsets, values, offset
        value = message.value()
        position = offset + 1
        if value is not None:
            offsets.append(offset)
            values.append(value)
        elif not stretch.skip_tombstones:
            raise MalformedRecord(f"{stretch} {offset}: a record without a value")
    return offsets, values, position


def _reached_by(error: KafkaError, offset: int | None, stretch: _Stretch, position: int) -> int:
    """An event of the consumer: the end of the partition moves us only when it lies beyond the range."""
    code = error.code()
    if code == KafkaError._PARTITION_EOF:
        return offset if offset is not None and offset > stretch.last_offset else position
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise RangeExpired(
            f"{stretch} has no offset {position} any more, but a manifest names {position}..{stretch.last_offset}",
            hint="Retention has removed records that were never read, or the topic was made anew. "
            "Raise the retention; start again from a later position.",
        )
    if error.retriable() or code in _PASSING or code in _MISSING:
        stretch.trouble(error)
        return position  # librdkafka reconnects; the no-progress time ends it
    raise unavailable(str(stretch), error)


def unavailable(what: str, error: KafkaError, reason: KafkaError | None = None) -> SourceUnavailable | SourceRefused:
    """`reason`: what went wrong with the connection."""
    message = f"Kafka did not give {what}: " + "; ".join(f"{e.name()}: {e.str()}" for e in (error, reason) if e)
    if any(e is not None and e.code() in _REFUSED for e in (error, reason)):
        return SourceRefused(message, hint="Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.")
    hint = ""
    if error.code() in _MISSING:
        hint = (
            "The topic is missing: check the options prefix and kafka.bootstrap.servers, and that the gateway has run."
        )
    elif reason is not None and "SSL_HANDSHAKE" in reason.str():  # the state in which the broker hung up
        hint = "The broker hung up in the TLS handshake: does its port want another kafka.security.protocol?"
    return SourceUnavailable(message, hint=hint)
