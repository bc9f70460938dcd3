"""What defeats other ways to read a table that changes: each is shown to be wrong where this one is
right."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import TEST_SETTINGS, Database, _new_database
from tests.snapshot.load import PUBLICATION, QUERIES, set_up
from tests.snapshot.naive import Copy, Step
from tests.snapshot.scene import Scene, open_scene
from tests.snapshot.target import differences
from tests.support.reset_wal import reset_wal

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def command(scene: Scene, name: str, *tables: str) -> None:
    body = {"command": name, "slot": f"slot_{scene.prefix}", **({"tables": tables} if tables else {})}
    await scene.sql.fetchval("SELECT pg_logical_emit_message(true, 'walgate.snapshot', $1::text)", json.dumps(body))
    await scene.gateway.logged(f'"command": "{name}"')


async def run(sql: asyncpg.Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        await sql.execute(statement)


@dataclass(frozen=True, slots=True)
class Hole:
    """A table, what happens to it, and a way of reading that it defeats.

    `before` comes before the first rows of the table are read, `during` when they are read and not
    in the stream yet, `behind` when they are. `held`: a commit that is in the stream, and in no
    snapshot as long as the table is read.
    """

    table: str
    way: Callable[[Copy, asyncpg.Connection, Step], Awaitable[None]] | None
    setup: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    during: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    held: str = ""
    row_count: int = 20
    since: int = 14

    @property
    def name(self) -> str:
        return f"hole.{self.table}"

    async def create(self, sql: asyncpg.Connection) -> None:
        """Seven rows in a block; `big` is TOASTed."""
        await sql.execute(
            f"CREATE TABLE {self.name} (id int PRIMARY KEY, n int, big text, fill text);"
            f"ALTER TABLE {self.name} ALTER big SET STORAGE EXTERNAL, ALTER fill SET STORAGE PLAIN;"
            f"INSERT INTO {self.name} SELECT i, i, repeat(chr(97 + i % 26), 2500), repeat('f', 1000) "
            f"FROM generate_series(1, {self.row_count}) i"
        )
        await run(sql, self.setup)


EMIT_A_MARK = "SELECT pg_logical_emit_message(true, 'walgate.chunk', 'whatever')"
FIRST, REST = "ctid < '(12,0)'", "ctid >= '(12,0)'"
KEYLESS = "ALTER TABLE hole.keyless DROP CONSTRAINT keyless_pkey, REPLICA IDENTITY FULL"
HOLES = (
    Hole(
        "held",
        lambda copy, _, during: copy.by_watermarks(during),
        held="UPDATE hole.held SET n = -1, big = 'seen late' WHERE id = 7",
    ),
    Hole(
        "keyless",
        lambda copy, *_: copy.by_first_mark(),
        setup=(KEYLESS,),
        before=(EMIT_A_MARK, "INSERT INTO hole.keyless VALUES (1, 1, 'one')"),
        during=(EMIT_A_MARK, "INSERT INTO hole.keyless VALUES (1, 1, 'one')"),
    ),
    Hole(
        "moved",
        lambda copy, _, during: copy.by_watermarks(during, (FIRST, REST)),
        setup=("DELETE FROM hole.moved WHERE id <= 5", "VACUUM hole.moved"),
        during=("UPDATE hole.moved SET n = -1 WHERE id = 190",),
        row_count=200,
    ),
    Hole(
        "prepared",
        lambda copy, _, during: copy.by_watermarks(during),
        before=("BEGIN", "UPDATE hole.prepared SET n = -1 WHERE id = 7", "PREPARE TRANSACTION 'of a hole'"),
        during=("COMMIT PREPARED 'of a hole'",),
        since=15,
    ),
    Hole(
        "rewritten",
        lambda copy, reader, during: copy.by_exported_snapshot(reader, during),
        during=("ALTER TABLE hole.rewritten ALTER n TYPE bigint",),
    ),
    Hole("rewritten_before", None, before=("ALTER TABLE hole.rewritten_before ALTER n TYPE bigint",)),
    Hole("rewritten_behind", None, behind=("ALTER TABLE hole.rewritten_behind ALTER n TYPE bigint",)),
    Hole(
        "toasted",
        lambda copy, _, during: copy.by_watermarks(during),
        during=("UPDATE hole.toasted SET n = n + 1",),
    ),
    Hole(
        "truncated",
        lambda copy, _, during: copy.by_watermarks(during),
        during=("TRUNCATE hole.truncated", "INSERT INTO hole.truncated VALUES (1, 1, 'one')"),
    ),
    Hole("truncated_before", None, before=("TRUNCATE hole.truncated_before",)),
    Hole("truncated_behind", None, behind=("TRUNCATE hole.truncated_behind",)),
    Hole(
        "vacuumed",
        lambda copy, _, during: copy.by_watermarks(during, (FIRST, REST)),
        setup=("DELETE FROM hole.vacuumed WHERE id <= 100",),
        during=("VACUUM FULL hole.vacuumed",),
        row_count=200,
    ),
    Hole(
        "wrapped",
        lambda copy, _, during: copy.by_visibility(during, widens=False),
        during=("UPDATE hole.wrapped SET n = -1, big = 'new' WHERE id = 7",),
        since=18,
    ),
)


@pytest_asyncio.fixture(scope="module", params=[18, pytest.param(14, marks=pytest.mark.long)])
async def wrapped_server(request: pytest.FixtureRequest) -> AsyncIterator[Postgres]:
    """Its transaction ids are above 2^32, where there is a pg_resetwal."""
    async with Postgres(request.param, settings=TEST_SETTINGS) as server:
        if server.version == 18:
            await server.stop("fast")
            reset_wal(server, "-e", "1")
            await server.start()
        yield server


@pytest_asyncio.fixture
async def wrapped_database(wrapped_server: Postgres) -> AsyncIterator[Database]:
    async for made in _new_database(wrapped_server):
        yield made


def holes_of(database: Database) -> list[Hole]:
    return [hole for hole in HOLES if hole.since <= database.server.version]


async def connect_freely(database: Database) -> asyncpg.Connection:
    """A session that waits for no standby."""
    sql = await database.connect()
    await sql.execute("SET synchronous_commit = local")
    return sql


async def create_holes(database: Database) -> asyncpg.Connection:
    sql = await connect_freely(database)
    await sql.execute("CREATE SCHEMA hole")
    for hole in holes_of(database):
        await hole.create(sql)
    await sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)")
    return sql


async def set_standby(sql: asyncpg.Connection, standby: str) -> None:
    """Commits wait for a standby of this name; of none: for nobody."""
    await sql.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
    await sql.fetchval("SELECT pg_reload_conf()")
    while await sql.fetchval("SHOW synchronous_standby_names") != standby:
        await asyncio.sleep(0.05)


@asynccontextmanager
async def held_commit(database: Database, statement: str) -> AsyncIterator[asyncpg.Connection]:
    """In the WAL, and for as long visible to nobody. Gives the session that waits."""
    sql, hanging = await connect_freely(database), await database.connect()
    await set_standby(sql, "ghost")
    await _are_held(sql, hanging)
    task = asyncio.create_task(hanging.execute(statement))
    try:
        await _waits(sql, hanging, "wait_event = 'SyncRep'")
        yield hanging
        assert not task.done()
    finally:
        await set_standby(sql, "")
        await task


async def _are_held(sql: asyncpg.Connection, session: asyncpg.Connection) -> None:
    """The checkpointer tells commits that there is a standby to wait for, some time after sessions
    know the setting."""
    held = False
    while not held:
        probe = asyncio.create_task(session.execute("SELECT pg_logical_emit_message(true, 'probe', '')"))
        await _waits(sql, session, "wait_event = 'SyncRep'", probe)
        held = not probe.done()
        if held:
            await sql.execute("SELECT pg_cancel_backend($1)", session.get_server_pid())  # it is committed all the same
        await probe


async def _waits(
    sql: asyncpg.Connection, session: asyncpg.Connection, what: str, task: asyncio.Task[None] | None = None
) -> None:
    """Until the session waits for it, or is done."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND {what}"
    async with asyncio.timeout(60):
        while not (task is not None and task.done()) and not await sql.fetchval(query, session.get_server_pid()):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("hole", [hole for hole in HOLES if hole.way is not None], ids=lambda hole: hole.table)
