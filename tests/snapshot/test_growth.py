"""What a snapshot costs where there is much of it: tables, chunks, blocks."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Postgres, Registry
from gateway.snapshot.coordinator import MOST_AT_ONCE
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene
from tests.support.delivered import read_delivered

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(1200)]

TABLES = 10_000
MADE_AT_ONCE = 500
TABLE_MS = 10.0
ROWS_OF_TABLE = 3

START = """SELECT pg_logical_emit_message(true, 'walgate.snapshot', '{"command": "start"}')"""

ROWS = 700_000
CHUNK_BYTES = 16_384
CHUNKS = 1_100
AROUND = 50
"""Chunks are compared by the median of so many: one may wait for the disk."""
GROWTH = 1.5
MORE_BYTES = 16 << 20
HELD_BACK_S = 2.0

BILLION = 1_000_000_000
ROWS_OF_BLOCK = 226
SEGMENT_BYTES = 1 << 30
BLOCK_BYTES = 8192
BEGUN_S = 5.0


async def test_ten_thousand_small_tables_take_little_time_each(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Read again, when their topics and schemas are there: making those is what a new table costs
    without a snapshot too."""
    settings = {"kafka__partitions": 1, "snapshot__mode": "on_command", "source__check_interval_s": 60}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        for start in range(0, TABLES, MADE_AT_ONCE):
            names = range(start, start + MADE_AT_ONCE)
            await scene.sql.execute(";".join(f"CREATE TABLE t{n} (id int PRIMARY KEY, v text)" for n in names))
            fill = f"SELECT i, 'x' FROM generate_series(1, {ROWS_OF_TABLE}) i"
            await scene.sql.execute(";".join(f"INSERT INTO t{n} {fill}" for n in names))
        await scene.sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        scene.gateway.start()
        await scene.gateway.logged('"streaming"', timeout_s=900)
        took_s, peaks = [], []
        for times in (1, 2):
            begun = time.monotonic()
            await scene.sql.fetchval(START)
            await scene.snapshot_done(times=times, timeout_s=600)
            took_s.append(time.monotonic() - begun)
            peaks.append(scene.gateway.resident_bytes)
        rows = sum(event["rows"] for event in scene.gateway.events("table_read"))
        most = _most_at_once(scene.gateway.log_path)
        print(
            f"{TABLES} tables: {took_s[0] / TABLES * 1000:.1f} ms each with a new schema, {took_s[1] / TABLES * 1000:.1f} "
            f"without, {peaks[0] >> 20} and {peaks[1] >> 20} MB, {most} at once"
        )
        assert rows == 2 * TABLES * ROWS_OF_TABLE
        assert most <= MOST_AT_ONCE
        assert took_s[1] / TABLES * 1000 <= TABLE_MS
        assert peaks[1] < peaks[0] + MORE_BYTES


