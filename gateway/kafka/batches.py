"""Put records into Kafka batches, and note which piece of each batch belongs to which transaction.

Nothing here waits. A record costs one call into aiokafka's batch builder and one identity check.
Only one transaction is current at a time, so a change of the manifest shows where a piece of a
batch ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from librt.strings import read_i32_le

from gateway.errors import UnwritableRelation
from gateway.events.manifest import Manifest
from gateway.kafka.aiokafka_internals.producer import end_batch, record_appender

if TYPE_CHECKING:
    from mypy_extensions import i64

_NO_HEADERS: Final[list[Any]] = []
_CLOSED: Final = Manifest(epoch=-1)
"""Placeholder for the manifest of a batch that is not open; no record has this manifest."""

RECORD_OVERHEAD_BYTES = 200
"""A generous estimate of the size of a batch header and of a record's own fields. This many bytes
are left free below kafka.max_record_bytes."""

PIECE_BYTES = 600
"""The memory that a piece takes, with its range and its share of the transaction's manifest and
markers. Four rows in four topics take about 2.4 kB, five times the size of their records."""


HELD_FACTOR = 4
"""A row may take up to this many times kafka.max_record_bytes in the form in which PostgreSQL sends
it; a larger row is given up unread.

A record may be smaller than the message that carries the row: half as large for bytea in text
(hexadecimal), a third for arrays of times in text. For arrays of small integers in binary, where
the length of each element takes four bytes, it is a quarter. With a larger factor, only rows that
do not fit would be held, and each takes about five times its size while it is processed.
"""


_FACTOR: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_UNSIGNED: Final = 0xFFFFFFFF


class _Begun(dict[tuple[int, bytes], int]):
    """A cache that maps the length and the first four bytes of a key to their hash. It is useful
    because all keys of a topic begin with the id of the same schema."""

    def __missing__(self, head: tuple[int, bytes]) -> int:
        length, first = head
        if len(self) >= 4096:
            self.clear()
        word = int.from_bytes(first, "little") * _FACTOR & _UNSIGNED
        word = (word ^ word >> 24) * _FACTOR & _UNSIGNED
        begun = self[head] = (_SEED ^ length) * _FACTOR & _UNSIGNED ^ word
        return begun


_begun: Final = _Begun()


def murmur2(data: bytes) -> int:
    """Return the hash that Kafka's own clients compute
    (org.apache.kafka.common.utils.Utils.murmur2), as an unsigned number.

    For a key of 8 bytes this takes 0.7 us.
    """
    length = len(data)
    rest = length & 3
    # No product exceeds 63 bits, so i64 gives the same compiled and interpreted.
    value: i64 = _SEED ^ length if length < 4 else _begun[length, data[:4]]
    at = 4
    while at < length - 3:
        signed: int = read_i32_le(data, at)
        word: i64 = signed
        word = (word & _UNSIGNED) * _FACTOR & _UNSIGNED
        value = value * _FACTOR & _UNSIGNED ^ (word ^ word >> 24) * _FACTOR & _UNSIGNED
        at += 4
    if rest:
        value = (value ^ int.from_bytes(data[length - rest :], "little")) * _FACTOR & _UNSIGNED
    value = (value ^ value >> 13) * _FACTOR & _UNSIGNED
    return value ^ value >> 15


class RecordTooLarge(UnwritableRelation):
    """A row is larger than the largest record that the topic and the producer accept."""


@dataclass(slots=True)
class Batch:
    """A closed batch of one topic-partition. `pieces` has (manifest, first record, record count)
    for each transaction in the batch."""

    topic: str
    partition: int
    builder: Any
    size: int
    pieces: list[tuple[Manifest, int, int]]

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the batch holds until it is delivered, including the manifests
        and markers of its transactions."""
        return self.size + PIECE_BYTES * len(self.pieces)


class BatchWriter:
    """The open batches of one producer. `create_batch` is the producer's method; a batch holds at
    most kafka.batch_bytes."""

    def __init__(self, create_batch: Callable[[], Any], max_record_bytes: int) -> None:
        self.create_batch = create_batch
        self.max_record_bytes = max_record_bytes
        self.ready: list[Batch] = []
        self.open: list[PartitionBuffer] = []
        self.ended_pieces = 0
        self.timestamp_ms = 0
        self.tick()
        self._sinks: dict[str, TopicSink] = {}

    def sink(self, topic: str, partition_count: int, owner: str) -> TopicSink:
        """Return the sink of a topic; `owner` names its relation in errors."""
        known = self._sinks.get(topic)
        if known is None:
            known = self._sinks[topic] = TopicSink(self, topic, partition_count)
        known.owner = owner
        return known

    def tick(self) -> None:
        """Set the timestamp of the following records. Call this once per read, not once per
        record."""
        self.timestamp_ms = int(time.time() * 1000)

    def close_all(self) -> None:
        """Move every open batch to `ready`."""
        for buffer in self.open:
            buffer.close()
        self.open.clear()

    @property
    def has_records(self) -> bool:
        return bool(self.ready or self.open)

    @property
    def pieces_bytes(self) -> int:
        """The bytes of memory that the pieces of the open batches take in addition to their
        records."""
        return PIECE_BYTES * (self.ended_pieces + len(self.open))