async def test_other_ways_to_read_a_table_are_wrong(hole: Hole, wrapped_database: Database) -> None:
    if hole not in holes_of(wrapped_database):
        pytest.skip("this server has no such thing")
    sql = await create_holes(wrapped_database)
    changing, reader = await connect_freely(wrapped_database), await wrapped_database.connect()
    copy = Copy(
        sql, hole.name, "walgate.chunk" if hole.table == "keyless" else "naive", is_keyed=hole.table != "keyless"
    )
    await copy.make_slot()
    await run(changing, hole.before)
    assert hole.way is not None
    async with held_commit(wrapped_database, hole.held) if hole.held else nullcontext():
        await hole.way(copy, reader, partial(run, changing, hole.during))
    assert not await copy.is_right()


@pytest.mark.parametrize("way", ["by_watermarks", "by_exported_snapshot", "by_visibility"])
async def test_and_right_where_nothing_of_the_kind_happens(way: str, wrapped_database: Database) -> None:
    """So that what makes them wrong is what happens."""
    sql = await create_holes(wrapped_database)
    changing, reader = await connect_freely(wrapped_database), await wrapped_database.connect()
    copy = Copy(sql, "hole.toasted")
    await copy.make_slot()
    change = partial(run, changing, ("UPDATE hole.toasted SET n = -1, big = 'new' WHERE id = 7",))
    if way == "by_exported_snapshot":
        await copy.by_exported_snapshot(reader, change)
    elif way == "by_visibility":
        await copy.by_visibility(change, widens=True)
    else:
        await copy.by_watermarks(change)
    assert await copy.is_right()


