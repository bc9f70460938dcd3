"""S: existing rows into Kafka. SL: the latency of the stream meanwhile.

S is measured from the gateway's log message that it is streaming to the last record of the table,
by the broker's timestamps. Its floor is `COPY ... TO '/dev/null'` in one session, the rate of
PostgreSQL alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import asyncpg

from bench import debezium, latency, walgate
from bench.append_times import AppendTimes
from bench.cost import busy_s, cpu_s, peak_rss_mb
from bench.latency import Latency, Listener
from bench.run import Run
from bench.scene import Scene, drop_slot
from bench.workloads import W1, W1_ROWS
from gateway.snapshot.commands import encode_command
from gateway.transactions.transaction import COMMAND_PREFIX

TITLE = "a table of 7 columns that was there before"
ROWS = 2_000_000
LIVE_RATE = 200
_numbers = count(1)
TIMEOUT_S = 900.0
_INITIAL = {"WALGATE_SOURCE__ADOPT_SLOT": "false", "WALGATE_SNAPSHOT__MODE": "initial"}
_COPY = "copy bench to '/dev/null' (format binary)"


def _new_slot() -> str:
    """Return a new name: a gateway with another prefix refuses a slot that was used."""
    return f"bench_snapshot_{next(_numbers)}"


@asynccontextmanager
async def filled(scene: Scene, rows: int) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    """Create a database whose table has this many rows."""
    async with scene.database(W1.tables) as database:
        sql = await scene.parts.postgres.connect(database)
        try:
            await sql.execute(W1_ROWS.format(first=1, last=rows))
            await sql.execute("vacuum analyze bench")
            await sql.execute("checkpoint")
            yield database, sql
        finally:
            await sql.close()


async def floor(sql: asyncpg.Connection, rows: int) -> Run:
    begun = time.monotonic()
    await sql.execute(_COPY, timeout=TIMEOUT_S)
    return Run(rows=rows, took_s=time.monotonic() - begun)


async def fill(
    scene: Scene, database: str, sql: asyncpg.Connection, rows: int, *, binary: bool, compiled: Path | None
) -> Run:
    """Measure a gateway's first start, with its initial snapshot."""
    parts = scene.parts
    settings = {**_INITIAL, "WALGATE_SOURCE__BINARY": "on" if binary else "off"}
    dsn, slot = parts.postgres.database_dsn(database), _new_slot()
    try:
        async with walgate.running(parts, dsn, slot, compiled=compiled, more=settings) as gateway:
            pid = gateway.process.pid
            began_cpu_s, broker_cpu_s, busy = cpu_s(pid), cpu_s(parts.kafka.pid), busy_s()
            await logged(gateway, "snapshot_done")
            gateway_cpu_s = cpu_s(pid) - began_cpu_s
            broker_cpu_s = cpu_s(parts.kafka.pid) - broker_cpu_s
            other_cpu_s = busy_s() - busy - gateway_cpu_s - broker_cpu_s
            rss_mb = peak_rss_mb(pid)
            end_s = await asyncio.to_thread(_last, parts.kafka.bootstrap_servers, f"{gateway.prefix}.public.bench")
            took_s = end_s - gateway.streams_since_s
    finally:
        await drop_slot(sql, slot)
    return Run(
        rows=rows,
        took_s=took_s,
        gateway_cpu_s=gateway_cpu_s,
        broker_cpu_s=broker_cpu_s,
        other_cpu_s=other_cpu_s,
        peak_rss_mb=rss_mb,
    )


def _last(bootstrap_servers: str, topic: str) -> float:
    with AppendTimes(bootstrap_servers) as times:
        return times.last(topic)


async def logged(gateway: walgate.Gateway, event: str, times: int = 1) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while sum(event in line for line in gateway.log) < times:
        if gateway.process.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {event}:\n" + "".join(gateway.log))
        await asyncio.sleep(walgate.POLL_S)


async def fill_by_debezium(scene: Scene, sql: asyncpg.Connection, rows: int) -> Run:
    """Measure Debezium's snapshot, from its first record to its last."""
    parts, slot = scene.parts, _new_slot()
    await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    try:
        async with debezium.running(parts, sql, slot, {"debezium.source.snapshot.mode": "initial"}) as server:
            with debezium.RecordCount(parts.kafka.bootstrap_servers, server.topics) as records:
                await records.reaches(1, server)
                began_cpu_s, broker_cpu_s, busy = cpu_s(server.pid), cpu_s(parts.kafka.pid), busy_s()
                await records.reaches(rows, server)
            server_cpu_s = cpu_s(server.pid) - began_cpu_s
            broker_cpu_s = cpu_s(parts.kafka.pid) - broker_cpu_s
            other_cpu_s = busy_s() - busy - server_cpu_s - broker_cpu_s
            rss_mb = peak_rss_mb(server.pid)
            took_s = await asyncio.to_thread(debezium.took_s, parts.kafka.bootstrap_servers, server.topics)
    finally:
        await drop_slot(sql, slot)
    return Run(
        rows=rows,
        took_s=took_s,
        gateway_cpu_s=server_cpu_s,
        broker_cpu_s=broker_cpu_s,
        other_cpu_s=other_cpu_s,
        peak_rss_mb=rss_mb,
    )


_LIVE_TABLES = f"{latency.TABLE}; {W1.tables.replace('table bench', 'table filled')}"


async def live(
    scene: Scene, rows: int, seconds: float, *, compiled: Path | None = None, more: Mapping[str, str] | None = None
) -> Latency:
    """Measure the latency of one-row transactions at LIVE_RATE, while another table is read
    repeatedly for `seconds`."""
    parts = scene.parts
    settings = {**_INITIAL, "WALGATE_SNAPSHOT__MODE": "on_command", **(more or {})}
    async with scene.database(_LIVE_TABLES) as database:
        sql = await parts.postgres.connect(database)
        await sql.execute(W1_ROWS.replace("into bench", "into filled").format(first=1, last=rows))
        await sql.execute("vacuum analyze filled")
        await sql.execute("checkpoint")
        dsn, slot = parts.postgres.database_dsn(database), _new_slot()
        try:
            async with walgate.running(parts, dsn, slot, compiled=compiled, more=settings) as gateway:
                topic = f"{gateway.prefix}.public.bench"
                listener = Listener(parts.kafka.bootstrap_servers, topic, latency.walgate_commit_time)
                listening = asyncio.create_task(asyncio.to_thread(listener.listen))
                began_cpu_s, begun = cpu_s(gateway.process.pid), time.monotonic()
                duration_s = seconds + latency.WARM_UP_S
                writing = asyncio.create_task(latency.write(scene, database, LIVE_RATE, duration_s))
                await asyncio.sleep(latency.WARM_UP_S)
                times = 0
                while time.monotonic() < begun + duration_s:
                    text = encode_command("start", ["public.filled"], "REPLACE", slot)
                    await sql.fetchval("select pg_logical_emit_message(true, $1::text, $2::text)", COMMAND_PREFIX, text)
                    times += 1
                    await logged(gateway, "snapshot_done", times)
                await writing
                await asyncio.sleep(1.0)
                used_s, rss_mb = cpu_s(gateway.process.pid) - began_cpu_s, peak_rss_mb(gateway.process.pid)
                listener.stop()
                await listening
                return latency.summary(LIVE_RATE, listener.seen, seconds, used_s, rss_mb)
        finally:
            await drop_slot(sql, slot)
            await sql.close()
