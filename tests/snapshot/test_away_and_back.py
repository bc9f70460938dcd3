"""A relation that PostgreSQL does not send for a moment, and that looks as before when it is back,
is read again; and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROW_COUNT = 1000
LOAD = (
    "UPDATE {t} SET v = 'new'; DELETE FROM {t} WHERE id > 900;"
    "INSERT INTO {t} SELECT g, 'more' FROM generate_series(2000, 3000) g;"
)
UNLOGGED = ("ALTER TABLE {t} SET UNLOGGED", LOAD, "ALTER TABLE {t} SET LOGGED")
AT_ONCE = ";".join(UNLOGGED)
SCHEMA_AWAY = (
    f"ALTER TABLE {{t}} SET SCHEMA away; {LOAD.replace('{t}', 'away.{n}')} ALTER TABLE away.{{n}} SET SCHEMA {{s}}"
)
RENAMED_AWAY = (
    f"ALTER TABLE {{t}} RENAME TO gone; {LOAD.replace('{t}', '{s}.gone')} ALTER TABLE {{s}}.gone RENAME TO {{n}}"
)
TURNED = f"ALTER SCHEMA {{s}} RENAME TO spun; {LOAD.replace('{t}', 'spun.{n}')} ALTER SCHEMA spun RENAME TO {{s}}"
DETACHED = (
    f"ALTER TABLE listed.root DETACH PARTITION {{t}}; {LOAD}"
    "ALTER TABLE listed.root ATTACH PARTITION {t} FOR VALUES FROM (0) TO (5000)"
)
PUBLISH_ALL = "ALTER PUBLICATION a SET (publish = 'insert, update, delete, truncate')"
Cases = Mapping[str, Sequence[str]]
"""For each table, transactions of one or more statements."""
HARMLESS: Cases = {
    "granted": ("GRANT SELECT (v) ON {t} TO PUBLIC", "VACUUM FULL {t}"),
    "counted": ("ALTER TABLE {t} ALTER v SET STATISTICS 300", "VACUUM FULL {t}"),
    "narrow": ("GRANT SELECT (v) ON {t} TO PUBLIC", "VACUUM FULL {t}"),
    "clustered": ("CLUSTER {t} USING {n}_pkey", "VACUUM (FREEZE, FULL) {t}"),
    "changed": ("UPDATE {t} SET v = 'new' WHERE id > 1", "VACUUM FULL {t}"),
    "emptied": ("TRUNCATE {t};" + LOAD, "ANALYZE {t}"),
    "touched": (
        "GRANT SELECT ON {t} TO PUBLIC; GRANT USAGE ON SCHEMA {s} TO PUBLIC",
        "CREATE INDEX ON {t} (v); ALTER TABLE {t} SET (fillfactor = 50)",
        "ALTER TABLE {t} OWNER TO pg_monitor; ALTER TABLE {t} ALTER v SET NOT NULL",
        "ANALYZE {t}",
    ),
}
"""Nothing of it changes a row without an event. `narrow` has no TOAST table."""


async def run(scene: Scene, cases: Cases) -> None:
    for table, transactions in cases.items():
        schema, _, name = table.partition(".")
        for statements in transactions:
            await scene.sql.execute(statements.replace("{t}", table).replace("{n}", name).replace("{s}", schema))


async def create(scene: Scene, tables: list[str]) -> None:
    for table in tables:
        await scene.sql.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v {'name' if table.endswith('.narrow') else 'text'});"
            f"INSERT INTO {table} SELECT g, 'old' FROM generate_series(1, {ROW_COUNT}) g"
        )


def told(scene: Scene, event: str, since: int = 0) -> list[str]:
    return sorted(entry["table"] for entry in scene.gateway.events(event)[since:])


async def are_told(scene: Scene, event: str, tables: list[str], since: int = 0) -> None:
    """Each table is reported, and no other. A table that is read again is so once."""
    try:
        async with asyncio.timeout(30):
            while set(told(scene, event, since)) != set(tables):
                await asyncio.sleep(0.1)
    except TimeoutError:
        print("silent:", sorted(set(tables) - set(told(scene, event, since))))
        raise
    assert event == "rows_not_sent" or told(scene, event, since) == sorted(tables)


async def are_equal(scene: Scene, tables: list[str], times: int) -> None:
    await scene.gateway.logged('"table_read"', times=times)
    queries = {table: f"SELECT * FROM {table}" for table in tables}
    await scene.judge(queries | {table: PAIRS for table in tables if table == "spread.pairs"}, keyless=())


AWAY_15: Cases = {
    "spread.in_three": UNLOGGED,
    "spread.at_once": (AT_ONCE,),
    "spread.then_copied": (AT_ONCE, "VACUUM FULL {t}", "GRANT SELECT ON {t} TO PUBLIC"),
    "spread.moved": (SCHEMA_AWAY + "; ALTER TABLE {t} OWNER TO pg_monitor",),
    "listed.left": (f"ALTER PUBLICATION p DROP TABLE {{t}}; {LOAD} ALTER PUBLICATION p ADD TABLE {{t}}",),
    "filtered.narrowed": (
        f"ALTER PUBLICATION f SET TABLE {{t}} WHERE (id < 0); {LOAD} ALTER PUBLICATION f SET TABLE {{t}}",
    ),
    "filtered.columns": (f"ALTER PUBLICATION c SET TABLE {{t}} (id); {LOAD} ALTER PUBLICATION c SET TABLE {{t}}",),
    "listed.renamed": (RENAMED_AWAY,),
    "acting.updates": (f"ALTER PUBLICATION a SET (publish = 'insert'); {LOAD} {PUBLISH_ALL}",),
    "cutting.cut": ("TRUNCATE {t}; INSERT INTO {t} VALUES (1, 't')",),
    "listed.leaf": (DETACHED,),
    "turned.schema": (TURNED,),
}
"""The first one is away for so long that a look can see it: it comes before anything that causes a
look."""
PUBLICATIONS_15 = """
CREATE PUBLICATION s FOR TABLES IN SCHEMA spread;
CREATE PUBLICATION p FOR TABLE listed.left, listed.renamed, listed.root, turned.schema;
CREATE PUBLICATION f FOR TABLE filtered.narrowed;
CREATE PUBLICATION c FOR TABLE filtered.columns;
CREATE PUBLICATION a FOR TABLE acting.updates;
CREATE PUBLICATION cut FOR TABLE cutting.cut WITH (publish = 'insert, update, delete');
CREATE PUBLICATION kept FOR TABLE cutting.kept WITH (publish = 'insert')
"""
MOODS = """
CREATE TYPE listed.mood AS ENUM ('sad', 'ok'); CREATE DOMAIN listed.temper AS listed.mood;
CREATE TYPE listed.pair AS (a int, b int);
CREATE TABLE spread.moods (k listed.temper PRIMARY KEY, n int); INSERT INTO spread.moods VALUES ('sad', 1), ('ok', 2);
CREATE TABLE spread.pairs (id int PRIMARY KEY, p listed.pair); INSERT INTO spread.pairs VALUES (1, (1, 2));
"""
PAIRS = "SELECT id, p::text AS p FROM spread.pairs"
RENAMED_LABEL = (
    "ALTER TYPE listed.mood ADD VALUE 'new'",
    "ALTER TYPE listed.mood RENAME VALUE 'sad' TO 'gone'",
    "UPDATE spread.moods SET n = 2 WHERE k::listed.mood = 'gone'",
    "DELETE FROM spread.moods WHERE k::listed.mood = 'gone'",
    "ALTER TYPE listed.pair ADD ATTRIBUTE c int",
)


async def test_a_relation_that_was_away_is_read_again(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The look that finds it is that of the next change: the clock of the gateway has none for ten
    minutes."""
    settings = {"source__publications": "s,p,f,c,a,cut,kept", "source__check_interval_s": 600}
    harmless = {f"spread.{name}": statements for name, statements in HARMLESS.items()}
    away = AWAY_15
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        for schema in ("spread", "listed", "filtered", "acting", "cutting", "turned", "away"):
            await scene.sql.execute(f"CREATE SCHEMA {schema}")
        await scene.sql.execute(MOODS)
        await create(scene, [*harmless, *away, "cutting.kept"])
        await scene.sql.execute(
            "CREATE TABLE listed.root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
            "ALTER TABLE listed.root ATTACH PARTITION listed.leaf FOR VALUES FROM (0) TO (5000)"
        )
        await scene.sql.execute(PUBLICATIONS_15)
        await scene.gateway.streaming()
        await scene.snapshot_done()
        every = [*harmless, *away, "spread.moods", "spread.pairs"]
        first_changes: Cases = dict.fromkeys((*harmless, *away), ("UPDATE {t} SET v = 'first' WHERE id = 1",))
        await run(scene, first_changes)
        await scene.delivered()

        await run(scene, away)
        await run(scene, harmless)
        await run(scene, {"cutting.kept": ("TRUNCATE {t}",)})
        await run(scene, first_changes)
        await are_told(scene, "table_read_again", [*away])
        read = len(every) + 1 + len(away)
        await are_equal(scene, every, read)

        # While it is down; and where no relation is announced once more.
        assert await scene.gateway.stop() == 0
        await run(scene, away)
        for statement in RENAMED_LABEL:
            await scene.sql.execute(statement)
        await run(scene, dict.fromkeys(harmless, HARMLESS["granted"]))
        await scene.gateway.streaming()
        again = [*away, "spread.moods", "spread.pairs"]
        await are_told(scene, "table_read_again", again, since=len(away))
        await are_equal(scene, every, read + len(again))

        # Where nothing is to be read without a command, it is said.
        assert await scene.gateway.stop() == 0
        await scene.gateway.streaming(snapshot__mode="on_command")
        await run(scene, first_changes)
        await scene.delivered()
        await run(scene, away)
        await run(scene, first_changes)
        await are_told(scene, "rows_not_sent", [*away])
        assert all(event["table"] in event["hint"] for event in scene.gateway.events("rows_not_sent"))

        # Without snapshots, too.
        assert await scene.gateway.stop() == 0
        before = len(scene.gateway.events("rows_not_sent"))
        await scene.gateway.streaming(snapshot__mode="never", source__check_interval_s=0.5)
        await run(scene, first_changes)
        await scene.delivered()
        seen_by_the_clock = {table: away[table] for table in away.keys() - {"spread.in_three", "turned.schema"}}
        await run(scene, seen_by_the_clock)
        await are_told(scene, "rows_not_sent", [*seen_by_the_clock], since=before)
        assert await scene.gateway.stop() == 0


