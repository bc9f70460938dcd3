"""A cluster of three brokers on this computer, each also a controller, as in small clusters."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from gateway.local import Kafka
from gateway.local.kafka import QUICK_START
from gateway.local.ports import HOST

BROKER_COUNT = 3
_SETTINGS: dict[str, str | int] = {
    "default.replication.factor": BROKER_COUNT,
    "min.insync.replicas": 2,
    "transaction.state.log.replication.factor": BROKER_COUNT,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.replication.factor": BROKER_COUNT,
}


class ClusterBroker(Kafka):
    """A broker of the cluster. `peers` are all its brokers, including this one; the first
    determines the cluster id."""

    def __init__(self, number: int, settings: Mapping[str, str | int], peers: list[ClusterBroker]) -> None:
        super().__init__(settings={**_SETTINGS, **settings, "node.id": number}, heap_mb=320, jvm_options=[QUICK_START])
        self.number = number
        self.cluster_id = ""
        self._peers = peers

    @property
    def voter(self) -> str:
        return f"{self.number}@{HOST}:{self.controller_port}"

    def _lay_out(self, folder: Path) -> None:
        super()._lay_out(folder)
        properties, meta = folder / "server.properties", folder / "data" / "meta.properties"
        if not self._peers[0].cluster_id:
            found = re.search(r"^cluster.id=(.*)$", meta.read_text(), re.M)
            assert found
            self._peers[0].cluster_id = found[1]
        voters = ",".join(peer.voter for peer in self._peers)
        for path, name, value in (
            (properties, "controller.quorum.voters", voters),
            (meta, "cluster.id", self._peers[0].cluster_id),
            (meta, "node.id", str(self.number)),
        ):
            path.write_text(re.sub(rf"^{name}=.*$", f"{name}={value}", path.read_text(), flags=re.M))

    def freeze(self) -> None:
        """Send SIGSTOP: the broker then accepts connections, but does not answer."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)


class Cluster:
    def __init__(self, brokers: list[ClusterBroker]) -> None:
        self.brokers = brokers
        self.bootstrap_servers = ",".join(broker.bootstrap_servers for broker in brokers)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def leader(self, topic: str, partition: int = 0) -> ClusterBroker:
        found = self.admin().list_topics(topic, timeout=30).topics[topic].partitions[partition].leader
        return self.brokers[found - 1]

    async def in_sync(self, prefix: str, count: int = BROKER_COUNT, timeout_s: float = 120) -> None:
        """Wait until every broker knows that each partition below the prefix, and each of the
        cluster's own partitions, has `count` replicas in sync."""
        async with asyncio.timeout(timeout_s):
            for broker in self.brokers:
                while await asyncio.to_thread(_least_in_sync, broker.bootstrap_servers, prefix) < count:
                    await asyncio.sleep(0.3)


def _least_in_sync(bootstrap_servers: str, prefix: str) -> int:
    """Return the least number of in-sync replicas, as known to this broker, which may be behind the
    others."""
    found = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0}).list_topics(timeout=30)
    if len(found.brokers) < BROKER_COUNT:
        return 0
    return min(
        len(partition.isrs)
        for name, topic in found.topics.items()
        if name.startswith((f"{prefix}.", "__transaction", "walgate."))
        for partition in topic.partitions.values()
    )


@asynccontextmanager
async def cluster(
    settings: Mapping[str, str | int] | None = None, kind: type[ClusterBroker] = ClusterBroker
) -> AsyncIterator[Cluster]:
    """Run three brokers that form a cluster."""
    brokers: list[ClusterBroker] = []
    brokers += [kind(number, settings or {}, brokers) for number in range(1, BROKER_COUNT + 1)]
    made = Cluster(brokers)
    try:
        await asyncio.gather(*(broker.start() for broker in brokers))
        async with asyncio.timeout(90):
            while len((await asyncio.to_thread(made.admin().list_topics, timeout=30)).brokers) < BROKER_COUNT:
                await asyncio.sleep(0.2)
        yield made
    finally:
        for broker in brokers:
            broker.thaw()
        await asyncio.gather(*(broker.close() for broker in brokers))
