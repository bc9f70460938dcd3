"""One read, chunk by chunk: the records that belong to its transactions, counted, with double records folded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from schemas.framing import FRAME_BYTES
from spark_consumer.broker import Broker
from spark_consumer.columnar.arrays import numbers
from spark_consumer.columnar.cursor import Longs
from spark_consumer.columnar.head import Heads, decode_heads
from spark_consumer.counting import RangeCounter, fold
from spark_consumer.errors import MalformedRecord
from spark_consumer.planning import Read


@dataclass(frozen=True, slots=True)
class Chunk:
    """The chosen records of one fetch, by equal index; heads and ranges are of the chosen ones only."""

    read: Read
    offsets: Longs
    values: pa.Array  # pa.binary(), framed
    operation: Longs
    xid: Longs
    change_lsn: Longs
    ordinal: Longs
    commit_lsn: Longs
    commit_time_us: Longs

    def __len__(self) -> int:
        return len(self.offsets)


def read_chunks(broker: Broker, read: Read) -> Iterator[Chunk]:
    """All changes of one read. Raises TransactionIncomplete behind the last chunk when they do not add up: whoever consumes this
    must not let any of it out before."""
    counter = RangeCounter(read)
    for offsets, values in broker.read(read.topic, read.partition, read.first_offset, read.last_offset):
        try:
            heads = decode_heads(values, skip=FRAME_BYTES)
            matched = fold(heads, counter.match(heads, offsets), read)
        except MalformedRecord as problem:
            raise MalformedRecord(f"{read.topic}[{read.partition}] {offsets[0]}..{offsets[-1]}: {problem}") from problem
        if len(matched.rows):
            yield _chunk(read, offsets, values, heads, matched.rows, matched.ranges)
    counter.finish()


def _chunk(read: Read, offsets: Longs, values: pa.Array, heads: Heads, rows: Longs, ranges: Longs) -> Chunk:
    return Chunk(
        read=read,
        offsets=offsets[rows],
        values=values if len(rows) == len(values) else values.take(numbers(rows)),
        operation=heads.operation[rows],
        xid=heads.xid[rows],
        change_lsn=heads.change_lsn[rows],
        ordinal=heads.ordinal[rows],
        commit_lsn=read.commit_lsns[ranges],
        commit_time_us=read.commit_times_us[ranges],
    )
