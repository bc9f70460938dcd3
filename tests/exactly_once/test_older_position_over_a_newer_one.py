"""With at_least_once, a gateway that was stopped for a while writes its older position over
the newer one.

Story: without Kafka transactions nothing fenced the first gateway. Stopped (SIGSTOP) until a second
one has taken the slot, and continued, it goes on where it was and writes its position: the newest
record of the slot is then older than what PostgreSQL was told, and the next start finds "WAL that
was read by another process".

Scenario: exactly that; the position topic must never go back, and the next start goes on.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def test_a_gateway_that_comes_back_does_not_move_the_position_back(
    own_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    servers = kafka.bootstrap_servers
    async with open_scene(
        own_database, servers, registry.url, topic_prefix, tmp_path, kafka__delivery="at_least_once"
    ) as scene:
        first = scene.gateway
        second = GatewayProcess(tmp_path / "second.log", first.settings)
        await scene.streaming("markers_sent:stop:10")
        try:
            async with asyncio.timeout(60):
                while not first.is_stopped:  # with a position that is about to leave
                    await scene.workload.one_transaction("plain", 3)
            second.start()
            await second.logged('"streaming"', timeout_s=120)
            for _ in range(3):
                await scene.delivered(await scene.workload.one_transaction("plain", 1))
            first.signal(signal.SIGCONT)
            await first.logged("is in use by process", timeout_s=120)

            assert await second.stop() == 0
            await first.logged('"streaming"', times=2, timeout_s=120)
            await scene.commits()
            assert await first.stop() == 0
            moved = [record.value["resume_lsn"] for record in (await scene.read()).positions]
            assert moved == sorted(moved)
        finally:
            first.signal(signal.SIGCONT)
            await second.end()
