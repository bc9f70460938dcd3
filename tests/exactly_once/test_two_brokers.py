"""Two brokers, each partition on both: leaders move under load, and replicas are too few for a
while."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.support.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

_SETTINGS: dict[str, str | int] = {
    "default.replication.factor": 2,
    "transaction.state.log.replication.factor": 2,
    "offsets.topic.replication.factor": 2,
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
}


class SecondBroker(Kafka):
    """Of the cluster of `first`, which is also the controller."""

    def __init__(self, first: Kafka) -> None:
        super().__init__(settings={**_SETTINGS, "process.roles": "broker", "node.id": 2}, heap_mb=384)
        self._first = first

    def _lay_out(self, folder: Path) -> None:
        super()._lay_out(folder)
        first = self._first.log_path.parent
        voters = re.search(r"^controller.quorum.voters=.*$", (first / "server.properties").read_text(), re.M)
        cluster = re.search(r"^cluster.id=.*$", (first / "data" / "meta.properties").read_text(), re.M)
        assert voters and cluster
        for path, pattern, replacement in (
            (folder / "server.properties", r"^controller.quorum.voters=.*$", voters[0]),
            (folder / "server.properties", r"^(listeners=PLAINTEXT.*),CONTROLLER.*$", r"\1"),
            (folder / "data" / "meta.properties", r"^cluster.id=.*$", cluster[0]),
            (folder / "data" / "meta.properties", r"^node.id=.*$", "node.id=2"),
        ):
            path.write_text(re.sub(pattern, replacement, path.read_text(), flags=re.M))


@pytest_asyncio.fixture
async def brokers() -> AsyncIterator[tuple[Kafka, SecondBroker]]:
    async with Kafka(settings=_SETTINGS, heap_mb=384) as first, SecondBroker(first) as second:
        yield first, second


def leaders(admin: AdminClient, prefix: str) -> set[int]:
    """Of all partitions below the prefix."""
    topics = admin.list_topics(timeout=30).topics
    return {
        partition.leader
        for name, topic in topics.items()
        if name.startswith(f"{prefix}.")
        for partition in topic.partitions.values()
    }


def in_sync(admin: AdminClient, prefix: str) -> int:
    """The least number of replicas in sync of any partition below the prefix."""
    topics = admin.list_topics(timeout=30).topics
    return min(
        len(partition.isrs)
        for name, topic in topics.items()
        if name.startswith(f"{prefix}.")
        for partition in topic.partitions.values()
    )


@pytest.mark.long
async def test_leaders_that_move_and_replicas_that_are_too_few_cost_only_time(
    brokers: tuple[Kafka, SecondBroker], database: Database, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """K2: a broker that leads dies under load. K9: with min.insync.replicas = 2 nothing is
    acknowledged until it is back."""
    first, second = brokers
    admin = AdminClient({"bootstrap.servers": first.bootstrap_servers, "log_level": 0})
    async with open_scene(
        database,
        first.bootstrap_servers,
        registry.url,
        topic_prefix,
        tmp_path,
        kafka__replication_factor=2,
        kafka__delivery_timeout_s=10,
        kafka__request_timeout_s=5,
    ) as scene:
        await scene.streaming()
        assert await asyncio.to_thread(leaders, admin, topic_prefix) == {1, 2}
        scene.workload.start()
        await scene.workload.run_transactions(20)
        await second.kill()
        seconds = await scene.commits()
        assert await asyncio.to_thread(leaders, admin, topic_prefix) == {1}
        print(f"first new transaction readable {seconds:.1f} s after a leader died")

        await second.start()
        while await asyncio.to_thread(in_sync, admin, topic_prefix) < 2:
            await asyncio.sleep(0.2)
        entry = ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, f"{topic_prefix}.work.plain", incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)
        await second.kill()
        while await asyncio.to_thread(in_sync, admin, topic_prefix) > 1:
            await asyncio.sleep(0.2)
        xid = await scene.workload.one_transaction("plain", 10)
        await scene.gateway.logged("NotEnoughReplicas", timeout_s=60)
        await second.start()
        await scene.delivered(xid)
        print(await scene.finish())
