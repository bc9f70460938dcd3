"""One gateway process over one database: scenes are played, then what was delivered is looked
at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from gateway.local import Kafka, Postgres, Registry
from tests.evolution.delivered import Delivered
from tests.evolution.scene import SITUATIONS, Scene
from tests.support.gateway_process import GatewayProcess
from tests.support.slots import until_confirmed, until_free

CAUGHT_UP_TIMEOUT_S = 60.0
END = "the_end"
_HAS_SENT = """
SELECT bool_or(sent_lsn > $1::text::pg_lsn)
FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid
WHERE slot_name = $2
"""


@dataclass
class Theatre:
    """A database with a publication of all of schema `public`, and the gateway that reads it."""

    name: str
    postgres: Postgres
    kafka: Kafka
    registry: Registry
    sql: asyncpg.Connection
    gateway: GatewayProcess

    async def flush(self) -> str:
        """Let the walsender read what the open transaction has written. Gives the position behind
        it."""
        async with self._another_session() as other:  # its commit flushes everybody's WAL
            lsn: str = await other.fetchval("SELECT pg_logical_emit_message(true, 'flush', '')::text")
        return lsn

    async def caught_up(self) -> None:
        """Wait until the walsender has read everything written so far, open transactions too."""
        lsn = await self.flush()
        async with self._another_session() as other, asyncio.timeout(CAUGHT_UP_TIMEOUT_S):
            while not await other.fetchval(_HAS_SENT, lsn, self.name):
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def _another_session(self) -> AsyncIterator[asyncpg.Connection]:
        other = await self.postgres.connect(self.name)
        try:
            yield other
        finally:
            await other.close()

    async def confirmed(self) -> None:
        """Wait until everything committed so far is in Kafka for good."""
        await until_confirmed(self.sql, self.name)

    async def play(self, scenes: Mapping[str, Scene]) -> None:
        """Each scene in each situation, on the table `<scene>_<situation>`."""
        for name, scene in scenes.items():
            for situation in SITUATIONS:
                await scene.play(self.sql, f"{name}_{situation}", situation, self.caught_up)

    async def end(self) -> Delivered:
        """Everything that was played, delivered."""
        await self.sql.execute(f"CREATE TABLE {END} (id int PRIMARY KEY)")
        await self.sql.execute(f"INSERT INTO {END} VALUES (1)")
        return await self.delivered(lambda found: bool(found.committed(END)))

    async def delivered(self, is_complete: Callable[[Delivered], bool]) -> Delivered:
        return await asyncio.to_thread(
            Delivered, self.kafka.bootstrap_servers, self.registry.url, self.name, is_complete
        )


@asynccontextmanager
async def theatre(
    name: str, postgres: Postgres, kafka: Kafka, registry: Registry, log: Path, create: str = "", **settings: str
) -> AsyncIterator[Theatre]:
    """A new database, slot and prefix of this name. The gateway is not started; its end is checked
    by who starts it.

        `create`: options of CREATE DATABASE. `settings`: more of the gateway's.
    """
    admin = await postgres.connect()
    await admin.execute(f"CREATE DATABASE {name} {create}")
    sql = await postgres.connect(name)
    gateway = GatewayProcess(
        log,
        {
            "source__dsn": postgres.database_dsn(name),
            "source__slot": name,
            "kafka__bootstrap_servers": kafka.bootstrap_servers,
            "kafka__prefix": name,
            "kafka__partitions": "2",
            "registry__url": registry.url,
            **settings,
        },
    )
    try:
        yield Theatre(name, postgres, kafka, registry, sql, gateway)
    finally:
        await gateway.kill()
        await sql.close()
        await until_free(admin, name)
        await admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", name
        )
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


Play = Callable[[Theatre], Awaitable[None]]
