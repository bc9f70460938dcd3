"""What runs by default: a gateway, a mirror and a changelog that are given nothing but addresses.

tests/defaults.md names the test of each default; tests/test_defaults.py holds that list.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from gateway.local import Kafka, Registry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.jobs.cli import app
from spark_consumer.jobs.options import SparkChoice
from spark_consumer.jvm import cloned
from tests.conftest import Database
from tests.debezium.scene import Reader, is_the_end
from tests.support.gateway_process import COMMAND, GatewayProcess
from tests.support.topics import Topics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, note text);
CREATE TABLE rewritten (id int PRIMARY KEY);
INSERT INTO t SELECT n, 'before' FROM generate_series(1, 1000) n;
INSERT INTO rewritten VALUES (1), (2);
CREATE SCHEMA squeeze;
CREATE TABLE squeeze.log (id int PRIMARY KEY);
CREATE PUBLICATION walgate FOR ALL TABLES;
"""
OF_EVERY_KIND = """
CREATE EXTENSION hstore;
CREATE TABLE t (id int PRIMARY KEY, price numeric, at timestamp, span interval, raw bytea, pairs hstore, place pg_lsn,
    large text, note text);
ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
CREATE PUBLICATION walgate FOR ALL TABLES;
"""


@asynccontextmanager
async def gateway_of_defaults(
    database: Database, kafka: Kafka, registry: Registry, prefix: str, folder: Path, **chosen: str
) -> AsyncIterator[GatewayProcess]:
    """The prefix has to be another one, because tests share the broker."""
    addresses = {
        "source__dsn": database.dsn,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "registry__url": registry.url,
    }
    gateway = GatewayProcess(folder / "gateway.log", addresses | chosen, defaults={})
    assert set(gateway.environment()) - set(os.environ) == {f"WALGATE_{name.upper()}" for name in (*addresses, *chosen)}
    try:
        await gateway.streaming()
        yield gateway
    finally:
        await gateway.end()


async def test_what_runs_when_only_addresses_are_given(
    spark: SparkSession, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    await sql.execute(TABLES)
    topics = Topics(kafka.bootstrap_servers, registry.url)
    servers = ("--bootstrap-servers", kafka.bootstrap_servers, "--registry", registry.url, "--prefix", topic_prefix)
    async with gateway_of_defaults(database, kafka, registry, topic_prefix, tmp_path) as gateway:
        async with mirror_of_defaults(servers, tmp_path / "mirror") as says:
            await gateway.logged('"snapshot_done"')
            await commit_of_every_kind(sql)
            await gateway.logged('"snapshot_done"', times=2)  # of the table that was rewritten
            await sql.execute("INSERT INTO t VALUES (-1, 'the end')")
            last_lsn = await lsn_of_the_end(topics, topic_prefix)
            await says(f"up to {last_lsn} ")
        await is_delivered(topics, topic_prefix)
        await incompatible_change_stops(sql, gateway)
    truth = sorted((row["id"], row["note"]) for row in await sql.fetch("SELECT id::int, note FROM t WHERE id <> '-2'"))
    await asyncio.to_thread(is_mirrored, spark, tmp_path / "mirror", truth)
    changes = tmp_path / "changes"
    await asyncio.to_thread(run_with, spark, "consume", *servers, "--path", str(changes), "--once")
    rows = [
        row for file in changes.glob("tables/public/t/batch=*/*.parquet") for row in pq.read_table(file).to_pylist()
    ]
    assert sum(row["op"] == "READ" for row in rows) == 1000
    assert sum(row["op"] == "INSERT" for row in rows) == 3001


async def commit_of_every_kind(sql: asyncpg.Connection) -> None:
    """A large transaction, a logical decoding message, rows of an excluded table, and a table whose
    rows change without events."""
    await sql.execute("INSERT INTO t SELECT n, 'streamed' FROM generate_series(1001, 4000) n")
    await sql.execute("SELECT pg_logical_emit_message(true, 'any', 'message')")
    await sql.execute("INSERT INTO squeeze.log VALUES (1)")
    await sql.execute("ALTER TABLE rewritten ALTER id TYPE bigint USING id + 10")
    await sql.execute("INSERT INTO rewritten VALUES (3)")


async def lsn_of_the_end(topics: Topics, prefix: str) -> str:
    records = await asyncio.to_thread(
        topics.read, f"{prefix}.public.t", until=lambda values: any(_is_end(value) for value in values)
    )
    (lsn,) = [value["commit_lsn"] for _, value in records if _is_end(value)]
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def _is_end(value: Any) -> bool:
    return value["after"] is not None and value["after"]["note"] == "the end"


async def is_delivered(topics: Topics, prefix: str) -> None:
    markers = [value for _, value in await asyncio.to_thread(topics.read, f"{prefix}.transaction")]
    assert {"STREAM_COMMIT", "COMMIT", "SNAPSHOT_END"} <= {marker["kind"] for marker in markers}
    (message,) = await asyncio.to_thread(topics.read, f"{prefix}.message")
    assert message[1]["content"] == b"message"
    rewritten = [value for _, value in await asyncio.to_thread(topics.read, f"{prefix}.public.rewritten")]
    assert {value["after"]["id"] for value in rewritten if value["op"] == "READ"} >= {1, 2, 11, 12}
    assert await asyncio.to_thread(topics.read, f"{prefix}.squeeze.log", until=lambda _: True) == []


async def incompatible_change_stops(sql: asyncpg.Connection, gateway: GatewayProcess) -> None:
    await sql.execute("ALTER TABLE t ALTER id TYPE text")
    await sql.execute("INSERT INTO t VALUES ('-2', 'after')")
    assert await gateway.wait() == 78
    assert "schemas.on_incompatible" in gateway.last_words()


@asynccontextmanager
async def mirror_of_defaults(servers: tuple[str, ...], path: Path) -> AsyncIterator[Callable[[str], Any]]:
    """`walgate mirror` until it is stopped. Yields a function that waits until the output contains a
    text."""
    output = path.with_suffix(".txt")
    environment = {**os.environ, "JAVA_HOME": str(spark_java_home())}
    environment["WALGATE_SPARK_JARS"] = ",".join(map(str, jars("delta")))
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(COMMAND[0], "mirror", *servers, "--path", str(path)),
            env=environment, start_new_session=True, stdout=file, stderr=file,
        )  # fmt: skip

    async def says(text: str) -> None:
        async with asyncio.timeout(300):
            while text not in output.read_text():
                assert process.returncode is None, output.read_text()
                await asyncio.sleep(0.1)

    try:
        yield says
        process.terminate()
        assert await process.wait() == 0, output.read_text()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def run_with(spark: SparkSession, *words: str) -> str:
    """Run a job's command in this process, and return its output."""
    session = cloned(spark)
    session.stop = lambda: None  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SparkChoice, "session", lambda *_, **__: session)
        patched.setattr(signal, "signal", lambda *_: None)  # this is not the main thread
        done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def is_mirrored(spark: SparkSession, path: Path, truth: list[tuple[int, str]]) -> None:
    assert "all changes up to" in run_with(spark, "merge", "--path", str(path))
    assert len(run_with(spark, "versions", "--mirror", str(path)).splitlines()) >= 1
    table, rows = "", []
    for line in map(json.loads, run_with(spark, "dump", "--mirror", str(path)).splitlines()):
        if isinstance(line, dict):
            table = line["table"]
        elif table == "public.t":
            rows.append((int(line[0]), line[1]))
    assert len(truth) == 4001
    assert sorted(rows) == truth


