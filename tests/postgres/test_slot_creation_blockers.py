"""Who is in the way of a slot's creation, with real transactions that are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
import structlog

from gateway.local import Postgres
from gateway.postgres import slot_creation_blockers as module
from gateway.postgres.connection import connect_sql
from gateway.postgres.slot import create_slot
from gateway.postgres.slot_creation_blockers import SlotCreationBlocker, blockers, naming_blockers
from tests.conftest import Database

pytestmark = pytest.mark.integration
LIMIT_S = 30.0


@pytest.fixture(params=["postgres", "postgres_oldest"])
def source(request: pytest.FixtureRequest) -> Database:
    name = "database" if request.param == "postgres" else "database_oldest"
    found: Database = request.getfixturevalue(name)
    return found


@asynccontextmanager
async def creating(source: Database) -> AsyncIterator[int]:
    """A slot whose creation waits; yields the process that does."""
    sql = await connect_sql(source.dsn)
    task = asyncio.create_task(create_slot(sql, source.name, version_num=140000))
    try:
        yield sql.get_server_pid()
        await task
    finally:
        task.cancel()
        sql.terminate()


async def until(
    find: Callable[[], Coroutine[Any, Any, tuple[SlotCreationBlocker, ...]]],
) -> tuple[SlotCreationBlocker, ...]:
    async with asyncio.timeout(LIMIT_S):
        while not (found := await find()):
            await asyncio.sleep(0.05)
    return found


async def writer(source: Database) -> asyncpg.Connection:
    """A session in a transaction that has written."""
    connection = await source.connect()
    await connection.execute("SET application_name = 'nightly'; CREATE TABLE IF NOT EXISTS t (id int)")
    await connection.execute("BEGIN; INSERT INTO t VALUES (1)")
    return connection


async def test_an_open_transaction_is_named_with_its_age_and_its_statement(source: Database) -> None:
    other, sql = await writer(source), await source.connect()
    pid = other.get_server_pid()
    async with creating(source) as waiting:
        (found,) = await until(lambda: blockers(sql, waiting))
        assert (found.pid, found.user, found.application, found.state) == (
            pid, "postgres", "nightly", "idle in transaction"
        )  # fmt: skip
        assert found.open_s is not None and found.statement_s is not None and 0 <= found.statement_s <= found.open_s
        assert str(found).startswith(f"the open transaction of process {pid} (user postgres, application nightly, ")
        await other.execute("COMMIT")


async def test_a_prepared_transaction_is_named(source: Database) -> None:
    other, sql = await writer(source), await source.connect()
    await other.execute(f"PREPARE TRANSACTION 'forgotten {source.name}'")
    async with creating(source) as waiting:
        (found,) = await until(lambda: blockers(sql, waiting))
        assert (found.pid, found.gid) == (0, f"forgotten {source.name}")
        assert f"prepared transaction 'forgotten {source.name}' of postgres (prepared 0 s ago)" in str(found)
        await other.execute(f"ROLLBACK PREPARED 'forgotten {source.name}'")


async def test_who_may_see_little_is_told_the_process(database: Database) -> None:
    other, sql = await writer(database), await database.connect()
    role = f"r_{database.name}"
    await sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{database.server.password}'")
    restricted = await connect_sql(database.dsn_of(role))
    try:
        async with creating(database) as waiting:
            (found,) = await until(lambda: blockers(restricted, waiting))
            assert (
                str(found)
                == f"the open transaction of process {other.get_server_pid()} (user postgres, application nightly)"
            )
            await other.execute("COMMIT")
    finally:
        restricted.terminate()
        await sql.execute(f"DROP ROLE {role}")


async def test_who_does_not_wait_waits_for_nobody(database: Database) -> None:
    sql = await database.connect()
    assert await blockers(sql, sql.get_server_pid()) == ()


async def test_readiness_and_log_say_for_whom_the_creation_waits(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_INTERVAL_S", 0.05)
    other, told = await writer(database), list[str]()
    sql = await connect_sql(database.dsn)
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(LIMIT_S), naming_blockers(database.dsn, sql.get_server_pid(), told.append):
            making = asyncio.create_task(create_slot(sql, database.name, version_num=140000))
            while len(told) < 3:
                await asyncio.sleep(0.01)
            await other.execute("COMMIT")
            await making
    sql.terminate()
    pid = other.get_server_pid()
    assert all(f"waits for the open transaction of process {pid} (user postgres" in text for text in told)
    assert [entry["event"] for entry in logs] == ["slot_waits"], "once, not every time"
    assert f"pg_terminate_backend({pid})" in logs[0]["hint"]


async def test_a_server_that_is_away_does_not_disturb_the_body(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_INTERVAL_S", 0.01)
    async with naming_blockers("postgresql://u@127.0.0.1:1/d", 1, lambda _: None):
        await asyncio.sleep(0.2)
