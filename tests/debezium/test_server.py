"""Debezium Server and Walgate on one database and one workload: schemas and records compared, field
by field."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, LocalParts, Postgres, Registry
from tests.conftest import Database
from tests.debezium import workload
from tests.debezium.comparison import differences
from tests.debezium.encoded import Record
from tests.debezium.recorded import renamed
from tests.debezium.scene import PUBLICATION, Reader, is_the_end, make_topics, prepare, topics
from tests.debezium.server import debezium_server
from tests.support.gateway_process import GatewayProcess

pytestmark = pytest.mark.integration

SETTINGS = {
    "debezium.source.provide.transaction.metadata": "true",
    "debezium.source.skipped.operations": "none",
}


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_debezium_server_and_walgate_write_the_same(
    postgres: Postgres, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    parts = LocalParts(postgres=postgres, kafka=kafka, registry=registry)
    sql = await database.connect()
    await prepare(sql)
    slot, ours, theirs = f"{topic_prefix}_d", topic_prefix, f"{topic_prefix}d"
    await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    gateway = GatewayProcess(tmp_path / "gateway.log", settings(database, kafka, registry, ours))
    await gateway.streaming()  # it has made its topics
    for statement in workload.STATEMENTS:
        await sql.execute(statement)
    our_reader = Reader(kafka.bootstrap_servers, registry.url, await topics(sql, ours))
    our_records = await our_reader.until(is_the_end)
    assert await gateway.stop() == 0, gateway.log_tail()
    wanted = await topics(sql, theirs)
    make_topics(kafka.bootstrap_servers, wanted)
    reader = Reader(kafka.bootstrap_servers, registry.url, wanted)
    async with debezium_server(parts, sql, slot, theirs, PUBLICATION, SETTINGS) as server:
        their_records = await reader.until(is_the_end, server.child)
    left = [_renamed(record, theirs) for record in their_records]
    right = [_renamed(record, ours) for record in our_records]
    assert differences(left, right, of_one_run=True) == []
    assert len(right) > 200


def settings(database: Database, kafka: Kafka, registry: Registry, prefix: str) -> dict[str, str]:
    """Of a gateway in Debezium's dialect that writes all that there is."""
    return {
        "source__dsn": database.dsn,
        "source__slot": prefix,
        "source__publications": PUBLICATION,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "kafka__dialect": "debezium",
        "kafka__partitions": "1",
        "registry__url": registry.url,
        "debezium__provide_transaction_metadata": "true",
        "debezium__skipped_operations": "none",
        "snapshot__mode": "never",
    }


def _renamed(record: Record, prefix: str) -> Record:
    value = record.value
    if value is not None and "source" in value:
        value["source"]["name"] = "name"
    return Record(
        renamed(record.topic, prefix), record.key, value,
        renamed(record.key_schema, prefix), renamed(record.value_schema, prefix),
    )  # fmt: skip
