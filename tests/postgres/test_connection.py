from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import asyncpg
import pytest
import uvloop

from gateway.errors import DataGap, NeedsText, Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.local import Postgres
from gateway.postgres import credentials
from gateway.postgres.classify_errors import LossReported
from gateway.postgres.connection import connect_replication, connect_sql, leave_with
from gateway.postgres.copy_frames import DRAINED, XLOG_DATA
from gateway.postgres.receive_buffer import HEAD_BYTES
from gateway.postgres.replication_stream import ReplicationStream
from gateway.postgres.slot import create_slot, slot_facts
from gateway.postgres.standby_status import StandbyStatus
from gateway.postgres.start_replication import pgoutput_options
from gateway.startup.server_notices import LeftOut
from schemas.lsn import Lsn
from tests.conftest import Database
from tests.postgres.throttle import throttle
from tests.support.slots import until_free

pytestmark = pytest.mark.integration

StartPostgres = Callable[..., Awaitable[Postgres]]
Scenario = Callable[[], Coroutine[Any, Any, None]]
OPTIONS = pgoutput_options(180000, ["p"])
PLAIN = pgoutput_options(180000, ["p"], streaming=False)


@pytest.fixture(params=["asyncio", "uvloop"])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Scenario], Awaitable[None]]:
    """Runs a scenario on a new loop of each kind, in a thread of its own."""
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run if request.param == "asyncio" else uvloop.run

    async def on(scenario: Scenario) -> None:
        await asyncio.to_thread(lambda: run(scenario()))

    return on


