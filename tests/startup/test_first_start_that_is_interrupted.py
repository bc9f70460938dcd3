"""A first start that is killed within its first Kafka transaction can never be repeated.

Story: the intent to create the slot is a Kafka transaction, which also names the marker topic's
partition. Killed before its commit, the next start aborts it; the abort leaves a control record in
the marker topic, whose end offset is then 1. The gateway took that for a use: "prefix was used
before, but no position is known", at every later start, though nothing was ever delivered.

Scenario: the gateway is killed at each step of its first Kafka transaction, which each next start
begins anew, and starts again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.support.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def test_a_first_start_that_is_killed_in_its_first_transaction_is_repeated(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        for failpoint in ("transaction_begun", "markers_sent", "position_sent", "before_commit"):
            scene.gateway.start(f"{failpoint}:kill")
            assert await scene.gateway.wait() < 0, f"{failpoint}: {scene.gateway.log_tail()}"
        await scene.streaming()
        await scene.commits()
        await scene.finish()
