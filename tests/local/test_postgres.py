"""PostgreSQL of every version, with what a gateway and its faults need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from gateway.errors import StopForOperator
from gateway.local import PartFailed, Postgres
from gateway.local.binaries import VERSIONS

StartPostgres = Callable[..., Awaitable[Postgres]]
PROTOCOL = {14: 2, 15: 3, 16: 4, 17: 4, 18: 4}


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_streams_its_highest_protocol(version: int, start_postgres: StartPostgres) -> None:
    server = await start_postgres(version)
    assert server.server_version.startswith(f"{version}.")
    connection = await server.connect()
    await connection.execute("CREATE TABLE rows AS SELECT 1; CREATE PUBLICATION everything FOR ALL TABLES")
    await connection.execute("SELECT pg_create_logical_replication_slot('slot', 'pgoutput')")
    await connection.execute("INSERT INTO rows VALUES (2); CREATE EXTENSION hstore; CREATE EXTENSION citext")
    messages = await connection.fetch(
        "SELECT data FROM pg_logical_slot_get_binary_changes"
        f"('slot', null, null, 'proto_version', '{PROTOCOL[version]}', 'publication_names', 'everything')"
    )
    assert [data[:1] for (data,) in messages] == [b"B", b"R", b"I", b"C"]
    await connection.close()


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
async def test_data_slots_and_port_outlive_a_stop(mode: str, start_postgres: StartPostgres) -> None:
    server = await start_postgres(databases=["shop"])
    dsn = server.database_dsn("shop")
    connection = await server.connect("shop")
    await connection.execute("CREATE TABLE kept AS SELECT 7 AS id")
    await connection.execute("SELECT pg_create_logical_replication_slot('kept', 'pgoutput')")
    if mode == "kill":
        await server.kill()
    else:
        await server.stop(mode)  # type: ignore[arg-type]
    connection.terminate()
    assert server.pid is None
    with pytest.raises(OSError, match="Connect"):
        await asyncpg.connect(dsn)
    await server.start()
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT id FROM kept") == 7
    assert await connection.fetchval("SELECT slot_name FROM pg_replication_slots") == "kept"
    await connection.close()


async def test_a_start_that_is_cancelled_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another part has failed when the server answers for the first time."""
    server = Postgres()
    connect, opened = server.connect, []

    async def cancelled(database: str = "postgres") -> asyncpg.Connection:
        opened.append(await connect(database))
        start.cancel()
        return opened[0]

    monkeypatch.setattr(server, "connect", cancelled)
    start = asyncio.create_task(server.start())
    try:
        with pytest.raises(asyncio.CancelledError):
            await start
        assert [connection.is_closed() for connection in opened] == [True]
    finally:
        await server.close()


async def test_settings_and_files_reach_the_server(start_postgres: StartPostgres) -> None:
    server = await start_postgres(
        settings={"logical_decoding_work_mem": "128kB"},
        files={"note": b"content"},
        hba=["host all all 127.0.0.1/32 scram-sha-256", "# ours"],
    )
    connection = await server.connect()
    assert await connection.fetchval("SHOW logical_decoding_work_mem") == "128kB"
    assert await connection.fetchval("SELECT pg_read_file('note')") == "content"
    assert "# ours" in await connection.fetchval("SELECT pg_read_file('pg_hba.conf')")
    assert (server.data_folder / "note").stat().st_mode & 0o777 == 0o600
    await connection.close()


async def test_it_listens_on_this_computer_only_and_its_folder_is_private(postgres: Postgres) -> None:
    connection = await postgres.connect()
    assert await connection.fetchval("SHOW listen_addresses") == "127.0.0.1"
    assert await connection.fetchval("SHOW unix_socket_directories") == ""
    assert postgres.data_folder.parent.stat().st_mode & 0o777 == 0o700
    await connection.close()


async def test_nobody_gets_in_without_the_password(postgres: Postgres, tmp_path: Path) -> None:
    for password in ("", ":", ":postgres"):
        dsn = postgres.dsn.replace(f":{postgres.password}", password)
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(dsn, passfile=tmp_path / "none")
    lines = (postgres.data_folder / "pg_hba.conf").read_text().splitlines()
    methods = {line.split()[-1] for line in lines if line and not line.startswith("#")}
    assert methods == {"scram-sha-256"}


async def test_a_server_that_does_not_start_shows_its_log() -> None:
    server = Postgres(settings={"wal_level": "no such level"})
    with pytest.raises(PartFailed, match='invalid value for parameter "wal_level"'):
        await server.start()
    await server.close()


async def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(StopForOperator, match="14, 15, 16, 17, 18"):
        await Postgres(9).start()


async def test_a_server_runs_from_a_copy_when_its_account_can_not_reach_the_programs(
    start_postgres: StartPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.local.binaries.reachable", lambda path, account: False)
    server = await start_postgres()
    assert server.program("postgres").is_relative_to(server.data_folder.parent)
    connection = await server.connect()
    await connection.execute("CREATE EXTENSION hstore")
    await connection.close()