@contextlib.asynccontextmanager
async def sql_of(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect_sql(dsn, search_path="public")
    try:
        yield connection
    finally:
        connection.terminate()


@pytest.fixture
async def sql(database: Database) -> AsyncIterator[asyncpg.Connection]:
    async with sql_of(database.dsn) as connection:
        yield connection


@contextlib.asynccontextmanager
async def opened(
    dsn: str, slot: str, start_lsn: Lsn, options: dict[str, str] = OPTIONS, **limits: int
) -> AsyncIterator[ReplicationStream]:
    stream = await connect_replication(dsn, **limits)
    try:
        await stream.start(slot, start_lsn, options)
        yield stream
    finally:
        await stream.close()


async def prepared_slot(dsn: str, slot: str, *, version_num: int = 180000) -> Lsn:
    async with sql_of(dsn) as sql:
        await sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR ALL TABLES")
        return await create_slot(sql, slot, version_num=version_num)


async def wal_end(sql: asyncpg.Connection) -> Lsn:
    return Lsn.parse(await sql.fetchval("SELECT pg_current_wal_lsn()::text"))


async def read_until(stream: ReplicationStream, end: Lsn, most_bytes: int = 1 << 30) -> list[tuple[int, bytes]]:
    """(start LSN, payload) of every XLogData frame until a keepalive or frame has passed `end`; no
    read may give more than `most_bytes`, and so no more was held."""
    rows: list[tuple[int, bytes]] = []
    async with asyncio.timeout(30):
        while True:
            data, frames = await stream.read()
            assert len(data) <= most_bytes
            for kind, lsn, third, frame_end in frames:
                if kind in (XLOG_DATA, DRAINED):
                    rows.append((lsn, data[third:frame_end]))
                if lsn >= end:
                    return rows


WORKLOAD = """
INSERT INTO t SELECT g, repeat('x', g % 50) FROM generate_series(1, 300) AS g;
UPDATE t SET v = 'new' WHERE id % 10 = 0;
DELETE FROM t WHERE id > 290;
BEGIN; INSERT INTO t SELECT g, repeat('y', 100) FROM generate_series(1000, 5000) AS g; SAVEPOINT a;
INSERT INTO t SELECT g, repeat('z', 100) FROM generate_series(6000, 8000) AS g; ROLLBACK TO a; COMMIT;
SELECT pg_logical_emit_message(false, 'free', 'here');
TRUNCATE t;
"""


async def test_frames_are_byte_for_byte_what_sql_gives_of_a_second_slot(
    database: Database, on_loop: Callable[[Scenario], Awaitable[None]]
) -> None:
    ours, other = f"a_{database.name}", f"b_{database.name}"

    async def scenario() -> None:
        start_lsn = await prepared_slot(database.dsn, ours)
        async with sql_of(database.dsn) as sql:
            await sql.execute("SELECT pg_copy_logical_replication_slot($1, $2)", ours, other)
            for statement in WORKLOAD.strip().split("\n"):
                await sql.execute(statement)
            end = await wal_end(sql)
            await sql.execute("SELECT pg_logical_emit_message(true, 'end', '')")  # something to send behind `end`
            async with opened(database.dsn, ours, start_lsn) as stream:
                rows = [row for row in await read_until(stream, end) if row[0] < end]
            pairs = [word for option in OPTIONS.items() for word in option]
            found = await sql.fetch(
                "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, VARIADIC $2)",
                other,
                pairs,
            )
        expected = [(Lsn.parse(lsn), data) for lsn, data in found if Lsn.parse(lsn) < end]
        # A walsender sends 0/0 with what is not the last message of a change (WalSndPrepareWrite);
        # SQL has it.
        expected = [(Lsn(0) if data[:1] == b"R" else lsn, data) for lsn, data in expected]
        assert len(rows) == len(expected)
        assert [n for n, (row, wanted) in enumerate(zip(rows, expected, strict=True)) if row != wanted] == []
        assert {b"S", b"E", b"A", b"c", b"B", b"C", b"I", b"U", b"D", b"T", b"M"} <= {row[1][:1] for row in rows}

    await on_loop(scenario)


async def test_restart_at_the_acknowledged_lsn_sends_only_what_came_later(
    sql: asyncpg.Connection, database: Database
) -> None:
    start_lsn = await prepared_slot(database.dsn, database.name)
    await sql.execute("INSERT INTO t VALUES (1, 'first')")
    end = await wal_end(sql)
    async with opened(database.dsn, database.name, start_lsn) as stream:
        status = StandbyStatus(stream, start_lsn, 60)
        assert [row[1][:1] for row in await read_until(stream, end)] == [b"B", b"R", b"I", b"C"]
        status.acknowledge(end)
        status.step()
    await until_free(sql, database.name)
    await sql.execute("INSERT INTO t VALUES (2, 'second')")
    slot = await slot_facts(sql, database.name)
    assert slot is not None and slot.confirmed_flush_lsn == end
    async with opened(database.dsn, database.name, end) as stream:
        rows = await read_until(stream, await wal_end(sql))
    assert [row[1][:1] for row in rows] == [b"B", b"R", b"I", b"C"]
    assert b"second" in rows[2][1]


async def test_slot_in_use_is_retried(database: Database) -> None:
    start_lsn = await prepared_slot(database.dsn, database.name)
    async with opened(database.dsn, database.name, start_lsn):
        with pytest.raises(Retry, match="55006"):
            async with opened(database.dsn, database.name, start_lsn):
                pass


async def test_missing_slot_is_left_to_the_next_start_to_judge(database: Database) -> None:
    with pytest.raises(Retry, match="42704"):
        async with opened(database.dsn, "nobody_made_it", Lsn(0)):
            pass


async def test_what_the_server_does_not_support_is_waited_for(database: Database) -> None:
    await prepared_slot(database.dsn, database.name)
    with pytest.raises(RetrySlowly, match="0A000.*proto_version=99"):
        async with opened(database.dsn, database.name, Lsn(0), {**OPTIONS, "proto_version": "99"}):
            pass


async def test_publication_that_is_dropped_ends_the_stream_before_a_commit_without_its_rows(
    sql: asyncpg.Connection, database: Database
) -> None:
    start_lsn = await prepared_slot(database.dsn, database.name)
    async with opened(database.dsn, database.name, start_lsn, PLAIN) as stream:
        await sql.execute("INSERT INTO t VALUES (1, 'kept')")
        assert len(await read_until(stream, await wal_end(sql))) == 4
        await sql.execute("DROP PUBLICATION p")
        await sql.execute("INSERT INTO t VALUES (2, 'dropped')")
        with pytest.raises(LossReported, match="publication") as caught:
            await read_without(stream, b"C")
        assert caught.value.reported == LeftOut('skipped loading publication "p"', ends_stream=False)


async def test_publication_that_is_dropped_is_an_error_on_the_oldest_version(database_oldest: Database) -> None:
    dsn, name = database_oldest.dsn, database_oldest.name
    start_lsn = await prepared_slot(dsn, name, version_num=140000)
    options = pgoutput_options(140000, ["p"])
    async with sql_of(dsn) as sql, opened(dsn, name, start_lsn, options) as stream:
        await sql.execute("INSERT INTO t VALUES (1, 'kept')")
        assert len(await read_until(stream, await wal_end(sql))) == 4
        await sql.execute("DROP PUBLICATION p")
        await sql.execute("INSERT INTO t VALUES (2, 'dropped')")
        with pytest.raises(LossReported, match="42704") as caught:
            await read_without(stream, b"I")  # the DROP itself is an empty transaction here
        assert caught.value.reported == LeftOut('publication "p" does not exist', ends_stream=True)


async def read_without(stream: ReplicationStream, message: bytes) -> None:
    while True:
        data, frames = await stream.read()
        assert message not in [data[third : third + 1] for kind, _, third, _ in frames if kind == XLOG_DATA]


@pytest.mark.parametrize("name", ["it's", 'quo"te', "a,b", " ", "Groß", "x';--", '""', "\\"])
async def test_publication_may_have_any_name(sql: asyncpg.Connection, database: Database, name: str) -> None:
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY)")
    await sql.execute('CREATE PUBLICATION "{}" FOR TABLE t; CREATE PUBLICATION other'.format(name.replace('"', '""')))
    start_lsn = await create_slot(sql, database.name, version_num=180000)
    await sql.execute("INSERT INTO t VALUES (1)")
    async with opened(database.dsn, database.name, start_lsn, pgoutput_options(180000, [name, "other"])) as stream:
        assert len(await read_until(stream, await wal_end(sql))) == 4


