"""A Debezium Server that is stopped, or killed, under load and replaced: every row once, in the
same topics."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.local import Kafka, LocalParts, Postgres, Registry
from tests.conftest import Database
from tests.debezium.scene import PUBLICATION, Reader, make_topics
from tests.debezium.server import debezium_server
from tests.debezium.test_server import settings
from tests.support.gateway_process import GatewayProcess

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(600)]

ROWS = 7
"""Of a transaction, so that the connector stops within one."""
UPDATED = 10


@pytest.mark.parametrize(("number", "partitions"), [(signal.SIGTERM, 1), (signal.SIGKILL, 1), (signal.SIGKILL, 3)])
async def test_a_connector_that_is_stopped_under_load_is_replaced_without_gap_or_double(
    postgres: Postgres,
    database: Database,
    kafka: Kafka,
    registry: Registry,
    topic_prefix: str,
    tmp_path: Path,
    number: signal.Signals,
    partitions: int,
) -> None:
    """One that is killed stored its offset long before; of its last batch, records may come again
    where partitions lack some."""
    parts = LocalParts(postgres=postgres, kafka=kafka, registry=registry)
    sql = await database.connect()
    await sql.execute(
        "create table t (id int8 generated always as identity primary key, note text, touched int4 not null default 0);"
        f"create publication {PUBLICATION} for all tables"
    )
    await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", topic_prefix)
    topic, offsets = f"{topic_prefix}.public.t", tmp_path / "offsets.dat"
    make_topics(kafka.bootstrap_servers, [topic], partitions)
    load = Load(await database.connect())

    async def has_written(is_last: Callable[[dict[str, Any]], bool]) -> None:
        reader = Reader(kafka.bootstrap_servers, registry.url, [topic], partitions)
        await reader.reaches(lambda record: record.value is not None and is_last(record.value["after"]))

    is_killed = number == signal.SIGKILL
    seldom = {"debezium.source.offset.flush.interval.ms": "8000"} if is_killed else {}
    async with debezium_server(parts, sql, topic_prefix, topic_prefix, PUBLICATION, seldom) as server:
        task = asyncio.create_task(load.run())
        await has_written(lambda _: load.count > 500 and (server.offsets.exists() or not is_killed))
        first = await sql.fetchval("select max(id) from t")
        await has_written(lambda row: row["id"] > first + 100)
        await server.stop(number)
        shutil.copyfile(server.offsets, offsets)
    gateway = GatewayProcess(tmp_path / "gateway.log", settings(database, kafka, registry, topic_prefix))
    gateway.command = (gateway.command[0], "adopt", "--from-debezium", str(offsets))
    gateway.start()
    assert await gateway.wait() == 0, gateway.log_tail()
    assert f"slot {topic_prefix}: resumes at" in gateway.log()
    gateway.command = (gateway.command[0], "run", "--log-format", "json")
    await gateway.streaming()
    load.goes_on = False
    await task
    last = await sql.fetchval("insert into t (note) values ('the end') returning id")
    reader = Reader(kafka.bootstrap_servers, registry.url, [topic], partitions)
    records = await reader.until(lambda record: record.value is not None and record.value["after"]["id"] == last)
    assert await gateway.stop() == 0, gateway.log_tail()
    seen = [(r.value["op"], r.value["after"]["id"], r.value["after"]["touched"]) for r in records if r.value]
    beyond = re.search(r"records_beyond_offset +count=(\d+).* written_again=(\d+)", gateway.log())
    if is_killed:
        assert beyond is not None and int(beyond[1]) > 0, "the connector was not killed behind its offset"
    again = int(beyond[2]) if beyond is not None and partitions > 1 else 0
    assert len(seen) - len(set(seen)) <= again, "an event came twice"
    state = {key: touched for _, key, touched in seen}
    assert state == dict(await sql.fetch("select id, touched from t"))
    assert len(set(seen)) == load.count + 1, "an event is missing"
    versions = {r.value["source"]["version"] for r in records if r.value}
    assert len(versions) == 2, "both have written"


class Load:
    """Transactions of inserts and updates until `goes_on` is false; `count` of committed
    changes."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self._sql = sql
        self.goes_on = True
        self.count = 0

    async def run(self) -> None:
        while self.goes_on:
            async with self._sql.transaction():
                await self._sql.execute("insert into t (note) select 'x' from generate_series(1, $1)", ROWS)
                updated = await self._sql.execute(
                    "update t set touched = touched + 1 where id > (select max(id) from t) - $1", UPDATED
                )
            self.count += ROWS + int(updated.split()[1])
            await asyncio.sleep(0.05)  # a load that the tests' reader can follow
