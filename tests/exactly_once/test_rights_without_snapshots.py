"""A gateway that takes no snapshots needs no rights on what other gateways of the cluster share for
theirs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.local import Registry
from gateway.runtime import bootstrap
from schemas.topic_names import SNAPSHOT_TOPIC
from tests.conftest import Database
from tests.exactly_once.test_check import Place, all_but
from tests.support.gateway_process import GatewayProcess
from tests.support.proxy import ACCOUNT, ProxiedKafka


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_the_topic_of_snapshots_may_be_denied(
    own_database: Database, proxied_kafka: ProxiedKafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    place = Place(own_database, proxied_kafka, registry, topic_prefix)
    sql = await own_database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    with suppress(KafkaException):  # it exists
        options = {"cleanup.policy": "compact"}
        admin = AdminClient({"bootstrap.servers": proxied_kafka.bootstrap_servers})
        admin.create_topics([NewTopic(SNAPSHOT_TOPIC, 1, 1, config=options)])[SNAPSHOT_TOPIC].result(30)
    of_parts = {"source": place.source, "kafka": place.of_kafka, "registry": place.of_registry}
    settings = {f"{part}__{name}": value for part, values in of_parts.items() for name, value in values.items()}
    settings |= {**ACCOUNT, "kafka__bootstrap_servers": proxied_kafka.secured_servers}
    gateway = GatewayProcess(tmp_path / "gateway.log", settings)
    for operation in (AclOperation.DESCRIBE, AclOperation.READ):
        async with all_but(place, SNAPSHOT_TOPIC, operation):
            await gateway.streaming()
            assert not gateway.events("restarting"), gateway.log_tail()
            assert await gateway.stop() == 0


async def test_only_the_states_of_the_own_slot_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is registered for the states of others."""
    asked: list[object] = []

    async def values(*_: Any) -> dict[bytes, bytes]:
        return {b"1/shop/other": b"state"}

    async def existing(topics: list[str]) -> list[str]:
        asked.append(topics)
        return []

    monkeypatch.setattr(bootstrap, "_snapshot_values", values)
    parts: dict[str, Any] = dict.fromkeys(bootstrap.StartResult.__slots__)
    parts |= {
        "position": SimpleNamespace(key=b"1/shop/mine"),
        "topics": SimpleNamespace(missing=existing),
        "_settings": SimpleNamespace(kafka=None),
    }
    await bootstrap.StartResult(**parts).go_without_snapshots()
    assert asked == [[SNAPSHOT_TOPIC]]
