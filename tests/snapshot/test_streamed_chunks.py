"""A server that has little memory left streams a chunk's transaction before it commits: the chunk
is read again. Where it streams all of them, the gateway does without streaming."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROWS = 3000
SETUP = f"""
CREATE TABLE public.t (id int PRIMARY KEY, b text);
INSERT INTO public.t SELECT i, repeat('row ' || i, 20) FROM generate_series(1, {ROWS}) i;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.t;
"""


async def _stream(sql: asyncpg.Connection, when: str) -> None:
    await sql.execute(f"ALTER SYSTEM SET debug_logical_replication_streaming = {when}")
    await sql.execute("SELECT pg_reload_conf()")


async def test_a_chunk_that_is_streamed_before_it_commits_is_read_again(
    start_postgres: Callable[..., Awaitable[Postgres]],
    kafka: Kafka,
    registry: Registry,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    database = Database(await start_postgres(), "postgres")
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, snapshot__chunk_bytes=65536) as scene:
        await scene.sql.execute(SETUP)
        await scene.gateway.streaming("chunk_handed_over:delay=0.2:*")
        await scene.gateway.logged('"tables_begun"')
        assert not scene.gateway.events("snapshot_done")
        await _stream(scene.sql, "immediate")
        await scene.snapshot_done()
        (restart,) = scene.gateway.events("restarting")
        assert "the streaming of in-progress transactions off" in restart["reason"]
        await scene.judge({"public.t": "SELECT * FROM public.t"}, keyless=())
        await scene.sql.close()
