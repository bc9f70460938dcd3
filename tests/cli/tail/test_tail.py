"""`walgate tail` against real servers: what it prints is what the tables hold, and it leaves
nothing behind."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess, environment_of, variables_of

pytestmark = pytest.mark.integration

WALGATE = str(Path(sys.executable).parent / "walgate")
TIMEOUT_S = 60.0
SETUP = """
CREATE TABLE item (id int PRIMARY KEY, amount numeric, note text, doc jsonb, moment timestamptz, mood text[], bits bit(3));
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE plan (id int PRIMARY KEY, big text);
CREATE PUBLICATION walgate FOR TABLE item, other, plan;
"""
ROWS = """INSERT INTO item SELECT n, CASE WHEN n = 3 THEN 'NaN' ELSE n / 7.0 END, 'nöte ' || chr(n + 6) || chr(155), '{"a": [1]}',
    '2026-01-01 12:00+01'::timestamptz + n * interval '1 day', ARRAY['x', NULL, 'y,z'], '101' FROM generate_series(1, 5) n"""
SLOTS = (
    "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'walgate_tail_%' AND database = current_database()"
)
SENDERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'walgate'"


@asynccontextmanager
async def tailing(environment: dict[str, str], *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        WALGATE,
        "tail",
        *options,
        env=environment_of({}) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stderr is not None
    seen = ""
    async with asyncio.timeout(TIMEOUT_S):
        while text not in seen:
            line = (await process.stderr.readline()).decode()
            assert line, f"ended without {text!r}:\n{seen}"
            seen += line
    return seen


async def lines(process: asyncio.subprocess.Process, last: str) -> list[dict[str, Any]]:
    """Up to the line that holds `last`."""
    assert process.stdout is not None
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            line = (await process.stdout.readline()).decode()
            assert line, f"ended without {last!r} after {found}"
            found.append(json.loads(line))
            if last in line:
                return found


async def ends(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    process.send_signal(number)
    async with asyncio.timeout(TIMEOUT_S):
        assert await process.wait() == 0


async def nothing_left(database: Database) -> None:
    sql = await database.connect()
    async with asyncio.timeout(TIMEOUT_S):
        while await sql.fetchval(SLOTS) or await sql.fetchval(SENDERS):
            await asyncio.sleep(0.05)


async def as_text(database: Database, table: str) -> list[dict[str, Any]]:
    """The rows as the server writes each value, in the form that the docs promise."""
    sql = await database.connect()
    await sql.execute("SET TimeZone = UTC; SET DateStyle = ISO")
    names = [row[0] for row in await sql.fetch(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 ORDER BY attnum", table
    )]  # fmt: skip
    columns = ", ".join(f"CASE WHEN {name} IS NOT NULL THEN format('%s', {name}) END AS {name}" for name in names)
    return [dict(row) for row in await sql.fetch(f"SELECT {columns} FROM {table} ORDER BY {table}.id")]


async def test_it_prints_what_commits_and_leaves_nothing_behind(database: Database) -> None:
    sql = await database.connect()
    await sql.execute(SETUP)
    environment = {"WALGATE_SOURCE__DSN": database.dsn}
    async with (
        tailing(environment, "--json") as everything,
        tailing(environment, "--json", "--table", "other", "--op", "insert", "--limit", "3") as few,
    ):
        await said(everything, "tailing")
        await said(few, "tailing")
        await sql.execute(ROWS)
        await sql.execute("BEGIN; UPDATE item SET id = 10 WHERE id = 1; DELETE FROM item WHERE id = 2; COMMIT")
        await sql.execute("BEGIN; INSERT INTO item (id) VALUES (99); ROLLBACK")
        await sql.execute("SELECT pg_logical_emit_message(true, 'walk', 'told')")
        await sql.execute("INSERT INTO other VALUES (1)")
        found = await lines(everything, '"public.other", "new"')
        rows: dict[str, dict[str, Any]] = {}
        for each in found:
            if each.get("relation") == "public.item" and each["message"] in ("Insert", "Update", "Delete"):
                old = each.get("key") or each.get("new") or {}
                rows.pop(old["id"], None)
                if "new" in each:
                    rows[each["new"]["id"]] = each["new"]
        assert sorted(rows.values(), key=lambda row: int(row["id"])) == await as_text(database, "item")
        assert [each["content"] for each in found if each["message"] == "Message"] == ["told"]
        assert [each["message"] for each in await lines(few, "Commit")] == ["Begin", "Insert", "Commit"]
        async with asyncio.timeout(TIMEOUT_S):
            assert await few.wait() == 0  # it has its three lines
        await ends(everything, signal.SIGINT)
    await nothing_left(database)


async def test_it_can_be_stopped_while_postgresql_still_makes_its_slot(database: Database) -> None:
    sql, other = await database.connect(), await database.connect()
    await sql.execute(SETUP)
    await sql.execute("BEGIN; INSERT INTO other VALUES (7)")
    async with tailing({"WALGATE_SOURCE__DSN": database.dsn}, "--json") as process:
        assert f"process {sql.get_server_pid()}" in await said(process, "slot_waits")
        await ends(process, signal.SIGTERM)
        await nothing_left(database)  # although the transaction is still open
    async with tailing({"WALGATE_SOURCE__DSN": database.dsn}, "--table", "itme", "--table", "pla?") as process:
        assert "did you mean item?" in await said(process, "no_such_table")
        await ends(process, signal.SIGTERM)
    async with tailing({"WALGATE_SOURCE__DSN": database.dsn}, "--publication", "nowhere") as process:
        assert await process.wait() == 78
        assert process.stderr is not None and b"walgate" in await process.stderr.read()
    await sql.execute("ROLLBACK")
    async with tailing({"WALGATE_SOURCE__DSN": database.dsn}, "--json", "--in-progress") as process:
        await said(process, "tailing")
        await sql.execute("BEGIN; INSERT INTO plan SELECT n, repeat('x', 300) FROM generate_series(1, 3000) n")
        await other.execute("SELECT pg_logical_emit_message(true, 'flush', '')")
        assert "Stream Start" in {one["message"] for one in await lines(process, '"Stream Stop"')}
        await sql.execute("COMMIT")
        await lines(process, "Stream Commit")
        process.kill()
    await nothing_left(database)


async def test_topics_hold_what_the_tables_hold(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    await sql.execute(SETUP)
    settings = {
        "source__dsn": database.dsn,
        "source__slot": topic_prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": topic_prefix,
        "registry__url": registry.url,
    }
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    environment = variables_of({name: value for name, value in settings.items() if not name.startswith("source")})
    try:
        await gateway.streaming()
        await sql.execute("INSERT INTO other VALUES (1), (2), (3)")
        async with tailing(environment, "--topics", "--from-beginning", "--json") as process:
            found = await lines(process, '"COMMIT"')
            await sql.execute("DELETE FROM other WHERE id = 2")
            found += await lines(process, '"COMMIT"')
            while len([one for one in found if one.get("relation") == "public.other"]) < 4:
                found += await lines(process, '"public.other"')
            await ends(process, signal.SIGTERM)
        async with tailing(environment, "--topics", "--table", "othr") as process:
            assert "did you mean other?" in await said(process, "no_topic_of_table")
            await ends(process, signal.SIGTERM)
        events = [one for one in found if one.get("relation") == "public.other"]
        assert sorted(one["after"]["id"] for one in events if one["message"] == "Insert") == [1, 2, 3]
        assert [one["key"] for one in events if one["message"] == "Delete"] == [{"id": 2}]
        markers = [one for one in found if one["message"] == "COMMIT"]
        assert [one["manifest"]["event_count"] for one in markers] == [3, 1]
        assert {one["commit_lsn"] for one in events} == {one["marker_lsn"] for one in markers}
    finally:
        await gateway.end()