async def test_records_in_debeziums_format_are_debeziums_by_default(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The values are those that Debezium's documentation gives for its connector's defaults."""
    sql = await database.connect()
    await sql.execute(OF_EVERY_KIND)
    async with gateway_of_defaults(
        database, kafka, registry, topic_prefix, tmp_path, kafka__dialect="debezium"
    ) as gateway:
        await gateway.logged('"snapshot_done"')
        await sql.execute(
            "INSERT INTO t VALUES (1, 1.25, '2026-01-02 03:04:05.000006', '1 day', '\\x0102', 'a=>1', '0/1', "
            "repeat('x', 5000), 'first'); INSERT INTO t (id, price) VALUES (2, 'NaN')"
        )
        await sql.execute("UPDATE t SET note = 'second' WHERE id = 1; DELETE FROM t WHERE id = 2; TRUNCATE t")
        await sql.execute("INSERT INTO t (id, note) VALUES (3, 'the end')")
        reader = Reader(kafka.bootstrap_servers, registry.url, [f"{topic_prefix}.public.t"], partitions=3)
        records = await reader.until(is_the_end)
        assert gateway.is_running, gateway.log_tail()
    first, second, *_ = (record for record in records if record.key == {"id": 1})
    assert first.value is not None and second.value is not None
    assert first.value["op"] == "c" and first.value["transaction"] is None
    after = dict(first.value["after"])
    assert after["price"]["scale"] == 2 and int.from_bytes(after["price"]["value"], "big") == 125
    micros = 1_767_323_045_000_006
    expected = {"id": 1, "at": micros, "span": 86_400_000_000, "raw": b"\x01\x02", "pairs": '{"a":"1"}'}
    assert {name: after[name] for name in expected} == expected
    assert "place" not in after, "a type that Debezium does not support"
    assert second.value["after"]["large"] == "__debezium_unavailable_value"
    assert [record.value and record.value["op"] for record in records if record.key == {"id": 2}] == ["c", "d", None]
    assert (
        next(record.value["after"]["price"] for record in records if record.key == {"id": 2} and record.value) is None
    )
    assert {record.value["op"] for record in records if record.value} == {"c", "u", "d"}
    chosen = {"kafka__dialect": "debezium", "debezium__format": "json", "source__slot": f"{topic_prefix}_json"}
    (tmp_path / "json").mkdir()
    async with gateway_of_defaults(database, kafka, registry, chosen["source__slot"], tmp_path / "json", **chosen):
        await sql.execute("INSERT INTO t (id, note) VALUES (4, 'the end')")
        reader = Reader(kafka.bootstrap_servers, registry.url, [f"{topic_prefix}_json.public.t"], partitions=3)
        last = next(filter(is_the_end, await reader.until(is_the_end)))
    assert (last.key_schema["type"], last.value_schema["type"]) == ("struct", "struct")
