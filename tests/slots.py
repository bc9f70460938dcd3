"""A replication slot, and who reads it."""

from __future__ import annotations

import asyncio

import asyncpg

FREE_TIMEOUT_S = 30.0


async def until_free(sql: asyncpg.Connection, slot: str) -> None:
    """Who leaves is gone from the slot only when its walsender has heard of it. A slot that is not there is free."""
    async with asyncio.timeout(FREE_TIMEOUT_S):
        while await sql.fetchval("SELECT active FROM pg_replication_slots WHERE slot_name = $1", slot):
            await asyncio.sleep(0.02)
