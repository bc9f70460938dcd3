"""Rows and logical messages of up to 900 MB, in the stream and in a snapshot: the gateway's peak of
memory, and what becomes of the rest.

The ordinary run sends 100 MB, which is above the frame that is held (64 MB) and would show in the
peak all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_consumer.reader.transactions import TransactionReader
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.topics import Topics

NewGateway = Callable[..., GatewayProcess]
PEAK_LIMIT_BYTES = 250 << 20
SIZES = [100_000_000, pytest.param(900_000_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
TABLE = "CREATE TABLE t (id int PRIMARY KEY, content {}); CREATE PUBLICATION walgate FOR ALL TABLES"


class Peak:
    """The kernel's own high-water mark of the resident set (proc(5), VmHWM), as long as the process
    is there."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._path = Path(f"/proc/{gateway.pid}/status")
        self.bytes = 0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            lines = self._path.read_text().splitlines() if self._path.exists() else []
            for line in lines:
                if line.startswith("VmHWM:"):
                    self.bytes = int(line.split()[1]) << 10
            await asyncio.sleep(0.02)

    def end(self, what: str) -> None:
        self._task.cancel()
        print(f"{what}: peak {self.bytes >> 20} MB")
        assert 0 < self.bytes < PEAK_LIMIT_BYTES, f"{what}: peak {self.bytes >> 20} MB"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("compression", ["lz4", pytest.param("none", marks=pytest.mark.long)])
async def test_a_huge_message_is_left_out_with_a_trace_and_the_rest_goes_on(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str, size: int, compression: str
) -> None:
    sql = await database.connect()
    await sql.execute(TABLE.format("bytea"))
    gateway = new_gateway(kafka__compression=compression)
    await gateway.streaming()
    peak = Peak(gateway)
    await sql.execute("SELECT pg_logical_emit_message(false, 'outside', repeat('x', $1))", size, timeout=600)
    async with sql.transaction():
        await sql.execute("INSERT INTO t VALUES (1)")
        await sql.execute("SELECT pg_logical_emit_message(true, 'inside', repeat('x', $1))", size, timeout=600)
        await sql.execute("SELECT pg_logical_emit_message(true, 'inside', 'small')")
    async with sql.transaction():
        await sql.execute("SELECT pg_logical_emit_message(true, 'alone', repeat('x', $1))", size, timeout=600)
    await sql.execute("INSERT INTO t VALUES (2)")
    ends = [
        value
        for _, value in await asyncio.to_thread(
            topics.read, f"{topic_prefix}.transaction", until=lambda found: _ends(found) >= 3
        )
        if value["kind"].endswith("COMMIT")
    ]
    peak.end(f"messages of {size} bytes, compression {compression}")
    assert [[entry["name"] for entry in end["manifest"]["excluded"]] for end in ends] == [["inside"], ["alone"], []]
    assert [end["manifest"]["event_count"] for end in ends] == [2, 0, 1]
    excluded = ends[0]["manifest"]["excluded"][0]
    assert (excluded["relation_oid"], excluded["topic"], excluded["event_count"]) == (0, f"{topic_prefix}.message", 1)
    assert await _read_whole(topics, topic_prefix, 3) == [["public.t", None], [], ["public.t"]]
    messages = [value for _, value in await asyncio.to_thread(topics.read, f"{topic_prefix}.message")]
    assert [message["content"] for message in messages] == [b"small"]
    rows = [value for _, value in await asyncio.to_thread(topics.read, f"{topic_prefix}.public.t")]
    assert sorted(row["after"]["id"] for row in rows) == [1, 2]
    assert {row["epoch"] for row in rows} == {1}
    told = [(entry["prefix"], entry["message_bytes"] > size) for entry in gateway.events("message_excluded")]
    assert told == [("outside", True), ("inside", True), ("alone", True)]
    await sql.close()


async def _read_whole(topics: Topics, prefix: str, count: int) -> list[list[str | None]]:
    """The tables of the changes of each of so many transactions, None for a message, by the reader
    that proves them whole."""
    found: list[list[str | None]] = []
    async with TransactionReader(topics.bootstrap_servers, topics.registry_url, prefix=prefix) as transactions:
        async for transaction in transactions:
            found.append([str(change.table) if change.table else None async for change in transaction.changes()])
            if len(found) == count:
                break
    return found


def _ends(values: list[dict[str, str]]) -> int:
    return sum(value["kind"].endswith("COMMIT") for value in values)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("form", "column", "content"),
    [
        ("bytea in binary", "bytea", "convert_to(repeat('x', $1::int), 'UTF8')"),
        ("bytea in text", "bytea", "convert_to(repeat('x', $1::int / 2), 'UTF8')"),
        pytest.param("text", "text", "repeat('x', $1::int)", marks=pytest.mark.long),
    ],
)
async def test_a_huge_row_stops_with_its_table_and_is_not_held(
    database: Database,
    new_gateway: NewGateway,
    topics: Topics,
    topic_prefix: str,
    size: int,
    form: str,
    column: str,
    content: str,
) -> None:
    sql = await database.connect()
    await sql.execute(TABLE.format(column))
    gateway = new_gateway(source__binary="on" if form == "bytea in binary" else "off")
    await gateway.streaming()
    peak = Peak(gateway)
    await sql.execute("INSERT INTO t VALUES (1, 'small')")
    await sql.execute(f"INSERT INTO t SELECT 2, {content}", size, timeout=600)
    assert await gateway.wait(600) == 78
    peak.end(f"a row of {size} bytes, {form}")
    assert "a row of public.t (key: id) comes in a message of" in gateway.log_tail()
    assert "kafka.max_record_bytes" in gateway.log_tail() and str(size)[:2] in gateway.log_tail()
    rows = [value for _, value in await asyncio.to_thread(topics.read, f"{topic_prefix}.public.t")]
    assert {row["after"]["id"] for row in rows if row["commit_lsn"] is not None} == {1}
    await sql.close()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("on_error", ["stop", "quarantine"])
async def test_a_huge_row_that_exists_is_not_held_by_a_snapshot(
    database: Database,
    new_gateway: NewGateway,
    topics: Topics,
    topic_prefix: str,
    size: int,
    on_error: str,
) -> None:
    sql = await database.connect()
    await sql.execute(TABLE.format("bytea"))
    await sql.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    await sql.execute("INSERT INTO t VALUES (1, 'small')")
    await sql.execute("INSERT INTO t SELECT 2, convert_to(repeat('x', $1::int), 'UTF8')", size, timeout=600)
    gateway = new_gateway(snapshot__mode="initial", errors__on_error=on_error)
    gateway.start()
    peak = Peak(gateway)
    if on_error == "stop":
        assert await gateway.wait(600) == 78
    else:
        await gateway.logged('"snapshot_done"', timeout_s=600)
    peak.end(f"an existing row of {size} bytes, {on_error}")
    log = gateway.log()
    assert "a row of public.t (key: id) comes in a message of" in log and "(snapshot of public.t)" in log
    assert "kafka.max_record_bytes" in log and str(size)[:2] in log
    if on_error == "quarantine":
        assert "public.t is in quarantine" in log
        rows = [value for _, value in await asyncio.to_thread(topics.read, f"{topic_prefix}.public.other")]
        assert [row["after"]["id"] for row in rows] == [1]
    await sql.close()
