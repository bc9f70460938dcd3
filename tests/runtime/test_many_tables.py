"""Topics of many tables: with ten thousand at the start, how long, with how much memory, and what
it says meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.topics import Topics

TABLES = 10_000
MADE_AT_ONCE = 500
PEAK_BYTES = 400 << 20


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_ten_thousand_tables_start_and_the_slot_is_made_last(
    database: Database, new_gateway: Callable[..., GatewayProcess], topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    for start in range(0, TABLES, MADE_AT_ONCE):
        await sql.execute(
            ";".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, v text)" for n in range(start, start + MADE_AT_ONCE))
        )
    await sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
    gateway = new_gateway(kafka__partitions="1")
    begun, peak_bytes = time.monotonic(), 0
    gateway.start()
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    with_slot_s = None
    while not gateway.events("streaming"):
        assert gateway.is_running and time.monotonic() - begun < 1500, gateway.log_tail()
        peak_bytes = max(peak_bytes, gateway.resident_bytes)
        await asyncio.sleep(0.1)
        if with_slot_s is None and await sql.fetchval(slots, topic_prefix):
            with_slot_s = time.monotonic() - begun
            assert gateway.events("creating_topics")[-1]["done"] == TABLES
    first_s = time.monotonic() - begun
    await sql.execute(f"INSERT INTO t{TABLES - 1} VALUES (1, 'x')")
    rows = await asyncio.to_thread(
        topics.read, f"{topic_prefix}.public.t{TABLES - 1}", until=lambda found: len(found) >= 1
    )
    assert rows[0][1]["after"]["id"] == 1
    await gateway.stop()
    begun = time.monotonic()
    await gateway.streaming()
    print(
        f"{TABLES} tables: first start {first_s:.0f} s, its slot is there after {with_slot_s:.0f} s, "
        f"peak {peak_bytes >> 20} MB, {len(gateway.events('creating_topics'))} lines of progress; "
        f"next start {time.monotonic() - begun:.1f} s, {gateway.resident_bytes >> 20} MB"
    )
    assert peak_bytes < PEAK_BYTES


async def test_the_topics_of_tables_that_are_new_are_made_together_with_the_first(
    database: Database, new_gateway: Callable[..., GatewayProcess], topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
    gateway = new_gateway(kafka__partitions="1")
    await gateway.streaming()
    names = [f"t{number}" for number in range(20)]
    await sql.execute(";".join(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
    await sql.execute("INSERT INTO t7 VALUES (1)")
    await asyncio.to_thread(topics.read, f"{topic_prefix}.transaction", until=lambda found: len(found) >= 3)
    made = [entry["topic"] for entry in gateway.events("topic_created")]
    assert set(made) >= {f"{topic_prefix}.public.{name}" for name in names}
    await sql.execute(";".join(f"INSERT INTO {name} VALUES (2)" for name in names))
    for name in names:
        await asyncio.to_thread(topics.read, f"{topic_prefix}.public.{name}", until=bool)
    assert [entry["topic"] for entry in gateway.events("topic_created")] == made
    await sql.close()
