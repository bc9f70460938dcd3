"""A transaction may have changed a table before it was published, and still be open. PostgreSQL sends
no event of these changes: the table is read only once they are visible."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import Scene, open_scene
from tests.snapshot.test_holes import command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SETUP = f"""
CREATE TABLE public.t (id int PRIMARY KEY, v text); INSERT INTO public.t SELECT i, 'old' FROM generate_series(1, 50) i;
CREATE TABLE public.other (LIKE public.t INCLUDING ALL); INSERT INTO public.other TABLE public.t;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.other;
"""
QUERIES = {"public.t": "SELECT * FROM public.t", "public.other": "SELECT * FROM public.other"}


async def _record_changes(scene: Scene) -> None:
    """Begin to read a table, and pause: changes are recorded from now on."""
    await command(scene, "pause")
    await command(scene, "start", "public.other")
    await scene.gateway.logged('"tables_begun"', times=2)


@pytest.mark.parametrize("restarts", [False, True], ids=["one session", "after a restart"])
async def test_a_table_that_is_published_while_changes_are_recorded_waits_for_who_changed_it_before(
    restarts: bool, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path) as scene:
        await scene.sql.execute(SETUP)
        await scene.gateway.streaming()
        await scene.snapshot_done()
        await _record_changes(scene)
        writer = await database.connect()
        changing = writer.transaction()
        await changing.start()
        await writer.execute("UPDATE public.t SET v = 'new' WHERE id < 10; DELETE FROM public.t WHERE id = 50")
        await scene.sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.t")
        await scene.gateway.logged('"tables_begun"', times=3)
        if restarts:
            await scene.delivered()
            await scene.gateway.kill()
            await scene.gateway.streaming()
        await command(scene, "resume")
        if not restarts:  # the other one does not wait
            await scene.gateway.logged('"table_read"', times=2)
        await scene.gateway.logged('"snapshot_waits"')
        assert [event for event in scene.gateway.events("table_read") if event["table"] == "public.t"] == []
        await changing.commit()
        await scene.snapshot_done(times=2)
        await scene.judge(QUERIES, keyless=())
        assert await scene.gateway.stop() == 0
