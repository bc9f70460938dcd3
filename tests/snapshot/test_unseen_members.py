"""Partitions, memberships and tables that come, or come and go, between two looks at the catalog."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from confluent_kafka.admin import AdminClient

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.scene import Scene, open_scene, tables_ahead

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOTS = ("filled", "passed", "distant")
ROOT = """
CREATE TABLE public.{t} (id int PRIMARY KEY, v text DEFAULT 'none') PARTITION BY RANGE (id);
CREATE TABLE public.{t}_0 PARTITION OF public.{t} FOR VALUES FROM (0) TO (100);
INSERT INTO public.{t} SELECT g, 'old' FROM generate_series(1, 50) g;
"""
KEYLESS_ROOT = """
CREATE TABLE public.distant (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE public.distant_0 PARTITION OF public.distant FOR VALUES FROM (0) TO (100);
ALTER TABLE public.distant REPLICA IDENTITY FULL; ALTER TABLE public.distant_0 REPLICA IDENTITY FULL;
INSERT INTO public.distant SELECT g, 'old' FROM generate_series(1, 50) g;
"""
"""PostgreSQL refuses foreign partitions where there is a unique index."""
PUBLICATIONS = """
CREATE PUBLICATION roots FOR TABLE public.filled, public.passed, public.distant WITH (publish_via_partition_root = true);
CREATE PUBLICATION wide;
"""
ATTACHED_FILLED = """
BEGIN; CREATE TABLE public.filled_{n} (LIKE public.filled INCLUDING ALL);
INSERT INTO public.filled_{n} SELECT g, 'filled' FROM generate_series({n}00, {n}50) g;
ALTER TABLE public.filled ATTACH PARTITION public.filled_{n} FOR VALUES FROM ({n}00) TO ({n}99); COMMIT
"""
PASSED = """
CREATE TABLE public.passed_{n} PARTITION OF public.passed FOR VALUES FROM ({n}00) TO ({n}99);
INSERT INTO public.passed SELECT g, 'passing' FROM generate_series({n}00, {n}50) g;
DROP TABLE public.passed_{n}
"""
EVENTS_TELL_ALL = """
CREATE TABLE public.filled_9 PARTITION OF public.filled (v DEFAULT 'nine') FOR VALUES FROM (900) TO (999);
INSERT INTO public.filled VALUES (901, 'created'); INSERT INTO public.passed VALUES (51, 'new')
"""


async def apart(scene: Scene, *scripts: str, removals: int = 0) -> None:
    """Run the scripts in a session of their own, whose statistics are there when it has ended.
    `removals`: rows that they remove from publications."""
    query = (
        "SELECT sum(pg_stat_get_tuples_deleted(c.oid))::int8 FROM pg_class AS c"
        " WHERE c.relname IN ('pg_publication', 'pg_publication_rel', 'pg_publication_namespace')"
    )
    before = await scene.sql.fetchval(query)
    session = await asyncpg.connect(scene.database.dsn)
    for script in scripts:
        await session.execute(script)
    await session.close()
    async with asyncio.timeout(30):
        while await scene.sql.fetchval(query) < before + removals:
            await asyncio.sleep(0.05)


async def nothing_is_read_again(scene: Scene, tables: Sequence[str]) -> None:
    """After the snapshot, as long as the stream has an event for whatever happens."""
    await scene.gateway.streaming()
    await scene.snapshot_done()
    await touch(scene, tables, "first")
    await scene.sql.execute(EVENTS_TELL_ALL)
    await touch(scene, tables, "second")
    await scene.delivered()
    assert not scene.gateway.events("table_read_again")


async def are_read_again(scene: Scene, tables: Sequence[str], since: int, event: str = "table_read_again") -> None:
    """These tables are reported, and no other."""
    expected = {f"public.{table}" for table in tables}
    try:
        async with asyncio.timeout(30):
            while {entry["table"] for entry in scene.gateway.events(event)[since:]} != expected:
                await asyncio.sleep(0.1)
    except TimeoutError:
        print([(entry["table"], entry["reason"]) for entry in scene.gateway.events(event)[since:]])
        raise


async def settled(scene: Scene) -> None:
    """All that was queued is read."""
    async with asyncio.timeout(60):
        while len(scene.gateway.events("snapshot_begins")) != len(scene.gateway.events("snapshot_done")):
            await asyncio.sleep(0.1)


def queries(tables: Sequence[str]) -> dict[str, str]:
    return {f"public.{table}": f"SELECT * FROM public.{table}" for table in tables}


async def touch(scene: Scene, tables: Sequence[str], value: str) -> None:
    for table in tables:
        await scene.sql.execute(f"UPDATE public.{table} SET v = '{value}' WHERE id = 1")


async def test_what_comes_between_two_looks_is_noticed(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The clock causes no look. A partition that is created as one, filled by events, is no
    reason."""
    settings = {"source__publications": "roots,narrow,wide", "source__check_interval_s": 600}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute("".join(ROOT.format(t=table) for table in ROOTS[:2]) + KEYLESS_ROOT + PUBLICATIONS)
        address = urlsplit(database.dsn)
        await scene.sql.execute(f"""
            CREATE TABLE public.partial (id int PRIMARY KEY, v text);
            INSERT INTO public.partial SELECT g, 'old' FROM generate_series(1, 50) g;
            CREATE TABLE public.computed (id int PRIMARY KEY, v text, twice int GENERATED ALWAYS AS (id * 2) STORED);
            INSERT INTO public.computed SELECT g, 'old' FROM generate_series(1, 50) g;
            CREATE TABLE public.stranger (id int PRIMARY KEY, v text);
            CREATE PUBLICATION narrow FOR TABLE public.partial WHERE (id < 500), public.computed;
            CREATE TABLE public.source (id int, v text); INSERT INTO public.source VALUES (801, 'far'), (802, 'far');
            CREATE EXTENSION postgres_fdw;
            CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw
                OPTIONS (host '{address.hostname}', port '{address.port}', dbname '{database.name}');
            CREATE USER MAPPING FOR public SERVER far OPTIONS (user '{address.username}', password '{address.password}')""")
        every = [*ROOTS, "partial", "computed"]
        await nothing_is_read_again(scene, every)

        await scene.sql.execute(ATTACHED_FILLED.format(n=1))
        await scene.sql.execute(
            "CREATE FOREIGN TABLE public.far PARTITION OF public.distant FOR VALUES FROM (800) TO (899) SERVER far"
            " OPTIONS (schema_name 'public', table_name 'source')"
        )
        await scene.sql.execute("ALTER TABLE public.computed ALTER twice DROP EXPRESSION")
        await scene.sql.execute(PASSED.format(n=1))
        await apart(
            scene,
            "ALTER PUBLICATION wide ADD TABLE public.partial",
            "INSERT INTO public.partial VALUES (501, 'surplus')",
            "ALTER PUBLICATION wide DROP TABLE public.partial",
            "ALTER PUBLICATION wide ADD TABLE public.stranger",
            "INSERT INTO public.stranger VALUES (1, 'gone'), (2, 'stays')",
            "ALTER PUBLICATION wide DROP TABLE public.stranger",
            "DELETE FROM public.stranger WHERE id = 1",
            removals=2,
        )
        await touch(scene, every, "third")
        await are_read_again(scene, every, 0)
        await settled(scene)
        wanted = queries(every) | {"public.partial": "SELECT * FROM public.partial WHERE id < 500"}
        await scene.judge(wanted, keyless=("public.distant",))
        assert [event["table"] for event in scene.gateway.events("table_left")] == ["public.stranger"]

        # While the gateway is down.
        assert await scene.gateway.stop() == 0
        since = len(scene.gateway.events("table_read_again"))
        await scene.sql.execute(ATTACHED_FILLED.format(n=2))
        await scene.sql.execute("ALTER TABLE public.distant DETACH PARTITION public.far")
        await scene.sql.execute(PASSED.format(n=2))
        await apart(
            scene,
            "ALTER PUBLICATION wide ADD TABLE public.partial",
            "INSERT INTO public.partial VALUES (502, 'surplus')",
            "ALTER PUBLICATION wide DROP TABLE public.partial",
            removals=1,
        )
        await scene.sql.execute("ALTER PUBLICATION wide ADD TABLE public.stranger")
        await scene.gateway.streaming()
        await are_read_again(scene, [*ROOTS, "partial"], since)
        await settled(scene)
        await scene.judge(wanted | queries(["stranger"]), keyless=("public.distant",))
        assert not topics_of_partitions(kafka, topic_prefix)

        # Where nothing is read without a command, each is reported.
        assert await scene.gateway.stop() == 0
        await scene.gateway.streaming(snapshot__mode="on_command")
        await touch(scene, every, "fourth")
        await scene.sql.execute("ALTER TABLE public.computed RENAME TO renamed")
        await scene.sql.execute("UPDATE public.renamed SET v = 'other' WHERE id = 1")
        await scene.delivered()
        await scene.sql.execute(
            "BEGIN; ALTER TABLE public.renamed RENAME TO away; UPDATE public.away SET v = 'more' WHERE id = 1;"
            "ALTER TABLE public.away RENAME TO renamed; UPDATE public.renamed SET v = 'back' WHERE id = 1; COMMIT"
        )
        await scene.sql.execute(PASSED.format(n=3))
        async with asyncio.timeout(30):
            while "public.passed" not in {event["table"] for event in scene.gateway.events("rows_not_sent")}:
                await asyncio.sleep(0.1)
        assert await scene.gateway.stop() == 0
        reported = [(event["table"], event["reason"]) for event in scene.gateway.events("rows_not_sent")]
        # A check that runs between the commit and the Relation message of the second name reports it, too.
        by_check = [reason for _, reason in reported if "had another name for a time" in reason]
        assert len(reported) == 3 + len(by_check) and len(by_check) <= 1, reported
        assert sum("renamed" in reason for _, reason in reported) == 2, reported


async def test_a_killed_gateway_remembers_a_table_that_no_look_has_found(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The table leaves the publication while the gateway is down, loses a row, and comes back."""
    settings = {"source__publications": "wide", "source__check_interval_s": 600}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute(
            "CREATE TABLE public.host (id int PRIMARY KEY); CREATE PUBLICATION wide FOR TABLE public.host"
        )
        await scene.gateway.streaming()
        await scene.snapshot_done()
        await scene.sql.execute(
            "CREATE TABLE public.guest (id int PRIMARY KEY, v text); ALTER PUBLICATION wide ADD TABLE public.guest;"
            "INSERT INTO public.guest VALUES (1, 'gone'), (2, 'stays')"
        )
        await scene.delivered()
        assert len(scene.gateway.events("snapshot_done")) == 1, "a look has found the table: nothing is shown here"
        await scene.gateway.kill()
        await scene.sql.execute("ALTER PUBLICATION wide DROP TABLE public.guest")
        await scene.sql.execute("DELETE FROM public.guest WHERE id = 1; ALTER PUBLICATION wide ADD TABLE public.guest")
        await scene.gateway.streaming()
        await scene.snapshot_done()
        await scene.judge(queries(["guest"]), keyless=())


WAITING = """
CREATE TABLE public.cut (id int PRIMARY KEY, v text); INSERT INTO public.cut SELECT g, 'old' FROM generate_series(1, 50) g;
CREATE TABLE public.away (LIKE public.cut INCLUDING ALL); INSERT INTO public.away TABLE public.cut;
CREATE TABLE public.same (LIKE public.cut INCLUDING ALL); INSERT INTO public.same TABLE public.cut;
CREATE TABLE public.hidden (LIKE public.cut INCLUDING ALL); INSERT INTO public.hidden TABLE public.cut;
CREATE PUBLICATION roots WITH (publish_via_partition_root = true);
CREATE PUBLICATION wide; CREATE PUBLICATION ahead;
CREATE PUBLICATION uncut WITH (publish = 'insert, update, delete');
"""
PUBLISHED = """
ALTER PUBLICATION roots ADD TABLE public.filled, public.passed; ALTER PUBLICATION uncut ADD TABLE public.cut;
ALTER PUBLICATION wide ADD TABLE public.away, public.same, public.hidden; ALTER PUBLICATION ahead ADD TABLES IN SCHEMA ahead;
"""
GONE_UNSEEN = """
DROP TABLE public.filled_2; TRUNCATE public.cut; ALTER PUBLICATION wide DROP TABLE public.away;
DELETE FROM public.away WHERE id > 40; ALTER PUBLICATION wide ADD TABLE public.away
"""


async def test_rows_that_were_sent_before_their_table_was_read_are_not_kept_when_they_go_without_an_event(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """They change while the gateway runs, while it is down, and while its settings exclude one."""
    settings = {"source__publications": "roots,wide,uncut,ahead", "source__check_interval_s": 1}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute("".join(ROOT.format(t=table) for table in ROOTS[:2]) + WAITING)
        every = ["filled", "passed", "cut", "away", "same", "hidden"]
        await scene.gateway.streaming()
        async with tables_ahead(scene):
            await scene.sql.execute(PUBLISHED)
            await while_they_wait(scene, every)
        await scene.snapshot_done()
        target = await scene.judge(queries(every), keyless=())
        assert target.purposes[f"{topic_prefix}.public.same"] == "FILL"
        assert await scene.gateway.stop() == 0


async def while_they_wait(scene: Scene, tables: Sequence[str]) -> None:
    await scene.gateway.logged('"tables_added"')
    await scene.sql.execute("CREATE TABLE public.filled_2 PARTITION OF public.filled FOR VALUES FROM (200) TO (299)")
    await scene.sql.execute("INSERT INTO public.filled VALUES (201, 'sent'), (202, 'sent')")
    for table in tables:
        await scene.sql.execute(f"INSERT INTO public.{table} VALUES (60, 'sent')")
    await scene.sql.execute(PASSED.format(n=1))
    await scene.delivered()
    await scene.gateway.kill()
    await scene.sql.execute(GONE_UNSEEN)
    await scene.gateway.streaming(source__excluded_tables="public.hidden")
    await scene.sql.execute("DELETE FROM public.hidden WHERE id = 60")
    await scene.delivered()
    assert await scene.gateway.stop() == 0
    await scene.gateway.streaming()
    await touch(scene, tables, "second")
    await scene.delivered()
    assert not (await scene.target()).begin_count.keys() & {f"{scene.prefix}.public.{table}" for table in tables}


async def test_a_partition_that_passes_while_its_root_is_read_is_remembered_by_the_next_session(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    settings = {"source__publications": "roots", "source__check_interval_s": 1, "snapshot__rows_per_s": 100}
    async with open_scene(
        database, kafka, registry, topic_prefix, tmp_path, **settings, snapshot__chunk_bytes=10_000
    ) as scene:
        await scene.sql.execute(ROOT.format(t="passed"))
        await scene.sql.execute(
            "CREATE TABLE public.passed_7 PARTITION OF public.passed FOR VALUES FROM (1000) TO (9999);"
            "INSERT INTO public.passed SELECT g, repeat('o', 100) FROM generate_series(1000, 2999) g;"
            "CREATE PUBLICATION roots FOR TABLE public.passed WITH (publish_via_partition_root = true)"
        )
        await scene.gateway.streaming()
        await scene.in_the_middle(200)
        await scene.sql.execute(PASSED.format(n=1))
        await scene.delivered()
        assert not scene.gateway.events("snapshot_done")
        await scene.gateway.kill()
        await scene.gateway.streaming(snapshot__rows_per_s=100_000)
        await scene.snapshot_done()
        await touch(scene, ["passed"], "last")
        await are_read_again(scene, ["passed"], 0)
        await settled(scene)
        await scene.judge(queries(["passed"]), keyless=())
        assert await scene.gateway.stop() == 0


def topics_of_partitions(kafka: Kafka, prefix: str) -> set[str]:
    names = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30).topics
    tables = {name.removeprefix(f"{prefix}.public.") for name in names if name.startswith(f"{prefix}.public.")}
    return {table for table in tables if "_" in table}


OTHERS = """
CREATE TABLE public.listed (id int PRIMARY KEY, v text); INSERT INTO public.listed SELECT g, 'old' FROM generate_series(1, 50) g;
CREATE TABLE public.cut (LIKE public.listed INCLUDING ALL); INSERT INTO public.cut TABLE public.listed;
CREATE TYPE public.mood AS ENUM ('sad', 'ok');
CREATE TABLE public.moods (k public.mood PRIMARY KEY, id int, v text);
INSERT INTO public.moods VALUES ('sad', 1, 'old'), ('ok', 2, 'old');
CREATE PUBLICATION uncut FOR TABLE public.cut WITH (publish = 'insert, update, delete');
"""
CHANGED_UNSEEN = """
TRUNCATE public.cut; INSERT INTO public.cut VALUES (1, 'new'); ALTER TYPE public.mood RENAME VALUE 'sad' TO 'gone';
UPDATE public.moods SET v = 'new' WHERE k = 'gone'; DELETE FROM public.moods WHERE k = 'gone';
INSERT INTO public.moods VALUES ('gone', 1, 'new')
"""


async def test_what_comes_between_two_looks_at_the_oldest_server_is_noticed(
    database_oldest: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Also: a partition whose rows come as those of its root for a time, because another
    publication publishes the root, is missing them."""
    settings = {"source__publications": "roots,wide,uncut", "source__check_interval_s": 600}
    async with open_scene(database_oldest, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute("".join(ROOT.format(t=table) for table in (*ROOTS, "parted")) + OTHERS)
        await scene.sql.execute(
            PUBLICATIONS + "ALTER PUBLICATION wide ADD TABLE public.parted, public.listed, public.moods"
        )
        every = [*ROOTS, "parted_0", "listed", "cut", "moods"]
        await nothing_is_read_again(scene, every)

        await scene.sql.execute(ATTACHED_FILLED.format(n=1))
        await scene.sql.execute(PASSED.format(n=1))
        await scene.sql.execute(CHANGED_UNSEEN)
        await apart(
            scene,
            "ALTER PUBLICATION roots ADD TABLE public.parted",
            "UPDATE public.parted SET v = 'as root' WHERE id > 10",
            "ALTER PUBLICATION roots DROP TABLE public.parted",
            "BEGIN; ALTER PUBLICATION wide DROP TABLE public.listed; UPDATE public.listed SET v = 'new' WHERE id > 10;"
            "DELETE FROM public.listed WHERE id > 40; ALTER PUBLICATION wide ADD TABLE public.listed; COMMIT",
            removals=2,
        )
        await touch(scene, every, "third")
        await are_read_again(scene, ["filled", "passed", "parted_0", "listed", "cut", "moods"], 0)
        await settled(scene)
        await scene.judge(queries(every), keyless=())
        assert await scene.gateway.stop() == 0


async def test_statistics_that_the_server_discarded_are_no_reason_to_read(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """A crash discards them, and a promoted standby has only its own."""
    settings = {"source__publications": "narrow,wide", "source__check_interval_s": 1}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute("""
            CREATE TABLE public.partial (id int PRIMARY KEY, v text); INSERT INTO public.partial VALUES (1, 'old');
            CREATE PUBLICATION narrow FOR TABLE public.partial WHERE (id < 500); CREATE PUBLICATION wide""")
        passing = "ALTER PUBLICATION wide ADD TABLE public.partial", "ALTER PUBLICATION wide DROP TABLE public.partial"
        await apart(scene, *passing * 3, removals=3)
        await scene.gateway.streaming()
        await scene.snapshot_done()

        await scene.sql.execute("SELECT pg_stat_reset()")
        await asyncio.sleep(3)  # a few looks
        assert not scene.gateway.events("table_read_again")
        await apart(scene, *passing, removals=1)
        await are_read_again(scene, ["partial"], 0)
        await settled(scene)
        assert await scene.gateway.stop() == 0
