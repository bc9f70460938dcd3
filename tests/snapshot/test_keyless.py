"""A table without a key is read at once, and again where it has changed meanwhile; locked, where it
changes all the time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SETUP = f"""
CREATE TABLE public.keyless (a int, b text);
ALTER TABLE public.keyless REPLICA IDENTITY FULL;
INSERT INTO public.keyless SELECT i % 100, 'row ' || i % 37 FROM generate_series(1, 1000) i;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.keyless;
"""


async def _change(database: Database, stop: asyncio.Event) -> None:
    sql = await database.connect()
    number = 0
    while not stop.is_set():
        number += 1
        await sql.execute("UPDATE public.keyless SET b = b || 'u' WHERE a = $1 AND length(b) < 40", number % 100)
        await asyncio.sleep(0.02)


async def test_a_table_that_changes_all_the_time_is_named_and_locked_where_that_is_allowed(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """What is read waits for a moment, in which something changes."""
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path) as scene:
        await scene.sql.execute(SETUP)
        stop = asyncio.Event()
        changing = asyncio.create_task(_change(database, stop))
        try:
            await scene.gateway.streaming("chunk_read:delay=0.3:*")
            await scene.gateway.logged('"table_changes_while_read"', times=2)
            assert [event["attempts"] for event in scene.gateway.events("table_changes_while_read")] == [3, 6]
            assert not scene.gateway.events("table_read")
            await scene.gateway.kill()
            await scene.gateway.streaming("chunk_read:delay=0.3:*", snapshot__may_lock=True)
            await scene.snapshot_done()
        finally:
            stop.set()
            await changing
        target = await scene.judge({"public.keyless": "SELECT * FROM public.keyless"}, keyless=("public.keyless",))
        assert target.read_count[f"{topic_prefix}.public.keyless"] == 1000
