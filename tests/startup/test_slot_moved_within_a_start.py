"""A slot that somebody advances within a start is read from there, and what lies between is
missing without a word.

Story: the start judges the slot and the position, registers schemas, begins its epoch, and then
says START_REPLICATION. The slot is free until then: who advances it in between
(`pg_replication_slot_advance`) was not noticed, for the server takes the older position of the
gateway, and sends from where the slot is. Found by the 200,000 schedules of
tests/startup/test_simulation.py (seed 17790).

Scenario: a failpoint stops the gateway before START_REPLICATION, and the slot is advanced over a
committed row meanwhile.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.support.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


async def test_a_slot_that_is_advanced_during_the_start_is_noticed(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        await scene.streaming()
        await scene.commits()
        await scene.stop()
        scene.gateway.start("before_start_replication:stop")
        async with asyncio.timeout(60):
            while not scene.gateway.is_stopped:
                await asyncio.sleep(0.02)
        await scene.workload.one_transaction("plain", 1)
        await scene.sql("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", f"slot_{topic_prefix}")
        scene.gateway.signal(signal.SIGCONT)
        await scene.gateway.logged("was advanced to")
        await scene.ends("is confirmed up to")
