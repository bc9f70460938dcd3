"""Which tables are read without being asked for: by what is durable of the gateway, not by its
settings alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(120)]


@pytest.mark.parametrize("before", ["never", "on_command"])
async def test_a_gateway_that_delivered_before_it_took_snapshots_reads_only_what_joins(
    before: str, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, snapshot__mode=before) as scene:
        await scene.sql.execute(
            "CREATE TABLE public.old (id int PRIMARY KEY); INSERT INTO public.old SELECT generate_series(1, 100);"
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.old"
        )
        await scene.gateway.streaming()
        await scene.sql.execute("INSERT INTO public.old VALUES (101)")
        await scene.delivered()
        assert await scene.gateway.stop() == 0
        await scene.gateway.streaming(snapshot__mode="initial")
        await scene.sql.execute(
            "CREATE TABLE public.later (id int PRIMARY KEY); INSERT INTO public.later SELECT generate_series(1, 10);"
            f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.later"
        )
        await scene.snapshot_done()
        told = [event["tables"] for event in scene.gateway.events("tables_not_read")]
        assert told == ([["public.old"]] if before == "never" else [])
        target = await scene.judge({"public.later": "SELECT * FROM public.later"}, keyless=())
        assert target.read_count == {f"{topic_prefix}.public.later": 10}
        assert len(target.tables[f"{topic_prefix}.public.old"]) == 1
