"""W3: one live transaction of 1,000,000 rows. How much of it is in Kafka before COMMIT, and when is
the rest?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
from confluent_kafka import Consumer, TopicPartition

from bench import debezium, walgate
from bench.cost import cpu_s, peak_rss_mb
from bench.scene import Scene, drop_slot
from bench.workloads import W1, W1_ROWS
from schemas.records import TRANSACTION_MARKER

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Large:
    """Times of the transaction, in seconds after COMMIT returned; negative is before. Readable
    means: by a read_committed consumer."""

    rows: int
    insert_s: float
    first_readable_s: float
    last_readable_s: float
    cpu_us_per_row: float
    peak_rss_mb: float
    spill_bytes: int = 0
    stream_bytes: int = 0

    @property
    def rows_per_s(self) -> float:
        return self.rows / (self.last_readable_s + self.insert_s)


def _first_readable(bootstrap_servers: str, topic: str) -> float:
    """Return the Unix time at which the first record of the topic could be read."""
    consumer = _consumer(bootstrap_servers)
    try:
        while topic not in (topics := consumer.list_topics(timeout=10).topics):
            time.sleep(0.02)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in topics[topic].partitions])
        return _poll(consumer)[1]
    finally:
        consumer.close()


def _end_readable(bootstrap_servers: str, marker_topic: str) -> float:
    """Return the Unix time at which the marker of the commit could be read; all rows are readable
    then."""
    consumer = _consumer(bootstrap_servers)
    try:
        consumer.assign([TopicPartition(marker_topic, 0, 0)])
        while True:
            value, when = _poll(consumer)
            if value[5:6] in _ENDS:
                return when
    finally:
        consumer.close()


_KINDS = TRANSACTION_MARKER["fields"][0]["type"]["symbols"]
_ENDS = tuple(bytes((2 * _KINDS.index(kind),)) for kind in ("COMMIT", "STREAM_COMMIT"))
"""The first byte of a committing marker after its frame: Avro's long of the enum's index."""


def _consumer(bootstrap_servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )


def _poll(consumer: Consumer) -> tuple[bytes, float]:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            return message.value() or b"", time.time()
    raise RuntimeError("nothing became readable")


async def measure(
    scene: Scene, rows: int, *, compiled: Path | None = None, more: Mapping[str, str] | None = None
) -> Large:
    parts = scene.parts
    servers = parts.kafka.bootstrap_servers
    settings = {"WALGATE_SOURCE__ADOPT_SLOT": "false", "WALGATE_SOURCE__BINARY": "on", **(more or {})}
    async with _database(scene) as (database, sql):
        dsn = parts.postgres.database_dsn(database)
        async with walgate.running(parts, dsn, _SLOT, compiled=compiled, more=settings) as gateway:
            first = asyncio.to_thread(_first_readable, servers, f"{gateway.prefix}.public.bench")
            last = asyncio.to_thread(_end_readable, servers, f"{gateway.prefix}.transaction")
            live = await _live(sql, rows, gateway.process.pid, first, last)
        return await _with_slot_figures(sql, live)


async def measure_debezium(scene: Scene, rows: int) -> Large:
    parts = scene.parts
    servers = parts.kafka.bootstrap_servers
    async with _database(scene) as (_, sql):
        await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", _SLOT)
        async with debezium.running(parts, sql, _SLOT) as server:
            with debezium.RecordCount(servers, server.topics) as count:
                first = asyncio.to_thread(_first_readable, servers, f"{server.prefix}.public.bench")
                live = await _live(sql, rows, server.pid, first, count.reaches(rows, server, 0.02))
        return await _with_slot_figures(sql, live)


_SLOT = "bench_large"


@asynccontextmanager
async def _database(scene: Scene) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    async with scene.database(W1.tables) as database:
        sql = await scene.parts.postgres.connect(database)
        try:
            yield database, sql
        finally:
            await drop_slot(sql, _SLOT)
            await sql.close()


async def _live(
    sql: asyncpg.Connection,
    rows: int,
    pid: int,
    first_readable: Coroutine[Any, Any, float],
    last_readable: Coroutine[Any, Any, float],
) -> Large:
    """Run the transaction while both coroutines wait for its records; they return Unix times."""
    first, last = asyncio.create_task(first_readable), asyncio.create_task(last_readable)
    used_s, begun = cpu_s(pid), time.time()
    async with sql.transaction():
        await sql.execute(W1_ROWS.format(first=1, last=rows))
        insert_s = time.time() - begun
    committed = time.time()
    last_s = await last - committed
    used_s, rss_mb = cpu_s(pid) - used_s, peak_rss_mb(pid)
    return Large(rows, insert_s, await first - committed, last_s, used_s / rows * 1e6, rss_mb)


async def _with_slot_figures(sql: asyncpg.Connection, live: Large) -> Large:
    """Add the slot's statistics, which the walsender reports at the latest when it ends."""
    query = "select spill_bytes, stream_bytes from pg_stat_replication_slots where slot_name = $1"
    spill_bytes, stream_bytes = await sql.fetchrow(query, _SLOT)
    return replace(live, spill_bytes=spill_bytes, stream_bytes=stream_bytes)
