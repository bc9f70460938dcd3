"""Records -> Kafka batches, built in place, with the pieces of each batch that belong to each
transaction.

Nothing here waits. A record costs one call into aiokafka's batch builder and one identity check:
only one transaction is current at a time, so a change of the manifest shows where its piece of a
batch begins and ends.
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
"""Placeholder for the manifest of a batch that is not open: it is never the manifest of a
record."""

RECORD_OVERHEAD_BYTES = 200
"""Generous size of a batch header and of a record's own fields, left free below the broker's
message.max.bytes."""

PIECE_BYTES = 600
"""Memory of a piece, its range and its share of a transaction's manifest and markers: 4 rows in 4
topics take about 2.4 kB, five times their records."""


HELD_FACTOR = 4
"""A row may take this many times kafka.max_record_bytes as PostgreSQL sends it; a larger one is
given up unread.

A record may be smaller than the message it comes in: half of it for bytea in text (hexadecimal), a
third for arrays of times in text, a quarter for arrays of small integers in binary, whose null
flags and lengths take four bytes each. A larger factor would only hold rows that do not fit; each
takes about five times its size on its way.
"""


_FACTOR: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_UNSIGNED: Final = 0xFFFFFFFF


class _Begun(dict[tuple[int, bytes], int]):
    """(length, first four bytes) -> the hash of these. Worth keeping because all keys of a topic
    begin with their schema id."""

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
    """Return the hash of Kafka's own clients (org.apache.kafka.common.utils.Utils.murmur2), as an
    unsigned number.

    Measured for a key of 8 bytes: 0.7 us.
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
    """A closed batch of one topic-partition. `pieces`: (manifest, first record, record count) of
    each transaction in it."""

    topic: str
    partition: int
    builder: Any
    size: int
    pieces: list[tuple[Manifest, int, int]]

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the batch holds until it is delivered, including the manifests and
        markers of its transactions."""
        return self.size + PIECE_BYTES * len(self.pieces)


class BatchWriter:
    """The open batches of one producer. `create_batch` is the producer's; a batch holds at most its
    `batch_bytes`."""

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
        """Set the timestamp of the following records: called once per read, not per record."""
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
        """Bytes of memory that the pieces of the open batches take in addition to their records."""
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
        """Prepare for a record of another transaction than the last one's. Return True if the
        record opens a new batch."""
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
        """Add the first record of a batch. A batch accepts it whatever its size, so its size is
        checked here, where its row can still be named."""
        self.add(0, self._writer.timestamp_ms, key, value, _NO_HEADERS)
        size = self._builder.size()
        if size > self._writer.max_record_bytes:
            raise self._too_large(size)

    def begin_next(self, key: bytes | None, value: bytes | None, manifest: Manifest | None) -> None:
        """Hand over the full batch, and put the record into a new one."""
        self.close()
        self._writer.open.remove(self)
        self.switch(manifest)
        self.add_first(key, value)

    def _end_piece(self) -> None:
        if self.manifest is not None and self.count > self._first:
            self._pieces.append((self.manifest, self._first, self.count - self._first))

    def close(self) -> None:
        """Hand the batch over; the caller removes this buffer from the writer's list of open
        ones."""
        self._writer.ended_pieces -= len(self._pieces)
        self._end_piece()
        builder = self._builder
        end_batch(builder, self.count)
        self._writer.ready.append(Batch(self._sink.topic, self.partition, builder, builder.size(), self._pieces))
        self.manifest = _CLOSED
        self._builder = self.add = None
        self._pieces = []
        self.count = 0

    def _too_large(self, size: int) -> RecordTooLarge:
        return self._sink.too_large(f"makes a record of {size} bytes", size)


class TopicSink:
    """The partitions of one topic. Satisfies the protocols of sinks that gateway/transactions and
    gateway/debezium define."""

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
        """Append a record; `value` None is a tombstone. The partition is crc32(key) % n
        (librdkafka's `consistent`); without a key it is that of `buffer`, or else the first."""
        if buffer is None:
            buffer = self._buffers[0 if key is None else crc32(key) % self._count]
        if manifest is not buffer.manifest and buffer.switch(manifest):
            buffer.add_first(key, value)
        elif buffer.add(buffer.count, self._writer.timestamp_ms, key, value, _NO_HEADERS) is None:
            buffer.begin_next(key, value, manifest)
        buffer.count += 1

    def offer(self, value: bytes, manifest: Manifest | None) -> bool:
        """Append a record without a key. Return False instead if it is larger than the topic
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
        """Call `append_hashed`. Return False instead if the record is larger than the topic
        accepts."""
        if len(key) + len(value) + RECORD_OVERHEAD_BYTES > self._writer.max_record_bytes:
            return False
        self.append_hashed(key, value)
        return True

    def too_large(self, what: str, size: int) -> RecordTooLarge:
        """Return the error for a row of this topic that is too large. `what`: the predicate of the
        sentence; `size`: bytes of the row."""
        return RecordTooLarge(
            f"a row of {self.owner} {what}, but kafka.max_record_bytes allows at most {self._writer.max_record_bytes} bytes "
            f"in {self.topic}",
            hint="raise kafka.max_record_bytes and the topic's max.message.bytes (beyond 100 MB also the brokers' "
            f"socket.request.max.bytes) above {size}, and restart the gateway",
        )

    def append_everywhere(self, value: bytes, manifest: Manifest | None) -> None:
        for buffer in self._buffers:
            self.append(None, value, manifest, buffer)