async def test_marks_that_are_updates_do_not_come_where_inserts_alone_are_published(wrapped_database: Database) -> None:
    sql = await create_holes(wrapped_database)
    await sql.execute(
        "CREATE TABLE hole.mark (content text PRIMARY KEY, prefix text); INSERT INTO hole.mark VALUES ('', '')"
    )
    mark = "UPDATE hole.mark SET prefix = $1, content = $2"
    for published, is_right in ("insert, update", True), ("insert", False):
        await sql.execute(f"ALTER PUBLICATION {PUBLICATION} SET (publish = '{published}')")
        copy = Copy(sql, "hole.toasted", mark=mark)
        await copy.make_slot()
        await copy.by_watermarks(partial(sql.execute, "SELECT 1"))
        assert await copy.is_right() == is_right
        await sql.execute("SELECT pg_drop_replication_slot('naive')")


async def test_a_role_that_may_not_read_all_reads_less_or_nothing(wrapped_database: Database) -> None:
    sql = await create_holes(wrapped_database)
    role = f"reader_{wrapped_database.name}"
    await sql.execute(
        f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA hole TO {role}; GRANT SELECT ON hole.toasted, hole.truncated TO {role};"
        f"ALTER TABLE hole.toasted ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON hole.toasted USING (id < 5)"
    )
    reader = await wrapped_database.connect()
    await reader.execute(f"SET ROLE {role}")
    copy = Copy(sql, "hole.toasted")
    await copy.make_slot()
    await copy.by_exported_snapshot(reader, partial(reader.execute, "SELECT 1"))
    assert not await copy.is_right()
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await Copy(sql, "hole.held").by_exported_snapshot(reader, partial(reader.execute, "SELECT 1"))
    await reader.close()
    await sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("binary", ["auto", pytest.param("off", marks=pytest.mark.long)])
