"""A snapshot reads rows of every type, and finds rows again by keys of every type that can be
one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import Database, _new_database
from tests.snapshot.every_type import SCHEMA, TypeTable, create_tables, create_types
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import Scene, open_scene
from tests.snapshot.target import Target
from tests.snapshot.test_holes import command, connect_freely, held_commit
from tests.values.oracle import text_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WITHOUT_A_LITERAL = (
    "gbtreekey", "ghstore", "gtrgm", "intbig_gkey", "ltree_gist", "gtsvector", "pg_brin_", "pg_dependencies", "pg_mcv_list",
    "pg_ndistinct", "pg_node_tree", "pg_ddl_command", "xml",
)  # fmt: skip
"""No row has such a value: their input functions refuse everything, as that of xml does in a server
without libxml."""

TIGHT = f"""
CREATE DOMAIN {SCHEMA}.code AS text;
CREATE TYPE {SCHEMA}.mood AS ENUM ('sad', 'ok');
CREATE TABLE public.k_code (c0 {SCHEMA}.code PRIMARY KEY, n int, big text);
CREATE TABLE public.k_codes (c0 {SCHEMA}.code[] PRIMARY KEY, n int, big text);
CREATE TABLE public.k_mood (c0 {SCHEMA}.mood PRIMARY KEY, n int, big text);
CREATE TABLE public.k_moods (c0 {SCHEMA}.mood[] PRIMARY KEY, n int, big text);
ALTER TABLE public.k_code ALTER big SET STORAGE EXTERNAL;
ALTER TABLE public.k_codes ALTER big SET STORAGE EXTERNAL;
ALTER TABLE public.k_mood ALTER big SET STORAGE EXTERNAL;
ALTER TABLE public.k_moods ALTER big SET STORAGE EXTERNAL;
INSERT INTO public.k_code SELECT 'a' || i, i, repeat('b', 2500) FROM generate_series(1, 3) i;
INSERT INTO public.k_codes SELECT ARRAY['a' || i]::{SCHEMA}.code[], i, repeat('b', 2500) FROM generate_series(1, 3) i;
INSERT INTO public.k_mood VALUES ('sad', 1, repeat('b', 2500)), ('ok', 2, repeat('b', 2500));
INSERT INTO public.k_moods VALUES ('{{sad}}', 1, repeat('b', 2500)), ('{{sad,ok}}', 2, repeat('b', 2500));
"""
TIGHTEN = f"""
ALTER DOMAIN {SCHEMA}.code ADD CONSTRAINT begins_with_b CHECK (VALUE LIKE 'b%') NOT VALID;
ALTER TYPE {SCHEMA}.mood RENAME VALUE 'sad' TO 'blue';
"""
TIGHT_TABLES = (
    TypeTable("public.k_code", ("text",), is_key=True),
    TypeTable("public.k_codes", ("text[]",), is_key=True),
    TypeTable("public.k_mood", (f"{SCHEMA}.mood",), is_key=True),
    TypeTable("public.k_moods", (f"{SCHEMA}.mood[]",), is_key=True),
)


# Rows of every type of the oldest server: tests/values; its snapshots: test_truth.py.
@pytest.fixture(params=["postgres", pytest.param("postgres_oldest", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Postgres:
    chosen: Postgres = request.getfixturevalue(request.param)
    return chosen


@pytest_asyncio.fixture
async def database_of_each(server: Postgres) -> AsyncIterator[Database]:
    async for made in _new_database(server):
        yield made


async def test_rows_and_keys_of_every_type_are_read(
    database_of_each: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Rows of all keys are read before a change of them is visible, and so once more by their keys.
    Meanwhile a domain got a constraint that they do not satisfy, and a label another name."""
    database = database_of_each
    settings = {"snapshot__mode": "on_command"}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        scene.sql = sql = await connect_freely(database)
        await create_types(sql)
        tables, without = await create_tables(sql)
        assert [name for name in without if not name.split(".")[1].startswith(WITHOUT_A_LITERAL)] == []
        await sql.execute(TIGHT)
        tables = [*TIGHT_TABLES, *tables]
        keyed = [table for table in tables if table.is_key]
        await sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        await scene.gateway.streaming()
        await command(scene, "pause")
        await command(scene, "start")
        await scene.gateway.logged('"tables_begun"')
        updates = "; ".join(f"UPDATE {table.name} SET n = n + 100" for table in keyed)
        async with held_commit(database, updates) as hanging:
            await scene.delivered_by(hanging)
            await command(scene, "resume")
            await _all_keys_wait(scene)
            await sql.execute(TIGHTEN)
        await scene.snapshot_done()
        await scene.delivered()
        target = await scene.target()
        wrong = [text for table in tables for text in await _differences(scene, target, table)]
        assert not wrong, "\n".join(wrong)
        stale = {event["table"]: event["stale"] for event in scene.gateway.events("table_read")}
        # Where a binary value cannot be decoded (names of regclass), or a label is another one, the
        # table begins again meanwhile; where a key contains an array, it is read as a whole.
        whole = {event["table"] for event in scene.gateway.events("table_read_in_one_transaction")}
        assert whole and all("[]" in str(table.types) for table in tables if table.name in whole)
        by_keys = [
            table
            for table in keyed
            if table not in TIGHT_TABLES and table.name not in whole and "reg" not in str(table.types)
        ]
        assert [table.name for table in by_keys if not stale[table.name]] == []
        assert not scene.gateway.events("keys_compared_as_text"), "a key with an array is not read by its keys"
        assert not scene.gateway.events("table_unreadable")
        assert await scene.gateway.stop() == 0


async def _all_keys_wait(scene: Scene) -> None:
    """All rows with a key were read, and are to be read again: their number does not grow."""
    async with asyncio.timeout(90):
        while True:
            counts = [event["keys_to_read_again"] for event in scene.gateway.events("snapshot_progress")]
            if len(counts) > 1 and counts[-1] and counts[-1] == counts[-2]:
                return
            await asyncio.sleep(0.5)


async def _differences(scene: Scene, target: Target, table: TypeTable) -> list[str]:
    """Between what was delivered, read by PostgreSQL, and what it has: both as PostgreSQL prints
    them."""
    rows = list(target.tables[f"{scene.prefix}.{table.name}"].values())
    names = [*table.columns, "n", "big"]
    types = [*table.types, "int", "text"]
    texts = [[text_of(row[name]) for row in rows] for name in names]
    # The cast of a text to regclass and its kind takes a number for a name: these stay text.
    shown = ", ".join(name if "reg" in kind else f"{name}::{kind}" for name, kind in zip(names, types, strict=True))
    given = ", ".join(f"${index + 1}::text[]" for index in range(len(names)))
    delivered = await scene.sql.fetch(
        f"SELECT concat_ws('|', {shown}) FROM unnest({given}) AS u ({', '.join(names)}) ORDER BY 1", *texts
    )
    truth = await scene.sql.fetch(f"SELECT concat_ws('|', {', '.join(names)}) FROM {table.name} ORDER BY 1")
    if delivered == truth:
        return []
    return [f"{table.name} {table.types}: {_short(delivered)} instead of {_short(truth)}"]


def _short(rows: list[asyncpg.Record]) -> list[str]:
    return [row[0][:120] for row in rows]
