"""A warning that rows are not sent, for tables that hold none.

Story: under PostgreSQL's regression suite, with FOR ALL TABLES, the gateway said 323 times that a
table was "published without the rows that it holds": each time for a table that had just been
created, whose rows all come. The warning was taken away, and a table that does hold rows was then
published without a word where `snapshot.mode` does not read it.

Scenario: tables are added to the publications of a running gateway, with rows from before and
without any. What commits last of all is delivered before the log is judged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.exactly_once.workload import PUBLICATION
from tests.support.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WARNED = "existing rows of tables that were added to a publication are not sent"
HELD = """
CREATE TABLE held (id int PRIMARY KEY); INSERT INTO held SELECT generate_series(1, 10);
CREATE SCHEMA "Odd"; CREATE TABLE "Odd"."Held it" (id int PRIMARY KEY); INSERT INTO "Odd"."Held it" VALUES (1);
CREATE TABLE parent (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parent FOR VALUES FROM (0) TO (10); INSERT INTO parent VALUES (1);
"""
HOLD_NONE = """
CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE emptied (id int PRIMARY KEY); INSERT INTO emptied VALUES (1); DELETE FROM emptied;
CREATE TABLE filled (id int PRIMARY KEY);
"""
OF_HELD = 'held, "Odd"."Held it", parent'
OF_NONE = "empty, emptied, filled"


async def joined(scene: Scene, count: int) -> list[str]:
    """Wait until so many tables have joined, and a check later; the warnings about their rows."""
    await scene.gateway.logged('"event": "tables_added"')
    assert scene.gateway.events("tables_added")[-1]["count"] == count
    await scene.connection.execute(f"CREATE TABLE later (id int); ALTER PUBLICATION {PUBLICATION} ADD TABLE later")
    await scene.gateway.logged("public.later")
    return [entry["message"] for entry in scene.gateway.events("warning") if WARNED in entry["message"]]


@asynccontextmanager
async def scene_of(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path, mode: str
) -> AsyncIterator[Scene]:
    async with open_scene(
        database,
        kafka.bootstrap_servers,
        registry.url,
        prefix,
        folder,
        snapshot__mode=mode,
        source__check_interval_s=0.5,
    ) as scene:
        yield scene


@pytest.mark.parametrize("mode", ["never", "on_command", "initial"])
async def test_only_tables_that_held_rows_cause_a_warning_and_only_where_they_are_not_read(
    mode: str, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with scene_of(database, kafka, registry, topic_prefix, tmp_path, mode) as scene:
        await scene.connection.execute(HELD + HOLD_NONE)
        await scene.streaming()
        await scene.connection.execute(
            f"BEGIN; ALTER PUBLICATION {PUBLICATION} ADD TABLE {OF_HELD}, {OF_NONE}; COMMIT;"
            "INSERT INTO filled SELECT generate_series(1, 10)"
        )
        said = await joined(scene, 6)
        await scene.connection.execute(f"ALTER PUBLICATION {PUBLICATION} DROP TABLE empty; DROP TABLE emptied")
        await scene.gateway.logged('"event": "tables_removed"')
        removed = scene.gateway.events("tables_removed")
        assert {name for event in removed for name in event["tables"]} == {"public.empty", "public.emptied"}
        if mode == "initial":
            assert said == []
            return
        assert len(said) == 1 and said[0].endswith(": Odd.Held it, public.held, public.part"), said
        (warning,) = [entry for entry in scene.gateway.events("warning") if WARNED in entry["message"]]
        assert "walgate snapshot start schema.table" in warning["hint"]
        await scene.commits()
        await scene.stop()


async def test_tables_that_are_created_under_for_all_tables_cause_none(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """323 of them, of which every second has rows by the time that the gateway looks."""
    async with scene_of(database, kafka, registry, topic_prefix, tmp_path, "never") as scene:
        await scene.sql("CREATE PUBLICATION everything FOR ALL TABLES")
        await scene.streaming(source__publications=f"{PUBLICATION},everything")
        await scene.connection.execute("""
            DO $$ BEGIN FOR n IN 1 .. 323 LOOP
                EXECUTE format('CREATE TABLE made_%s (id int PRIMARY KEY)', n);
                IF n % 2 = 0 THEN EXECUTE format('INSERT INTO made_%s VALUES (1)', n); END IF;
            END LOOP; END $$
        """)
        assert await joined(scene, 323) == []
        await scene.stop()