class PartitionBuffer:
    """The open batch of one topic-partition; `TopicSink.append` adds the records."""

    __slots__ = ("_builder", "_first", "_pieces", "_sink", "_writer", "add", "count", "manifest", "partition")

    def __init__(self, writer: BatchWriter, sink: TopicSink, partition: int) -> None:
        self._writer = writer
        self._sink = sink
        self.partition = partition
        self.manifest: Manifest | None = _CLOSED
        self.count = 0
        self.add: Any = None
        self._first = 0
        self._pieces: list[tuple[Manifest, int, int]] = []
        self._builder: Any = None

    def switch(self, manifest: Manifest | None) -> bool:
        """Prepare for a record of another transaction than that of the last record. Return True if
        the record opens a new batch."""
        opens = self.manifest is _CLOSED
        if opens:
            self._builder = self._writer.create_batch()
            self.add = record_appender(self._builder)
            self._writer.open.append(self)
        elif self.manifest is not None:
            self._pieces.append((self.manifest, self._first, self.count - self._first))
            self._writer.ended_pieces += 1
        self.manifest = manifest
        self._first = self.count
        return opens

    def add_first(self, key: bytes | None, value: bytes | None) -> None:
        """Add the first record of a batch. A batch accepts its first record whatever the size. The
        size is therefore checked here, where the row can still be named."""
        self.add(0, self._writer.timestamp_ms, key, value, _NO_HEADERS)
        size = self._builder.size()
        if size > self._writer.max_record_bytes:
            raise self._sink.too_large(f"makes a record of {size} bytes", size)

    def begin_next(self, key: bytes | None, value: bytes | None, manifest: Manifest | None) -> None:
        """Hand over the full batch, and put the record into a new one."""
        self.close()
        self._writer.open.remove(self)
        self.switch(manifest)
        self.add_first(key, value)

    def close(self) -> None:
        """Hand over the batch. The caller must remove this buffer from the writer's list of open
        buffers."""
        self._writer.ended_pieces -= len(self._pieces)
        if self.manifest is not None and self.count > self._first:
            self._pieces.append((self.manifest, self._first, self.count - self._first))
        builder = self._builder
        end_batch(builder, self.count)
        self._writer.ready.append(Batch(self._sink.topic, self.partition, builder, builder.size(), self._pieces))
        self.manifest = _CLOSED
        self._builder = self.add = None
        self._pieces = []
        self.count = 0


class TopicSink:
    """The partitions of one topic. The class satisfies the protocols of sinks that
    gateway/transactions and gateway/debezium define."""

    __slots__ = ("_buffers", "_count", "_writer", "owner", "topic")

    def __init__(self, writer: BatchWriter, topic: str, partition_count: int) -> None:
        self.topic = topic
        self.owner = topic
        self._count = partition_count
        self._writer = writer
        self._buffers = [PartitionBuffer(writer, self, partition) for partition in range(partition_count)]

    def append(
        self, key: bytes | None, value: bytes | None, manifest: Manifest | None, buffer: PartitionBuffer | None = None
    ) -> None:
        """Append a record; `value` None is a tombstone. The record goes to the partition of
        `buffer`, if given. Otherwise it goes to partition crc32(key) % n (librdkafka's
        `consistent`), or without a key to the first."""
        if buffer is None:
            buffer = self._buffers[0 if key is None else crc32(key) % self._count]
        if manifest is not buffer.manifest and buffer.switch(manifest):
            buffer.add_first(key, value)
        elif buffer.add(buffer.count, self._writer.timestamp_ms, key, value, _NO_HEADERS) is None:
            buffer.begin_next(key, value, manifest)
        buffer.count += 1

    def offer(self, value: bytes, manifest: Manifest | None) -> bool:
        """Append a record without a key, or return False if the record is larger than the topic
        accepts."""
        if len(value) + RECORD_OVERHEAD_BYTES > self._writer.max_record_bytes:
            return False
        self.append(None, value, manifest)
        return True

    def append_hashed(self, key: bytes | None, value: bytes | None) -> None:
        """Append a record to the partition that Kafka's own clients choose for the key. `value`
        None is a tombstone."""
        count = self._count
        buffer = self._buffers[0 if key is None or count == 1 else (murmur2(key) & 0x7FFFFFFF) % count]
        self.append(key, value, None, buffer)

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        """Append a record as `append_hashed` does, or return False if the record is larger than the
        topic accepts."""
        if len(key) + len(value) + RECORD_OVERHEAD_BYTES > self._writer.max_record_bytes:
            return False
        self.append_hashed(key, value)
        return True

    def too_large(self, what: str, size: int) -> RecordTooLarge:
        """Return the error for a row of this topic that is too large. `what` is the predicate of
        the sentence, and `size` the size of the row in bytes."""
        return RecordTooLarge(
            f"a row of {self.owner} {what}, but kafka.max_record_bytes allows at most {self._writer.max_record_bytes} bytes "
            f"in {self.topic}",
            hint="raise kafka.max_record_bytes and the topic's max.message.bytes (beyond 100 MB also the brokers' "
            f"socket.request.max.bytes) above {size}, and restart the gateway",
        )

    def append_everywhere(self, value: bytes, manifest: Manifest | None) -> None:
        for buffer in self._buffers:
            self.append(None, value, manifest, buffer)
