"""A login event trigger that refuses one reader of a snapshot: the stream goes on, and so does the
snapshot afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

_TRIGGER = """
CREATE TABLE public.control (shut bool); INSERT INTO public.control VALUES (false);
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    IF session_user = '{role}' AND (SELECT shut FROM public.control) THEN RAISE EXCEPTION 'maintenance window'; END IF;
END $$;
CREATE EVENT TRIGGER refuse ON login EXECUTE FUNCTION refuse();
"""
_END_READERS = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a JOIN pg_locks AS l ON l.pid = a.pid
WHERE a.usename = $1 AND a.backend_type = 'client backend' AND l.relation = 'public.large'::regclass
"""
_QUERIES = {f"public.{table}": f"SELECT * FROM public.{table}" for table in ("small", "large")}


async def test_a_reader_that_is_refused_at_its_login_ends_nothing(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    role = f"role_{topic_prefix}"
    settings = {
        "source__dsn": database.dsn_of(role),
        "snapshot__chunk_bytes": 1 << 16,
        "snapshot__rows_per_s": 2_000,
        "snapshot__readers": 1,  # another one, which is logged in already, would read the rest
    }
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        sql, gateway = scene.sql, scene.gateway
        await sql.execute(
            f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{database.server.password}'; GRANT pg_read_all_data TO {role};"
            "CREATE TABLE public.small (id int PRIMARY KEY); CREATE TABLE public.large (id int PRIMARY KEY);"
            "INSERT INTO public.large SELECT generate_series(1, 30000);"
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.small, public.large"
        )
        await sql.execute(_TRIGGER.format(role=role))
        try:
            await gateway.streaming()
            await scene.in_the_middle(2000)
            await sql.execute("UPDATE public.control SET shut = true")
            async with asyncio.timeout(30):
                while not await sql.fetch(_END_READERS, role):
                    await asyncio.sleep(0)
            await gateway.logged('"reader_not_connected"')
            refused = gateway.events("reader_not_connected")[0]
            assert "P0001" in refused["reason"] and "login event trigger" in refused["hint"], refused
            await sql.execute("INSERT INTO public.small VALUES (1)")
            await scene.delivered()
            assert not gateway.events("restarting"), gateway.log_tail()
            await sql.execute("UPDATE public.control SET shut = false")
            await scene.snapshot_done()
            await scene.judge(_QUERIES, keyless=())
            assert await gateway.stop() == 0
        finally:
            await gateway.end()
            await sql.execute(f"DROP EVENT TRIGGER refuse; DROP OWNED BY {role}; DROP ROLE {role}")
