"""A command may name a table that no check of the publications has found yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene
from tests.snapshot.test_holes import command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

CREATE = "CREATE TABLE public.{0} (id int PRIMARY KEY); INSERT INTO public.{0} SELECT generate_series({1}, {1} + 9);"
RARELY = {"snapshot__mode": "on_command", "source__check_interval_s": 600}


async def test_a_table_is_read_that_was_published_or_made_anew_just_before_the_command(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **RARELY) as scene:
        await scene.sql.execute(CREATE.format("t", 1) + f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.t")
        await scene.gateway.streaming()
        await scene.sql.execute(CREATE.format("later", 1) + f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.later")
        await command(scene, "start", "public.later")
        await scene.snapshot_done()
        await scene.sql.execute(
            "DROP TABLE public.t;" + CREATE.format("t", 101) + f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.t"
        )
        await command(scene, "start", "public.t", "public.nowhere")
        await scene.snapshot_done(times=2)
        await scene.judge(
            {"public.t": "SELECT * FROM public.t", "public.later": "SELECT * FROM public.later"}, keyless=()
        )
        # T20: a table without columns.
        await scene.sql.execute(
            "CREATE TABLE public.nothing (); INSERT INTO public.nothing DEFAULT VALUES;"
            f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.nothing"
        )
        await command(scene, "start", "public.nothing")
        await scene.snapshot_done(times=3)
        read = scene.gateway.events("table_read")[-1]
        assert (read["table"], read["rows"]) == ("public.nothing", 1)
        (left_out,) = scene.gateway.events("tables_not_published")
        assert left_out["tables"] == ["public.nowhere"]
        assert await scene.gateway.stop() == 0
