"""The reader without Spark on a real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spark_consumer.errors import MarkerError, TransactionIncomplete
from spark_consumer.stream import Change, TransactionReader
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation
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
    with pytest.raises(TransactionIncomplete, match="manifest says"):
        await asyncio.wait_for(read_until(feeder, 1, no_progress_s=5.0), 60)


async def test_a_commit_lsn_that_does_not_rise_raises(feeder: Feeder) -> None:
    accounts = await asyncio.to_thread(feeder.table, ACCOUNTS)
    transaction = feeder.begin()
    transaction.insert(accounts, {"id": 1, "odd name": None})
    commit_lsn = await asyncio.to_thread(transaction.commit)
    await asyncio.to_thread(feeder.kafka_commit)
    with pytest.raises(MarkerError, match="does not come after"):
        await asyncio.wait_for(read_until(feeder, commit_lsn, after_commit_lsn=commit_lsn), 60)
