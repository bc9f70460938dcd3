"""Planning and counting over random logs: every wanted record comes out exactly once, and any
damage to a manifest raises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_consumer.columnar.completeness import RangeCounter, fold
from spark_consumer.columnar.head import decode_heads
from spark_consumer.errors import MarkerError, TransactionIncomplete
from spark_consumer.reader.completeness import TransactionCounter, decode_head
from spark_consumer.reader.markers import CommittedTransaction, Range, check_order, check_ranges
from spark_consumer.reader.read_planning import Read, plan, reads_of
from tests.spark_consumer.logs import TOPICS, Logs, logs, transaction


def read_all(
    made: Logs, transactions: list[CommittedTransaction], records_per_task: int, chunk: int
) -> list[tuple[str, int, int, int]]:
    """(topic, partition, offset, commit_lsn) of everything that the planned reads give out."""
    found = []
    for task in plan(transactions, lambda _: True, records_per_task=records_per_task):
        for read in task:
            found.extend(read_one(made, read, chunk))
    return sorted(found)


def read_one(made: Logs, read: Read, chunk: int) -> list[tuple[str, int, int, int]]:
    counter = RangeCounter(read)
    found = []
    log = made.partitions[read.topic, read.partition]
    for offsets, values in log.fetch(read.first_offset, read.last_offset, chunk):
        heads = decode_heads(values, skip=5)
        matched = fold(heads, counter.match(heads, offsets), read)
        lsns = [read.commit_lsns[place] for place in matched.ranges.tolist()]
        for offset, commit_lsn in zip(offsets[matched.rows].tolist(), lsns, strict=True):
            found.append((read.topic, read.partition, offset, commit_lsn))
    counter.finish()
    return found


def read_one_by_one(made: Logs, transactions: list[CommittedTransaction]) -> list[tuple[str, int, int]]:
    """(topic, partition, offset) of what TransactionReader gives out: a transaction, and in it a
    record, at a time."""
    found = []
    for read in (read for one in transactions for read in reads_of(one)):
        counter = TransactionCounter(read)
        for offset, record in made.partitions[read.topic, read.partition].records.items():
            if read.first_offset <= offset <= read.last_offset and counter.takes(
                offset, decode_head(record.value(), "")
            ):
                found.append((read.topic, read.partition, offset))
        counter.finish()
    return sorted(found)


@settings(max_examples=300, deadline=None)
@given(logs(), st.integers(1, 30), st.integers(1, 20))
def test_every_record_of_a_committed_transaction_comes_out_once(made: Logs, records_per_task: int, chunk: int) -> None:
    found = read_all(made, made.transactions, records_per_task, chunk)
    assert [place[:3] for place in found] == made.wanted() == read_one_by_one(made, made.transactions)
    by_epoch = {t.epoch: t.commit_lsn for t in made.transactions}
    for topic, partition, offset, commit_lsn in found:
        assert commit_lsn == by_epoch[made.partitions[topic, partition].records[offset].epoch]


@settings(max_examples=200, deadline=None)
@given(logs(), st.data())
def test_a_damaged_manifest_raises(made: Logs, data: st.DataObject) -> None:
    spoilable = [place for place, t in enumerate(made.transactions) if t.ranges]
    assume(spoilable)
    place = data.draw(st.sampled_from(spoilable))
    victim = made.transactions[place]
    number = data.draw(st.integers(0, len(victim.ranges) - 1))
    item = victim.ranges[number]
    kind = data.draw(st.sampled_from(["count", "epoch", "partition", "topic", "xid", "first", "last"]))
    if kind == "epoch":
        damaged = replace(victim, epoch=victim.epoch + 100)
    elif kind == "xid":
        damaged = replace(victim, xid=victim.xid + 100)
    else:
        spoilt = {
            "count": replace(item, record_count=item.record_count + data.draw(st.sampled_from([-1, 1]))),
            "partition": replace(item, partition=1 - item.partition),
            "topic": replace(item, topic=TOPICS[1 - TOPICS.index(item.topic)]),
            "first": replace(item, first_offset=item.first_offset + 1),
            "last": replace(item, last_offset=item.last_offset - 1),
        }[kind]
        damaged = replace(victim, ranges=(*victim.ranges[:number], spoilt, *victim.ranges[number + 1 :]))
    transactions = [*made.transactions[:place], damaged, *made.transactions[place + 1 :]]

    def at_once() -> None:
        check_ranges(damaged)
        read_all(made, transactions, 1000, 1000)

    def one_by_one() -> None:
        check_ranges(damaged)
        read_one_by_one(made, transactions)

    for read in (at_once, one_by_one):
        with pytest.raises((TransactionIncomplete, MarkerError)):
            read()


@settings(max_examples=100, deadline=None)
@given(logs(), st.data())
def test_a_lost_record_raises(made: Logs, data: st.DataObject) -> None:
    places = [(place, offset) for place, log in made.partitions.items() for offset in log.records]
    owned = {t.epoch for t in made.transactions}
    places = [(place, offset) for place, offset in places if made.partitions[place].records[offset].epoch in owned]
    assume(places)
    place, offset = data.draw(st.sampled_from(places))
    del made.partitions[place].records[offset]
    with pytest.raises(TransactionIncomplete):
        read_all(made, made.transactions, 1000, 1000)
    with pytest.raises(TransactionIncomplete):
        read_one_by_one(made, made.transactions)


def test_small_reads_share_a_task_and_large_ones_do_not() -> None:
    ranges = [Range(TOPICS[0], 0, 0, 99_999, 100_000), Range(TOPICS[0], 0, 100_000, 199_999, 100_000)]
    small = [Range(TOPICS[1], number, 0, 9, 10) for number in range(6)]
    tasks = plan([transaction(0, 700, (), (*ranges, *small))], lambda _: True, records_per_task=100_000)
    assert [len(task) for task in tasks] == [1, 1, 6]


def test_a_wide_gap_is_not_read() -> None:
    ranges = (Range(TOPICS[0], 0, 0, 9, 10), Range(TOPICS[0], 0, 1_000_000, 1_000_009, 10))
    (task,) = plan([transaction(0, 700, (), ranges)], lambda _: True)
    assert sorted((read.first_offset, read.last_offset) for read in task) == [(0, 9), (1_000_000, 1_000_009)]


@pytest.mark.parametrize(
    "ranges",
    [
        (Range("t", 0, 0, 9, 11),),
        (Range("t", 0, 0, 9, 0),),
        (Range("t", 0, 5, 4, 1),),
        (Range("t", 0, -1, 4, 1),),
        (Range("t", 0, 0, 9, 5), Range("t", 0, 9, 12, 2)),
    ],
)
def test_an_impossible_manifest_raises(ranges: tuple[Range, ...]) -> None:
    with pytest.raises(MarkerError):
        check_ranges(transaction(0, 700, (), ranges))


def test_commit_lsns_must_rise_strictly() -> None:
    one, two = transaction(0, 700, (), ()), transaction(1, 701, (), ())
    check_order([one, two], 0)
    with pytest.raises(MarkerError, match="does not come after"):
        check_order([two, one], 0)
    with pytest.raises(MarkerError, match="does not come after"):
        check_order([one, replace(two, commit_lsn=one.commit_lsn)], 0)
    with pytest.raises(MarkerError, match="does not come after"):
        check_order([one], one.commit_lsn)
