"""What retains WAL, with real transactions, as seen by a role that may see little."""

from __future__ import annotations

import pytest

from gateway.observe.status_types import WalRetentionCause
from gateway.postgres.connection import connect_sql
from gateway.postgres.wal_retention import retention_causes, with_least_ages
from tests.conftest import Database


@pytest.mark.integration
async def test_the_age_of_a_transaction_whose_begin_is_hidden_counts_from_when_it_was_seen(source: Database) -> None:
    other, sql = await source.connect(), await source.connect()
    role = f"r_{source.name}"
    await sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{source.server.password}'")
    restricted = await connect_sql(source.dsn_of(role))

    async def look(before: tuple[WalRetentionCause, ...], now: float) -> tuple[WalRetentionCause, ...]:
        found = with_least_ages(await retention_causes(restricted, "none"), before, now)
        return tuple(cause for cause in found if cause.pid == other.get_server_pid())

    try:
        await other.execute("BEGIN; CREATE TABLE t (id int)")
        first = await look((), 1000.0)
        second = await look(first, 1010.0)
        assert [(cause.since, cause.age_is_at_least) for cause in second] == [(1000.0, True)]
        await other.execute("ROLLBACK; BEGIN; CREATE TABLE t (id int)")
        (third,) = await look(second, 1020.0)
        assert third.since == 1020.0
    finally:
        await other.execute("ROLLBACK")
        restricted.terminate()
        await sql.execute(f"DROP ROLE {role}")


def test_a_begin_that_is_known_and_another_slot_keep_what_is_known_of_them() -> None:
    causes = (
        WalRetentionCause("transaction", "", 7, since=5.0, xid=70),
        WalRetentionCause("prepared", "p", since=None, xid=71),
        WalRetentionCause("slot", "another", retained_bytes=1 << 30),
    )
    assert with_least_ages(causes, (), 100.0) == causes
