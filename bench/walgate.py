"""The gateway as a separate process, drained and timed.

The rate is measured from the gateway's log message that it is streaming to the last transaction
marker (in Debezium's format: to the last row), by the broker's timestamps (topics with
LogAppendTime). It thus includes preparing relations and schemas and the first batch, just as the
floor's includes its own start. The run ends when the slot's confirmed_flush_lsn shows that
everything is durable.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import asyncpg

from bench.append_times import AppendTimes
from bench.cost import busy_s, cpu_s, other_threads_cpu_s, peak_rss_mb
from bench.run import Run, Turns
from bench.scene import Backlogged
from bench.watching import HEARTBEAT_S, watching
from bench.workloads import PUBLICATION
from gateway.local import LocalParts
from gateway.local.ports import free_port

STREAMING_TIMEOUT_S = 120.0
POLL_S = 0.05
WHOLE = {"WALGATE_SOURCE__LARGE_TRANSACTIONS": "whole"}
DEBEZIUM = {"WALGATE_KAFKA__DIALECT": "debezium"}
"""Debezium's format with its default settings, with which Debezium itself runs."""


class Gateway:
    """A running gateway, created by `running`."""

    def __init__(self, process: asyncio.subprocess.Process, slot: str, prefix: str) -> None:
        self.process = process
        self.slot = slot
        self.prefix = prefix
        self.log: list[str] = []
        self.streams_since_s = 0.0  # Unix time

    async def streams(self) -> None:
        """Wait until the gateway logs that it is streaming; keep reading its log from then on."""
        assert self.process.stderr is not None
        async with asyncio.timeout(STREAMING_TIMEOUT_S):
            while line := (await self.process.stderr.readline()).decode():
                self.log.append(line)
                if "streaming" in line:
                    self.streams_since_s = time.time()
                    return
        raise RuntimeError("the gateway ended:\n" + "".join(self.log))

    async def read_log(self) -> None:
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.log.append(line)


def environment(
    parts: LocalParts, dsn: str, slot: str, prefix: str, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    stamps = [{"pattern": ".*", "config": {"message.timestamp.type": "LogAppendTime"}}]
    return {
        **os.environ,
        "WALGATE_SOURCE__DSN": dsn,
        "WALGATE_SOURCE__SLOT": slot,
        "WALGATE_SOURCE__ADOPT_SLOT": "true",
        "WALGATE_SOURCE__PUBLICATIONS": PUBLICATION,
        "WALGATE_SNAPSHOT__MODE": "never",
        "WALGATE_KAFKA__BOOTSTRAP_SERVERS": parts.kafka.bootstrap_servers,
        "WALGATE_KAFKA__PREFIX": prefix,
        "WALGATE_KAFKA__TOPICS": json.dumps(stamps),
        "WALGATE_REGISTRY__URL": parts.registry.url,
        **(more or {}),
    }


@asynccontextmanager
async def running(
    parts: LocalParts,
    dsn: str,
    slot: str,
    *,
    compiled: Path | None = None,
    more: Mapping[str, str] | None = None,
    module: str = "gateway.cli.main",
) -> AsyncIterator[Gateway]:
    """Run a gateway by `module`, and yield it once it is streaming. `compiled`: folder of a
    compiled build, used in place of the source."""
    prefix = f"b{uuid4().hex[:8]}"
    variables = environment(parts, dsn, slot, prefix, more)
    if compiled is not None:
        variables["PYTHONPATH"] = str(compiled)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", module, "run", env=variables, stderr=PIPE
    )
    gateway = Gateway(process, slot, prefix)
    try:
        await gateway.streams()
        reading = asyncio.create_task(gateway.read_log())
        yield gateway
        if process.returncode is not None:
            await reading
            raise RuntimeError("the gateway ended:\n" + "".join(gateway.log))
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def drain(
    backlogged: Backlogged,
    *,
    binary: bool,
    compiled: Path | None = None,
    more: Mapping[str, str] | None = None,
    watched: bool = False,
) -> Run:
    """Drain a backlog. `watched`: with a heartbeat and an HTTP port, which is polled in every way
    (watching.py)."""
    parts = backlogged.parts
    sql = await backlogged.connect()
    port = free_port()
    settings = {"WALGATE_SOURCE__BINARY": "on" if binary else "off", **(more or {})}
    if watched:
        settings |= {"WALGATE_HTTP__PORT": str(port), "WALGATE_SOURCE__HEARTBEAT_INTERVAL_S": str(HEARTBEAT_S)}
    async with AsyncExitStack() as stack:
        slot = await stack.enter_async_context(backlogged.slot_copy(sql))
        running_here = running(parts, backlogged.dsn, slot, compiled=compiled, more=settings)
        gateway = await stack.enter_async_context(running_here)
        if watched:
            await stack.enter_async_context(watching(port))
        pid = gateway.process.pid
        began_cpu_s, broker_cpu_s, busy = cpu_s(pid), cpu_s(parts.kafka.pid), busy_s()
        walsender_pid = await sql.fetchval("select active_pid from pg_replication_slots where slot_name = $1", slot)
        await past(sql, gateway, backlogged.last_lsn)
        gateway_cpu_s = cpu_s(pid) - began_cpu_s
        walsender_cpu_s = cpu_s(walsender_pid)
        broker_cpu_s = cpu_s(parts.kafka.pid) - broker_cpu_s
        other_cpu_s = busy_s() - busy - gateway_cpu_s - walsender_cpu_s - broker_cpu_s
        rss_mb, threads_cpu_s = peak_rss_mb(pid), other_threads_cpu_s(pid)
        marked = settings.get("WALGATE_KAFKA__DIALECT") != "debezium"
        servers = parts.kafka.bootstrap_servers
        if marked:
            end_s, turns = await asyncio.to_thread(_times, servers, gateway.prefix, backlogged)
        else:
            end_s, turns = await asyncio.to_thread(_last, servers, gateway.prefix), None
    await sql.close()
    return Run(
        rows=backlogged.changes,
        took_s=end_s - gateway.streams_since_s,
        turns=turns,
        gateway_cpu_s=gateway_cpu_s,
        walsender_cpu_s=walsender_cpu_s,
        broker_cpu_s=broker_cpu_s,
        other_cpu_s=other_cpu_s,
        peak_rss_mb=rss_mb,
        threads_cpu_s=threads_cpu_s,
    )


