"""Rows from before the first start, in Debezium's dialect: a reader by key has the table, whatever
changed meanwhile."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.debezium.encoded import Record
from tests.debezium.scene import PUBLICATION, Reader, end_load, is_the_end
from tests.debezium.test_server import settings
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

ROWS, WITHOUT_KEY = 20_000, 300
SETUP = f"""
create table kept (id int primary key, note text, large text);
alter table kept alter large set storage external;
insert into kept select n, 'before', case when n % 50 = 0 then repeat('x', 5000) end from generate_series(1, {ROWS}) n;
create table unkeyed (n int, note text);
insert into unkeyed select n, 'before' from generate_series(1, {WITHOUT_KEY}) n;
create table parted (id int primary key, note text) partition by range (id);
create table parted_1 partition of parted for values from (0) to (1000);
create table parted_2 partition of parted for values from (1000) to (2000);
insert into parted select n, 'before' from generate_series(1, 1999) n;
create publication {PUBLICATION} for all tables with (publish_via_partition_root);
"""


@pytest.mark.parametrize("kills", [0, pytest.param(3, marks=pytest.mark.long)])
async def test_a_reader_by_key_has_the_rows_from_before_the_first_start(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, kills: int
) -> None:
    sql = await database.connect()
    await sql.execute(SETUP)
    chosen = settings(database, kafka, registry, topic_prefix) | {
        "snapshot__mode": "initial",
        "snapshot__chunk_bytes": "65536",
        "debezium__skipped_operations": "t",
    }
    gateway = GatewayProcess(tmp_path / "gateway.log", chosen)
    await gateway.streaming()
    other = await database.connect()
    load = asyncio.create_task(change(other, random.Random(7)))
    for _ in range(kills):
        await asyncio.sleep(0.7)
        await gateway.kill()
        await gateway.streaming()
    await gateway.logged('"snapshot_done"', timeout_s=120)
    await end_load(load, other)
    await sql.execute("insert into kept values (-1, 'the end')")
    names = [f"{topic_prefix}.public.{table}" for table in ("kept", "unkeyed", "parted")]
    records = await Reader(kafka.bootstrap_servers, registry.url, names).until(is_the_end)
    assert await gateway.stop() == 0, gateway.log_tail()
    kept, unkeyed, parted = ([record for record in records if record.topic == name] for name in names)
    assert state(kept) == dict(await sql.fetch("select id, note from kept"))
    assert state(parted) == dict(await sql.fetch("select id, note from parted"))
    numbers = sorted(record.value["after"]["n"] for record in unkeyed if record.value)
    if kills:  # a table without a key that was not read to its end is read again
        numbers = sorted(set(numbers))
    assert numbers == list(range(1, WITHOUT_KEY + 1))
    places = [(r.value["source"]["lsn"], r.value["op"], str(r.key)) for r in kept if r.value is not None]
    assert len(set(places)) == len(places), "an event came twice"
    read = [record for record in records if record.value is not None and record.value["op"] == "r"]
    assert len(read) > ROWS / 2
    for record in read:
        assert record.value is not None
        assert record.value["before"] is record.value["transaction"] is None
        assert record.value["source"]["snapshot"] == "incremental"
    assert any(record.value and record.value["op"] == "u" for record in kept)
    large = {
        record.value["after"]["id"]: record.value["after"]["large"]
        for record in read
        if "kept" in record.topic and record.value
    }
    assert all(value is None or value == "x" * 5000 for value in large.values())


async def change(sql: asyncpg.Connection, chance: random.Random) -> None:
    """Rows that are being read, until cancelled."""
    new = ROWS
    while True:
        first = chance.randrange(1, ROWS)
        async with sql.transaction():
            await sql.execute("update kept set note = note || '.' where id between $1 and $1 + 20", first)
            await sql.execute("delete from kept where id between $1 and $1 + 5", chance.randrange(1, ROWS))
            await sql.execute("update kept set id = id + 1000000 where id = $1", chance.randrange(1, ROWS))
            new += 1
            await sql.execute("insert into kept values ($1, 'new')", new)
            await sql.execute("update parted set note = note || '.' where id = $1", chance.randrange(1, 2000))
            await sql.execute("delete from parted where id = $1", chance.randrange(1, 2000))
        await asyncio.sleep(0.01)


def state(records: list[Record]) -> dict[int, str]:
    """What is left of each key after compaction; a key has one partition."""
    left: dict[int, str] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            left.pop(record.key["id"], None)  # of a row that was not read before it was deleted
        elif record.value["op"] != "d":
            left[record.key["id"]] = record.value["after"]["note"]
    return left
