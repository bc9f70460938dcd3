"""W3: one transaction of 1,000,000 rows, live: what of it is in Kafka before COMMIT, and when is the rest?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from bench import walgate
from bench.cost import cpu_s, peak_rss_mb
from bench.scene import Scene, drop_slot
from bench.workloads import W1, W1_ROWS
from schemas.records import TRANSACTION_MARKER

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Large:
    """Seconds are counted from the moment when COMMIT returned: negative is before. Readable: by read_committed."""

    rows: int
    insert_s: float
    first_readable_s: float
    last_readable_s: float
    gateway_cpu_us_per_row: float
    peak_rss_mb: float
    spill_bytes: int
    stream_bytes: int

    @property
    def rows_per_s(self) -> float:
        return self.rows / (self.last_readable_s + self.insert_s)


def _first_readable(bootstrap_servers: str, topic: str) -> float:
    """Unix time when the first record of the topic could be read."""
    consumer = _consumer(bootstrap_servers)
    try:
        while topic not in (topics := consumer.list_topics(timeout=10).topics):
            time.sleep(0.02)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in topics[topic].partitions])
        return _poll(consumer)[1]
    finally:
        consumer.close()


def _end_readable(bootstrap_servers: str, marker_topic: str) -> float:
    """Unix time when the marker of the commit could be read: every row is, by then."""
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
"""The first byte of the marker behind its frame: Avro's long of the enum's place."""


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
    async with scene.database(W1.tables) as database:
        sql = await parts.postgres.connect(database)
        slot = "bench_large"
        settings = {"WALGATE_SOURCE__ADOPT_SLOT": "false", "WALGATE_SOURCE__BINARY": "on", **(more or {})}
        try:
            dsn = parts.postgres.database_dsn(database)
            async with walgate.running(parts, dsn, slot, compiled=compiled, more=settings) as gateway:
                servers, pid = parts.kafka.bootstrap_servers, gateway.process.pid
                first = asyncio.create_task(
                    asyncio.to_thread(_first_readable, servers, f"{gateway.prefix}.public.bench")
                )
                end = asyncio.create_task(asyncio.to_thread(_end_readable, servers, f"{gateway.prefix}.transaction"))
                used_s, begun = cpu_s(pid), time.time()
                async with sql.transaction():
                    await sql.execute(W1_ROWS.format(first=1, last=rows))
                    insert_s = time.time() - begun
                committed = time.time()
                last_s = await end - committed
                used_s, rss_mb = cpu_s(pid) - used_s, peak_rss_mb(pid)
                first_s = await first - committed
            spill_bytes, stream_bytes = await sql.fetchrow(
                "select spill_bytes, stream_bytes from pg_stat_replication_slots where slot_name = $1", slot
            )
        finally:
            await drop_slot(sql, slot)
            await sql.close()
    return Large(rows, insert_s, first_s, last_s, used_s / rows * 1e6, rss_mb, spill_bytes, stream_bytes)