async def test_what_defeats_other_ways_does_not_defeat_this_one(
    binary: str, wrapped_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    settings = {
        "snapshot__mode": "on_command",
        "snapshot__readers": 1,
        "snapshot__chunk_bytes": 100_000,
        "source__two_phase": wrapped_database.server.version >= 15,
        "source__binary": binary,
    }
    async with (
        open_scene(wrapped_database, kafka, registry, topic_prefix, tmp_path, **settings) as scene,
        AsyncExitStack() as until_released,
    ):
        scene.sql = await create_holes(wrapped_database)
        holes = {hole.name: hole for hole in holes_of(wrapped_database)}
        await scene.gateway.streaming()
        await command(scene, "pause")
        await command(scene, "start")
        await scene.gateway.logged('"tables_begun"')
        await scene.sql.execute("SELECT pg_logical_emit_message(true, 'walgate.snapshot', 'no json')")
        if "hole.prepared" in holes:
            await run(scene.sql, holes["hole.prepared"].before)
        await scene.delivered()
        await scene.gateway.kill()
        await scene.gateway.streaming("chunk_read:stop:*")
        for hole in holes.values():
            if hole.table != "prepared":
                await run(scene.sql, hole.before)
        hanging = await until_released.enter_async_context(held_commit(wrapped_database, holes["hole.held"].held))
        await scene.delivered_by(hanging)
        await command(scene, "resume")
        await _read_step_by_step(scene, dict(holes), until_released)
        queries = {name: f"SELECT * FROM {name}" for name in holes}
        await scene.judge(queries, keyless=("hole.keyless",))
        stale = {event["table"]: event["stale"] for event in scene.gateway.events("table_read")}
        assert stale["hole.held"] == 1 and stale["hole.toasted"] == 20
        begun_again = {event["table"] for event in scene.gateway.events("table_restarted")}
        assert begun_again >= {"hole.rewritten_before", "hole.truncated_before", "hole.vacuumed"}
        assert scene.gateway.events("command_not_understood")
        assert scene.gateway.events("snapshot_resumed")
        await _a_detached_partition_leaves_by_a_replacement(scene)


READ_NOW = """
SELECT 'hole.' || c.relname FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation JOIN pg_stat_activity AS a USING (pid)
WHERE l.granted AND l.mode = 'AccessShareLock' AND c.relnamespace = 'hole'::regnamespace AND c.relkind = 'r'
  AND a.datname = current_database() AND a.state = 'idle in transaction'
"""


async def _read_step_by_step(scene: Scene, holes: dict[str, Hole], until_released: AsyncExitStack) -> None:
    """The gateway stops whenever a chunk was read and is not in the stream yet."""
    tasks: list[asyncio.Task[None]] = []
    passed: Hole | None = None
    while not scene.gateway.events("snapshot_done"):
        assert scene.gateway.is_running, scene.gateway.log_tail()
        if not scene.gateway.is_stopped:
            await asyncio.sleep(0.02)
            continue
        if passed is not None:
            tasks.append(await _begin(scene, passed.behind))
            if passed.held:
                await until_released.aclose()
        passed = holes.pop(await scene.sql.fetchval(READ_NOW), None)
        if passed is not None:
            tasks.append(await _begin(scene, passed.during))
        scene.gateway.signal(signal.SIGCONT)  # which ends the stop before it returns: the next one may follow at once
    assert not holes
    await asyncio.gather(*tasks)


async def _begin(scene: Scene, statements: tuple[str, ...]) -> asyncio.Task[None]:
    """Returns when it is done, or waits for a lock of the reader."""
    sql = await connect_freely(scene.database)
    task = asyncio.create_task(run(sql, statements))
    await _waits(scene.sql, sql, "wait_event_type = 'Lock'", task)
    return task


async def _a_detached_partition_leaves_by_a_replacement(scene: Scene) -> None:
    await scene.sql.execute(
        "CREATE TABLE hole.part (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE hole.few PARTITION OF hole.part FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE hole.more PARTITION OF hole.part FOR VALUES FROM (100) TO (200);"
        "INSERT INTO hole.part SELECT i, i FROM generate_series(1, 199) i"
    )
    await scene.gateway.kill()
    await scene.gateway.streaming()
    await scene.sql.execute("ALTER TABLE hole.part DETACH PARTITION hole.more; DROP TABLE hole.more")
    await scene.delivered()
    topic, query = f"{scene.prefix}.hole.part", "SELECT * FROM hole.part"
    assert "0 missing [], 100 surplus" in "".join(await differences(scene.sql, await scene.target(), topic, query))
    await command(scene, "start", "hole.part")
    await scene.snapshot_done(times=2)
    await scene.judge({"hole.part": query}, keyless=())


async def test_a_table_that_can_not_be_read_is_named_and_one_that_joins_is_read(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    role = f"reader_{topic_prefix}"
    async with open_scene(
        database, kafka, registry, topic_prefix, tmp_path, source__dsn=database.dsn_of(role)
    ) as scene:
        await set_up(scene.sql, 50)
        await scene.sql.execute(
            f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{scene.database.server.password}';"
            f"GRANT USAGE ON SCHEMA shop TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA shop TO {role};"
            f"REVOKE SELECT ON shop.full_key FROM {role}; ALTER TABLE shop.item ENABLE ROW LEVEL SECURITY"
        )
        try:
            await scene.gateway.streaming()
            await scene.gateway.logged('"table_read"', times=4)
            await scene.gateway.logged('"table_unreadable"', times=2)
            named = {event["table"] for event in scene.gateway.events("table_unreadable")}
            assert named == {"shop.full_key", "shop.item"}
            grants = {event["table"]: event["hint"] for event in scene.gateway.events("table_unreadable")}
            assert f'GRANT SELECT ON "shop"."full_key" TO "{role}"' in grants["shop.full_key"]
            assert f'ALTER ROLE "{role}" BYPASSRLS' in grants["shop.item"] and "<" not in grants["shop.item"]
            await scene.sql.execute(
                f"GRANT SELECT ON shop.full_key TO {role}; ALTER TABLE shop.item DISABLE ROW LEVEL SECURITY"
            )
            await scene.gateway.logged('"table_read"', times=6)  # with the others, or later
            await scene.sql.execute(
                f"CREATE TABLE public.later (id int PRIMARY KEY, t text); GRANT SELECT ON public.later TO {role};"
                "INSERT INTO public.later SELECT i, 'row ' || i FROM generate_series(1, 100) i"
            )
            await scene.sql.execute(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE public.later")
            await scene.gateway.logged('"table_read"', times=7)
            await scene.snapshot_done(times=2)
            assert scene.gateway.events("snapshot_done")[-1]["rows"] == 100
            await scene.judge({**QUERIES, "public.later": "SELECT * FROM public.later"})
        finally:
            await scene.gateway.end()
            await scene.sql.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_a_publication_of_inserts_alone_has_the_rows_as_they_were_read(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """With a row filter, a column list and a generated column; and messages are not published."""
    settings = {"source__messages": False, "snapshot__chunk_bytes": 8192}
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, **settings) as scene:
        await scene.sql.execute(
            "CREATE TABLE public.grows (id int PRIMARY KEY, t text, hidden text, twice int GENERATED ALWAYS AS (id * 2) STORED);"
            "INSERT INTO public.grows SELECT i, repeat('t', 50), 'secret' FROM generate_series(1, 3000) i;"
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLE public.grows (id, t, twice) WHERE (id > 10) WITH (publish = 'insert')"
        )
        await scene.gateway.streaming()
        for number in range(3001, 3100):
            await scene.sql.execute(f"INSERT INTO public.grows VALUES ({number}, 'new')")
        await scene.snapshot_done()
        query = "SELECT id, t, twice FROM public.grows WHERE id > 10"
        await scene.sql.execute("INSERT INTO public.grows VALUES (5000, 'last')")
        topic = f"{topic_prefix}.public.grows"
        async with asyncio.timeout(60):
            while await differences(scene.sql, await scene.target(), topic, query):
                await asyncio.sleep(0.5)
        target = await scene.target()
        assert target.read_count[topic] >= 2990
        assert [event["tables"] for event in scene.gateway.events("updates_not_sent")] == [["public.grows"]]
        assert topic in target.complete
