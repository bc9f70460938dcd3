"""A commit that waits for a synchronous standby is sent, and visible to nobody: a table that begins
meanwhile waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene
from tests.snapshot.test_holes import command, connect_freely, held_commit

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(120)]

SETUP = f"""
CREATE TABLE public.t (id int PRIMARY KEY, v text); INSERT INTO public.t SELECT i, 'old' FROM generate_series(1, 50) i;
CREATE TABLE public.other (LIKE public.t INCLUDING ALL); INSERT INTO public.other TABLE public.t;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.t, public.other;
"""


@pytest.mark.parametrize("records", [False, True], ids=["first snapshot", "second snapshot"])
async def test_a_table_that_begins_while_a_commit_hangs_waits_for_it(
    records: bool, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Whether it is the first snapshot, or changes are recorded already for another table."""
    settings = {"snapshot__mode": "on_command"}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        scene.sql = await connect_freely(database)
        await scene.sql.execute(SETUP)
        await scene.gateway.streaming()
        if records:
            await command(scene, "pause")
            await command(scene, "start", "public.other")
            await scene.gateway.logged('"tables_begun"')
        async with held_commit(database, "UPDATE public.t SET v = 'new' WHERE id < 10") as hanging:
            await scene.delivered_by(hanging)
            await command(scene, "start", "public.t")
            if records:
                await command(scene, "resume")
            await scene.gateway.logged('"snapshot_waits"')
            read = {event["table"] for event in scene.gateway.events("table_read")}
            assert read == ({"public.other"} if records else set())
        await scene.snapshot_done()
        queries = {"public.t": "SELECT * FROM public.t"}
        if records:
            queries["public.other"] = "SELECT * FROM public.other"
        await scene.judge(queries, keyless=())
        assert await scene.gateway.stop() == 0
