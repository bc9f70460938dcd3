"""Three brokers, three copies of everything: a broker that hangs costs seconds, not minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.local import Registry
from tests.conftest import Database
from tests.support.clusters import Cluster, cluster
from tests.support.scene import Scene, open_scene
from tests.support.slots import until_confirmed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LONGEST_GAP_S = 20.0
LONGER_START_S = 10.0


@pytest_asyncio.fixture
async def three() -> AsyncIterator[Cluster]:
    """With Kafka's own time-outs: a broker is given up after nine seconds."""
    async with cluster() as made:
        yield made


async def confirmed(scene: Scene) -> float:
    """One more transaction; the seconds until PostgreSQL knows that it is in Kafka. The checker's
    clients have their own trouble with a broker that hangs."""
    await scene.workload.one_transaction("plain", 1)
    begun = time.monotonic()
    await until_confirmed(scene.connection, f"slot_{scene.prefix}")
    return time.monotonic() - begun


@pytest.mark.long
async def test_a_broker_that_hangs_is_given_up_as_soon_as_the_cluster_gives_it_up(
    three: Cluster, database: Database, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Each of the three once, under load: leader of rows, of markers, coordinator of transactions,
    active controller."""
    gaps, starts = [], []
    async with open_scene(
        database,
        three.bootstrap_servers,
        registry.url,
        topic_prefix,
        tmp_path,
        kafka__replication_factor=3,
    ) as scene:
        begun = time.monotonic()
        await scene.streaming()
        await confirmed(scene)
        await scene.stop()
        begun = time.monotonic()
        await scene.streaming()
        usual_s = time.monotonic() - begun
        scene.workload.start()
        for broker in three.brokers:
            await scene.workload.run_transactions(5)
            roles = [
                name
                for name, topic in (("markers", f"{topic_prefix}.transaction"), ("coordinator", "__transaction_state"))
                if await asyncio.to_thread(three.leader, topic) is broker
            ]
            broker.freeze()
            gaps.append(await confirmed(scene))
            print(
                f"broker {broker.number} ({', '.join(roles) or 'rows'}) hangs: {gaps[-1]:.1f} s without a confirmed row"
            )
            await scene.stop()
            begun = time.monotonic()
            await scene.streaming()
            await confirmed(scene)
            starts.append(time.monotonic() - begun)
            print(f"a start while it hangs takes {starts[-1]:.1f} s, without {usual_s:.1f} s")
            broker.thaw()
            await three.in_sync(topic_prefix)
        print(await scene.finish(timeout_s=120))
    assert max(gaps) < LONGEST_GAP_S
    assert max(starts) < usual_s + LONGER_START_S
