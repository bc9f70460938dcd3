"""`source.excluded_tables`: tables of tools get no topic and are not read; a table that had one is
marked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient

from gateway.local import Kafka, Registry
from gateway.local.ports import free_port
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess, ended, environment_of
from tests.support.topics import Topics

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

_SETUP = """
    CREATE TABLE orders (id int PRIMARY KEY, v text);
    CREATE TABLE audit (id int PRIMARY KEY, v text);
    INSERT INTO orders SELECT g, 'old' FROM generate_series(1, 50) AS g;
    INSERT INTO audit VALUES (1, 'old');
    CREATE SCHEMA repack;
    CREATE TABLE repack.before (id int PRIMARY KEY);
    INSERT INTO repack.before SELECT g FROM generate_series(1, 50) AS g;
    CREATE SCHEMA _timescaledb_internal;
    CREATE TABLE _timescaledb_internal._hyper_1_1_chunk (id int PRIMARY KEY);
    CREATE PUBLICATION walgate FOR ALL TABLES
"""
_REBUILD = """
    CREATE TABLE repack.table_7 AS SELECT * FROM orders;
    ALTER TABLE repack.table_7 ADD PRIMARY KEY (id);
    UPDATE repack.table_7 SET v = 'copy';
    UPDATE orders SET v = 'new' WHERE id = 1;
"""
_RENAMED = "ALTER TABLE repack.before SET SCHEMA public; INSERT INTO public.before VALUES (1000)"


def _last(values: list[tuple[Any, Any]]) -> list[Any]:
    return [value["after"]["id"] for _, value in values if value["op"] != "READ"]


async def test_tables_of_tools_are_counted_and_not_written(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    sql = await database.connect()
    await sql.execute(_SETUP)
    port = free_port()
    settings: dict[str, object] = {
        "source__dsn": database.dsn,
        "source__slot": topic_prefix,
        "source__check_interval_s": 0.5,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": topic_prefix,
        "kafka__partitions": 1,
        "registry__url": registry.url,
        "snapshot__mode": "initial",
        "http__port": port,
    }
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    topics = Topics(kafka.bootstrap_servers, registry.url)
    checked = await ended(("check",), environment_of(settings))
    assert (
        "2 published tables left out by source.excluded_tables: _timescaledb_internal._hyper_1_1_chunk, repack.before"
        in (checked.stdout)
    ), checked.stdout
    assert "all rows of hypertables" in checked.stdout
    await gateway.streaming()
    await gateway.logged('"snapshot_done"')
    await sql.execute(_REBUILD)
    ofa = f"{topic_prefix}.public.orders"
    values = await asyncio.to_thread(topics.read, ofa, "read_committed", lambda seen: seen[-1]["op"] == "UPDATE")
    assert [value["op"] for _, value in values] == ["READ"] * 50 + ["UPDATE"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    own = {
        name.removeprefix(f"{topic_prefix}.") for name in admin.list_topics(timeout=30).topics if topic_prefix in name
    }
    assert {name for name in own if "." in name} == {"public.orders", "public.audit"}
    (told,) = gateway.events("table_left_out")
    assert (told["table"], told["pattern"]) == ("repack.table_7", "repack.*")
    metrics = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())
    assert "walgate_left_out_events_total 100.0" in metrics
    refused = await ended(("snapshot", "start", "repack.before"), environment_of(settings))
    assert refused.returncode == 78 and "left out by source.excluded_tables: repack.before" in refused.stderr
    # A table that comes out of the schema is read like any new one, and sent.
    await sql.execute(_RENAMED)
    renamed = f"{topic_prefix}.public.before"
    values = await asyncio.to_thread(topics.read, renamed, "read_committed", lambda seen: len(seen) >= 52)
    assert {value["after"]["id"] for _, value in values} == {*range(1, 51), 1000}
    assert await gateway.stop() == 0
    # One that readers have copies of is named by the manifest from then on.
    await gateway.streaming(source__excluded_tables="audit, repack.*, _timescaledb_internal.*")
    await sql.execute("INSERT INTO audit VALUES (2, 'unsent'); INSERT INTO orders VALUES (100, 'sent')")
    values = await asyncio.to_thread(topics.read, ofa, "read_committed", lambda seen: seen[-1]["op"] == "INSERT")
    markers = await asyncio.to_thread(topics.read, f"{topic_prefix}.transaction")
    manifests = [marker["manifest"] for _, marker in markers if marker["manifest"] is not None]
    (excluded,) = [table for manifest in manifests for table in manifest["excluded"]]
    assert (excluded["name"], excluded["event_count"]) == ("audit", 1)
    assert await gateway.stop() == 0
    # Without the pattern it is read again, as a replacement of what readers have.
    await gateway.streaming()
    values = await asyncio.to_thread(
        topics.read, f"{topic_prefix}.public.audit", "read_committed", lambda seen: len(seen) >= 3
    )
    assert [(value["op"], value["after"]["v"]) for _, value in values] == [
        ("READ", "old"),
        ("READ", "old"),
        ("READ", "unsent"),
    ]
    assert await gateway.stop() == 0
