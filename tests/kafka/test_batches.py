from __future__ import annotations

import itertools
from typing import Any
from zlib import crc32

import pytest
from aiokafka.partitioner import murmur2 as aiokafkas_murmur2
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.manifest import RANGE_RECORDS, Manifest
from gateway.kafka.batches import Batch, BatchWriter, RecordTooLarge, murmur2

BATCH_BYTES = 2000


def writer(max_record_bytes: int = 10_000) -> BatchWriter:
    return BatchWriter(lambda: BatchBuilder(BATCH_BYTES, 0), max_record_bytes)


def records(batch: Batch) -> list[tuple[bytes | None, bytes]]:
    """What a reader finds in the batch, by aiokafka's own decoder."""
    content: Any = MemoryRecords(bytes(batch.builder._build()))
    found: list[tuple[bytes | None, bytes]] = []
    while content.has_next():
        found.extend((record.key, record.value) for record in content.next_batch())
    return found


def test_records_keep_their_order_in_the_partition_that_their_key_says() -> None:
    target = writer()
    sink = target.sink("cdc.public.t", 3, "public.t")
    manifest = Manifest(1)
    keys = [b"key %d" % i for i in range(50)]
    for key in keys:
        sink.append(key, b"value of " + key, manifest)
    target.close_all()
    for batch in target.ready:
        assert records(batch) == [(k, b"value of " + k) for k in keys if crc32(k) % 3 == batch.partition]
        assert batch.builder.record_count() == len(records(batch))
    assert {batch.partition for batch in target.ready} == {0, 1, 2}


def test_records_without_a_key_stay_in_one_partition() -> None:
    target = writer()
    sink = target.sink("cdc.public.t", 3, "public.t")
    for _ in range(5):
        sink.append(None, b"v", Manifest(1))
    target.close_all()
    assert [batch.partition for batch in target.ready] == [0]


def test_a_record_for_all_goes_to_every_partition() -> None:
    target = writer()
    manifest = Manifest(1)
    target.sink("cdc.public.t", 3, "public.t").append_everywhere(b"truncate", manifest)
    target.close_all()
    assert [(batch.partition, records(batch)) for batch in target.ready] == [
        (p, [(None, b"truncate")]) for p in range(3)
    ]
    assert [batch.pieces for batch in target.ready] == [[(manifest, 0, 1)]] * 3


def test_a_row_over_the_limit_stops_and_names_relation_size_and_remedy() -> None:
    target = writer(max_record_bytes=3000)
    sink = target.sink("cdc.public.t", 1, "public.t (key: id)")
    sink.append(b"k", b"x" * 2900, Manifest(1))
    for _ in range(2):  # behind another record, and as the first of a batch
        with pytest.raises(RecordTooLarge, match=r"public\.t \(key: id\).* 5\d\d\d bytes.*3000") as caught:
            sink.append(b"k", b"x" * 5000, Manifest(1))
        target = writer(max_record_bytes=3000)
        sink = target.sink("cdc.public.t", 1, "public.t (key: id)")
    assert "max_record_bytes" in caught.value.hint


def test_a_message_over_the_limit_is_refused_and_leaves_nothing() -> None:
    """Kafka's own producer counts before compression too."""
    target = writer(max_record_bytes=3000)
    sink = target.sink("cdc.message", 2, "messages")
    manifest = Manifest(1)
    sizes = [10, 2800, 2801, 100_000, 20]
    assert [sink.offer(b"x" * size, manifest) for size in sizes] == [True, True, False, False, True]
    target.close_all()
    assert [len(value) for batch in target.ready for _, value in records(batch)] == [10, 2800, 20]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 900)), max_size=80), st.integers(1, 3))
def test_pieces_say_exactly_which_records_belong_to_whom(rows: list[tuple[int, int]], partition_count: int) -> None:
    target = writer()
    sink = target.sink("t", partition_count, "t")
    owners: list[Manifest | None] = [Manifest(1), Manifest(1), Manifest(1), None]
    for number, (owner, size) in enumerate(rows):
        sink.append(b"%d" % number, b"%d:" % owner + b"x" * size, owners[owner])
    target.close_all()
    seen = 0
    for batch in target.ready:
        found = records(batch)
        seen += len(found)
        claimed: dict[int, int] = {}
        for manifest, first, count in batch.pieces:
            assert count > 0
            for index in range(first, first + count):
                assert index not in claimed
                claimed[index] = next(i for i, o in enumerate(owners) if o is manifest)
        for index, (_, value) in enumerate(found):
            owner = int(value.split(b":")[0])
            assert claimed.get(index, 3) == owner
    assert seen == len(rows)


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 20_000)), min_size=1, max_size=60))
def test_ranges_are_disjoint_bounded_and_count_every_record(pieces: list[tuple[int, int]]) -> None:
    manifest = Manifest(1)
    offset = 0
    claimed = []
    for count, gap in pieces:
        offset += gap
        manifest.add(("t", 0), offset, count)
        claimed.append((offset, offset + count - 1))
        offset += count
    ranges = manifest.ranges["t", 0]
    assert sum(record_count for _, _, record_count in ranges) == sum(count for count, _ in pieces)
    for before, after in itertools.pairwise(ranges):
        assert before[1] < after[0]
    for first, last in claimed:
        assert sum(from_offset <= first and last <= to_offset for from_offset, to_offset, _ in ranges) == 1
    assert all(record_count <= RANGE_RECORDS for _, _, record_count in ranges)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_own_clients(data: bytes, expected: int) -> None:
    """Numbers of Kafka's UtilsTest.testMurmur2."""
    assert murmur2(data) == expected & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_the_hash_of_any_key_is_that_of_aiokafka(key: bytes) -> None:
    assert murmur2(key) == aiokafkas_murmur2(key) & 0xFFFFFFFF
