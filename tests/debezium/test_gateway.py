"""A gateway in Debezium's dialect: what a reader by key makes of its topics, over kills; and what
is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from gateway.local import Kafka
from gateway.local import Registry as LocalRegistry
from spark_consumer.errors import OptionError
from spark_consumer.reader.registry import Registry
from spark_consumer.reader.topics import refuse_debezium
from tests.conftest import Database
from tests.debezium.encoded import Record
from tests.debezium.scene import Reader, is_the_end
from tests.support.gateway_process import GatewayProcess
from tests.support.written import command, walgate

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("format_", ["avro", pytest.param("json", marks=pytest.mark.long)])
async def test_a_reader_by_key_has_the_table_after_kills(
    database: Database, kafka: Kafka, registry: LocalRegistry, topic_prefix: str, tmp_path: Path, format_: str
) -> None:
    sql = await database.connect()
    await sql.execute("create table t (id int primary key, note text); create publication walgate for all tables")
    settings = {
        "source__dsn": database.dsn,
        "source__slot": topic_prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": topic_prefix,
        "kafka__dialect": "debezium",
        "debezium__compacted_topics": "true",
        "debezium__format": format_,
        "registry__url": registry.url,
    }
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    await gateway.streaming()
    for turn in range(2):
        first = turn * 100
        await sql.execute(f"insert into t select n, 'new' from generate_series({first}, {first + 99}) n")
        await sql.execute(f"update t set note = 'changed' where id >= {first} and id % 3 = 0")
        await sql.execute(f"update t set id = id + 1000 where id >= {first} and id < 1000 and id % 7 = 0")
        await sql.execute(f"delete from t where id >= {first} and id % 5 = 0")
        await gateway.kill()
        await gateway.streaming()
    await sql.execute("insert into t values (-1, 'the end')")
    assert await asyncio.to_thread(cleanup_policy, kafka, f"{topic_prefix}.public.t") == "compact"
    reader = Reader(kafka.bootstrap_servers, registry.url, [f"{topic_prefix}.public.t"], partitions=3)
    records = await reader.until(is_the_end)
    assert _state(records) == dict(await sql.fetch("select id, note from t"))
    places = [(r.value["source"]["lsn"], r.value["op"]) for r in records if r.value is not None]
    assert len(set(places)) == len(places), "an event came twice"
    assert await gateway.stop() == 0, gateway.log_tail()
    if format_ == "avro":
        await _is_shown(gateway, records)
    with pytest.raises(OptionError, match="Debezium's record format"):
        refuse_debezium(Registry({"url": registry.url}), topic_prefix)
    del gateway.settings["debezium__compacted_topics"], gateway.settings["debezium__format"]
    other = {**gateway.settings, "kafka__dialect": "walgate"}
    checked = await command(other, "check")
    assert checked.returncode == 78 and "written with kafka.dialect = debezium" in checked.stdout
    gateway.start(kafka__dialect="walgate")
    assert await gateway.wait() == 78
    assert "written with kafka.dialect = debezium" in gateway.log()


async def _is_shown(gateway: GatewayProcess, records: list[Record]) -> None:
    """By `walgate tail`, under the names that its option --op takes."""
    updates = [record.value for record in records if record.value is not None and record.value["op"] == "u"]
    limit = ("--op", "update", "--limit", str(len(updates)))
    lines = await walgate(gateway, "tail", "--topics", "--from-beginning", "--json", *limit)
    shown = [json.loads(line) for line in lines.splitlines()]
    assert {one["message"] for one in shown} == {"Update"}
    assert sorted(one["after"]["id"] for one in shown) == sorted(value["after"]["id"] for value in updates)
    assert not any("in_progress" in one for one in shown)


def cleanup_policy(kafka: Kafka, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return str(found.result()["cleanup.policy"].value)


def _state(records: list[Record]) -> dict[int, str]:
    """What is left of each key after compaction."""
    state: dict[int, str] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            del state[record.key["id"]]
        elif record.value["after"] is not None:
            state[record.key["id"]] = record.value["after"]["note"]
    return state
