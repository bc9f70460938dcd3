"""A gateway that takes a snapshot of a changing database, and the comparison at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from gateway.local import Kafka, Registry
from gateway.snapshot.coordinator import MOST_AT_ONCE
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION, QUERIES
from tests.snapshot.target import Target, differences
from tests.support.delivered import read_delivered
from tests.support.gateway_process import GatewayProcess
from tests.support.scene import wait_for_commit


@dataclass(slots=True)
class Scene:
    database: Database
    sql: asyncpg.Connection
    gateway: GatewayProcess
    kafka: Kafka
    registry: Registry
    prefix: str

    async def snapshot_done(self, *, times: int = 1, timeout_s: float = 120.0) -> None:
        await self.gateway.logged('"snapshot_done"', times=times, timeout_s=timeout_s)

    async def delivered(self, *, timeout_s: float = 90.0) -> None:
        """All that was committed before."""
        xid = int(
            await self.sql.fetchval(
                "SELECT pg_current_xact_id()::text FROM pg_logical_emit_message(true, 'test', 'last of all')"
            )
        )
        found = await asyncio.to_thread(
            wait_for_commit,
            self.kafka.bootstrap_servers,
            self.registry.url,
            self.prefix,
            xid & 0xFFFFFFFF,
            timeout_s,
        )
        assert found, self.gateway.log_tail()

    async def delivered_by(self, session: asyncpg.Connection) -> None:
        """The commit of that session, which waits for a standby."""
        pid = session.get_server_pid()
        query = "SELECT backend_xid::text FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'"
        async with asyncio.timeout(60):
            while (xid := await self.sql.fetchval(query, pid)) is None:
                await asyncio.sleep(0.02)
        found = await asyncio.to_thread(
            wait_for_commit, self.kafka.bootstrap_servers, self.registry.url, self.prefix, int(xid), 60
        )
        assert found, self.gateway.log_tail()

    async def target(self) -> Target:
        target = Target()
        target.apply(
            await asyncio.to_thread(read_delivered, self.kafka.bootstrap_servers, self.registry.url, self.prefix)
        )
        return target

    async def in_the_middle(self, row_count: int) -> None:
        """Chunks of so many rows are durable, and not all is read."""
        async with asyncio.timeout(60):
            while sum((await self.target()).read_count.values()) < row_count:
                assert self.gateway.is_running
                await asyncio.sleep(0.2)
        assert not self.gateway.events("snapshot_done")

    async def judge(self, queries: dict[str, str] = QUERIES, *, keyless: tuple[str, ...] = ("shop.keyless",)) -> Target:
        """Every table that was delivered is the source's."""
        await self.delivered()
        target = await self.target()
        wrong = []
        for name, query in queries.items():
            topic = f"{self.prefix}.{name}"
            wrong += await differences(self.sql, target, topic, query, keyed=name not in keyless)
            if topic not in target.complete:
                wrong.append(f"{topic} has no SNAPSHOT_END")
        assert not wrong, "\n".join(wrong) + "\n" + self.gateway.log_tail(60)
        return target


@asynccontextmanager
async def tables_ahead(scene: Scene) -> AsyncIterator[None]:
    """Until the block ends, all places are taken by tables of the schema `ahead`, which wait for an
    open transaction. Tables that are published together with the schema, and are sorted after it by
    publication and name, wait to be begun."""
    session = await asyncpg.connect(scene.database.dsn)
    try:
        await session.execute("CREATE SCHEMA ahead")
        for number in range(MOST_AT_ONCE):
            await session.execute(f"CREATE TABLE ahead.t{number} (id int PRIMARY KEY)")
        await session.execute("BEGIN; LOCK TABLE ahead.t0")
        yield
    finally:
        await session.close()


@asynccontextmanager
async def open_scene(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path, **settings: object
) -> AsyncIterator[Scene]:
    values: dict[str, object] = {
        "source__dsn": database.dsn,
        "source__slot": f"slot_{prefix}",
        "source__publications": PUBLICATION,
        "source__check_interval_s": 1,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "kafka__replication_factor": 1,
        "registry__url": registry.url,
        "snapshot__mode": "initial",
    }
    gateway = GatewayProcess(folder / f"{prefix}.log", values | settings)
    scene = Scene(database, await database.connect(), gateway, kafka, registry, prefix)
    begun = time.monotonic()
    try:
        yield scene
    except BaseException:
        print(gateway.log_tail(60))
        raise
    finally:
        await gateway.end()
        print(f"{time.monotonic() - begun:.1f} s")
