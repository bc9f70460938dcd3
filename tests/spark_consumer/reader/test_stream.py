"""The reader without Spark on a real broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from aiokafka import TopicPartition

from schemas.change_schema import change_schema
from schemas.relation import ReplicaIdentity
from schemas.topic_names import avro_name
from spark_consumer.errors import MalformedRecord, MarkerError, SourceUnavailable, TransactionIncomplete
from spark_consumer.reader import transactions
from spark_consumer.reader.column_names import true_names
from spark_consumer.reader.markers import Range
from spark_consumer.reader.read_planning import reads_of
from spark_consumer.reader.transactions import Change, TransactionReader
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, encode, relation
from tests.spark_consumer.logs import Record
from tests.spark_consumer.logs import transaction as committed
from tests.spark_consumer.workload import Workload

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ACCOUNTS = relation("accounts", {"id": INT8, "odd name": TEXT}, ("id",))


def reader(feeder: Feeder, **options: Any) -> TransactionReader:
    return TransactionReader(feeder.bootstrap_servers, feeder.registry_url, prefix=feeder.prefix, **options)


async def read_until(feeder: Feeder, last: int, **options: Any) -> list[Change]:
    found: list[Change] = []
    async with reader(feeder, **options) as transactions:
        async for transaction in transactions:
            found.extend([change async for change in transaction.changes()])
            if transaction.facts.commit_lsn >= last:
                return found
    raise AssertionError("the reader ended by itself")


def feed(feeder: Feeder, seed: int, steps: int) -> Workload:
    workload = Workload(feeder, seed)
    for _ in range(steps):
        workload.step()
    workload.finish()
    return workload


async def test_transactions_come_whole_and_in_order(feeder: Feeder) -> None:
    feeder.range_records = 10
    await asyncio.to_thread(feed, feeder, 3, 120)
    found = await asyncio.wait_for(read_until(feeder, feeder.truth[-1].commit_lsn), 120)
    assert [(str(c.table), c.op, c.commit_lsn, c.ordinal) for c in found] == [
        (c.table.name if c.table else "None", c.op, c.commit_lsn, c.ordinal) for c in feeder.truth
    ]
    for change, true in zip(found, feeder.truth, strict=True):
        if change.table is not None:
            assert change.after == (None if true.op == "DELETE" else true.after)
            assert (change.before, change.old_key, change.unchanged) == (true.before, true.old_key, true.unchanged)


async def test_a_reader_goes_on_behind_the_position_it_is_given(feeder: Feeder) -> None:
    accounts = await asyncio.to_thread(feeder.table, ACCOUNTS)
    for number in range(3):
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "odd name": None})
        await asyncio.to_thread(transaction.commit)
    await asyncio.to_thread(feeder.kafka_commit)
    async with reader(feeder) as transactions:
        async for transaction_ in transactions:
            position, commit_lsn = transaction_.next_position, transaction_.facts.commit_lsn
            break
    rest = await asyncio.wait_for(
        read_until(feeder, feeder.truth[-1].commit_lsn, position=position, after_commit_lsn=commit_lsn), 60
    )
    assert [change.after for change in rest] == [{"id": 1, "odd name": None}, {"id": 2, "odd name": None}]


async def test_a_transaction_that_does_not_add_up_raises(feeder: Feeder) -> None:
    accounts = await asyncio.to_thread(feeder.table, ACCOUNTS)
    transaction = feeder.begin()
    for number in range(5):
        transaction.insert(accounts, {"id": number, "odd name": None})

    def spoil(marker: dict[str, Any]) -> None:
        marker["manifest"]["epoch"] += 1

    await asyncio.to_thread(transaction.commit, None, spoil)
    await asyncio.to_thread(feeder.kafka_commit)
    with pytest.raises(TransactionIncomplete, match="manifest in its marker says"):
        await asyncio.wait_for(read_until(feeder, 1), 60)


async def test_a_commit_lsn_that_does_not_rise_raises(feeder: Feeder) -> None:
    accounts = await asyncio.to_thread(feeder.table, ACCOUNTS)
    transaction = feeder.begin()
    transaction.insert(accounts, {"id": 1, "odd name": None})
    commit_lsn = await asyncio.to_thread(transaction.commit)
    await asyncio.to_thread(feeder.kafka_commit)
    with pytest.raises(MarkerError, match="does not come after"):
        await asyncio.wait_for(read_until(feeder, commit_lsn, after_commit_lsn=commit_lsn), 60)


@pytest.mark.parametrize("position", [None, 5])
async def test_a_topic_that_is_not_there_is_named(feeder: Feeder, position: int | None) -> None:
    absent = TransactionReader(feeder.bootstrap_servers, feeder.registry_url, prefix="absent", position=position)
    with pytest.raises(SourceUnavailable, match="no topic absent.transaction"):
        async with absent:
            pass


async def test_another_marker_at_the_position_to_go_on_from_raises(feeder: Feeder) -> None:
    """The topic was recreated, and has grown beyond the position."""
    accounts = await asyncio.to_thread(feeder.table, ACCOUNTS)
    for number in range(3):
        transaction = feeder.begin()
        transaction.insert(accounts, {"id": number, "odd name": None})
        commit_lsn = await asyncio.to_thread(transaction.commit)
    await asyncio.to_thread(feeder.kafka_commit)
    with pytest.raises(MarkerError, match="recreated"):
        await asyncio.wait_for(read_until(feeder, commit_lsn, position=2, after_commit_lsn=1), 60)


class Partition(TransactionReader):
    """One partition, a record at a time, with a silence before each."""

    def __init__(self, clock: list[float], values: list[bytes]) -> None:
        super().__init__("127.0.0.1:1", "http://127.0.0.1:1", no_progress_s=30)
        self.clock = clock
        messages = [[SimpleNamespace(offset=offset, value=value)] for offset, value in enumerate(values)]
        self.answers = [answer for message in messages for answer in ([], message)]

    async def _fetch(self, *_: Any) -> list[Any]:
        self.clock[0] += 0.2
        return self.answers.pop(0)


async def test_time_that_the_caller_takes_is_no_time_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(transactions, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    values = [Record(0, 700, 700, 0, ordinal, False, True).value() for ordinal in range(3)]
    (read,) = reads_of(committed(0, 700, (), (Range("cdc.public.a", 0, 0, 2, 3),)))
    found = []
    async for ordinal, *_ in Partition(clock, values)._ordered(read, TopicPartition(read.topic, 0)):
        found.append(ordinal)
        clock[0] += 60
    assert found == [0, 1, 2]


async def test_columns_of_the_old_row_have_their_true_names() -> None:
    described = relation("items", {"id": INT8, "odd name": TEXT}, ("id",), ReplicaIdentity.FULL)
    schema = change_schema(described, "cdc")
    parsed = fastavro.parse_schema(schema)
    odd = avro_name("odd name")
    row = {"id": 1, odd: None}
    record = {
        "op": "UPDATE", "xid": 1, "subxid": -1, "epoch": 1, "change_lsn": 1, "ordinal": 0, "commit_lsn": None,
        "commit_time": None, "origin": None, "key_change": False, "old_key": None, "before": row, "after": row,
        "unchanged": [odd], "special": {f"before.{odd}": "old", odd: "new"},
    }  # fmt: skip
    reader = Partition([0.0], [])
    reader._parsed["cdc.public.items", 7] = parsed, true_names(schema), TableName("public", "items")
    facts = committed(0, 1, (), (Range("cdc.public.items", 1, 0, 9, 1),))
    (read,) = reads_of(facts)
    value = encode(7, parsed, record)
    change = await reader._decode(facts, read, 5, value)
    assert change.special == {"before.odd name": "old", "odd name": "new"}
    assert change.unchanged == ("odd name",)
    assert change.before == {"id": 1, "odd name": None}
    text = encode(7, parsed, {**record, "special": {odd: "XYZ"}})
    for damaged in (value[:-1], value + b"\0", text.replace(b"XYZ", b"X\xffZ"), b"\1" + value[1:], value[:3]):
        with pytest.raises(MalformedRecord, match=r"^cdc\.public\.items\[1\] offset 5\b"):
            await reader._decode(facts, read, 5, damaged)
