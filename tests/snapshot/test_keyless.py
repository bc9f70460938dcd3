"""A table without a key, or with an array in its key, is read at once, and again where it has
changed meanwhile; locked, where it changes all the time."""

from __future__ import annotations

import asyncio
import resource
import signal
from datetime import datetime
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from gateway.postgres.role import role_facts
from gateway.startup.role_checks import KEY_OR_MEMORY, KEYLESS_BYTES, check_role
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
            # The pauses between attempts grow: 1/2 s, 1 s and 2 s between these.
            third, sixth = (
                datetime.fromisoformat(event["timestamp"]) for event in scene.gateway.events("table_changes_while_read")
            )
            assert (sixth - third).total_seconds() > 3.5
            await scene.gateway.kill()
            await scene.gateway.streaming("chunk_read:delay=0.3:*", snapshot__may_lock=True)
            await scene.snapshot_done()
        finally:
            stop.set()
            await changing
        target = await scene.judge({"public.keyless": "SELECT * FROM public.keyless"}, keyless=("public.keyless",))
        assert target.read_count[f"{topic_prefix}.public.keyless"] == 1000


async def test_a_table_without_a_key_that_does_not_fit_into_memory_is_named_and_read_once_it_has_one(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    settings = {"snapshot__readers": 16}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        gateway = scene.gateway
        await scene.sql.execute(f"""
            CREATE TABLE public.small (a int); INSERT INTO public.small VALUES (1);
            CREATE TABLE public.large (a int, b text); ALTER TABLE public.large ALTER b SET STORAGE PLAIN;
            INSERT INTO public.large SELECT i, repeat('b', 1900) FROM generate_series(1, 45000) i; ANALYZE public.large;
            CREATE PUBLICATION {PUBLICATION}""")
        await gateway.streaming()
        size = int(Path(f"/proc/{gateway.pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(gateway.pid, resource.RLIMIT_AS, (size + (512 << 20), resource.RLIM_INFINITY))
        await scene.sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.small, public.large")
        role = await role_facts(scene.sql, [PUBLICATION])
        assert role.keyless == ("public.large",)
        assert [finding.hint for finding in check_role(role) if "public.large" in finding.message] == [KEY_OR_MEMORY]
        await scene.sql.execute("INSERT INTO public.small VALUES (2)")
        await scene.snapshot_done()
        (told,) = gateway.events("table_read_in_one_transaction")
        assert told["table"] == "public.large" and told["size_bytes"] > KEYLESS_BYTES and told["hint"] == KEY_OR_MEMORY
        assert [event["tables"] for event in gateway.events("tables_not_read")] == [["public.large"]]
        unread = gateway.events("table_unreadable")[0]
        assert "as a whole" in unread["reason"] and "a primary key" in unread["hint"]
        await asyncio.sleep(8)  # longer than the pause after which tables are tried again
        assert not gateway.events("table_readable")

        await scene.sql.execute("ALTER TABLE public.large ADD PRIMARY KEY (a)")
        await gateway.logged('"table_readable"')
        await scene.snapshot_done(times=2)
        rows = {event["table"]: event["rows"] for event in gateway.events("table_read")}
        assert rows == {"public.small": 2, "public.large": 45000}
        assert await gateway.stop() == 0


async def test_a_table_with_an_array_in_its_key_is_read_in_one_transaction(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """A mirror keeps it as a log: rows that came in several transactions would replace each
    other. So would a row whose UPDATE left a TOASTed value out, if it were read by its key."""
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, snapshot__chunk_bytes=8192) as scene:
        await scene.sql.execute(f"""
            CREATE DOMAIN public.path AS int[];
            CREATE TABLE public.paths (id int, path public.path, note text, big text, PRIMARY KEY (path, id));
            ALTER TABLE public.paths ALTER big SET STORAGE EXTERNAL;
            INSERT INTO public.paths SELECT i, ARRAY[i / 10, i], repeat('note', 20) FROM generate_series(1, 2000) i;
            UPDATE public.paths SET big = repeat('big', 1000) WHERE id = 7;
            CREATE PUBLICATION {PUBLICATION} FOR TABLE public.paths""")
        await scene.gateway.streaming("chunk_read:stop")
        async with asyncio.timeout(60):
            while not scene.gateway.is_stopped:
                await asyncio.sleep(0.02)
        await scene.sql.execute("UPDATE public.paths SET note = 'changed meanwhile' WHERE id = 7")
        scene.gateway.signal(signal.SIGCONT)
        await scene.snapshot_done()
        await scene.delivered()
        target, topic = await scene.target(), f"{topic_prefix}.public.paths"
        rows = await scene.sql.fetch("SELECT id, path::int[], note, big FROM public.paths")
        assert {row["id"]: tuple(row.values()) for row in target.tables[topic].values()} == {
            row["id"]: tuple(row.values()) for row in rows
        }
        assert (target.read_count[topic], target.chunk_count[topic]) == (2000, 1)
        assert [event["table"] for event in scene.gateway.events("table_read_in_one_transaction")] == ["public.paths"]