async def test_the_thousandth_chunk_costs_what_the_first_does(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """In time and in memory, while rows change; and what is deleted meanwhile can be vacuumed at
    once."""
    settings = {"snapshot__chunk_bytes": CHUNK_BYTES}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute("CREATE TABLE public.many (id int PRIMARY KEY, n int, word text)")
        await scene.sql.execute(f"INSERT INTO public.many SELECT i, i, 'row ' || i FROM generate_series(1, {ROWS}) i")
        await scene.sql.execute("CREATE TABLE public.emptied (id int) WITH (autovacuum_enabled = false)")
        await scene.sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.many")
        stop = asyncio.Event()
        changing = asyncio.create_task(_change(database, stop))
        await scene.gateway.streaming()
        resident, held_back = [], []
        while not scene.gateway.events("snapshot_done"):
            assert scene.gateway.is_running, scene.gateway.log_tail()
            resident.append(scene.gateway.resident_bytes)
            held_back.append(await _vacuumed_s(scene.sql))
        stop.set()
        await changing
        await scene.delivered()
        delivered = await asyncio.to_thread(read_delivered, kafka.bootstrap_servers, registry.url, topic_prefix)
        ends = [
            marker.value["time"].timestamp()
            for marker in delivered.markers
            if marker.value["kind"] == "COMMIT" and marker.value["manifest"]["snapshot"] is not None
        ]
        assert len(ends) >= CHUNKS
        first_ms, last_ms = (_median_ms(ends[at : at + AROUND]) for at in (AROUND, 1000 - AROUND // 2))
        quarter = len(resident) // 4
        before, after = max(resident[quarter : 2 * quarter]), max(resident[-quarter:])
        print(
            f"{len(ends)} chunks: {first_ms:.1f} ms at the beginning, {last_ms:.1f} at the thousandth; resident "
            f"{before >> 20} MB, then {after >> 20}; VACUUM removed rows {len(held_back)} times, after "
            f"{max(held_back) * 1000:.0f} ms at most"
        )
        assert last_ms <= first_ms * GROWTH
        assert after < before + MORE_BYTES
        assert max(held_back) < HELD_BACK_S and len(held_back) > 5


async def test_a_billion_rows_are_planned_without_being_counted(
    postgres: Postgres, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """A table with the blocks of so many: sparse, so that the disk holds only those with rows."""
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path) as scene:
        await scene.sql.execute("CREATE TABLE public.billion (id int PRIMARY KEY) WITH (autovacuum_enabled = false)")
        await scene.sql.execute("INSERT INTO public.billion SELECT generate_series(1, 10000)")
        blocks = BILLION // ROWS_OF_BLOCK
        await _extend(scene.sql, postgres.data_folder, "public.billion", blocks)
        await scene.sql.execute("INSERT INTO public.billion SELECT generate_series(10001, 20000)")
        last = await scene.sql.fetchval("SELECT ctid::text FROM public.billion WHERE id = 20000")
        assert int(last[1:].partition(",")[0]) >= blocks - 1
        await scene.sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.billion")
        await scene.sql.execute("SET enable_seqscan = off; SELECT pg_stat_force_next_flush()")
        scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'billion'"
        scanned = await scene.sql.fetchval(scans)
        await scene.gateway.streaming()
        begun = time.monotonic()
        await scene.gateway.logged('"tables_begun"')
        begun_s = time.monotonic() - begun
        await scene.snapshot_done(timeout_s=600)
        done_s = time.monotonic() - begun
        target = await scene.judge({"public.billion": "SELECT id FROM public.billion"}, keyless=())
        print(f"{blocks} blocks: begun after {begun_s:.2f} s, read after {done_s:.0f} s")
        assert begun_s < BEGUN_S
        assert sum(target.read_count.values()) == 20_000
        assert await scene.sql.fetchval(scans) == scanned


async def _change(database: Database, stop: asyncio.Event) -> None:
    sql = await database.connect()
    number = 0
    while not stop.is_set():
        number += 7919
        await sql.execute(f"UPDATE public.many SET n = n + 1 WHERE id = {number % ROWS + 1}")
    await sql.close()


async def _vacuumed_s(sql: asyncpg.Connection) -> float:
    """How long until a VACUUM removes what was just deleted."""
    await sql.execute("INSERT INTO public.emptied SELECT generate_series(1, 1000)")
    await sql.execute("DELETE FROM public.emptied")
    begun = time.monotonic()
    while True:
        await sql.execute("VACUUM public.emptied")
        if not await sql.fetchval("SELECT pg_relation_size('public.emptied')"):
            return time.monotonic() - begun


def _most_at_once(log_path: Path) -> int:
    """Tables that were begun and not read yet."""
    most = now = 0
    with log_path.open() as log:
        for line in log:
            event = json.loads(line) if '"table_read"' in line or '"tables_begun"' in line else {}
            now += event.get("count", -1) if event else 0
            most = max(most, now)
    return most


def _median_ms(ends: list[float]) -> float:
    return statistics.median(later - earlier for earlier, later in pairwise(ends)) * 1000


async def _extend(sql: asyncpg.Connection, data_folder: Path, table: str, blocks: int) -> None:
    """With blocks of zeros, as a server leaves them that ended while it extended a table."""
    await sql.execute("CHECKPOINT")
    path = data_folder / await sql.fetchval("SELECT pg_relation_filepath($1::regclass)", table)
    owner = path.stat()
    rest, number = blocks * BLOCK_BYTES, 0
    while rest > 0:
        segment = path if number == 0 else path.with_name(f"{path.name}.{number}")
        with segment.open("ab") as file:
            file.truncate(min(rest, SEGMENT_BYTES))
        os.chown(segment, owner.st_uid, owner.st_gid)
        segment.chmod(owner.st_mode)
        rest, number = rest - SEGMENT_BYTES, number + 1
    assert await sql.fetchval("SELECT pg_relation_size($1::regclass)", table) == blocks * BLOCK_BYTES
