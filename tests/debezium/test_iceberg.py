"""Iceberg's sink reads topics of Debezium's dialect through its own DebeziumTransform: its tables
have the rows of the source."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.debezium.connect import connect_worker
from tests.debezium.iceberg import changes, iceberg_sink, plugin, state
from tests.debezium.scene import PUBLICATION, make_topics
from tests.debezium.test_flink import COLUMNS, WORKLOAD
from tests.debezium.test_server import settings
from tests.support.gateway_process import GatewayProcess

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]

SINK_TIMEOUT_S = 150.0
BY_KEY = "create table by_key (id int8 primary key, note text, price numeric(12,2))"
CHANGES = (
    "insert into by_key select n, 'row ' || n, n / 8.0 from generate_series(1, 100) n",
    "update by_key set note = null where id % 4 = 0",
    "delete from by_key where id % 6 = 0",
    "update by_key set id = id + 1000 where id < 20",
    "insert into by_key (id) values (6)",
)
"""Of a table whose old rows are its keys."""


async def test_the_tables_of_iceberg_have_the_rows_of_the_source(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    columns = ", ".join(f"{name} {type_}" for name, (type_, _, _) in COLUMNS.items())
    await sql.execute(
        f"create table kept ({columns}); alter table kept replica identity full; {BY_KEY};"
        f"create publication {PUBLICATION} for all tables"
    )
    gateway = GatewayProcess(tmp_path / "gateway.log", settings(database, kafka, registry, topic_prefix))
    await gateway.streaming()  # it has made its topics
    control, warehouse = f"{topic_prefix}-control", tmp_path / "warehouse"
    make_topics(kafka.bootstrap_servers, [control])
    topics = [f"{topic_prefix}.public.{table}" for table in ("kept", "by_key")]
    connectors = {f"{topic_prefix}-iceberg": iceberg_sink(kafka, warehouse, control, topics)}
    async with connect_worker(kafka, registry, connectors, plugin()) as worker:
        for statement in (*WORKLOAD, *CHANGES):
            await sql.execute(statement)
        deadline = time.monotonic() + SINK_TIMEOUT_S
        while differing := [*await differences(sql, warehouse, "kept"), *await differences(sql, warehouse, "by_key")]:
            await asyncio.to_thread(worker.raise_failures)
            assert time.monotonic() < deadline, "\n".join(differing)
            await asyncio.sleep(1)
        found = changes(warehouse, "kept")
        assert {row["_cdc"]["op"] for row in found} == {"I", "U", "D"}
        assert {row["_cdc"]["source"] for row in found} == {"public.kept"}
    assert await gateway.stop() == 0, gateway.log_tail()


async def differences(sql: asyncpg.Connection, warehouse: Path, table: str) -> list[str]:
    """Rows that only one of the two has, a few of them."""
    said = ", ".join(said for _, _, said in COLUMNS.values()) if table == "kept" else "*"
    names = list(COLUMNS) if table == "kept" else ["id", "note", "price"]
    rows = await sql.fetch(f"select {said} from {table}")
    expected = {row[0]: dict(zip(names, row, strict=True)) for row in rows}
    found: dict[Any, dict[str, Any]] = state(await asyncio.to_thread(changes, warehouse, table), "id")
    keys = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    return [f"{table}: {expected.get(key)} | {found.get(key)}" for key in keys[:5]]
