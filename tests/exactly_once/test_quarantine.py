"""A table that cannot be written: it stops the gateway, or only itself; and one transaction that an
operator leaves out.

Judged by what stock clients read from Kafka, against what was written into the tables.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.runtime.test_error_context import SEEDED
from tests.support.gateway_process import GatewayProcess
from tests.support.topics import Topics
from tests.support.written import Written, command, walgate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

MAX_RECORD_BYTES = 200_000
TABLES = """
CREATE TABLE flows (id int PRIMARY KEY);
CREATE TABLE poison (id int PRIMARY KEY, b bytea);
CREATE TABLE typed (id int PRIMARY KEY, c int);
CREATE TABLE large (id int PRIMARY KEY, c text);
ALTER TABLE large ALTER c SET STORAGE EXTERNAL;
CREATE PUBLICATION walgate FOR ALL TABLES;
"""
NO_VALUE = ValueError.__name__


@pytest.fixture
def gateway(database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path) -> GatewayProcess:
    """One whose encoder does not read a bytea of more than three bytes."""
    settings = {
        "source__dsn": database.dsn,
        "source__slot": topic_prefix,
        "source__two_phase": True,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": topic_prefix,
        "kafka__max_record_bytes": MAX_RECORD_BYTES,
        "registry__url": registry.url,
    }
    process = GatewayProcess(tmp_path / "gateway.log", settings)
    process.code = SEEDED.format(error=NO_VALUE)
    return process


@pytest.fixture
async def sql(database: Database) -> asyncpg.Connection:
    connection = await database.connect()
    await connection.execute(TABLES)
    return connection


@pytest.fixture
def written(kafka: Kafka, registry: Registry, topic_prefix: str) -> Written:
    return Written(Topics(kafka.bootstrap_servers, registry.url), topic_prefix)


async def both(sql: asyncpg.Connection, row_id: int, poison: str) -> None:
    """One transaction of a table that flows and of one that may not."""
    async with sql.transaction():
        await sql.execute("INSERT INTO flows VALUES ($1)", row_id)
        await sql.execute(poison)


async def test_tables_in_quarantine_leave_the_others_alone(
    gateway: GatewayProcess, sql: asyncpg.Connection, written: Written
) -> None:
    gateway.settings["errors__tables"] = '[{"pattern": "public.(poison|typed|large)", "on_error": "quarantine"}]'
    await gateway.streaming()
    try:
        await both(sql, 1, "INSERT INTO poison VALUES (1, 'abc')")
        await both(sql, 2, "INSERT INTO typed VALUES (1, 1)")
        await both(sql, 3, "INSERT INTO large VALUES (1, 'small')")

        await both(sql, 10, "INSERT INTO poison VALUES (8, 'abc'), (9, 'too long'), (10, 'abc')")
        await sql.execute("ALTER TABLE typed ALTER c TYPE text")
        await both(sql, 11, "INSERT INTO typed VALUES (9, 'x')")
        await both(sql, 12, f"INSERT INTO large VALUES (9, repeat('x', {2 * MAX_RECORD_BYTES}))")
        await both(sql, 13, f"INSERT INTO large VALUES (10, repeat('x', {50 * MAX_RECORD_BYTES})); TRUNCATE poison")
        async with sql.transaction():  # larger than logical_decoding_work_mem: streamed
            await sql.execute("INSERT INTO flows SELECT n FROM generate_series(1000, 2999) n")
            await sql.execute("INSERT INTO poison SELECT n, 'too long' FROM generate_series(1000, 2999) n")
        await sql.execute("BEGIN; INSERT INTO flows VALUES (14); INSERT INTO poison VALUES (11, 'abc')")
        await sql.execute(f"PREPARE TRANSACTION '{gateway.settings['kafka__prefix']}'")
        await sql.execute(f"COMMIT PREPARED '{gateway.settings['kafka__prefix']}'")
        await sql.execute("INSERT INTO flows VALUES (15)")
        flows = {1, 2, 3, *range(10, 16), *range(1000, 3000)}
        await written.has("flows", flows)

        told = {entry["table"]: entry["reason"] for entry in gateway.events("table_quarantined")}
        assert told == {
            "public.poison": "a value cannot be read",
            "public.typed": "its schema was rejected",
            "public.large": "a row is larger than kafka.max_record_bytes",
        }
        assert [await written.ids(table) for table in ("poison", "typed", "large")] == [{1}, {1}, {1}]
        assert await written.excluded("poison") == 3 + 1 + 2000 + 1
        assert [await written.excluded(table) for table in ("typed", "large")] == [1, 2]

        await gateway.kill()
        await gateway.streaming()
        assert gateway.events("tables_in_quarantine")[-1]["count"] == 3
        await both(sql, 16, "INSERT INTO poison VALUES (12, 'abc'); ALTER TABLE large RENAME TO renamed")
        await both(sql, 18, "INSERT INTO renamed VALUES (12, 'small')")
        await written.has("flows", flows | {16, 18})
        assert [await written.excluded(table) for table in ("poison", "large", "renamed")] == [
            3 + 1 + 2000 + 1 + 1,
            2,
            1,
        ]

        assert "changes of public.poison will be written from" in await walgate(gateway, "readmit", "public.poison")
        await both(sql, 17, "INSERT INTO poison VALUES (13, 'abc')")
        await written.has("poison", {1, 13})
        assert [marker["detail"] for marker in await written.markers("EPOCH") if marker["detail"]] == [
            "readmitted public.poison"
        ]
        assert [entry["name"] for entry in (await written.position())["quarantined"]] == ["typed", "large"]
        assert await gateway.stop() == 0
    finally:
        await gateway.end()


async def _plain(sql: asyncpg.Connection, prefix: str) -> None:
    await both(sql, 2, "INSERT INTO poison VALUES (1, 'too long')")


async def _streamed(sql: asyncpg.Connection, prefix: str) -> None:
    async with sql.transaction():
        await sql.execute("INSERT INTO flows SELECT n FROM generate_series(1000, 2999) n")
        await sql.execute("INSERT INTO poison VALUES (1, 'too long')")
        await sql.execute("INSERT INTO flows SELECT n FROM generate_series(3000, 4999) n")


async def _prepared(sql: asyncpg.Connection, prefix: str) -> None:
    await sql.execute("BEGIN; INSERT INTO flows VALUES (2); INSERT INTO poison VALUES (1, 'too long')")
    await sql.execute(f"PREPARE TRANSACTION '{prefix}'")
    await sql.execute(f"COMMIT PREPARED '{prefix}'")


async def _schema(sql: asyncpg.Connection, prefix: str) -> None:
    await sql.execute("INSERT INTO typed VALUES (1, 1)")
    async with sql.transaction():
        await sql.execute("INSERT INTO flows VALUES (2)")
        await sql.execute("ALTER TABLE typed ALTER c TYPE text")
        await sql.execute("INSERT INTO typed VALUES (2, 'x')")
    await sql.execute("ALTER TABLE typed ALTER c TYPE int USING 1")


Poison = Callable[[asyncpg.Connection, str], Awaitable[None]]


@pytest.mark.parametrize("poison", [pytest.param(_plain, marks=pytest.mark.long), _streamed, _prepared, _schema])
async def test_a_stop_names_the_transaction_and_skip_leaves_out_exactly_that_one(
    poison: Poison, gateway: GatewayProcess, sql: asyncpg.Connection, written: Written, topic_prefix: str
) -> None:
    await gateway.streaming()
    try:
        await sql.execute("INSERT INTO flows VALUES (1)")
        await poison(sql, topic_prefix)
        await both(sql, 100, "INSERT INTO poison VALUES (2, 'abc'); INSERT INTO typed VALUES (3, 3)")
        assert await gateway.wait() == 78
        named = re.search(r"walgate skip --lsn (\S+) ", gateway.log().rpartition("walgate: ")[2])
        assert named is not None, gateway.log_tail()
        assert "set a pattern that matches public." in gateway.log_tail()

        assert named[1] in await walgate(gateway, "skip", "--lsn", named[1])
        await gateway.streaming()
        await written.has("flows", {1, 100})
        await written.has("poison", {2})
        skips = await written.markers("SKIP")
        assert len(skips) == 1 and skips[0]["detail"] and skips[0]["manifest"] is None
        high, low = named[1].split("/")
        assert skips[0]["marker_lsn"] == int(high, 16) << 32 | int(low, 16)
        await sql.execute("INSERT INTO flows VALUES (101)")
        await written.has("flows", {1, 100, 101})
        assert (await written.position())["skip_lsn"] == 0
        assert await gateway.stop() == 0
    finally:
        await gateway.end()


async def test_skip_is_not_advised_for_a_transaction_that_was_prepared_before_two_phase_was_enabled(
    gateway: GatewayProcess, sql: asyncpg.Connection, written: Written, topic_prefix: str
) -> None:
    """It comes with the LSN of its PREPARE TRANSACTION, which the position has passed: walgate skip
    would refuse it. The quarantine of the table works."""
    gateway.settings["source__two_phase"] = False
    await gateway.streaming()
    try:
        await sql.execute("BEGIN; INSERT INTO flows VALUES (2); INSERT INTO poison VALUES (1, 'too long')")
        await sql.execute(f"PREPARE TRANSACTION '{topic_prefix}'")
        await sql.execute("INSERT INTO flows VALUES (1)")
        await written.has("flows", {1})
        assert await gateway.stop() == 0
        gateway.settings["source__two_phase"] = True
        await gateway.streaming()
        await sql.execute("INSERT INTO flows VALUES (3)")
        await written.has("flows", {1, 3})
        await sql.execute(f"COMMIT PREPARED '{topic_prefix}'")
        await sql.execute("INSERT INTO flows VALUES (4)")
        assert await gateway.wait() == 78
        said = gateway.log().rpartition("walgate: ")[2]
        assert "walgate skip" not in said
        assert "set a pattern that matches public.poison" in said

        gateway.settings["errors__tables"] = '[{"pattern": "public.poison", "on_error": "quarantine"}]'
        await gateway.streaming()
        await written.has("flows", {1, 2, 3, 4})
        assert (await written.ids("poison"), await written.excluded("poison")) == (set(), 1)
        assert await gateway.stop() == 0
    finally:
        await gateway.end()


REJECTED = "ALTER TABLE typed ALTER c TYPE text USING c::text"
LARGE_ROW = f"INSERT INTO large VALUES (9, repeat('x', {2 * MAX_RECORD_BYTES}))"


async def test_a_table_in_quarantine_is_not_read_by_a_snapshot(
    gateway: GatewayProcess, sql: asyncpg.Connection, written: Written, tmp_path: Path
) -> None:
    """Its columns were changed, so that it would be read again: before a change of it came, behind
    one, and on command."""
    gateway.settings |= {"errors__on_error": "quarantine", "snapshot__mode": "initial"}
    await sql.execute("INSERT INTO flows VALUES (1); INSERT INTO typed VALUES (1, 1)")
    await gateway.streaming()
    try:
        await written.has("flows", {1})
        await written.has("typed", {1})
        await both(sql, 2, f"{REJECTED}; INSERT INTO typed VALUES (2, 'x')")
        await written.has("flows", {1, 2})
        await sql.execute("ALTER TABLE typed ALTER c TYPE varchar(9)")  # rows without events
        await both(sql, 3, "INSERT INTO typed VALUES (3, 'x')")
        await walgate(gateway, "snapshot", "start", "public.typed", "public.flows")
        await gateway.logged('"these tables are in quarantine"')
        await gateway.logged('{"table": "public.flows", "rows": 3, ')
        await gateway.kill()
        await gateway.streaming()
        await both(sql, 4, "INSERT INTO typed VALUES (4, 'x')")
        await written.has("flows", {1, 2, 3, 4})
        assert await written.ids("typed") == {1}
        verified = await command(gateway.settings, "verify", "--mirror", str(tmp_path), "--table", "public.typed")
        assert (verified.returncode, verified.stdout) == (2, "public.typed: in quarantine, not compared\n")
        assert "public.typed: in quarantine, not read until" in await walgate(gateway, "snapshot", "status")
        assert await gateway.stop() == 0

        gateway.settings["schemas__on_incompatible"] = "register"
        await gateway.streaming()
        await walgate(gateway, "readmit", "public.typed")
        await walgate(gateway, "snapshot", "start", "public.typed")
        await written.has("typed", {1, 2, 3, 4})
        assert await gateway.stop() == 0
    finally:
        await gateway.end()


@pytest.mark.parametrize(
    ("table", "poison", "reason"),
    [
        ("typed", f"INSERT INTO typed VALUES (1, 1); {REJECTED}", "its schema was rejected"),
        pytest.param("large", LARGE_ROW, "a row is larger than kafka.max_record_bytes", marks=pytest.mark.long),
        ("poison", "INSERT INTO poison VALUES (1, 'too long')", "a value cannot be read"),
    ],
)
async def test_an_error_of_a_table_that_is_read_is_an_error_of_that_table(
    table: str, poison: str, reason: str, gateway: GatewayProcess, sql: asyncpg.Connection, written: Written
) -> None:
    """It stops the gateway and names the quarantine as a way on; in quarantine, the others are read
    to their end."""
    gateway.settings["snapshot__mode"] = "initial"
    is_rejected = table == "typed"
    if is_rejected:
        await sql.execute(poison.partition(";")[0])
        await gateway.streaming()
        await gateway.logged('"snapshot_done"')
        await written.has("typed", {1})
        assert await gateway.stop() == 0
    await sql.execute(f"INSERT INTO flows VALUES (1); {REJECTED if is_rejected else poison}")
    try:
        gateway.start()
        assert await gateway.wait() == 78
        said = gateway.log().rpartition("walgate: ")[2]
        assert f"snapshot of public.{table}" in said and f"set a pattern that matches public.{table}" in said, said
        assert "walgate skip" not in said

        gateway.settings["errors__tables"] = f'[{{"pattern": "public.{table}", "on_error": "quarantine"}}]'
        await gateway.streaming()
        await gateway.logged('"table_quarantined"')
        await sql.execute("INSERT INTO flows VALUES (2)")
        await written.has("flows", {1, 2})
        assert [(entry["table"], entry["reason"]) for entry in gateway.events("table_quarantined")] == [
            (f"public.{table}", reason)
        ]
        (entry,) = (await written.position())["quarantined"]
        assert entry["name"] == table and entry["since_lsn"] > 0
        assert await written.ids(table) == ({1} if is_rejected else set())
        assert await gateway.stop() == 0
    finally:
        await gateway.end()


async def test_a_command_that_is_refused_does_not_disturb_a_gateway_that_runs(
    gateway: GatewayProcess, sql: asyncpg.Connection, written: Written
) -> None:
    await gateway.streaming()
    try:
        await sql.execute("INSERT INTO flows VALUES (1)")
        await written.has("flows", {1})
        epoch = (await written.position())["epoch"]
        said = await walgate(gateway, "readmit", "public.flows", code=78)
        assert "public.flows is not in quarantine" in said
        said = await walgate(gateway, "skip", "--lsn", "0/1", code=78)
        assert "has already been delivered" in said
        await sql.execute("INSERT INTO flows VALUES (2)")
        await written.has("flows", {1, 2})
        assert (await written.position())["epoch"] == epoch and gateway.log().count('"streaming"') == 1
        assert await gateway.stop() == 0
    finally:
        await gateway.end()