def _last(bootstrap_servers: str, prefix: str) -> float:
    """Return the time at which the last row was appended, for Debezium's format, which has no
    markers."""
    with AppendTimes(bootstrap_servers) as times:
        return times.last(*times.topics(f"{prefix}.public."))


def _times(bootstrap_servers: str, prefix: str, backlogged: Backlogged) -> tuple[float, Turns | None]:
    """Return the time at which the last marker was appended; if the backlog is first in one table,
    then in many, also the rates of both.

    A rate is computed between the ends of two Kafka transactions, from the PostgreSQL transactions
    that they committed: within a Kafka transaction there are no separate times.
    """
    with AppendTimes(bootstrap_servers) as times:
        if backlogged.table_count == 1:
            return times.last(f"{prefix}.transaction"), None
        alone, last = (f"{prefix}.public.{table}" for table in ("bench", f"bench{backlogged.table_count - 1}"))
        ends = times.every(f"{prefix}.transaction")
        alone_begun_s, alone_end_s, all_met_s = times.first(alone), times.last(alone), times.first(last)

    def rows_per_s(first: int, behind: int) -> float:
        """Return the rate from the Kafka transaction of the marker `first` to the one before the
        marker `behind`."""
        begun_s, end_s = ends[first], ends[behind - 1]
        if end_s <= begun_s:
            raise RuntimeError(f"{backlogged.changes} rows are too few for a rate")
        markers = behind - bisect_right(ends, begun_s)
        return markers / len(ends) * backlogged.changes / (end_s - begun_s)

    turns = Turns(
        rows=backlogged.changes // 2,
        table_count=backlogged.table_count,
        one_table_rows_per_s=rows_per_s(bisect_left(ends, alone_begun_s), bisect_left(ends, alone_end_s)),
        many_tables_s=ends[-1] - alone_end_s,
        later_rounds_rows_per_s=rows_per_s(bisect_left(ends, all_met_s), len(ends)),
    )
    return ends[-1], turns


def reader_options(parts: LocalParts, gateway: Gateway) -> dict[str, str]:
    """Return the options of Spark's data source for what the gateway has written."""
    return {
        "kafka.bootstrap.servers": parts.kafka.bootstrap_servers,
        "registry.url": parts.registry.url,
        "prefix": gateway.prefix,
    }


async def past(sql: asyncpg.Connection, gateway: Gateway, lsn: str, timeout_s: float = 600.0) -> None:
    """Wait until the gateway has acknowledged `lsn` to PostgreSQL."""
    query = "select confirmed_flush_lsn > $2::text::pg_lsn from pg_replication_slots where slot_name = $1"
    deadline = time.monotonic() + timeout_s
    while not await sql.fetchval(query, gateway.slot, lsn):
        if gateway.process.returncode is not None or time.monotonic() > deadline:
            raise RuntimeError("the gateway did not get there:\n" + "".join(gateway.log))
        await asyncio.sleep(POLL_S)
