"""Keys of a connector that the gateway would write otherwise are refused before it takes over."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.debezium.key_checks import check_keys
from gateway.debezium.registrar import DebeziumRelations
from gateway.errors import StopForOperator
from gateway.local import Registry
from gateway.runtime.source_catalog import SourceCatalog
from schemas.registry_client import RegistryClient
from schemas.topic_names import debezium_topic, key_subject, value_subject
from tests.conftest import Database
from tests.debezium.scene import PUBLICATION

pytestmark = pytest.mark.integration

ID = {"name": "id", "type": "int"}
TEXT = {"name": "id", "type": "string"}


def record(topic: str, name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "namespace": topic,
        "fields": list(fields),
        "connect.name": f"{topic}.{name}",
    }


@pytest.mark.parametrize(
    ("columns", "of_connector", "difference"),
    [
        ("id int primary key", [ID], None),
        ("id int, primary key (id) include (n)", [ID], None),
        (
            "id int primary key",
            [{"name": "n", "type": "int"}],
            r'fields: \["n"\] in the connector.* \["id"\] in the gateway',
        ),
        ("id numeric(9, 2) primary key", [TEXT], 'field id: {"name": "id", "type": "string"} in the connector'),
        ("id int primary key", None, "the connector wrote no key in Avro"),
        ("id int", [ID], "the gateway would write no key"),
        ("id int primary key deferrable", [ID], "the gateway would write no key"),
        ("id int primary key deferrable, unique (id)", [ID], None),
        ("id int", None, None),
    ],
)
@pytest.mark.parametrize("identity", ["default", "full"])
async def test_a_key_that_would_change_is_refused(
    database: Database,
    registry: Registry,
    topic_prefix: str,
    columns: str,
    of_connector: list[dict[str, Any]] | None,
    difference: str | None,
    identity: str,
) -> None:
    """A deferrable key does not count: two rows may have it within a transaction."""
    sql = await database.connect()
    await sql.execute(f"create table t (n int, {columns}); alter table t replica identity {identity}")
    await sql.execute(f"create table new (id int primary key); create publication {PUBLICATION} for all tables")
    settings = Settings.model_validate(
        {
            "source": {"dsn": database.dsn, "slot": topic_prefix, "publications": [PUBLICATION]},
            "kafka": {"bootstrap_servers": "127.0.0.1:1", "prefix": topic_prefix, "dialect": "debezium"},
            "registry": {"url": registry.url},
        }
    )
    catalog = SourceCatalog(sql, settings, lambda: 1, set())
    await catalog.look()
    described = {
        debezium_topic(topic_prefix, each.namespace, each.name): each for each in await catalog.describe_relations()
    }
    topic, client = debezium_topic(topic_prefix, "public", "t"), RegistryClient(registry.url)
    await client.register(value_subject(topic), record(topic, "Envelope"))
    if of_connector is not None:
        await client.register(key_subject(topic), record(topic, "Key", *of_connector))
    relations = DebeziumRelations(sql, None, settings.debezium, set())
    try:
        if difference is None:
            await check_keys(client, relations, described, may_change=False)
        else:
            with pytest.raises(StopForOperator, match=rf"{topic} \({difference}"):
                await check_keys(client, relations, described, may_change=False)
            await check_keys(client, relations, described, may_change=True)
    finally:
        await client.close()
