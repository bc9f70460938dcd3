"""Debezium Server for the tests: the real one, on this computer, with Confluent's Avro converter."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import asyncpg

from bench.debezium import STOP_TIMEOUT_S, STREAMING_TIMEOUT_S, command, properties
from gateway.local import LocalParts
from gateway.local.guard import Child, Guard

SETTINGS = {
    "debezium.source.poll.interval.ms": "50",
    "debezium.source.offset.flush.interval.ms": "0",
    "debezium.source.field.name.adjustment.mode": "avro",
    "debezium.sink.kafka.producer.acks": "all",
    'quarkus.log.category."io.debezium.metrics.stats".level': "ERROR",
}


@dataclass(frozen=True, slots=True)
class DebeziumServer:
    child: Child
    offsets: Path
    """Its file of offsets."""

    async def stop(self) -> None:
        """Ends it as an operator would; the offsets are written."""
        await self.child.stop(signal.SIGTERM, STOP_TIMEOUT_S)


@asynccontextmanager
async def debezium_server(
    parts: LocalParts,
    sql: asyncpg.Connection,
    slot: str,
    prefix: str,
    publication: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[DebeziumServer]:
    """A server that reads `slot`, which must be there, into topics that must be there; it streams when this enters."""
    database = await sql.fetchval("select current_database()")
    guard = await Guard.open("debezium")
    try:
        given: Mapping[str, str] = {
            **SETTINGS,
            "debezium.source.publication.name": publication,
            **more,
        }
        settings = properties(parts, database, slot, prefix, guard.folder, given)
        path = guard.folder / "application.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        child = await guard.start("debezium", command(path))

        async def reads() -> bool:
            query = "select active_pid from pg_replication_slots where slot_name = $1"
            return await sql.fetchval(query, slot) is not None

        await child.ready(reads, STREAMING_TIMEOUT_S)
        yield DebeziumServer(child, guard.folder / "offsets.dat")
        if child.exit_code is None:
            await child.stop(signal.SIGTERM, STOP_TIMEOUT_S)
    finally:
        await guard.close()
