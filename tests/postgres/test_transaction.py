"""A transaction that is cancelled ends within a second, here and in the server."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import asyncpg
import pytest

from gateway.errors import Retry
from gateway.postgres.connection import connect_sql, transaction
from tests.conftest import Database

pytestmark = pytest.mark.integration


async def _sleep(sql: asyncpg.Connection) -> None:
    async with asyncio.TaskGroup() as group:  # which cancels its tasks once, however often it is cancelled
        group.create_task(_asleep(sql))


async def _asleep(sql: asyncpg.Connection) -> None:
    async with transaction(sql):
        await sql.execute("CREATE TABLE public.made (id int)")
        await sql.execute("SELECT pg_sleep(1000)")


async def _failing(sql: asyncpg.Connection, error: Exception) -> None:
    async with transaction(sql):
        await sql.execute("CREATE TABLE public.made (id int)")
        raise error


async def _is_asleep(sql: asyncpg.Connection, pid: int) -> bool:
    query = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active' AND wait_event = 'PgSleep')"
    )
    return bool(await sql.fetchval(query, pid))


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_a_cancelled_transaction_ends_at_once(is_frozen: bool, database: Database) -> None:
    """Also where its server process does not answer; else the server stops what it does for it."""
    sql, other = await connect_sql(database.dsn), await database.connect()
    pid = sql.get_server_pid()
    task = asyncio.create_task(_sleep(sql))
    async with asyncio.timeout(10):
        while not await _is_asleep(other, pid):
            await asyncio.sleep(0.01)
    if is_frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=10)
        assert done and task.cancelled() and time.monotonic() - begun < 3 and sql.is_closed()
    finally:
        if is_frozen:
            os.kill(pid, signal.SIGCONT)
    if not is_frozen:
        async with asyncio.timeout(5):
            while await other.fetchval("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [Retry("ours"), asyncpg.QueryCanceledError("the server's")])
async def test_after_an_error_of_a_statement_the_session_goes_on(error: Exception, database: Database) -> None:
    sql = await connect_sql(database.dsn)
    with pytest.raises(type(error)):
        await _failing(sql, error)
    async with transaction(sql, readonly=True):
        assert await sql.fetchval("SELECT to_regclass('public.made')") is None
    sql.terminate()


async def test_a_transaction_that_did_not_begin_leaves_no_session_to_use(database: Database) -> None:
    """asyncpg would take the next one for a savepoint of it."""
    sql = await connect_sql(database.dsn)
    pid = sql.get_server_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), transaction(sql):
                raise AssertionError("it has begun")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert sql.is_closed()
