"""TLS and SCRAM with a real server: who is on the other side, and who may stand between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.errors import RetrySlowly, WalgateError
from gateway.postgres.connection import connect_replication, connect_sql
from gateway.postgres.credentials import Credentials
from gateway.postgres.scram import PLUS
from gateway.postgres.standby_status import StandbyStatus
from tests.conftest import Database
from tests.postgres.test_connection import (
    PLAIN,
    Scenario,
    on_loop,
    opened,
    outlived,
    prepared_slot,
    read_until,
    sql_of,
    wal_end,
)
from tests.support.tls import ROLE, TlsPostgres, between, certificate, tls_postgres

pytestmark = pytest.mark.integration
__all__ = ["on_loop"]

UNVERIFIED = "sslmode=require"
BOUND = f"{UNVERIFIED}&channel_binding=require"


@pytest_asyncio.fixture(scope="module")
async def tls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsPostgres]:
    async with tls_postgres(tmp_path_factory.mktemp("tls")) as made:
        yield made


async def logs_in(dsn: str) -> None:
    (await connect_sql(dsn)).terminate()


async def test_stream_runs_over_verified_tls_and_scram(
    tls: TlsPostgres, on_loop: Callable[[Scenario], Awaitable[None]]
) -> None:
    name = f"test_{uuid4().hex[:12]}"
    async with sql_of(tls.server.dsn) as sql:
        await sql.execute(f"CREATE DATABASE {name}")
    dsn = tls.dsn(tls.verified, database=name)

    async def scenario() -> None:
        start_lsn = await prepared_slot(dsn, name)
        async with sql_of(dsn) as sql, opened(f"{dsn}&wal_sender_timeout=2s", name, start_lsn, PLAIN) as stream:
            await sql.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) AS g")
            end = await wal_end(sql)
            assert await sql.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = $1", stream.backend_pid)
            task = asyncio.create_task(StandbyStatus(stream, start_lsn, 2).run())
            async with asyncio.timeout(30):
                while not stream.is_paused:
                    await asyncio.sleep(0.01)
            await outlived(sql, name, 3)
            rows = await read_until(stream, end, most_bytes=4 << 20)
            assert len([row for row in rows if row[1][:1] == b"I"]) == 20000
            task.cancel()

    await on_loop(scenario)


async def test_certificate_that_can_not_be_verified_is_refused(tls: TlsPostgres, tmp_path: Path) -> None:
    certificate(tmp_path)  # another one
    for options, kind in (
        (f"sslmode=verify-full&sslrootcert={tmp_path / 'server.crt'}", RetrySlowly),
        ("sslmode=disable", RetrySlowly),  # pg_hba.conf rejects it
    ):
        with pytest.raises(kind):
            await connect_replication(tls.dsn(options))
    with pytest.raises(RetrySlowly) as caught:
        await connect_replication(tls.dsn(UNVERIFIED, password="wrong"))
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("variable", ["", "PGSSLROOTCERT"])
async def test_authorities_of_the_operating_system_are_enough(
    tls: TlsPostgres, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sslrootcert=system, as libpq 16 has it: verify-full without being said so."""
    options = "" if variable else "sslrootcert=system"
    if variable:
        monkeypatch.setenv(variable, "system")
    with pytest.raises(RetrySlowly, match="CERTIFICATE_VERIFY_FAILED"):
        await logs_in(tls.dsn(options))
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.root))  # as the system would have it
    await logs_in(tls.dsn(options))
    with pytest.raises(RetrySlowly, match="CERTIFICATE_VERIFY_FAILED"):
        await logs_in(tls.dsn(options).replace("127.0.0.1", "127.1"))  # another name


async def test_server_without_tls_is_never_used_in_the_clear_when_tls_is_asked_for(database: Database) -> None:
    with pytest.raises(RetrySlowly, match="SSL"):
        await connect_replication(f"{database.dsn}?sslmode=require")


async def test_channel_binding_holds_where_nobody_stands_between(
    tls: TlsPostgres, on_loop: Callable[[Scenario], Awaitable[None]]
) -> None:
    await on_loop(lambda: _each_logs_in(tls))


async def _each_logs_in(tls: TlsPostgres) -> None:
    for options in (BOUND, f"{tls.verified}&channel_binding=disable", UNVERIFIED, ""):
        await logs_in(tls.dsn(options))


async def test_channel_binding_finds_out_who_stands_between(tls: TlsPostgres, tmp_path: Path) -> None:
    """Without it the same one reads along: that is what the warning below verify-full is about."""
    async with between(tls.server.port, tmp_path) as port:
        await logs_in(tls.dsn(f"{UNVERIFIED}&channel_binding=disable", port=port))
        for options in (UNVERIFIED, BOUND):
            with pytest.raises(WalgateError, match="channel binding"):
                await logs_in(tls.dsn(options, port=port))


def without_plus(data: bytes) -> bytes:
    """The server's list of mechanisms without the one that binds."""
    name = PLUS.encode() + b"\0"
    if name not in data:
        return data
    at = data.index(b"R")
    length = int.from_bytes(data[at + 1 : at + 5], "big") - len(name)
    return data[: at + 1] + length.to_bytes(4, "big") + data[at + 5 :].replace(name, b"")


async def test_taking_channel_binding_off_the_list_is_found_out(tls: TlsPostgres, tmp_path: Path) -> None:
    """P23: the server hears that we could have, or we insist on it."""
    async with between(tls.server.port, tmp_path, without_plus) as port:
        with pytest.raises(RetrySlowly, match="28000"):
            await logs_in(tls.dsn(UNVERIFIED, port=port))
        with pytest.raises(RetrySlowly, match="channel_binding=require"):
            await logs_in(tls.dsn(BOUND, port=port))


@pytest.mark.parametrize(
    "password", ["I\u00adX", "\u2168\u00e9", "\u0627\u0031", "a\u00a0b", "\u00e9\u0007", "'\"\\%41 @:/?#"]
)
async def test_passwords_of_all_kinds_are_those_of_the_server(tls: TlsPostgres, password: str, tmp_path: Path) -> None:
    """SASLprep as the server does it. The password comes from a file, so that no DSN need encode
    it."""
    role = f"r_{uuid4().hex[:12]}"
    async with sql_of(tls.server.dsn) as sql:
        await sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password.replace(chr(39), chr(39) * 2)}'")
    (tmp_path / "password").write_text(password + "\n")
    dsn = tls.dsn(BOUND).replace(f"{ROLE}:secret", role)
    connection = await connect_sql(Credentials(dsn, password_file=tmp_path / "password"))
    assert await connection.fetchval("SELECT current_user::text") == role
    connection.terminate()
