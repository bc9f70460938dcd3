"""A server that has changed its timeline, or that is no primary."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from itertools import pairwise

import asyncpg

from gateway.errors import DataGap
from gateway.local import Postgres
from gateway.postgres.connection import connect_replication, connect_sql
from gateway.postgres.server import Recovery, load_facts, recovery_of
from gateway.postgres.slot import create_slot
from gateway.postgres.start_replication import pgoutput_options
from gateway.startup.facts import Expected
from gateway.startup.findings import OperatorWarning
from gateway.startup.server_checks import check_left_behind, check_server
from gateway.startup.timeline_checks import NotPrimary, check_promotion
from schemas.lsn import Lsn

StartPostgres = Callable[..., Awaitable[Postgres]]


async def started_with(server: Postgres, signal_file: str) -> None:
    """Stop, and start as archive recovery (recovery.signal) or as a standby (standby.signal)."""
    await server.stop()
    path = server.data_folder / signal_file
    path.touch()
    owner = server.data_folder.stat()
    os.chown(path, owner.st_uid, owner.st_gid)
    await server.start()


async def with_slot(server: Postgres) -> Lsn:
    sql = await connect_sql(server.dsn, search_path="public")
    try:
        await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        return await create_slot(sql, "s", version_num=180000)
    finally:
        sql.terminate()


async def until_primary(sql: asyncpg.Connection) -> None:
    while await sql.fetchval("SELECT pg_is_in_recovery()"):
        await sql.execute("SELECT pg_sleep(0.05)")


async def test_new_timeline_is_seen_at_once_and_told_from_a_loss(start_postgres: StartPostgres) -> None:
    server = await start_postgres(settings={"restore_command": "false"})
    resume_lsn = await with_slot(server)
    await started_with(server, "recovery.signal")
    sql = await connect_sql(server.dsn, search_path="public")
    stream = await connect_replication(server.dsn)
    try:
        await until_primary(sql)
        facts = await load_facts(sql, "s", ["p"])
        identity = await stream.identify()
        assert facts.server.timeline == identity.timeline == 2
        expected = Expected("s", ("p",), timeline=1)
        assert list(check_left_behind(facts, expected)) == []
        history = await stream.timeline_history(2)
        (kept,) = check_promotion("s", resume_lsn, resume_lsn, 1, 2, history)
        assert isinstance(kept, OperatorWarning)
        (lost,) = check_promotion("s", facts.server.flush_lsn, facts.server.flush_lsn, 1, 2, history)
        assert isinstance(lost, DataGap)
        await stream.start("s", resume_lsn, pgoutput_options(180000, ["p"]))
    finally:
        await stream.close()
        sql.terminate()


async def test_facts_of_a_standby_are_read(start_postgres: StartPostgres) -> None:
    server = await start_postgres()
    resume_lsn = await with_slot(server)
    await started_with(server, "standby.signal")
    sql = await connect_sql(server.dsn, search_path="public")
    try:
        facts = await load_facts(sql, "s", ["p"])
        assert facts.server.in_recovery and facts.server.timeline == 1
        assert facts.server.flush_lsn >= resume_lsn
        (error,) = check_server(facts, Expected("s", ("p",)))
        assert type(error) is NotPrimary
        (promoted,) = check_promotion("s", resume_lsn, resume_lsn, 1, 2, f"1\t{resume_lsn}\twhy\n")
        assert isinstance(promoted, OperatorWarning)
        await sql.execute(promoted.hint[promoted.hint.index("SELECT") :].partition(". ")[0])  # as the old primary
        assert (await load_facts(sql, "s", ["p"])).slot is None
    finally:
        sql.terminate()


async def _recovery(server: Postgres) -> Recovery:
    sql = await connect_sql(server.dsn, search_path="public")
    try:
        await until_primary(sql)
        return await recovery_of(sql)
    finally:
        sql.terminate()


async def test_a_crash_is_told_from_a_clean_restart_and_from_a_failover(start_postgres: StartPostgres) -> None:
    """The postmaster does not survive a crash if restart_after_crash is off: something else starts
    it again."""
    server = await start_postgres(settings={"restart_after_crash": "off", "restore_command": "false"})
    found = [await _recovery(server)]
    for mode in ("kill", "kill", "fast", "kill"):
        await (server.kill() if mode == "kill" else server.stop("fast"))
        await server.start()
        found.append(await _recovery(server))
    crashed = [after.follows_crash_since(before) for before, after in pairwise(found)]
    assert crashed == [True, True, False, True]
    assert not found[1].follows_crash_since(found[1]), "a connection was lost"

    before = found[-1]
    await started_with(server, "standby.signal")
    sql = await connect_sql(server.dsn, search_path="public")
    assert await recovery_of(sql) == Recovery()
    assert await sql.fetchval("SELECT pg_promote()")
    sql.terminate()
    promoted = await _recovery(server)
    assert promoted.replayed_lsn and not promoted.follows_crash_since(before)
