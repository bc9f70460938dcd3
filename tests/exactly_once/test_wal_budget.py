"""A slot that holds more WAL than its budget while Kafka is away: kept by default, released where
the setting says so.

Judged by the slot as PostgreSQL has it, and by what stock clients read from Kafka.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import asyncpg
import pytest

from gateway.local import Registry
from gateway.local.ports import free_port
from schemas.lsn import Lsn
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.proxy import FaultProxy, ProxiedKafka
from tests.support.slots import until_free
from tests.support.topics import Topics
from tests.support.written import Written, walgate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.long]

BUDGET_BYTES = 24 << 20
FILLER = "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20)) FROM generate_series(1, 32)"


@dataclass
class Place:
    sql: asyncpg.Connection
    slot: str
    gateway: GatewayProcess
    written: Written
    proxy: FaultProxy

    async def insert(self, row_id: int) -> Lsn:
        """The end of the WAL behind its commit."""
        await self.sql.execute("INSERT INTO flows VALUES ($1)", row_id)
        return Lsn.parse(await self.sql.fetchval("SELECT pg_current_wal_flush_lsn()::text"))

    async def confirmed(self) -> Lsn:
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1"
        return Lsn.parse(await self.sql.fetchval(query, self.slot))

    async def exceed(self, row_id: int) -> Lsn:
        """Kafka goes, a row is committed, and more WAL than the budget is written."""
        await self.proxy.refuse()
        behind = await self.insert(row_id)
        await self.sql.execute(FILLER)
        await self.sql.execute("CHECKPOINT")  # notes a place from which decoding can begin
        return behind

    async def stop(self) -> None:
        assert await self.gateway.stop() == 0
        await until_free(self.sql, self.slot)


@pytest.fixture
async def place(
    own_database: Database, proxied_kafka: ProxiedKafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Place]:
    sql = await own_database.connect()
    await sql.execute("CREATE TABLE flows (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    settings: dict[str, object] = {
        "source__dsn": own_database.dsn,
        "source__slot": topic_prefix,
        "source__messages": False,
        "source__wal_budget_bytes": BUDGET_BYTES,
        "source__check_interval_s": 0.5,
        "snapshot__mode": "on_command",
        "kafka__bootstrap_servers": proxied_kafka.proxied_servers,
        "kafka__prefix": topic_prefix,
        "kafka__replication_factor": 1,
        "registry__url": registry.url,
        "http__port": free_port(),
    }
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    written = Written(Topics(proxied_kafka.bootstrap_servers, registry.url), topic_prefix)
    yield Place(sql, topic_prefix, gateway, written, proxied_kafka.proxy)
    await gateway.end()


async def _kept(place: Place) -> None:
    """The default."""
    await place.insert(1)
    await place.written.has("flows", {1})
    behind = await place.exceed(2)
    await place.gateway.logged('"restarting"')
    await place.gateway.logged('"wal_retained"')
    assert place.gateway.events("wal_retained")[-1]["level"] == "critical"
    assert await place.confirmed() < behind
    await place.proxy.accept()
    await place.written.has("flows", {1, 2})
    assert not place.gateway.events("slot_advanced") and not await place.written.markers("GAP")


async def _released(place: Place) -> None:
    before = await place.insert(3)
    await place.written.has("flows", {1, 2, 3})
    lost = await place.exceed(4)
    await place.gateway.logged('"slot_advanced"')
    await _until_confirmed(place, lost)
    await place.insert(5)  # behind the gap
    metrics = await asyncio.to_thread(_metrics, place.gateway.settings["http__port"])
    assert metrics["walgate_slot_advances_total"] == 1 and metrics["walgate_slot_advanced_bytes_total"] > BUDGET_BYTES
    await place.proxy.accept()
    await place.gateway.logged('"snapshot_queued"')
    await place.written.has("flows", {1, 2, 3, 4, 5})
    (gap,) = await place.written.markers("GAP")
    assert gap["marker_lsn"] < lost <= gap["end_lsn"] and "wal_budget_bytes" in gap["detail"]
    assert gap["marker_lsn"] >= before - (64 << 10), "what was delivered is not in the gap"
    position = await place.written.position()
    assert (position["gap"]["first_lsn"], position["gap"]["end_lsn"]) == (gap["marker_lsn"], gap["end_lsn"])
    assert {marker["detail"] for marker in await place.written.markers("SNAPSHOT_BEGIN")}
    assert "last gap" in await walgate(place.gateway, "status")


async def _until_confirmed(place: Place, lsn: Lsn) -> None:
    deadline = time.monotonic() + 30
    while await place.confirmed() < lsn:
        assert time.monotonic() < deadline, place.gateway.log_tail()
        await asyncio.sleep(0.1)


def _metrics(port: Any) -> dict[str, float]:
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


async def test_wal_is_given_up_only_where_the_setting_says_so_and_never_silently(place: Place) -> None:
    await place.gateway.streaming()
    await _kept(place)
    await place.stop()
    place.gateway.settings["source__on_wal_budget"] = "advance"
    await place.gateway.streaming()
    await _released(place)
    await place.stop()
    await place.gateway.streaming()  # a start finds nothing to complain of
    await place.stop()


async def test_rows_behind_a_recorded_gap_are_read_again_by_the_next_process(place: Place) -> None:
    """The process is killed when the gap is durable, and nothing but Kafka knows of it."""
    place.gateway.settings["source__on_wal_budget"] = "advance"
    await place.gateway.streaming(failpoints="gap_recorded:kill")
    await place.insert(1)
    await place.written.has("flows", {1})
    lost = await place.exceed(2)
    await _until_confirmed(place, lost)
    await place.proxy.accept()
    assert await place.gateway.wait() == -signal.SIGKILL
    await until_free(place.sql, place.slot)
    assert not place.gateway.events("gap_recorded")
    await place.gateway.streaming(source__on_wal_budget="warn")
    await place.written.has("flows", {1, 2})
    (gap,) = await place.written.markers("GAP")
    assert gap["marker_lsn"] < lost <= gap["end_lsn"]
    await place.insert(3)
    await place.written.has("flows", {1, 2, 3})
    await place.stop()
    await place.gateway.streaming()
    await place.stop()
    assert len(place.gateway.events("snapshot_queued")) == 1, "it is read again once"