async def test_a_type_that_has_no_binary_form_is_asked_for_as_text(sql: asyncpg.Connection, database: Database) -> None:
    start_lsn = await prepared_slot(database.dsn, database.name)
    await sql.execute(
        "CREATE TABLE later (a aclitem[]); INSERT INTO later VALUES (ARRAY[makeaclitem(10, 10, 'SELECT', false)])"
    )
    options = pgoutput_options(180000, ["p"], binary=True)
    async with opened(database.dsn, database.name, start_lsn, options) as stream:
        with pytest.raises(NeedsText, match="42883"):
            await read_without(stream, b"C")
    await until_free(sql, database.name)
    async with opened(database.dsn, database.name, start_lsn, PLAIN) as stream:
        assert b"I" in [payload[:1] for _, payload in await read_until(stream, await wal_end(sql))]


async def test_identity_is_that_of_the_server(sql: asyncpg.Connection, database: Database) -> None:
    stream = await connect_replication(database.dsn)
    found = await stream.identify()
    assert found.system_identifier == str(await sql.fetchval("SELECT system_identifier FROM pg_control_system()"))
    assert (found.timeline, found.database) == (1, database.name)
    stream.backend_pid = 1_234_567_890  # as Neon's proxy says at the login
    await stream.find_backend_pid()
    assert (
        await sql.fetchval("SELECT backend_type FROM pg_stat_activity WHERE pid = $1", stream.backend_pid)
        == "walsender"
    )
    await stream.close()


async def test_wrong_password_and_unknown_database_are_classified(database: Database, postgres: Postgres) -> None:
    with pytest.raises(RetrySlowly, match="3D000"):
        await connect_replication(postgres.database_dsn("there_is_none"))
    with pytest.raises(RetrySlowly, match="28P01"):
        await connect_sql(database.dsn_of("nobody_of_this_name"))
    with pytest.raises(RetrySlowly, match="28P01") as caught:
        await connect_sql(database.dsn.replace(postgres.password, "wrong"))
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("connect", [connect_sql, connect_replication])
async def test_a_parameter_that_the_server_does_not_know_is_no_gap(
    database: Database, connect: Callable[[str], Awaitable[object]]
) -> None:
    with pytest.raises(StopForOperator, match=r'source\.dsn .*"sslmod"') as caught:
        await connect(f"{database.dsn}?sslmod=verify-full")
    assert not isinstance(caught.value, DataGap)


async def test_role_without_replication_is_refused_with_the_remedy(sql: asyncpg.Connection, database: Database) -> None:
    role = f"r_{database.name}"
    await sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{database.server.password}'")
    try:
        with pytest.raises(RetrySlowly, match="REPLICATION") as caught:
            await connect_replication(database.dsn_of(role))
        assert "ALTER ROLE" in caught.value.hint
    finally:
        await sql.execute(f"DROP ROLE {role}")


