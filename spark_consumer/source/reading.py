"""Read chunks of the records that belong to the wanted transactions. The records are counted; if an
event has several records, only one is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from schemas.wire_format import FRAME_BYTES
from spark_consumer.columnar.arrays import binaries, numbers
from spark_consumer.columnar.completeness import RangeCounter, fold, longs
from spark_consumer.columnar.cursor import Longs
from spark_consumer.columnar.head import Heads, decode_heads
from spark_consumer.errors import MalformedRecord
from spark_consumer.reader.broker import Broker, Stretch
from spark_consumer.reader.read_planning import Read


@dataclass(frozen=True, slots=True)
class Chunk:
    """The selected records of one fetch, as parallel arrays. All arrays have the order of the
    selected records."""

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


def read_chunks(broker: Broker, reads: Sequence[Read]) -> Iterator[Chunk]:
    """Yield all changes of the reads. Raises TransactionIncomplete after the last chunk if records
    are missing or surplus, so the caller must not release any chunk before the end."""
    counters = [RangeCounter(read) for read in reads]
    stretches = [Stretch(read.topic, read.partition, read.first_offset, read.last_offset) for read in reads]
    for index, offsets, values in broker.read_many(stretches):
        array, at = binaries(values), np.array(offsets, np.int64)
        try:
            heads = decode_heads(array, skip=FRAME_BYTES)
            matched = fold(heads, counters[index].match(heads, at), reads[index])
        except MalformedRecord as problem:
            place = f"{offsets[0]}..{offsets[-1]}" if problem.record is None else f"offset {offsets[problem.record]}"
            raise MalformedRecord(f"{stretches[index]} {place}: {problem}") from problem
        if len(matched.rows):
            yield _chunk(reads[index], at, array, heads, matched.rows, matched.ranges)
    for counter in counters:
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
        commit_lsn=longs(read.commit_lsns)[ranges],
        commit_time_us=longs(read.commit_times_us)[ranges],
    )
