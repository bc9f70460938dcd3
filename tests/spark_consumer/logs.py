"""Random logs of topic-partitions as transactions leave them, with their manifests: for tests
without Kafka."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from spark_consumer.columnar.head import DELETE, OPERATIONS, TRUNCATE
from spark_consumer.reader.markers import CommittedTransaction, Range

TOPICS = ("cdc.public.a", "cdc.public.b")


def zigzag(number: int) -> bytes:
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


@dataclass(frozen=True)
class Record:
    """`wanted`: it belongs to a committed transaction and to no aborted subtransaction, and is not
    a double."""

    operation: int
    xid: int
    subxid: int
    epoch: int
    ordinal: int
    key_change: bool
    wanted: bool
    commit_lsn: int = 0

    def value(self) -> bytes:
        head = (self.operation, self.xid, self.subxid, self.epoch, 1_000_000 + self.ordinal, self.ordinal)
        null = b"\x00"  # commit_lsn, commit_time, origin
        return b"\x00\x00\x00\x00\x05" + b"".join(map(zigzag, head)) + null * 3 + bytes([self.key_change]) + b"rest"


@dataclass
class Partition:
    """Records by offset; gaps are Kafka's control records and aborted transactions."""

    records: dict[int, Record] = field(default_factory=dict)
    end: int = 0

    def append(self, record: Record) -> int:
        self.records[self.end] = record
        self.end += 1
        return self.end - 1

    def fetch(self, first: int, last: int, size: int) -> list[tuple[np.ndarray, pa.Array]]:
        offsets = [offset for offset in sorted(self.records) if first <= offset <= last]
        pieces = [offsets[start : start + size] for start in range(0, len(offsets), size)]
        return [
            (np.array(piece, np.int64), pa.array([self.records[offset].value() for offset in piece], pa.binary()))
            for piece in pieces
        ]


@dataclass
class Logs:
    partitions: dict[tuple[str, int], Partition]
    transactions: list[CommittedTransaction]

    def wanted(self) -> list[tuple[str, int, int]]:
        return sorted(
            (topic, partition, offset)
            for (topic, partition), log in self.partitions.items()
            for offset, record in log.records.items()
            if record.wanted
        )


@st.composite
def logs(draw: st.DrawFn) -> Logs:
    """Up to 8 transactions over two topics of two partitions, their pieces interleaved: committed
    or void, with aborted subtransactions, TRUNCATE in all partitions, changes of key in two, xids
    used again in another epoch."""
    partitions = {(topic, number): Partition() for topic in TOPICS for number in range(2)}
    count = draw(st.integers(1, 8))
    xids = [draw(st.integers(700, 704)) for _ in range(count)]
    committed = [draw(st.booleans()) for _ in range(count)]
    aborted = [set(draw(st.lists(st.sampled_from([1001, 1002]), max_size=1))) for _ in range(count)]
    placed: list[dict[tuple[str, int], list[int]]] = [{} for _ in range(count)]
    ordinals = [0] * count
    steps = draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.sampled_from(TOPICS), st.integers(0, 12)), max_size=60)
    )
    for who, topic, what in steps:
        subxid = draw(st.sampled_from([xids[who], 1001, 1002]))
        alive = committed[who] and subxid not in aborted[who]

        def put(
            number: int,
            operation: int,
            double: bool = False,
            who: int = who,
            topic: str = topic,
            subxid: int = subxid,
            alive: bool = alive,
        ) -> None:
            # Epochs tell transactions with equal xids apart, as they do in a gateway.
            record = Record(
                operation, xids[who], subxid, who, ordinals[who], double and operation == DELETE, alive and not double
            )
            offset = partitions[topic, number].append(record)
            placed[who].setdefault((topic, number), []).append(offset)

        if what == 12:
            partitions[topic, 0].end += draw(st.integers(1, 6000))
        elif what == 11:
            first = min((number for (name, number) in placed[who] if name == topic), default=0)
            put(0, TRUNCATE, double=False)
            put(1, TRUNCATE, double=True)
            assert first in (0, 1)
        elif what == 10:
            put(0, OPERATIONS.index("UPDATE"))
            put(1, DELETE, double=True)
        else:
            put(what % 2, what % 3)
        ordinals[who] += 1
    transactions = []
    for who in range(count):
        if not committed[who]:
            continue
        size = draw(st.integers(1, 10))
        ranges = [
            Range(topic, number, piece[0], piece[-1], len(piece))
            for (topic, number), offsets in placed[who].items()
            for piece in (offsets[start : start + size] for start in range(0, len(offsets), size))
        ]
        transactions.append(transaction(who, xids[who], tuple(aborted[who]), tuple(ranges), ordinals[who]))
    return Logs(partitions, transactions)


def transaction(
    number: int, xid: int, aborted: tuple[int, ...], ranges: tuple[Range, ...], event_count: int = 1
) -> CommittedTransaction:
    return CommittedTransaction(
        marker_offset=number, kind="COMMIT", commit_lsn=(number + 1) * 1000, commit_time_us=number, end_lsn=None, xid=xid,
        epoch=number, gid=None, origin=None, event_count=event_count, aborted_subxids=aborted, schema_ids=(), ranges=ranges,
    )  # fmt: skip
