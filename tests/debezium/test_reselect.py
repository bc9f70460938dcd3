"""Values that updates left out (TOAST), read again: a reader by key has every value, and no row is
of another time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.debezium.encoded import Record
from tests.debezium.scene import PUBLICATION, Reader, end_load, is_the_end, make_topics
from tests.debezium.test_server import settings
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

ROWS: Final = 300
END: Final = {"id": -1}
PLACEHOLDER: Final = "__debezium_unavailable_value"
SETUP: Final = f"""
create table t (id int primary key, note text, large text);
alter table t alter large set storage external;
insert into t select n, 'before', repeat(n::text || ' ', 1500) from generate_series(1, {ROWS}) n;
create table parted (id int primary key, note text, large text) partition by range (id);
create table parted_1 partition of parted for values from (0) to (1000);
alter table parted_1 alter large set storage external;
insert into parted select n, 'before', repeat(n::text || ' ', 1500) from generate_series(1, 50) n;
create publication {PUBLICATION} for all tables with (publish_via_partition_root);
"""


@pytest.mark.parametrize("mode", ["on_command", pytest.param("initial", marks=pytest.mark.long)])
@pytest.mark.parametrize("kills", [0, pytest.param(4, marks=pytest.mark.long)])
async def test_a_reader_by_key_has_every_value_that_updates_left_out(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, mode: str, kills: int
) -> None:
    sql = await database.connect()
    await sql.execute(SETUP)
    names = [f"{topic_prefix}.public.{table}" for table in ("t", "parted")]
    make_topics(kafka.bootstrap_servers, names)
    gateway = GatewayProcess(
        tmp_path / "gateway.log", chosen(database, kafka, registry, topic_prefix) | {"snapshot__mode": mode}
    )
    await gateway.streaming()
    other = await database.connect()
    load = asyncio.create_task(change(other, random.Random(kills)))
    for _ in range(kills):
        await asyncio.sleep(0.7)
        await gateway.kill()
        await gateway.streaming()
    await Reader(kafka.bootstrap_servers, registry.url, names).reaches(Enough())
    await end_load(load, other)
    tables = {name: dict(await sql.fetch(f"select id, large from {name.rpartition('.')[2]}")) for name in names}
    await sql.execute("insert into t values (-1, 'the end')")
    records = await Reader(kafka.bootstrap_servers, registry.url, names).until(Missing())
    left = {name: rows_of([each for each in records if each.topic == name and each.key != END]) for name in names}
    assert await gateway.stop() == 0, gateway.log_tail()
    for name, rows in tables.items():
        changed = {each.key["id"] for each in records if each.topic == name and each.key}
        assert left[name] == {key: large for key, large in rows.items() if key in changed}
    events = [each.value for each in records if each.value is not None and each.value["op"] != "d"]
    assert all(each["after"]["large"] != PLACEHOLDER for each in events if each["op"] == "r")


async def test_what_updates_left_out_is_read_where_the_snapshot_of_the_table_is_cancelled(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    await sql.execute(SETUP)
    names = [f"{topic_prefix}.public.{table}" for table in ("t", "parted")]
    make_topics(kafka.bootstrap_servers, names)
    slow = {"snapshot__mode": "initial", "snapshot__rows_per_s": "10"}
    gateway = GatewayProcess(tmp_path / "gateway.log", chosen(database, kafka, registry, topic_prefix) | slow)
    await gateway.streaming()
    await gateway.logged('"tables_begun"')
    await sql.execute("update t set note = 'changed' where id < 4 or id > 297")
    await sql.execute("select pg_logical_emit_message(true, 'walgate.snapshot', '{\"command\": \"cancel\"}')")
    await sql.execute("insert into t values (-1, 'the end')")
    await Reader(kafka.bootstrap_servers, registry.url, names).until(Missing())
    assert not gateway.events("table_read") and not gateway.events("values_not_sent")
    assert await gateway.stop() == 0, gateway.log_tail()


def chosen(database: Database, kafka: Kafka, registry: Registry, prefix: str) -> dict[str, str]:
    return settings(database, kafka, registry, prefix) | {
        "snapshot__chunk_bytes": "65536",
        "debezium__reselect_unavailable_values": "true",
        "debezium__skipped_operations": "t",
        "debezium__provide_transaction_metadata": "false",
    }


class Enough:
    """Whether updates left values out, and rows were read again, often enough: asked of each record
    in turn."""

    def __init__(self) -> None:
        self._left_out = self._read = 0

    def __call__(self, record: Record) -> bool:
        if record.value is not None and record.value["after"]:
            self._left_out += record.value["after"]["large"] == PLACEHOLDER
            self._read += record.value["op"] == "r"
        return self._left_out > 50 and self._read > 20


class Missing:
    """Whether the end was read, and no row is left without a value: asked of each record in
    turn."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, int]] = set()
        self._has_ended = False

    def __call__(self, record: Record) -> bool:
        assert record.key is not None
        self._keys.discard((record.topic, record.key["id"]))
        if record.value is not None and record.value["after"] and record.value["after"]["large"] == PLACEHOLDER:
            self._keys.add((record.topic, record.key["id"]))
        self._has_ended = self._has_ended or is_the_end(record)
        return self._has_ended and not self._keys


def rows_of(records: list[Record]) -> dict[int, str | None]:
    """What a reader by key has at the end: `large` of each row. A row that is read has the value
    that was there."""
    kept: dict[int, str | None] = {}
    known: dict[int, str | None] = {}
    for record in records:
        assert record.key is not None
        key = record.key["id"]
        if record.value is None or record.value["op"] == "d":
            kept.pop(key, None)
            known.pop(key, None)
            continue
        large = kept[key] = record.value["after"]["large"]
        if large != PLACEHOLDER:
            is_as_it_was = known.get(key, large) == large
            assert is_as_it_was or record.value["op"] != "r", f"{record.key}: a value of another time"
            known[key] = large
    return kept


async def change(sql: asyncpg.Connection, chance: random.Random) -> None:
    """Updates that leave large values out, and some that do not, until cancelled."""
    new = 1000
    while True:
        table, last = chance.choice([("t", ROWS), ("t", ROWS), ("parted", 50)])
        key = chance.randrange(1, last)
        async with sql.transaction():
            await sql.execute(f"update {table} set note = note || '.' where id between $1 and $1 + 3", key)
            if chance.random() < 0.5:
                text = f"{chance.random()} " * 200
                await sql.execute(f"update {table} set large = $2 where id = $1", key + chance.randrange(4), text)
            if chance.random() < 0.3:
                await sql.execute(f"update {table} set note = 'again' where id = $1", key + 1)
            if chance.random() < 0.1:
                await sql.execute(f"delete from {table} where id = $1", chance.randrange(1, last))
            if chance.random() < 0.2:
                new += 1
                await sql.execute("update t set id = $2 where id = $1", chance.randrange(1, ROWS), new)
        await asyncio.sleep(0.01)
