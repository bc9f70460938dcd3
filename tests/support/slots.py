"""Waiting for replication slots."""

from __future__ import annotations

import asyncio

import asyncpg

FREE_TIMEOUT_S = 30.0
CONFIRMED_TIMEOUT_S = 200.0


async def until_free(sql: asyncpg.Connection, slot: str) -> None:
    """Wait until no walsender uses the slot, or it does not exist. After a client has left, its
    walsender still holds the slot until it notices."""
    async with asyncio.timeout(FREE_TIMEOUT_S):
        while await sql.fetchval("SELECT active FROM pg_replication_slots WHERE slot_name = $1", slot):
            await asyncio.sleep(0.02)


async def until_confirmed(sql: asyncpg.Connection, slot: str, *, timeout_s: float = CONFIRMED_TIMEOUT_S) -> None:
    """Wait until everything committed so far is durable in Kafka, so that it is never read
    again."""
    flush = "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2"
    lsn = await sql.fetchval("SELECT pg_current_wal_lsn()::text")
    async with asyncio.timeout(timeout_s):
        while not await sql.fetchval(flush, lsn, slot):
            await asyncio.sleep(0.02)
