"""The facts as real servers of the oldest and the newest version tell them, and the checks over
them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import asyncpg
import pytest

from gateway.errors import DataGap, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.local import Postgres
from gateway.postgres.connection import connect_replication, connect_sql
from gateway.postgres.publication import publication_facts
from gateway.postgres.server import load_facts, server_facts
from gateway.postgres.slot import create_slot, slot_facts
from gateway.postgres.start_replication import pgoutput_options
from gateway.postgres.wal_retention import retention_causes
from gateway.startup.facts import Expected, Facts, Stored, published_types
from gateway.startup.findings import Report, report_of
from gateway.startup.periodic_check import check_running
from gateway.startup.position_checks import check_progress
from gateway.startup.server_checks import check_slot_capacity
from gateway.startup.slot_checks import check_holder, check_slot
from gateway.startup.start import check_without_position
from gateway.transactions.position import Position
from schemas.lsn import Lsn
from tests.conftest import Database


@contextlib.asynccontextmanager
async def sql_of(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect_sql(dsn, search_path="public")
    try:
        yield connection
    finally:
        connection.terminate()


@pytest.fixture
async def sql(source: Database) -> AsyncIterator[asyncpg.Connection]:
    async with sql_of(source.dsn) as connection:
        yield connection


async def wal_flushed(sql: asyncpg.Connection) -> Lsn:
    return Lsn.parse(await sql.fetchval("SELECT pg_current_wal_flush_lsn()::text"))


async def test_server_facts_are_those_that_replication_reports(sql: asyncpg.Connection, source: Database) -> None:
    before = await wal_flushed(sql)
    found = await server_facts(sql)
    after = await wal_flushed(sql)
    stream = await connect_replication(source.dsn)
    identity = await stream.identify()
    await stream.close()
    assert (found.system_identifier, found.timeline) == (identity.system_identifier, identity.timeline)
    assert before <= found.flush_lsn <= after
    assert found.database == source.name
    assert found.database_oid == await sql.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
    assert found.version_num == int(await sql.fetchval("SHOW server_version_num"))
    assert (found.wal_level, found.encoding, found.in_recovery) == ("logical", "UTF8", False)
    assert (found.wal_sender_timeout_s, found.max_slot_wal_keep_mb) == (60.0, -1)
    assert found.max_replication_slots == int(await sql.fetchval("SHOW max_replication_slots"))


async def test_facts_need_no_right_but_to_connect(sql: asyncpg.Connection, source: Database) -> None:
    role = f"r_{source.name}"
    await sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{source.server.password}'")
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    try:
        async with sql_of(source.dsn_of(role)) as other:
            facts = await load_facts(other, source.name, ["p"])
            assert facts.publications["p"].relations[0].identity_columns == ("id",)
    finally:
        await sql.execute(f"DROP ROLE {role}")


async def test_session_setting_of_the_timeout_is_seen(source: Database) -> None:
    async with sql_of(f"{source.dsn}?wal_sender_timeout=1500ms") as sql:
        assert (await server_facts(sql)).wal_sender_timeout_s == 1.5


async def test_slot_is_made_and_its_facts_are_read(sql: asyncpg.Connection, source: Database) -> None:
    server = await server_facts(sql)
    assert await slot_facts(sql, source.name) is None
    two_phase = server.version_num >= 150000
    start_lsn = await create_slot(sql, source.name, version_num=server.version_num, two_phase=two_phase)
    slot = await slot_facts(sql, source.name)
    assert slot is not None
    assert (slot.plugin, slot.slot_type, slot.database) == ("pgoutput", "logical", source.name)
    assert (slot.confirmed_flush_lsn, slot.wal_status, slot.active_pid) == (start_lsn, "reserved", None)
    assert slot.two_phase == two_phase
    assert slot.restart_lsn is not None and slot.restart_lsn <= start_lsn
    assert (slot.failover is None) == (server.version_num < 170000)


async def test_slot_that_exists_is_not_made_again(sql: asyncpg.Connection, source: Database) -> None:
    await create_slot(sql, source.name, version_num=140000)
    with pytest.raises(Retry, match="42710"):
        await create_slot(sql, source.name, version_num=140000)


async def test_slot_that_somebody_reads_is_waited_for(sql: asyncpg.Connection, source: Database) -> None:
    server = await server_facts(sql)
    await sql.execute("CREATE PUBLICATION p FOR ALL TABLES")
    start_lsn = await create_slot(sql, source.name, version_num=server.version_num)
    stream = await connect_replication(source.dsn)
    await stream.start(source.name, start_lsn, pgoutput_options(server.version_num, ["p"]))
    expected = Expected(source.name, ("p",))
    (error,) = check_holder(await load_facts(sql, source.name, ["p"]), expected)
    assert isinstance(error, Retry)
    assert str(stream.backend_pid) in error.message
    ours = replace(expected, backend_pid=stream.backend_pid)
    assert list(check_holder(await load_facts(sql, source.name, ["p"]), ours)) == []
    await stream.close()
    await sql.execute("SELECT pg_terminate_backend($1, 5000)", stream.backend_pid)
    assert list(check_holder(await load_facts(sql, source.name, ["p"]), expected)) == []


async def test_failover_slot_is_made_on_a_server_that_has_them(database: Database) -> None:
    async with sql_of(database.dsn) as sql:
        await create_slot(sql, database.name, version_num=180000, failover=True)
        slot = await slot_facts(sql, database.name)
        assert slot is not None and slot.failover


async def test_publication_facts_hold_tables_columns_types_and_identities(sql: asyncpg.Connection) -> None:
    await sql.execute("""
        CREATE SCHEMA "Od""d";
        CREATE TYPE mood AS ENUM ('sad');
        CREATE TABLE "Od""d"."T 1" (b text, gone int, id int, n numeric(12, 2), m mood, PRIMARY KEY (id, b));
        ALTER TABLE "Od""d"."T 1" DROP COLUMN gone;
        CREATE TABLE t_full (x int); ALTER TABLE t_full REPLICA IDENTITY FULL;
        CREATE TABLE t_whole (x int, y int, z int, PRIMARY KEY (z, y) INCLUDE (x));
        ALTER TABLE t_whole REPLICA IDENTITY FULL;
        CREATE TABLE t_index (x int NOT NULL, y int NOT NULL, z int PRIMARY KEY);
        CREATE UNIQUE INDEX by_y ON t_index (y) INCLUDE (x); ALTER TABLE t_index REPLICA IDENTITY USING INDEX by_y;
        CREATE TABLE t_none (x int PRIMARY KEY); ALTER TABLE t_none REPLICA IDENTITY NOTHING;
        CREATE TABLE t_late (x int PRIMARY KEY DEFERRABLE);
        CREATE TABLE t_nokey (x int, twice int GENERATED ALWAYS AS (x * 2) STORED);
        CREATE PUBLICATION p FOR ALL TABLES;
        CREATE PUBLICATION inserts FOR TABLE t_none WITH (publish = 'insert, truncate');
    """)
    found = await publication_facts(sql, ["p", "inserts", "not there"])
    assert sorted(found) == ["inserts", "p"]
    assert found["inserts"].actions == {"insert", "truncate"}
    assert (found["p"].all_tables, found["inserts"].all_tables, found["p"].via_root) == (True, False, False)
    relations = {relation.name: relation for relation in found["p"].relations}
    odd = relations["T 1"]
    assert odd.namespace == 'Od"d'
    assert [(column.name, column.type_name) for column in odd.columns] == [
        ("b", "text"), ("id", "integer"), ("n", "numeric(12,2)"), ("m", "mood"),
    ]  # fmt: skip
    assert (odd.replica_identity, odd.identity_columns) == ("DEFAULT", ("id", "b"))
    assert {name for name, relation in relations.items() if not relation.has_identity} == {
        "t_none",
        "t_late",
        "t_nokey",
    }
    assert relations["t_index"].identity_columns == ("y",)
    assert relations["t_full"].has_identity and relations["t_full"].identity_columns == ()
    assert (relations["t_full"].key_columns, odd.key_columns) == ((), ("id", "b"))
    assert set(relations["t_whole"].key_columns) == {"y", "z"}
    assert [column.name for column in relations["t_nokey"].columns] == ["x"]
    mood = await sql.fetchval("SELECT 'mood'::regtype::oid")
    assert published_types(found) == {23, 25, 1700, mood}


async def test_row_filters_and_column_lists_are_read(database: Database) -> None:
    async with sql_of(database.dsn) as sql:
        await sql.execute("""
            CREATE TABLE t (id int PRIMARY KEY, a text, b text);
            CREATE PUBLICATION p FOR TABLE t (id, a) WHERE (id > 5);
        """)
        (relation,) = (await publication_facts(sql, ["p"]))["p"].relations
        assert [column.name for column in relation.columns] == ["id", "a"]
        assert relation.row_filter is not None


async def test_partitions_are_published_as_leaves_or_by_their_root(sql: asyncpg.Connection) -> None:
    await sql.execute("""
        CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (10);
        CREATE PUBLICATION leaves FOR TABLE whole;
        CREATE PUBLICATION root FOR TABLE whole WITH (publish_via_partition_root = true);
    """)
    leaves = (await publication_facts(sql, ["leaves"]))["leaves"]
    assert [relation.name for relation in leaves.relations] == ["part"]
    together = await publication_facts(sql, ["leaves", "root"])  # the rows are sent as rows of the root
    assert [relation.name for relation in together["root"].relations] == ["whole"]
    assert together["root"].via_root and not together["leaves"].relations


async def prepared(sql: asyncpg.Connection, name: str) -> tuple[Facts, Position]:
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    await sql.execute("CREATE PUBLICATION p FOR TABLE t, u")
    start_lsn = await create_slot(sql, name, version_num=(await server_facts(sql)).version_num)
    facts = await load_facts(sql, name, ["p"])
    server = facts.server
    position = Position(
        server.system_identifier, server.timeline, server.database, name, "cdc", ("p",), "1.0", "ACTIVE", 1, start_lsn
    )
    assert check_without_position(facts, Expected(name, ("p",))) == Report((), ())
    assert await judged(sql, position) == []
    return facts, position


async def judged(sql: asyncpg.Connection, position: Position) -> list[WalgateError]:
    """The slot looked at before the position is known, and the end of the WAL after it."""
    before = await load_facts(sql, position.slot, ["p"], 1)
    stored = Stored({position.key: position}, marker_topic_used=True, moment=2)
    after = await load_facts(sql, position.slot, ["p"], 3)
    findings = [
        *check_slot(after, Expected(position.slot, ("p",))),
        *check_progress(before, stored, after, position),
    ]
    return list(report_of(findings).errors)


async def test_slot_that_was_advanced_or_made_again_by_somebody_is_a_gap(
    sql: asyncpg.Connection, source: Database
) -> None:
    _, position = await prepared(sql, source.name)
    await sql.execute("INSERT INTO t VALUES (1)")
    await sql.execute("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", source.name)
    (error,) = await judged(sql, position)
    assert isinstance(error, DataGap)
    assert "another process advanced the slot" in error.message
    await sql.execute("SELECT pg_drop_replication_slot($1)", source.name)
    (error,) = await judged(sql, position)
    assert isinstance(error, DataGap)
    assert "no longer exists" in error.message
    await create_slot(sql, source.name, version_num=140000)
    (error,) = await judged(sql, position)
    assert isinstance(error, DataGap)
    assert "recreated" in error.message


async def test_position_after_the_end_of_the_wal_is_a_gap(sql: asyncpg.Connection, source: Database) -> None:
    facts, position = await prepared(sql, source.name)
    (error,) = await judged(sql, replace(position, resume_lsn=Lsn(facts.server.flush_lsn + (1 << 30))))
    assert isinstance(error, DataGap)
    assert "is in an earlier state" in error.message


async def test_periodic_check_sees_what_happens_to_the_publication(sql: asyncpg.Connection, source: Database) -> None:
    before, position = await prepared(sql, source.name)

    async def changes() -> list[str]:
        now = await load_facts(sql, source.name, ["p"])
        report = check_running(before, now, Expected(position.slot, ("p",)))
        assert report.errors == ()
        return [warning.message for warning in report.warnings]

    assert await changes() == []
    await sql.execute("ALTER PUBLICATION p DROP TABLE u")
    assert await changes() == ["publication p: no longer contains public.u"]
    await sql.execute("ALTER PUBLICATION p DROP TABLE t")
    assert (await changes())[0] == "publication p has no tables: nothing will be sent"
    await sql.execute("DROP PUBLICATION p")
    assert await changes() == ["publication p does not exist"]
    await sql.execute("CREATE PUBLICATION p FOR TABLE t, u")
    assert await changes() == ["publication p was dropped and recreated"]


async def test_server_that_is_not_set_up_says_what_to_do(start_postgres: Callable[..., Awaitable[Postgres]]) -> None:
    settings = {"wal_level": "replica", "max_replication_slots": 0, "max_slot_wal_keep_size": "100MB"}
    server = await start_postgres(settings={**settings, "idle_replication_slot_timeout": "2min"})
    async with sql_of(server.dsn) as sql:
        await sql.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0")
    async with sql_of(server.database_dsn("plain")) as sql:
        facts = await load_facts(sql, "s", ["p"])
        report = check_without_position(facts, Expected("s", ("p",)))
        assert [(type(error), error.message.split()[0]) for error in (*report.errors, *check_slot_capacity(facts))] == [
            (RetrySlowly, "wal_level"),
            (StopForOperator, "database"),
            (RetrySlowly, "publication"),
            (RetrySlowly, "all"),
        ]
        assert ["100 MB" in report.warnings[0].message, "120 s" in report.warnings[1].message] == [True, True]
        with pytest.raises(RetrySlowly, match="55000"):
            await create_slot(sql, "s", version_num=180000)


async def test_slot_whose_wal_was_removed_is_a_gap(start_postgres: Callable[..., Awaitable[Postgres]]) -> None:
    server = await start_postgres(
        settings={"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    )
    async with sql_of(server.dsn) as sql:
        await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        start_lsn = await create_slot(sql, "s", version_num=180000)
        for _ in range(4):
            await sql.execute("SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal()")
        await sql.execute("CHECKPOINT")
        (error,) = report_of(check_slot(await load_facts(sql, "s", ["p"]), Expected("s", ("p",)))).errors
        assert isinstance(error, DataGap)
        assert "wal_removed" in error.message
        stream = await connect_replication(server.dsn)
        with pytest.raises(Retry, match="55000"):
            await stream.start("s", start_lsn, pgoutput_options(180000, ["p"]))
        await stream.close()


async def test_a_temporary_slot_is_not_to_be_dropped(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """REPACK (CONCURRENTLY), a base backup and a subscription have such: nobody else can drop
    it."""
    monkeypatch.setattr("gateway.postgres.wal_retention._HELD_LEAST", -1)
    sql = await database.connect()
    name = f"repack_{database.name}"
    async with sql_of(database.dsn) as other:
        await other.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding', true)")
        pid = other.get_server_pid()
        (cause,) = [cause for cause in await retention_causes(sql, "own") if cause.name == name]
    assert (cause.kind, cause.state) == ("slot", "temporary")
    assert cause.remedy.endswith(f"pg_terminate_backend({pid})") and "drop" not in cause.remedy
