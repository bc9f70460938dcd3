"""What happens to the process itself, and to its idea of time."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.exactly_once.shapes import Session
from tests.support.gateway_process import OPTIONS
from tests.support.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

JUMPING = """
import random, sys, time
true_time = time.time
time.time = lambda: true_time() + random.choice((-86_400, -1, 0, 0, 1800))
from gateway.cli.main import main
sys.argv[0] = "walgate"
main()
"""


async def test_a_clock_that_jumps_changes_nothing(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """G10: a day back, half an hour ahead, at each look. A broker refuses records from more than an
    hour ahead."""
    async with open_scene(
        database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path, pause_s=0.1
    ) as scene:
        scene.gateway.command = (sys.executable, "-c", JUMPING, *OPTIONS)
        await scene.streaming()
        await scene.workload.run_transactions(20)
        await scene.gateway.kill()
        await scene.streaming()
        await scene.workload.run_transactions(10)
        verdict = await scene.finish()
        assert verdict.epoch_count == 2
        assert await scene.gateway.stop() == 0


async def test_without_file_descriptors_the_gateway_says_so_and_waits(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """G12."""
    async with open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        await scene.streaming()
        await scene.commits()
        soft, hard = resource.prlimit(scene.gateway.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(scene.gateway.pid, resource.RLIMIT_NOFILE, (3, hard))
        await scene.end_the_walsender()
        await scene.gateway.logged("Too many open files", times=2)
        assert scene.gateway.is_running
        resource.prlimit(scene.gateway.pid, resource.RLIMIT_NOFILE, (soft, hard))
        await scene.commits()
        await scene.finish()


async def test_an_old_open_transaction_is_delivered_at_its_end(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """T4: it stays open while others end, while the slot is confirmed far behind its beginning, and
    over restarts."""
    async with open_scene(
        database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path, pause_s=0.1
    ) as scene:
        await scene.streaming()
        flush = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = $1"
        old = Session(await database.connect(), scene.workload_random)
        await old.begin("old")
        await old.insert("plain", 3)
        begun_at = await scene.sql("SELECT pg_current_wal_insert_lsn() - '0/0'")
        for _ in range(2):
            await old.insert("full", 700)
            await scene.workload.run_transactions(10)
            await scene.delivered(await scene.workload.finish())
            assert await scene.stop() == 0
            assert await scene.sql(flush, f"slot_{topic_prefix}") > begun_at
            await scene.streaming()
        await old.insert("plain", 1)
        await old.end()
        await old.connection.close()
        await scene.delivered(old.xid)
        verdict = await scene.finish()
        assert verdict.epoch_count == 3
