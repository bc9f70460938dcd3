"""`kill -9` at random moments under a mixed load, then at every failpoint: nothing lost, doubled, torn or invented."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.exactly_once.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


async def _kill_at_random(scene: Scene, kills: int, generator: random.Random) -> None:
    """Most kills hit a gateway that streams, some one that starts."""
    for _ in range(kills):
        if generator.random() < 0.8:
            await scene.streaming()
            await asyncio.sleep(generator.uniform(0.0, 1.0))
        else:
            scene.gateway.start()
            await asyncio.sleep(generator.uniform(0.2, 2.0))
        assert scene.gateway.is_running, scene.gateway.log_tail()
        await scene.gateway.kill()


async def test_without_a_fault_everything_arrives_exactly_once(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path, seed=11) as scene:
        await scene.streaming()
        await scene.workload.run_transactions(300)
        verdict = await scene.finish()
        assert verdict.epoch_count == 1
        assert await scene.gateway.stop() == 0
        print(verdict)


async def test_thirty_kills_at_random_lose_double_and_invent_nothing(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path, seed=12) as scene:
        await scene.streaming()
        scene.workload.start()
        await scene.gateway.kill()
        await _kill_at_random(scene, 30, random.Random(12))
        scene.gateway.start()
        verdict = await scene.finish()
        print(f"30 kills: {verdict}")
