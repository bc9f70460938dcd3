"""Turn committed transactions into disjoint reads of topic-partitions.

A read is a contiguous stretch of one topic-partition with all ranges that begin in it. A range
belongs to exactly one read, so every record is counted and given out once. The offsets of two reads
may overlap if transactions interleave. Both reads then fetch the same records, for different
transactions.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from spark_consumer.reader.markers import CommittedTransaction, Range

RECORDS_PER_TASK = 200_000
# Smaller reads share a task: the overhead of a task in Spark is 10-20 ms.
RECORDS_WORTH_A_TASK = 5_000
# The gap between two ranges, in offsets, up to which reading and dropping records is cheaper than
# seeking.
GAP_WORTH_A_SEEK = 5_000

Numbers: TypeAlias = "array[int]"  # 64 bits each: a batch may have millions of ranges, and numpy reads them in place


@dataclass(frozen=True, slots=True)
class Read:
    """A contiguous stretch of a topic-partition, with its ranges as parallel arrays in the order of
    (transaction_key, first_offset)."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    transaction_keys: Numbers  # transaction_key() of each range
    first_offsets: Numbers
    last_offsets: Numbers
    record_counts: Numbers
    commit_lsns: Numbers
    commit_times_us: Numbers
    keeps_truncate: (
        bytes  # for each range, 1 if the TRUNCATE record in this partition is the one of its event that is kept
    )
    aborted: tuple[tuple[int, int], ...]  # (transaction_key, subxid), sorted


def transaction_key(xid: int, epoch: int) -> int:
    """Return (xid, epoch) as one sortable number; xid has 32 bits."""
    return epoch << 32 | xid


_Owned = tuple[Range, CommittedTransaction, bool]


def plan(
    transactions: Iterable[CommittedTransaction],
    wants: Callable[[str], bool],
    *,
    records_per_task: int = RECORDS_PER_TASK,
) -> list[list[Read]]:
    """Return reads grouped into tasks, largest first. `wants` returns whether a topic is to be
    read."""
    return _share_tasks(
        [read for owned in _by_partition(transactions, wants).values() for read in _cut(owned, records_per_task)]
    )


def reads_of(transaction: CommittedTransaction) -> list[Read]:
    """Return one read for each topic-partition of a transaction, however large."""
    return [_read(owned) for owned in _by_partition([transaction], lambda _: True).values()]


def _by_partition(
    transactions: Iterable[CommittedTransaction], wants: Callable[[str], bool]
) -> dict[tuple[str, int], list[_Owned]]:
    found: dict[tuple[str, int], list[_Owned]] = defaultdict(list)
    for transaction in transactions:
        lowest: dict[str, int] = {}
        for item in transaction.ranges:
            lowest[item.topic] = min(item.partition, lowest.get(item.topic, item.partition))
        for item in transaction.ranges:
            if wants(item.topic):
                found[item.topic, item.partition].append((item, transaction, item.partition == lowest[item.topic]))
    return found


def first_complete(
    transactions: Iterable[CommittedTransaction], wants: Callable[[str], bool], first_kept: Callable[[str, int], int]
) -> int | None:
    """Return the position after the last transaction of which Kafka no longer has all wanted
    records; None if there is no such transaction.

    `first_kept` returns the first offset of a topic-partition.
    """
    found = None
    for transaction in transactions:
        for item in transaction.ranges:
            if wants(item.topic) and item.first_offset < first_kept(item.topic, item.partition):
                found = transaction.marker_offset + 1
                break
    return found


def _cut(owned: list[_Owned], records_per_task: int) -> Iterable[Read]:
    """Cut the ranges of one topic-partition into reads: a new one begins if a task is full, or
    after a wide gap."""
    owned.sort(key=lambda entry: entry[0].first_offset)
    group: list[_Owned] = []
    records, end = 0, -1
    for entry in owned:
        item = entry[0]
        if group and (records + item.record_count > records_per_task or item.first_offset > end + GAP_WORTH_A_SEEK):
            yield _read(group)
            group, records = [], 0
        group.append(entry)
        records += item.record_count
        end = max(end, item.last_offset)
    yield _read(group)


def _read(group: list[_Owned]) -> Read:
    group = sorted(group, key=lambda entry: (transaction_key(entry[1].xid, entry[1].epoch), entry[0].first_offset))
    aborted = {
        (transaction_key(transaction.xid, transaction.epoch), subxid)
        for _, transaction, _ in group
        for subxid in transaction.aborted_subxids
    }
    first = group[0][0]
    return Read(
        topic=first.topic,
        partition=first.partition,
        first_offset=min(item.first_offset for item, _, _ in group),
        last_offset=max(item.last_offset for item, _, _ in group),
        record_count=sum(item.record_count for item, _, _ in group),
        transaction_keys=array("q", [transaction_key(owner.xid, owner.epoch) for _, owner, _ in group]),
        first_offsets=array("q", [item.first_offset for item, _, _ in group]),
        last_offsets=array("q", [item.last_offset for item, _, _ in group]),
        record_counts=array("q", [item.record_count for item, _, _ in group]),
        commit_lsns=array("q", [owner.commit_lsn for _, owner, _ in group]),
        commit_times_us=array("q", [owner.commit_time_us or 0 for _, owner, _ in group]),
        keeps_truncate=bytes(keeps for _, _, keeps in group),
        aborted=tuple(sorted(aborted)),
    )


def _share_tasks(reads: list[Read]) -> list[list[Read]]:
    """Give each large read its own task, and let small ones share tasks of about
    RECORDS_WORTH_A_TASK records."""
    tasks: list[list[Read]] = []
    shared, records = [], 0
    for read in sorted(reads, key=lambda read: -read.record_count):
        if read.record_count >= RECORDS_WORTH_A_TASK:
            tasks.append([read])
            continue
        shared.append(read)
        records += read.record_count
        if records >= RECORDS_WORTH_A_TASK:
            tasks.append(shared)
            shared, records = [], 0
    return [*tasks, shared] if shared else tasks