async def test_a_relation_that_was_away_on_the_oldest_server(
    database_oldest: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Under FOR ALL TABLES, of which a table is a member while it is elsewhere, with its rows in
    another topic."""
    settings = {"source__publications": "p,rest", "source__check_interval_s": 600}
    harmless = {f"public.{name}": statements for name, statements in HARMLESS.items()}
    away: Cases = {"public.in_three": UNLOGGED, "public.at_once": (AT_ONCE,), "public.moved": (SCHEMA_AWAY,)}
    every = [*harmless, *away]
    async with open_scene(database_oldest, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await create(scene, every)
        await scene.sql.execute("CREATE SCHEMA away; CREATE PUBLICATION p FOR ALL TABLES; CREATE PUBLICATION rest")
        await scene.gateway.streaming()
        await scene.snapshot_done()
        changes: Cases = dict.fromkeys(every, ("UPDATE {t} SET v = 'first' WHERE id = 1",))
        await run(scene, changes)
        await scene.delivered()
        await run(scene, away)
        await run(scene, harmless)
        # What another publication sends or does not is nothing where one sends everything.
        await scene.sql.execute("ALTER PUBLICATION rest ADD TABLE public.granted")
        await scene.sql.execute("ALTER PUBLICATION rest SET (publish = 'insert')")
        await run(scene, changes)
        await are_told(scene, "table_read_again", [*away])
        await are_equal(scene, every, len(every) + len(away))
        assert await scene.gateway.stop() == 0
        await scene.sql.execute("ALTER PUBLICATION p SET (publish = 'insert, update, truncate')")
        await scene.sql.execute("DELETE FROM public.granted WHERE id < 500")
        await scene.sql.execute("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
        await scene.gateway.streaming()
        await are_equal(scene, every, 2 * len(every) + len(away))
        assert await scene.gateway.stop() == 0
