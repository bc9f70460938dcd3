"""Debezium Server for the tests: the real one, on this computer, with Confluent's Avro
converter."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import asyncpg

from bench.debezium import STOP_TIMEOUT_S, start_server
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

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it; as an operator would, the offsets are written."""
        await self.child.stop(number, STOP_TIMEOUT_S)


@asynccontextmanager
async def debezium_server(
    parts: LocalParts,
    sql: asyncpg.Connection,
    slot: str,
    prefix: str,
    publication: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[DebeziumServer]:
    """A server that reads `slot`, which must be there, into topics that must be there; it streams
    when this enters."""
    guard = await Guard.open("debezium")
    try:
        given = {**SETTINGS, "debezium.source.publication.name": publication, **more}
        child = await start_server(guard, parts, sql, slot, prefix, given)
        yield DebeziumServer(child, guard.folder / "offsets.dat")
        if child.exit_code is None:
            await child.stop(signal.SIGTERM, STOP_TIMEOUT_S)
    finally:
        await guard.close()
