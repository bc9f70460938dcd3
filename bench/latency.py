"""L: from commit to a consumer's poll, at a steady number of one-row transactions a second.

pgbench writes at the rate asked for. Each record carries its commit time, taken by PostgreSQL just before COMMIT returns, on
this computer's clock; the consumer (read_committed) subtracts it from the time when its poll returned. So the figure holds
everything between, and can only be a little too large.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, TopicPartition

from bench import walgate
from bench.cost import cpu_s, peak_rss_mb
from bench.scene import Scene, drop_slot, run_program

TABLE = "create table bench (id bigserial primary key, at timestamptz default clock_timestamp(), note text)"
SCRIPT = "insert into bench (note) values ('a row of its own');\n"
WARM_UP_S = 10.0
CLIENTS = 2

CommitTime = Callable[[bytes], float]
"""A record's value -> its commit time in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds; `count` records after the warm-up."""

    rate: int
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    gateway_cpu_us: float
    peak_rss_mb: float


@dataclass
class Listener:
    """Polls every record of a topic in a thread of its own and notes how late it is."""

    bootstrap_servers: str
    topic: str
    commit_time: CommitTime
    seen: list[tuple[float, float]] = field(default_factory=list, init=False)  # (commit time, seconds late)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)

    def listen(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        try:
            while self.topic not in (topics := consumer.list_topics(timeout=10).topics):
                time.sleep(0.1)
            consumer.assign([TopicPartition(self.topic, partition, 0) for partition in topics[self.topic].partitions])
            while not self._stop.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    now = time.time()
                    committed = self.commit_time(message.value() or b"")
                    self.seen.append((committed, now - committed))
        finally:
            consumer.close()

    def stop(self) -> None:
        self._stop.set()


def walgate_commit_time(value: bytes) -> float:
    """The envelope's commit_time: behind the frame, op, xid, subxid, epoch, change_lsn, ordinal and commit_lsn."""
    place = 5
    for _ in range(6):
        _, place = _long(value, place)
    branch, place = _long(value, place)
    if branch != 1:
        raise ValueError("a record in progress has no commit time")
    _, place = _long(value, place)
    _, place = _long(value, place)
    micros, _ = _long(value, place)
    return micros / 1e6


def _long(value: bytes, place: int) -> tuple[int, int]:
    shift = number = 0
    while True:
        byte = value[place]
        place += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number >> 1 ^ -(number & 1), place


async def measure(
    scene: Scene, rate: int, seconds: float, *, compiled: Path | None = None, more: Mapping[str, str] | None = None
) -> Latency:
    """The gateway at `rate` transactions a second for `seconds` after the warm-up."""
    parts = scene.parts
    async with scene.database(TABLE) as database:
        sql = await parts.postgres.connect(database)
        slot = "bench_latency"
        dsn = parts.postgres.database_dsn(database)
        settings = {"WALGATE_SOURCE__ADOPT_SLOT": "false", **(more or {})}
        try:
            async with walgate.running(parts, dsn, slot, compiled=compiled, more=settings) as gateway:
                topic = f"{gateway.prefix}.public.bench"
                listener = Listener(parts.kafka.bootstrap_servers, topic, walgate_commit_time)
                listening = asyncio.create_task(asyncio.to_thread(listener.listen))
                pid = gateway.process.pid
                began_cpu_s = cpu_s(pid)
                await _write(scene, database, rate, seconds + WARM_UP_S)
                await asyncio.sleep(1.0)
                used_s, rss_mb = cpu_s(pid) - began_cpu_s, peak_rss_mb(pid)
                listener.stop()
                await listening
        finally:
            await drop_slot(sql, slot)
            await sql.close()
    return summary(rate, listener.seen, seconds, used_s, rss_mb)


def summary(rate: int, seen: list[tuple[float, float]], seconds: float, used_s: float, rss_mb: float) -> Latency:
    last = max(committed for committed, _ in seen)
    late = sorted(seconds_late for committed, seconds_late in seen if committed > last - seconds)

    def percentile(share: float) -> float:
        return late[min(len(late) - 1, int(len(late) * share))] * 1000

    return Latency(
        rate, len(late), percentile(0.50), percentile(0.95), percentile(0.99), used_s / len(seen) * 1e6, rss_mb
    )


async def _write(scene: Scene, database: str, rate: int, seconds: float) -> None:
    with TemporaryDirectory(prefix="walgate-bench-") as folder:
        script = Path(folder) / "insert.sql"
        script.write_text(SCRIPT)
        await run_program(
            scene.parts.postgres,
            "pgbench",
            *("-n", "-M", "prepared", "-c", str(CLIENTS), "-R", str(rate), "-T", str(round(seconds))),
            *("-f", str(script), database),
        )
