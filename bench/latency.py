"""L: from commit to a consumer's poll, at a constant rate of one-row transactions.

pgbench writes at the requested rate. Each record has its commit time, taken by PostgreSQL just
before COMMIT returns, on the same computer's clock. The consumer (read_committed) subtracts it from
the time at which its poll returned. The figure thus includes everything in between, and can only be
slightly too large.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
from confluent_kafka import Consumer, TopicPartition

from bench import debezium, walgate
from bench.cost import cpu_s, peak_rss_mb
from bench.scene import Scene, drop_slot, run_program

TABLE = "create table bench (id bigserial primary key, at timestamptz default clock_timestamp(), note text)"
SCRIPT = "insert into bench (note) values ('a row of its own');\n"
WARM_UP_S = 10.0
CLIENTS = 2

CommitTime = Callable[[bytes], float]
"""Returns the commit time of a record's value, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies in milliseconds, of `count` records after the warm-up; `rate`: requested
    transactions per second."""

    rate: int
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_us: float
    peak_rss_mb: float
    rows_per_s: float


@dataclass
class Listener:
    """Polls every record of a topic in a separate thread, and records its latency."""

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
    """Return the envelope's commit_time, which follows the frame, op, xid, subxid, epoch,
    change_lsn, ordinal and commit_lsn."""
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


def debezium_commit_time(value: bytes) -> float:
    """Return `source.ts_us` of a row of TABLE in Debezium's format. It follows before, after, and
    the first fields of source. Decoded by hand, as Walgate's records are: a general decoder would
    take longer than what is measured."""
    place = 5 + 2
    _, place = _long(value, place)  # id
    for union, count in ((True, 2), (False, 3)):  # at, note; version, connector, name
        for _ in range(count):
            place = _behind_text(value, place, union=union)
    _, place = _long(value, place)  # ts_ms
    for union in (True, False, True):  # snapshot, db, sequence
        place = _behind_text(value, place, union=union)
    _, place = _long(value, place)
    micros, _ = _long(value, place)
    return micros / 1e6


def _behind_text(value: bytes, place: int, *, union: bool) -> int:
    if union:
        _, place = _long(value, place)
    length, place = _long(value, place)
    return place + length


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
    """Measure the gateway at `rate` transactions per second, for `seconds` after the warm-up."""
    parts = scene.parts
    settings = {"WALGATE_SOURCE__ADOPT_SLOT": "false", **(more or {})}
    async with database_of(scene) as (database, _):
        dsn = parts.postgres.database_dsn(database)
        async with walgate.running(parts, dsn, SLOT, compiled=compiled, more=settings) as gateway:
            in_debezium = settings.get("WALGATE_KAFKA__DIALECT") == "debezium"
            commit_time = debezium_commit_time if in_debezium else walgate_commit_time
            listener = Listener(parts.kafka.bootstrap_servers, f"{gateway.prefix}.public.bench", commit_time)
            return await _live(scene, database, rate, seconds, gateway.process.pid, listener)


async def measure_debezium(scene: Scene, rate: int, seconds: float) -> Latency:
    parts = scene.parts
    async with database_of(scene) as (database, sql):
        await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", SLOT)
        async with debezium.running(parts, sql, SLOT) as server:
            listener = Listener(
                parts.kafka.bootstrap_servers,
                f"{server.prefix}.public.bench",
                debezium.CommitTimes(parts.registry.url),
            )
            return await _live(scene, database, rate, seconds, server.pid, listener)


SLOT = "bench_latency"


@asynccontextmanager
async def database_of(scene: Scene) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    async with scene.database(TABLE) as database:
        sql = await scene.parts.postgres.connect(database)
        try:
            yield database, sql
        finally:
            await drop_slot(sql, SLOT)
            await sql.close()


async def _live(scene: Scene, database: str, rate: int, seconds: float, pid: int, listener: Listener) -> Latency:
    listening = asyncio.create_task(asyncio.to_thread(listener.listen))
    began_cpu_s = cpu_s(pid)
    await write(scene, database, rate, seconds + WARM_UP_S)
    await asyncio.sleep(1.0)
    used_s, rss_mb = cpu_s(pid) - began_cpu_s, peak_rss_mb(pid)
    listener.stop()
    await listening
    return summary(rate, listener.seen, seconds, used_s, rss_mb)


def summary(rate: int, seen: list[tuple[float, float]], seconds: float, used_s: float, rss_mb: float) -> Latency:
    last = max(committed for committed, _ in seen)
    late = sorted(seconds_late for committed, seconds_late in seen if committed > last - seconds)

    def percentile(share: float) -> float:
        return late[min(len(late) - 1, int(len(late) * share))] * 1000

    return Latency(
        rate=rate,
        count=len(late),
        p50_ms=percentile(0.50),
        p95_ms=percentile(0.95),
        p99_ms=percentile(0.99),
        cpu_us=used_s / len(seen) * 1e6,
        peak_rss_mb=rss_mb,
        rows_per_s=len(late) / seconds,
    )


async def write(scene: Scene, database: str, rate: int, seconds: float) -> None:
    with TemporaryDirectory(prefix="walgate-bench-") as folder:
        script = Path(folder) / "insert.sql"
        script.write_text(SCRIPT)
        await run_program(
            scene.parts.postgres,
            "pgbench",
            *("-n", "-M", "prepared", "-c", str(CLIENTS), "-R", str(rate), "-T", str(round(seconds))),
            *("-f", str(script), database),
        )