async def test_hosts_without_a_primary_are_tried_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        credentials, "_STANDBYS", ()
    )  # a primary does not satisfy it, as a standby does not satisfy others
    with pytest.raises(RetrySlowly, match="target_session_attrs=standby"):
        await connect_sql(f"{database.dsn}?target_session_attrs=standby")


async def test_nobody_at_the_address_is_retried() -> None:
    with pytest.raises(Retry):
        await connect_replication("postgresql://postgres@127.0.0.1:1/x")


async def outlived(sql: asyncpg.Connection, slot: str, seconds: float) -> None:
    """The walsender of the slot is so old, and has heard from its reader then."""
    heard = (
        "SELECT reply_time >= backend_start + $2::float8 * interval '1 s' FROM pg_stat_replication "
        "JOIN pg_replication_slots ON pid = active_pid WHERE slot_name = $1"
    )
    async with asyncio.timeout(60):
        while not await sql.fetchval(heard, slot, seconds):
            await asyncio.sleep(0.05)


async def test_idle_connection_lives_longer_than_the_timeout(sql: asyncpg.Connection, database: Database) -> None:
    start_lsn = await prepared_slot(database.dsn, database.name)
    async with opened(f"{database.dsn}?wal_sender_timeout=2s", database.name, start_lsn) as stream:
        task = asyncio.create_task(StandbyStatus(stream, start_lsn, 2).run())
        await outlived(sql, database.name, 3)
        await sql.execute("INSERT INTO t VALUES (1, 'late')")
        assert len(await read_until(stream, await wal_end(sql))) == 4
        task.cancel()


async def test_a_server_that_decodes_what_it_does_not_send_answers(sql: asyncpg.Connection, database: Database) -> None:
    """With its own timeout of five minutes, it would read no request before the end."""
    start_lsn = await prepared_slot(database.dsn, database.name)
    await sql.execute(
        "CREATE TABLE slow (v text); CREATE PUBLICATION s FOR TABLE slow WHERE (md5(repeat(v, 500000)) = '') "
        "WITH (publish = 'insert'); INSERT INTO slow SELECT 'x' FROM generate_series(1, 2000)"
    )
    end = await wal_end(sql)
    stream = await connect_replication(f"{database.dsn}?wal_sender_timeout=5min", wal_sender_timeout_s=1)
    await stream.start(database.name, start_lsn, pgoutput_options(180000, ["s"], streaming=False))

    async def ask() -> None:
        while True:
            stream.send_standby_status(start_lsn, start_lsn, reply_requested=True)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(ask())
    try:
        answers = 0
        async with asyncio.timeout(60):
            while all(lsn < end for _, lsn, *_ in (await stream.read()).frames):
                answers += 1
        assert answers >= 3
    finally:
        task.cancel()
        await stream.close()


