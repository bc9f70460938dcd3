"""A gateway whose HTTP port is flooded with requests that are never finished."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.local.ports import free_port
from gateway.observe.http_client import probe
from gateway.observe.http_server import MOST_CONNECTIONS, RESERVED_DESCRIPTORS
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.topics import Topics

HALF_SENT = 1_500
HELD_S = 12.0
"""Longer than the server waits for the rest of a request."""
DESCRIPTORS = 1024
"""Of the gateway; the default of most systems."""
HALF = b"GET /readyz HTTP/1.1\r\nHost: here\r\nX-Half: "


@dataclass(frozen=True, slots=True)
class Use:
    threads: int
    descriptors: int
    cpu_s: float


def use_of(gateway: GatewayProcess) -> Use:
    process = Path(f"/proc/{gateway.pid}")
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return Use(
        len(list((process / "task").iterdir())),
        len(list((process / "fd").iterdir())),
        ticks / os.sysconf("SC_CLK_TCK"),
    )


async def test_half_sent_requests_cost_neither_the_stream_nor_the_probe(
    database: Database, new_gateway: Callable[..., GatewayProcess], topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    port = free_port()
    gateway = new_gateway(http__port=str(port))
    await gateway.streaming()
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    quiet = use_of(gateway)
    with ExitStack() as opened:
        for _ in range(HALF_SENT):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            client.sendall(HALF)
        flooded = use_of(gateway)
        begun, held = time.monotonic(), flooded
        row_count = 0
        while time.monotonic() - begun < HELD_S:
            await sql.execute("INSERT INTO t VALUES ($1)", row_count)
            row_count += 1
            assert probe("127.0.0.1", port) == ""
            await asyncio.sleep(0.1)
            held = use_of(gateway)
        seconds = time.monotonic() - begun
    print(f"quiet {quiet}, {HALF_SENT} half-sent requests {flooded}, {row_count} rows later {held}")
    assert held.threads == flooded.threads == quiet.threads
    assert max(flooded.descriptors, held.descriptors) <= quiet.descriptors + MOST_CONNECTIONS + RESERVED_DESCRIPTORS
    assert held.descriptors <= quiet.descriptors + MOST_CONNECTIONS
    assert held.cpu_s - flooded.cpu_s < 0.25 * seconds, "of one core, the rows included"
    rows = [
        value
        for _, value in await asyncio.to_thread(
            topics.read, f"{topic_prefix}.public.t", until=lambda found: len(found) >= row_count
        )
    ]
    assert {row["epoch"] for row in rows} == {1}
    await sql.close()
