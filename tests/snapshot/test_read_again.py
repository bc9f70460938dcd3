"""Where rows change without an event the gateway reads their table once more by itself, and nowhere
else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from gateway.relations.attributes import ATTRIBUTES_QUERY, read_attributes
from gateway.snapshot.discovery.sent_before_commit import SentBeforeCommit
from tests.conftest import Database
from tests.schemas.relations import column, relation
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SETUP = f"""
CREATE TABLE public.plain (id int PRIMARY KEY, n int);
CREATE TABLE public.renamed (id int PRIMARY KEY, n int, t text);
CREATE TABLE public.part (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE public.part_0 PARTITION OF public.part FOR VALUES FROM (0) TO (1000);
CREATE TABLE public.part_1 PARTITION OF public.part FOR VALUES FROM (1000) TO (2000);
CREATE TABLE public.other (LIKE public.part INCLUDING ALL);
INSERT INTO public.plain SELECT i, i FROM generate_series(1, 500) i;
INSERT INTO public.renamed SELECT i, i FROM generate_series(1, 10) i;
INSERT INTO public.part SELECT i, i FROM generate_series(1, 1999) i;
INSERT INTO public.other SELECT i, i FROM generate_series(2000, 2099) i;
CREATE PUBLICATION {PUBLICATION} FOR TABLE public.plain, public.renamed, public.part WITH (publish_via_partition_root = true);
"""


async def test_rows_that_change_without_an_event_are_read_again(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path) as scene:
        await scene.sql.execute(SETUP)
        await scene.gateway.streaming()
        await scene.snapshot_done()
        # Events tell of all that changes here.
        await scene.sql.execute("CREATE TABLE public.part_9 PARTITION OF public.part FOR VALUES FROM (9000) TO (9999)")
        await scene.sql.execute("INSERT INTO public.part VALUES (9001, 1)")
        await scene.sql.execute("VACUUM FULL public.plain")
        await scene.sql.execute("VACUUM FULL public.part_0")
        await scene.sql.execute("TRUNCATE public.renamed")
        await scene.sql.execute("INSERT INTO public.renamed VALUES (1, 1)")
        await _is_equal(scene, "plain", "part", "renamed")
        # And of nothing here: first while the gateway runs, then while it is down.
        await scene.sql.execute("ALTER TABLE public.plain ALTER n TYPE int USING n * 2, ADD COLUMN later int")
        await scene.sql.execute(
            "ALTER TABLE public.part ATTACH PARTITION public.other FOR VALUES FROM (2000) TO (3000)"
        )
        await scene.gateway.logged('"table_read"', times=5)
        await _is_equal(scene, "plain", "part", "renamed")
        assert await scene.gateway.stop() == 0
        await scene.sql.execute("ALTER TABLE public.part DETACH PARTITION public.part_0; TRUNCATE public.part_1")
        await scene.sql.execute("ALTER TABLE public.renamed RENAME TO new")
        await scene.gateway.streaming()
        await scene.gateway.logged('"table_read"', times=7)
        await _is_equal(scene, "plain", "part", "new")
        told = {
            (event["table"], event["reason"].partition(":")[0]) for event in scene.gateway.events("table_read_again")
        }
        assert told == {
            ("public.plain", "ALTER TABLE has rewritten it"),
            ("public.part", "a partition was attached"),
            ("public.part", "a partition was detached or dropped"),
            ("public.new", "it was renamed from public.renamed"),
        }


async def test_a_table_that_is_renamed_while_it_is_read_is_begun_again(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Another table is still to be read then, so the snapshot would not end without it. The schema
    of one has another name only for a moment, in which a row goes that was read."""
    slow: dict[str, object] = {"rows_per_s": 300, "chunk_bytes": 8192, "readers": 1}
    settings = {f"snapshot__{name}": value for name, value in slow.items()}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute(f"""
            CREATE TABLE public.before (id int PRIMARY KEY, v text);
            INSERT INTO public.before SELECT i, repeat('v', 100) FROM generate_series(1, 1200) i;
            CREATE TABLE public.moved (LIKE public.before INCLUDING ALL); INSERT INTO public.moved TABLE public.before;
            CREATE SCHEMA away; CREATE TABLE away.back (LIKE public.before INCLUDING ALL);
            INSERT INTO away.back TABLE public.before;
            CREATE SCHEMA other; CREATE PUBLICATION {PUBLICATION} FOR TABLE away.back, public.before, public.moved""")
        await scene.gateway.streaming()
        await scene.in_the_middle(200)
        await scene.sql.execute("ALTER TABLE public.before RENAME TO behind; ALTER TABLE public.moved SET SCHEMA other")
        await scene.sql.execute(
            "BEGIN; ALTER SCHEMA away RENAME TO gone; DELETE FROM gone.back WHERE id = 1;"
            "ALTER SCHEMA gone RENAME TO away; COMMIT"
        )
        await scene.snapshot_done()
        names = "away.back", "public.behind", "other.moved"
        await scene.judge({name: f"SELECT * FROM {name}" for name in names}, keyless=())
        assert not scene.gateway.events("table_unreadable")


async def test_a_column_that_is_renamed_before_its_transaction_commits_is_read_again(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Consumers get the new name without a number, or with that of another column. So do they get a
    column with a default, and they need not know more of one without."""
    tables = "away", "filled", "copied", "moved", "gone", "same", "more"
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, source__two_phase=True) as scene:
        await scene.sql.execute(
            "".join(
                f"CREATE TABLE {table} (id int PRIMARY KEY, n int, z int); INSERT INTO {table} VALUES (1, 1, 3);"
                for table in tables
            )
            + f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES"
        )
        await scene.gateway.streaming()
        await scene.snapshot_done()
        session = await database.connect()
        for end in ("ROLLBACK", "COMMIT"):
            await session.execute(
                "BEGIN; ALTER TABLE away RENAME n TO m; ALTER TABLE filled ADD d int DEFAULT 7; ALTER TABLE more ADD d int;"
                "ALTER TABLE copied ADD x int; UPDATE copied SET x = n + 8;"
                "ALTER TABLE moved DROP n; ALTER TABLE moved RENAME z TO n;"
                + "".join(f"INSERT INTO {table} VALUES (2, 2);" for table in ("away", "filled", "moved", "more"))
                + "ALTER TABLE copied DROP n; ALTER TABLE copied RENAME x TO n;"
                + "INSERT INTO gone SELECT i, i FROM generate_series(2, 2000) i"
            )
            await scene.delivered()  # what is streamed before, too
            await session.execute(end)
        await scene.gateway.logged('"table_read"', times=11)
        await _is_equal(scene, *tables[:5])
        await scene.sql.execute(
            "BEGIN; ALTER TABLE gone RENAME n TO m; INSERT INTO gone VALUES (3000, 1);"
            "ALTER TABLE same DROP z, ADD z int DEFAULT 9; INSERT INTO same VALUES (2, 2, 2)"
        )
        await scene.sql.execute("PREPARE TRANSACTION 'p'")
        await scene.gateway.logged('"table_read_again"', times=6)
        await scene.sql.execute("INSERT INTO more VALUES (3, 3)")
        await scene.delivered()
        await scene.gateway.kill()
        await scene.gateway.streaming()
        await scene.sql.execute("COMMIT PREPARED 'p'")
        await scene.gateway.logged('"table_read"', times=13)
        await _is_equal(scene, *tables[:6])
        read_again = [event["table"] for event in scene.gateway.events("table_read_again")]
        assert sorted(read_again[:4]) == ["public.away", "public.copied", "public.filled", "public.moved"]
        assert sorted(read_again[4:]) == ["public.gone", "public.same"]


async def test_only_columns_that_were_altered_are_in_doubt(database: Database) -> None:
    """The transaction is prepared, or has committed, or its commit waits for a synchronous standby:
    it then looks like an open one."""
    session, sql = await database.connect(), await database.connect()
    oids: dict[str, int] = {}
    for table in ("same", "locked", "emptied"):
        await sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)")
        oids[table] = await sql.fetchval(f"SELECT '{table}'::regclass::oid::int8")
    attributes = read_attributes(await sql.fetch(ATTRIBUTES_QUERY, [*oids.values()]))
    columns = [replace(column(name, "int4"), attnum=number) for number, name in enumerate(("id", "n"), 1)]
    await session.execute(
        "BEGIN; SAVEPOINT s; ALTER TABLE same DROP n, ADD n int DEFAULT 9; RELEASE s; TRUNCATE emptied;"
        "LOCK TABLE locked; CREATE INDEX ON locked (n); COMMENT ON COLUMN locked.n IS 'a number'"
    )
    xid = int(await session.fetchval("SELECT pg_current_xact_id()::xid::text"))
    sent = SentBeforeCommit(sql)
    for statement, has_committed in (
        ("SELECT", True),
        ("PREPARE TRANSACTION 'p'", False),
        ("COMMIT PREPARED 'p'", False),
        ("SELECT", True),
    ):
        await session.execute(statement)
        for table, oid in oids.items():
            sent.note(xid, replace(relation(*columns, name=table), oid=oid), attributes[oid])
        assert await sent.in_doubt(xid, has_committed=has_committed) == [oids["same"]], statement


async def _is_equal(scene: Scene, *tables: str) -> None:
    await scene.judge({f"public.{table}": f"SELECT * FROM public.{table}" for table in tables}, keyless=())
