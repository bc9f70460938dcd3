"""Readers and the server's connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def _sessions(sql: asyncpg.Connection, role: str) -> int:
    """When those that are needed at a start alone have ended. CONNECTION LIMIT does not count WAL
    senders."""
    count, before = 0, -1
    query = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND backend_type = 'client backend'"
    while count != before:
        await asyncio.sleep(1)
        count, before = await sql.fetchval(query, role), count
    return count


# That no reader has a connection for a while: test_login_trigger.py.
@pytest.mark.parametrize("connections", [pytest.param(0, marks=pytest.mark.long), 1])
async def test_the_stream_goes_on_while_the_server_has_no_connection_for_a_reader(
    connections: int, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Where there is one, the reader that has it reads what the other cannot."""
    role = f"role_{topic_prefix}"
    settings = {"source__dsn": database.dsn_of(role), "snapshot__chunk_bytes": 1 << 16, "snapshot__rows_per_s": 20_000}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        sql, gateway = scene.sql, scene.gateway
        await sql.execute(
            f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{database.server.password}'; GRANT pg_read_all_data TO {role};"
            "CREATE TABLE public.first (id int PRIMARY KEY); CREATE TABLE public.second (id int PRIMARY KEY);"
            "INSERT INTO public.second SELECT generate_series(1, 50000);"
            f"CREATE PUBLICATION {PUBLICATION}"
        )
        try:
            await gateway.streaming()
            used = await _sessions(sql, role)
            await sql.execute(f"ALTER ROLE {role} CONNECTION LIMIT {used + connections}")
            await sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.first, public.second")
            await sql.execute("INSERT INTO public.first VALUES (1)")
            await gateway.logged('"reader_not_connected"')
            await sql.execute("INSERT INTO public.first VALUES (2)")
            await scene.delivered()
            assert not gateway.events("restarting"), gateway.log_tail()
            if not connections:
                await sql.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
            await scene.snapshot_done()
            await scene.judge(
                {f"public.{table}": f"SELECT * FROM public.{table}" for table in ("first", "second")}, keyless=()
            )
            assert await gateway.stop() == 0
        finally:
            await gateway.end()
            await sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
