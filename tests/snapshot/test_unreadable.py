"""Tables that PostgreSQL cannot read: named with what is at fault, left out of the snapshot's end,
and read when they can be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import pytest_asyncio

from gateway.local import Kafka, Registry
from gateway.postgres.connection import connect_sql
from gateway.postgres.role import role_facts
from gateway.snapshot.unreadable_tables import unreachable_partitions
from gateway.startup.role_checks import RoleFacts, check_role
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COUNT = 600
FILTERS = "1000 / (id - 250) < 2000", "id > 0"
SETUP = """
CREATE TABLE public.good (id int PRIMARY KEY, v text);
CREATE TABLE public.granted (id int PRIMARY KEY, v text, hidden text);
CREATE TABLE public.placed (id int PRIMARY KEY, v text, hidden text);
CREATE TABLE public.denied (id int PRIMARY KEY, v text);
CREATE TABLE public.filtered (id int PRIMARY KEY, v int);
CREATE TYPE public.mute;
CREATE FUNCTION public.mute_in(cstring) RETURNS public.mute LANGUAGE internal IMMUTABLE STRICT AS 'int4in';
CREATE FUNCTION public.mute_out(public.mute) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'trigger_out';
CREATE TYPE public.mute (INPUT = public.mute_in, OUTPUT = public.mute_out, LIKE = int4);
CREATE TABLE public.unprinted (id int PRIMARY KEY, v text, m public.mute);
CREATE TABLE public.parted (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE public.near PARTITION OF public.parted FOR VALUES FROM (0) TO (1000);
ALTER TABLE public.parted REPLICA IDENTITY FULL;
ALTER TABLE public.near REPLICA IDENTITY FULL;

CREATE EXTENSION postgres_fdw;
CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1', dbname 'x');
CREATE USER MAPPING FOR public SERVER far OPTIONS (user 'x', password 'y');
CREATE FOREIGN TABLE public.far PARTITION OF public.parted FOR VALUES FROM (1000) TO (2000) SERVER far;
"""
LOST = """
CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{host}', port '{port}', dbname '{database}');
CREATE USER MAPPING FOR public SERVER here OPTIONS (user '{user}', password '{password}');
CREATE TABLE public.lost (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE public.kept PARTITION OF public.lost FOR VALUES FROM (0) TO (1000);
CREATE FOREIGN TABLE public.gone PARTITION OF public.lost FOR VALUES FROM (1000) TO (2000)
    SERVER here OPTIONS (table_name 'nowhere');
ALTER TABLE public.lost REPLICA IDENTITY FULL; ALTER TABLE public.kept REPLICA IDENTITY FULL;
"""


async def _role(database: Database, prefix: str) -> AsyncIterator[str]:
    name = f"reader_{prefix}"
    sql = await database.connect()
    await sql.execute(f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD '{database.server.password}'")
    yield name
    await sql.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest_asyncio.fixture
async def role(database: Database, topic_prefix: str) -> AsyncIterator[str]:
    async for name in _role(database, topic_prefix):
        yield name


async def test_a_table_that_can_not_be_read_does_not_keep_the_others_from_ending(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, role: str, tmp_path: Path
) -> None:
    """Also: privileges on the published columns are enough. Foreign partitions are left out whose
    server is down, or does not have their table."""
    settings = {"source__dsn": database.dsn_of(role), "snapshot__chunk_bytes": 8192}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await _create(scene, role)
        gateway = scene.gateway
        await gateway.streaming()
        await scene.sql.execute("UPDATE public.granted SET v = 'new' WHERE id < 20")
        await scene.sql.execute("UPDATE public.placed SET v = 'new' WHERE id < 20")
        await scene.snapshot_done()
        left = gateway.events("tables_not_read")[-1]
        assert sorted(left["tables"]) == ["public.denied", "public.filtered", "public.unprinted"]
        assert gateway.events("snapshot_done")[-1]["tables_not_read"] == 3
        reasons = {event["table"]: event for event in gateway.events("table_unreadable")}
        assert "GRANT SELECT" in reasons["public.denied"]["hint"]
        assert "row filter" in reasons["public.filtered"]["hint"]
        assert (reasons["public.unprinted"]["column"], reasons["public.unprinted"]["type"]) == ("m", "public.mute")
        assert "unexpected" not in "".join(event.get("hint", "") for event in reasons.values())
        assert [event["partitions"] for event in gateway.events("partitions_not_read")] == [["public.far"]]
        _are_farther_and_farther_apart(
            [event for event in gateway.events("table_unreadable") if event["table"] == "public.denied"]
        )
        at_once = {event["table"]: event["hint"] for event in gateway.events("table_read_in_one_transaction")}
        assert set(at_once) == {"public.granted"} and "GRANT SELECT (ctid)" in at_once["public.granted"]
        await _judge(scene, "good", "granted", "placed")
        assert (await scene.target()).is_whole_done

        await scene.sql.execute(f"GRANT SELECT ON public.denied TO {role}; UPDATE public.unprinted SET m = NULL")
        await scene.sql.execute(f"ALTER PUBLICATION {PUBLICATION} SET TABLE {_published(FILTERS[1])}, public.lost")
        await gateway.logged('"table_readable"', times=3)
        await gateway.logged('"table_read"', times=7)
        await gateway.logged('{"table": "public.lost", "rows": 600')
        await _judge(scene, "good", "granted", "placed", "denied", "filtered", "unprinted")
        await scene.judge({"public.lost": "SELECT id, v FROM public.kept"}, keyless=("public.lost",))
        assert [event["partitions"] for event in gateway.events("partitions_not_read")][1:] == [["public.gone"]]
        lost = [event for event in gateway.events("table_unreadable") if event["table"] == "public.lost"]
        assert lost and all("server's log" in event["hint"] and "column" not in event for event in lost), lost
        assert await gateway.stop() == 0


def _are_farther_and_farther_apart(attempts: list[dict[str, Any]]) -> None:
    """Attempts are logged with the pause after them."""
    times = [datetime.fromisoformat(attempt["timestamp"]).timestamp() for attempt in attempts]
    pauses = [attempt["again_in_s"] for attempt in attempts]
    assert pauses[:2] == [1.0, 2.0], pauses  # source.check_interval_s, and twice that
    assert times[1] - times[0] >= pauses[0], times


def _published(row_filter: str) -> str:
    return (
        "public.good, public.granted (id, v), public.placed (id, v), public.denied, public.unprinted, public.parted, "
        f"public.filtered WHERE ({row_filter})"
    )


async def _create(scene: Scene, role: str) -> None:
    sql = scene.sql
    server, password = urlsplit(scene.database.dsn), scene.database.server.password
    await sql.execute(SETUP)
    await sql.execute(
        LOST.format(host=server.hostname, port=server.port, database=scene.database.name, user=role, password=password)
    )
    for table in ("good", "denied", "kept"):
        await sql.execute(f"INSERT INTO public.{table} SELECT i, 'row ' || i FROM generate_series(1, {COUNT}) i")
    for table in ("granted", "placed"):
        await sql.execute(f"INSERT INTO public.{table} SELECT i, 'row ' || i, 'x' FROM generate_series(1, {COUNT}) i")
    await sql.execute(f"INSERT INTO public.filtered SELECT i, i % 100 FROM generate_series(1, {COUNT}) i")
    await sql.execute(f"INSERT INTO public.near SELECT i, 'row ' || i FROM generate_series(1, {COUNT}) i")
    await sql.execute("INSERT INTO public.unprinted VALUES (1, 'v', '1'), (2, 'w', NULL)")
    await sql.execute(
        f"GRANT SELECT ON public.good, public.filtered, public.unprinted, public.parted, public.near, public.far TO {role};"
        f"GRANT SELECT ON public.lost, public.kept, public.gone TO {role};"
        f"GRANT SELECT (id, v) ON public.granted TO {role}; GRANT SELECT (ctid, id, v) ON public.placed TO {role};"
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {_published(FILTERS[0])} WITH (publish_via_partition_root = true)"
    )


async def _judge(scene: Scene, *tables: str) -> None:
    """`parted` has the rows of its local partition."""
    queries = {f"public.{table}": f"SELECT id, v FROM public.{table}" for table in tables}
    queries["public.parted"] = "SELECT id, v FROM public.near"
    if "unprinted" in tables:
        queries["public.unprinted"] = "SELECT id, v, NULL AS m FROM public.unprinted"
    await scene.judge(queries, keyless=("public.parted",))


async def test_a_foreign_partition_that_the_role_may_not_ask_is_blamed_only_for_what_comes_from_its_server(
    database: Database, role: str
) -> None:
    """The role may read it through its root."""
    sql = await database.connect()
    await sql.execute(SETUP)
    await sql.execute(f"GRANT SELECT ON public.parted, public.near TO {role}")
    far = '"public"."far"'
    plan: Any = SimpleNamespace(surveyed=SimpleNamespace(foreign_names=(far,)))
    reader = await connect_sql(database.dsn_of(role))
    for query, blamed in (("SELECT 1 / id FROM (VALUES (0)) _ (id)", ()), ("SELECT id FROM public.parted", (far,))):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await reader.fetch(query)
        assert await unreachable_partitions(reader, plan, caught.value) == blamed
    await sql.execute(f"GRANT SELECT (v) ON public.far TO {role}")
    assert await unreachable_partitions(reader, plan, asyncpg.DivisionByZeroError()) == (far,)
    await reader.close()


async def test_check_knows_privileges_on_columns(database: Database, role: str) -> None:
    sql = await database.connect()
    await sql.execute(
        "CREATE TABLE public.none (id int PRIMARY KEY, v text); CREATE TABLE public.some (id int PRIMARY KEY, v text, w int);"
        "CREATE TABLE public.lacks (id int PRIMARY KEY, v text, w int); CREATE TABLE public.places (id int PRIMARY KEY, v text);"
        f"GRANT SELECT (id, v) ON public.some, public.lacks TO {role}; GRANT SELECT (id, v, ctid) ON public.places TO {role};"
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.none, public.some (id, v), public.lacks (id, w), public.places"
    )
    facts = await _facts(database, role)
    assert (facts.unreadable, facts.read_at_once) == (('public."none"', "public.lacks"), ('public."some"',))
    hints = [finding.hint for finding in check_role(facts)]
    assert any(hint.startswith('GRANT SELECT (ctid) ON public."some"') for hint in hints)


async def test_check_knows_privileges_on_partitions(database: Database, role: str) -> None:
    """Blocks are read from the partitions, whatever the role may do with their root. A table with
    an array in its key is read through its root."""
    sql = await database.connect()
    await sql.execute(
        "CREATE SCHEMA parts; CREATE SCHEMA closed;"
        "CREATE TABLE public.root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE parts.middle PARTITION OF public.root FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);"
        "CREATE TABLE parts.granted PARTITION OF parts.middle FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE parts.denied PARTITION OF parts.middle FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE parts.secured PARTITION OF parts.middle FOR VALUES FROM (20) TO (30);"
        "ALTER TABLE parts.secured ENABLE ROW LEVEL SECURITY;"
        "CREATE TABLE closed.hidden PARTITION OF public.root FOR VALUES FROM (100) TO (200);"
        "CREATE DOMAIN public.path AS int[];"
        "CREATE TABLE public.paths (id int, path public.path, PRIMARY KEY (path, id)) PARTITION BY RANGE (id);"
        "CREATE TABLE parts.paths PARTITION OF public.paths FOR VALUES FROM (0) TO (100);"
        f"GRANT USAGE ON SCHEMA parts TO {role};"
        f"GRANT SELECT ON public.root, public.paths, parts.granted, parts.secured, closed.hidden TO {role};"
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.root, public.paths WITH (publish_via_partition_root = true)"
    )
    facts = await _facts(database, role)
    assert (facts.unreadable, facts.closed_schemas, facts.filtered) == (
        ("parts.denied",),
        ("closed",),
        ("parts.secured",),
    )


async def _facts(database: Database, role: str) -> RoleFacts:
    session = await connect_sql(database.dsn_of(role))
    try:
        return await role_facts(session, [PUBLICATION])
    finally:
        await session.close()


@pytest_asyncio.fixture
async def old_role(database_oldest: Database, topic_prefix: str) -> AsyncIterator[str]:
    async for name in _role(database_oldest, topic_prefix):
        yield name


async def test_check_knows_privileges_on_columns_of_the_oldest_server(database_oldest: Database, old_role: str) -> None:
    """It has no column lists: all columns are published, but generated ones."""
    sql = await database_oldest.connect()
    await sql.execute(
        "CREATE TABLE public.some (id int PRIMARY KEY, v text, w int GENERATED ALWAYS AS (id) STORED);"
        "CREATE TABLE public.lacks (id int PRIMARY KEY, v text); CREATE TABLE public.places (id int PRIMARY KEY, v text);"
        f"GRANT SELECT (id, v) ON public.some TO {old_role}; GRANT SELECT (id) ON public.lacks TO {old_role};"
        f"GRANT SELECT (id, v, ctid) ON public.places TO {old_role};"
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.some, public.lacks, public.places"
    )
    facts = await _facts(database_oldest, old_role)
    assert (facts.unreadable, facts.read_at_once) == (("public.lacks",), ('public."some"',))