async def test_reader_that_stops_reading_keeps_the_slot_and_little_memory(
    database: Database, on_loop: Callable[[Scenario], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        start_lsn = await prepared_slot(database.dsn, database.name)
        async with sql_of(database.dsn) as sql:
            await sql.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 64000) AS g")
            end = await wal_end(sql)
        async with opened(f"{database.dsn}?wal_sender_timeout=2s", database.name, start_lsn, PLAIN) as stream:
            status = StandbyStatus(stream, start_lsn, 2)
            task = asyncio.create_task(status.run())
            async with asyncio.timeout(30):
                while not stream.is_paused:
                    await asyncio.sleep(0.01)
            async with sql_of(database.dsn) as sql:
                await outlived(sql, database.name, 3)
            assert stream.failure is None
            size = sum(len(payload) for _, payload in await read_until(stream, end, most_bytes=4 << 20))
            assert size > 64_000_000
            task.cancel()

    await on_loop(scenario)


@pytest.mark.parametrize(("largest_message", "taken"), [(1 << 30, 60_000_000), (1 << 20, HEAD_BYTES)])
async def test_huge_message_may_take_longer_than_the_timeout(
    sql: asyncpg.Connection, database: Database, postgres: Postgres, largest_message: int, taken: int
) -> None:
    """Held or drained: the server is told that we are there."""
    start_lsn = await prepared_slot(database.dsn, database.name)
    await sql.execute("SELECT pg_logical_emit_message(true, 'huge', repeat('x', 60000000))")
    end = await wal_end(sql)
    async with throttle("127.0.0.1", postgres.port, 20_000_000) as port:
        dsn = database.dsn.replace(f":{postgres.port}/", f":{port}/") + "?wal_sender_timeout=2s"
        async with opened(dsn, database.name, start_lsn, largest_message=largest_message) as stream:
            task = asyncio.create_task(StandbyStatus(stream, start_lsn, 2).run())
            started_at = time.monotonic()
            rows = await read_until(stream, end)
            assert time.monotonic() - started_at > 2
            assert max(len(payload) for _, payload in rows) >= taken
            task.cancel()


async def fast_stop_s(server: Postgres) -> float:
    started_at = time.monotonic()
    await server.stop("fast")
    return time.monotonic() - started_at


async def failure_of(stream: ReplicationStream) -> WalgateError:
    while True:
        try:
            await stream.read()
        except WalgateError as ended:
            return ended


async def test_fast_stop_waits_a_few_seconds_for_a_reader_that_can_not_acknowledge(
    start_postgres: StartPostgres,
) -> None:
    server = await start_postgres()
    start_lsn = await prepared_slot(server.dsn, "s")
    sql = await server.connect()
    stream = await connect_replication(server.dsn)
    await stream.start("s", start_lsn, PLAIN)
    task = asyncio.create_task(StandbyStatus(stream, start_lsn, 60).run())
    await sql.execute("INSERT INTO t VALUES (1, 'not in Kafka')")
    await read_until(stream, await wal_end(sql))
    assert await fast_stop_s(server) < 5
    assert "shutting down" in (await failure_of(stream)).message
    await task
    await stream.close()


async def test_fast_stop_does_not_wait_for_a_reader_that_has_acknowledged(start_postgres: StartPostgres) -> None:
    server = await start_postgres()
    start_lsn = await prepared_slot(server.dsn, "s")
    sql = await server.connect()
    stream = await connect_replication(server.dsn)
    await stream.start("s", start_lsn, PLAIN)
    status = StandbyStatus(stream, start_lsn, 60)
    task = asyncio.create_task(status.run())
    await sql.execute("INSERT INTO t VALUES (1, 'in Kafka')")
    await read_until(stream, await wal_end(sql))

    async def acknowledge_all() -> WalgateError:
        with contextlib.suppress(Retry):
            while True:
                for _, lsn, _, _ in (await stream.read()).frames:
                    status.acknowledge(lsn)
        assert stream.failure is not None
        return stream.failure

    reader = asyncio.create_task(acknowledge_all())
    assert await fast_stop_s(server) < 2
    assert "ended the stream" in (await reader).message
    task.cancel()
    await stream.close()


@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_crash_of_the_server_is_retried(start_postgres: StartPostgres, mode: str) -> None:
    server = await start_postgres()
    start_lsn = await prepared_slot(server.dsn, "s")
    stream = await connect_replication(server.dsn)
    await stream.start("s", start_lsn, PLAIN)
    await (server.kill() if mode == "kill" else server.stop("immediate"))
    assert isinstance(await failure_of(stream), Retry)
    await stream.close()
    await server.start()
    async with opened(server.dsn, "s", start_lsn) as again:
        assert again.failure is None


async def test_paused_reader_leaves_when_the_sql_connection_is_ended(start_postgres: StartPostgres) -> None:
    server = await start_postgres()
    start_lsn = await prepared_slot(server.dsn, "s")
    sql = await server.connect()
    await sql.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 30000) AS g")
    stream = await connect_replication(server.dsn)
    leave_with(sql, stream)
    await stream.start("s", start_lsn, PLAIN)
    task = asyncio.create_task(StandbyStatus(stream, start_lsn, 60).run())
    async with asyncio.timeout(20):
        while not stream.is_paused:
            await asyncio.sleep(0.01)
    assert await fast_stop_s(server) < 5
    assert isinstance(await failure_of(stream), Retry)
    task.cancel()
    await stream.close()


@pytest.mark.filterwarnings("error")
async def test_nothing_is_left_open_when_a_connection_is_forgotten(sql: asyncpg.Connection, database: Database) -> None:
    """asyncpg's own object must not warn or abort the transport that it no longer owns."""
    start_lsn = await prepared_slot(database.dsn, database.name)
    async with opened(database.dsn, database.name, start_lsn, PLAIN) as stream:
        gc.collect()
        await sql.execute("INSERT INTO t VALUES (1, 'x')")
        assert len(await read_until(stream, await wal_end(sql))) == 4
