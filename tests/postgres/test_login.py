"""Several hosts in one DSN: which of them is tried, and what is said of those that did not let us
in."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import structlog

from gateway.errors import Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.postgres import credentials, login
from gateway.postgres.asyncpg_internals import address_of
from gateway.postgres.connection import connect_replication, connect_sql
from tests.conftest import Database
from tests.support.tls import TlsPostgres, tls_postgres

pytestmark = pytest.mark.integration

NOBODY = "127.0.0.1:1"


@pytest_asyncio.fixture(scope="module")
async def tls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsPostgres]:
    async with tls_postgres(tmp_path_factory.mktemp("tls")) as made:
        yield made


def with_hosts(database: Database, *hosts: str, **options: str) -> str:
    own = f"127.0.0.1:{database.server.port}"
    more = "&".join(f"{name}={value}" for name, value in options.items())
    return database.dsn.replace(own, ",".join(host or own for host in hosts)) + (f"?{more}" if more else "")


async def test_a_host_that_is_down_is_passed(database: Database) -> None:
    connection = await connect_sql(with_hosts(database, NOBODY, ""))
    assert address_of(connection) == ("127.0.0.1", database.server.port)
    connection.terminate()
    stream = await connect_replication(with_hosts(database, NOBODY, ""))
    await stream.close()


async def test_a_host_that_says_nothing_leaves_time_for_the_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "LEAST_HOST_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        connection = await connect_sql(with_hosts(database, f"127.0.0.1:{silent.getsockname()[1]}", ""), timeout_s=1)
        assert 0.4 < time.monotonic() - begun < 20
        connection.terminate()


async def test_all_hosts_are_named_when_none_lets_us_in(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        credentials, "_STANDBYS", ()
    )  # a primary does not satisfy it, as a standby does not satisfy others
    with pytest.raises(Retry) as caught:
        await connect_sql(with_hosts(database, NOBODY, "", target_session_attrs="standby"))
    assert f"at {NOBODY}: ConnectionRefusedError" in caught.value.message
    assert f"at 127.0.0.1:{database.server.port}: this server does not satisfy" in caught.value.message
    assert "failover" in caught.value.hint


async def test_what_needs_the_operator_is_not_hidden_by_another_host(database: Database) -> None:
    with pytest.raises(StopForOperator, match='does not know: .*"sslmod"') as caught:
        await connect_sql(with_hosts(database, "", NOBODY, sslmod="require"))
    assert caught.value.hint.startswith("did you mean sslmode? Allowed parameters")
    with pytest.raises(StopForOperator, match='does not know: .*"xyzzy"') as caught:
        await connect_sql(with_hosts(database, "", NOBODY, xyzzy="1"))
    assert caught.value.hint.startswith("Allowed parameters")


@pytest.mark.parametrize("first", ["refused", "avoided"])
async def test_hosts_to_avoid_are_tried_last(database: Database, first: str) -> None:
    own = ("127.0.0.1", database.server.port)
    other = ("localhost", database.server.port)
    hosts = [f"{host}:{port}" for host, port in (own, other)]
    connection = await connect_sql(with_hosts(database, *hosts), avoid=[own])
    assert address_of(connection) == other
    connection.terminate()
    connection = await connect_sql(with_hosts(database, *hosts), avoid=[own, other])
    assert address_of(connection) == own
    connection.terminate()


async def test_the_socket_of_a_host_is_not_left_open_when_the_login_is_cancelled(database: Database) -> None:
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        closed.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connecting = asyncio.create_task(connect_sql(f"postgresql://u@127.0.0.1:{port}/d?sslmode=disable"))
        await asyncio.sleep(0.1)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        async with asyncio.timeout(5):
            while not closed.is_set():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("options", "is_cautioned"),
    [("sslmode=require&channel_binding=disable", True), ("sslmode=require", False), ("verified", False)],
)
async def test_a_server_that_nothing_identifies_is_cautioned_once(
    tls: TlsPostgres, monkeypatch: pytest.MonkeyPatch, options: str, is_cautioned: bool
) -> None:
    monkeypatch.setattr(login, "is_local", lambda _: False)
    monkeypatch.setattr(login, "_cautioned", set())
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            (await connect_sql(tls.dsn(tls.verified if options == "verified" else options))).terminate()
    assert [entry["event"] for entry in logs] == ["unverified_server"] * is_cautioned
    if is_cautioned:
        assert logs[0]["tls"] is True and "verify-full" in logs[0]["hint"]


async def test_within_the_computer_nothing_is_cautioned(database: Database) -> None:
    with structlog.testing.capture_logs() as logs:
        (await connect_sql(database.dsn)).terminate()
    assert logs == []


@pytest.mark.parametrize(
    ("mode", "is_encrypted"), [("disable", None), ("allow", None), ("prefer", True), ("require", True)]
)
async def test_sslmode_chooses_the_transport(tls: TlsPostgres, mode: str, is_encrypted: bool | None) -> None:
    """As libpq: `allow` tries without TLS first, `prefer` with it; pg_hba.conf lets gate in with
    TLS only."""
    dsn = tls.dsn(f"sslmode={mode}")
    if mode == "disable":
        with pytest.raises(RetrySlowly, match="28000"):
            await connect_sql(dsn)
        return
    connection = await connect_sql(dsn)
    assert await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    connection.terminate()


async def test_a_wrong_password_is_told_and_not_what_the_other_transport_says(tls: TlsPostgres) -> None:
    with pytest.raises(WalgateError, match="28P01"):
        await connect_sql(tls.dsn("sslmode=prefer", password="wrong"))


async def test_a_role_that_is_not_let_in_is_told_its_own_remedy(database: Database, topic_prefix: str) -> None:
    sql, role = await database.connect(), f"role_{topic_prefix}"
    await sql.execute(f"CREATE ROLE {role} PASSWORD '{database.server.password}'")
    try:
        for statement, said, remedy in (
            ("SELECT 1", "is not permitted to log in", f'ALTER ROLE "{role}" LOGIN'),
            (f"ALTER ROLE {role} LOGIN VALID UNTIL '2020-01-01'", "password authentication failed", "VALID UNTIL"),
            (
                f"ALTER ROLE {role} VALID UNTIL 'infinity'; REVOKE CONNECT ON DATABASE {database.name} FROM public",
                "permission denied for database",
                f'GRANT CONNECT ON DATABASE "{database.name}" TO "{role}"',
            ),
        ):
            await sql.execute(statement)
            with pytest.raises(RetrySlowly, match=said) as caught:
                await connect_sql(database.dsn_of(role))
            assert remedy in caught.value.hint
    finally:
        await sql.execute(f"DROP ROLE {role}")


async def test_what_the_server_warns_of_at_login_keeps_nobody_out(database: Database) -> None:
    """As 19 warns of MD5 passwords and of passwords that expire: before the session is ready, also
    that of a WAL sender."""
    sql = await database.connect()
    await sql.execute(
        "CREATE FUNCTION warn() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE WARNING 'your password expires'; END $$; CREATE EVENT TRIGGER warn ON login EXECUTE FUNCTION warn()"
    )
    other = await connect_sql(database.dsn)
    assert await other.fetchval("SELECT 1") == 1
    other.terminate()
    stream = await connect_replication(database.dsn)
    assert (await stream.identify()).database == database.name
    await stream.close()
