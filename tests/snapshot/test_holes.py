"""What is in the way of other ways to take a snapshot, and the commands: one scene, in which readers are held back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION, QUERIES, set_up
from tests.snapshot.scene import Scene, open_scene
from tests.snapshot.target import differences

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def command(scene: Scene, name: str, *tables: str) -> None:
    body = {"command": name, "slot": f"slot_{scene.prefix}", **({"tables": tables} if tables else {})}
    await scene.sql.execute("SET synchronous_commit = local")
    await scene.sql.fetchval("SELECT pg_logical_emit_message(true, 'walgate.snapshot', $1::text)", json.dumps(body))
    await scene.gateway.logged(f'"command": "{name}"')


async def wait_for_standby(scene: Scene, standby: str) -> None:
    """Commits wait for a standby of this name; of none: for nobody."""
    await scene.sql.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
    await scene.sql.fetchval("SELECT pg_reload_conf()")
    while await scene.sql.fetchval("SHOW synchronous_standby_names") != standby:
        await asyncio.sleep(0.05)


async def test_what_defeats_other_snapshots_does_not_defeat_this_one(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, snapshot__mode="on_command") as scene:
        await set_up(scene.sql, 300)
        await scene.gateway.streaming()
        await command(scene, "pause")
        await command(scene, "start")
        await scene.gateway.logged('"tables_begun"')
        # Whoever likes may emit messages.
        await scene.sql.execute("SELECT pg_logical_emit_message(true, 'walgate.chunk', 'whatever')")
        await scene.sql.execute("SELECT pg_logical_emit_message(true, 'walgate.snapshot', 'no json')")
        # Files and columns are others than when the tables were begun.
        await scene.sql.execute("TRUNCATE shop.full_key; INSERT INTO shop.full_key VALUES (1, 1, 'one')")
        await scene.sql.execute("ALTER TABLE shop.part ALTER n TYPE bigint")
        await scene.sql.execute('VACUUM FULL shop."Two Keys"')
        # An UPDATE of a small column on every row with large values.
        await scene.sql.execute("UPDATE shop.item SET n = n + 1 WHERE id > 10")
        # A commit that is sent, and that no snapshot sees.
        hanging = await database.connect()
        await wait_for_standby(scene, "ghost")
        try:
            update = asyncio.create_task(hanging.execute("UPDATE shop.item SET n = -1, big = 'seen late' WHERE id = 7"))
            await scene.delivered_by(hanging)
            await command(scene, "resume")
            # Tables that begin again, and the key of the row, wait for that commit to be visible.
            await scene.gateway.logged('"table_read"', times=2)
            await scene.gateway.logged('"snapshot_waits"')
            assert not update.done()
            assert not scene.gateway.events("snapshot_done")
        finally:
            await wait_for_standby(scene, "")
        await update
        await scene.snapshot_done()
        target = await scene.judge()
        assert target.stale_count[f"{topic_prefix}.shop.item"] >= 1
        assert len(scene.gateway.events("table_begins_again")) >= 3
        assert scene.gateway.events("command_not_understood")
        await _a_detached_partition_leaves_by_a_replacement(scene)


async def _a_detached_partition_leaves_by_a_replacement(scene: Scene) -> None:
    await scene.sql.execute("CREATE TABLE shop.more PARTITION OF shop.part FOR VALUES FROM (200000) TO (300000)")
    await scene.sql.execute("INSERT INTO shop.part VALUES (200001, 1, 'goes without an event')")
    await scene.judge()
    await scene.sql.execute("ALTER TABLE shop.part DETACH PARTITION shop.more; DROP TABLE shop.more")
    with pytest.raises(AssertionError, match="1 surplus"):
        await scene.judge()
    await command(scene, "start", "shop.part")
    await scene.snapshot_done(times=2)
    await scene.judge()


async def test_a_table_that_can_not_be_read_is_named_and_one_that_joins_is_read(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    role = f"reader_{topic_prefix}"
    async with open_scene(
        database, kafka, registry, topic_prefix, tmp_path, source__dsn=database.dsn_of(role)
    ) as scene:
        await set_up(scene.sql, 50)
        await scene.sql.execute(
            f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{scene.database.server.password}';"
            f"GRANT USAGE ON SCHEMA shop TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA shop TO {role};"
            f"REVOKE SELECT ON shop.full_key FROM {role}; ALTER TABLE shop.item ENABLE ROW LEVEL SECURITY"
        )
        try:
            await scene.gateway.streaming()
            await scene.gateway.logged('"table_read"', times=4)
            await scene.gateway.logged('"table_can_not_be_read"', times=2)
            named = {event["table"] for event in scene.gateway.events("table_can_not_be_read")}
            assert named == {"shop.full_key", "shop.item"}
            await scene.sql.execute(
                f"GRANT SELECT ON shop.full_key TO {role}; ALTER TABLE shop.item DISABLE ROW LEVEL SECURITY"
            )
            await scene.snapshot_done()
            await scene.sql.execute(
                f"CREATE TABLE public.later (id int PRIMARY KEY, t text); GRANT SELECT ON public.later TO {role};"
                "INSERT INTO public.later SELECT i, 'row ' || i FROM generate_series(1, 100) i"
            )
            await scene.sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.later")
            await scene.snapshot_done(times=2)
            await scene.judge({**QUERIES, "public.later": "SELECT * FROM public.later"})
        finally:
            await scene.gateway.end()
            await scene.sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_publication_of_inserts_alone_has_the_rows_as_they_were_read(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """With a row filter, a column list and a generated column; and messages are not published."""
    settings = {"source__messages": False, "snapshot__chunk_bytes": 8192}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute(
            "CREATE TABLE public.grows (id int PRIMARY KEY, t text, hidden text, twice int GENERATED ALWAYS AS (id * 2) STORED);"
            "INSERT INTO public.grows SELECT i, repeat('t', 50), 'secret' FROM generate_series(1, 3000) i;"
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.grows (id, t, twice) WHERE (id > 10) WITH (publish = 'insert')"
        )
        await scene.gateway.streaming()
        for number in range(3001, 3100):
            await scene.sql.execute(f"INSERT INTO public.grows VALUES ({number}, 'new')")
        await scene.snapshot_done()
        query = "SELECT id, t, twice FROM public.grows WHERE id > 10"
        await scene.sql.execute("INSERT INTO public.grows VALUES (5000, 'last')")
        topic = f"{topic_prefix}.public.grows"
        async with asyncio.timeout(60):
            while await differences(scene.sql, await scene.target(), topic, query):
                await asyncio.sleep(0.5)
        target = await scene.target()
        assert target.read_count[topic] >= 2990
        assert topic in target.complete
