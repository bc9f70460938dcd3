"""The local servers, one backlog at a time in a separate database, and copies of the slot that
retains it.

The base slot is created before the rows and is never read: each run drains a copy of it, and thus
decodes the same WAL.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Self

import asyncpg

from bench.workloads import PUBLICATION, Backlog
from gateway.local import Kafka, LocalParts, Postgres

_numbers = count(1)
_BASE_SLOT = "bench_base"

# The server does nothing but what is measured; 64 MB is PostgreSQL's default for the memory of
# decoding.
_POSTGRES_SETTINGS: dict[str, str | int] = {
    "autovacuum": "off",
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
}


@dataclass(frozen=True, slots=True)
class Backlogged:
    """A database whose base slot retains `changes` changes; a slot past `last_lsn` has read all of
    them."""

    parts: LocalParts
    database: str
    changes: int
    last_lsn: str
    table_count: int

    @property
    def dsn(self) -> str:
        return self.parts.postgres.database_dsn(self.database)

    async def connect(self) -> asyncpg.Connection:
        return await self.parts.postgres.connect(self.database)

    @asynccontextmanager
    async def slot_copy(self, sql: asyncpg.Connection) -> AsyncIterator[str]:
        """Yield the name of a new copy of the base slot, which is dropped at the end."""
        slot = f"bench_{next(_numbers)}"
        await sql.execute("select pg_copy_logical_replication_slot($1, $2)", _BASE_SLOT, slot)
        try:
            yield slot
        finally:
            await drop_slot(sql, slot)


async def drop_slot(sql: asyncpg.Connection, slot: str) -> None:
    """Drop the slot, after waiting for its walsender to end."""
    while True:
        try:
            await sql.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1", slot
            )
            return
        except asyncpg.ObjectInUseError:
            await asyncio.sleep(0.1)


class Scene:
    """The environment of all runs: `async with Scene() as scene:`, then `async with
    scene.backlog(W1, scale) as backlogged:`."""

    def __init__(self) -> None:
        self.parts = LocalParts(postgres=Postgres(settings=_POSTGRES_SETTINGS), kafka=Kafka(heap_mb=1024))

    async def __aenter__(self) -> Self:
        await self.parts.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.parts.close()

    @asynccontextmanager
    async def database(self, tables: str, *, pgbench_scale: int = 0) -> AsyncIterator[str]:
        """Create a database with these tables and a publication of all tables."""
        name = f"bench{next(_numbers)}"
        admin = await self.parts.postgres.connect()
        await admin.execute(f"create database {name}")
        try:
            if pgbench_scale:
                await self.program("pgbench", "-i", "-q", "-s", str(pgbench_scale), name)
            sql = await self.parts.postgres.connect(name)
            await sql.execute(f"{tables}; create publication {PUBLICATION} for all tables")
            await sql.close()
            yield name
        finally:
            await admin.execute(f"drop database {name} with (force)")
            await admin.close()

    @asynccontextmanager
    async def backlog(self, backlog: Backlog, scale: float) -> AsyncIterator[Backlogged]:
        async with self.database(backlog.tables, pgbench_scale=5 if backlog.pgbench else 0) as name:
            sql = await self.parts.postgres.connect(name)
            await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", _BASE_SLOT)
            try:
                units = backlog.units(scale)
                if backlog.pgbench:
                    await self.program("pgbench", "-n", "-M", "prepared", "-c", "2", "-t", str(units // 2), name)
                else:
                    for statement in backlog.load:
                        await sql.execute(statement.format(count=units))
                async with sql.transaction():
                    await sql.execute(backlog.last)
                    last_lsn = await sql.fetchval("select pg_current_wal_insert_lsn()::text")
                await sql.execute("checkpoint")
                yield Backlogged(self.parts, name, backlog.changes(scale), last_lsn, backlog.table_count)
            finally:
                await drop_slot(sql, _BASE_SLOT)
                await sql.close()

    async def program(self, name: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs against the server. Its last argument is the
        database."""
        await run_program(self.parts.postgres, name, *arguments)


async def run_program(postgres: Postgres, name: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        postgres.program(name),
        *("-h", "127.0.0.1", "-p", str(postgres.port), "-U", "postgres"),
        *arguments,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PGPASSWORD": postgres.password},
    )
    _, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{name} ended with {process.returncode}:\n{errors.decode()}")
