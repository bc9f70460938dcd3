"""Of two gateways that start together, the slower one says that WAL was lost.

Story: the documented stand-by is a second gateway with the same settings. A reads its position,
then waits for a slow registry; B takes the slot and moves on; A compares the slot of now with the
position of then: "38068112 bytes of WAL were read by somebody else ... drop the slot", exit code
78.

Scenario: A's registry answers late (a proxy holds its answers back), B starts, delivers, and stops
or goes on.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.proxy import FaultProxy
from tests.support.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize("b_goes_on", [True, False])
async def test_the_slower_of_two_gateways_waits(
    b_goes_on: bool, database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with (
        FaultProxy(registry.port) as slow_registry,
        open_scene(database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene,
    ):
        await scene.streaming()
        await scene.commits()
        await scene.stop()

        slow = GatewayProcess(
            tmp_path / "slow.log",
            scene.gateway.settings | {"registry__url": with_port(registry.url, slow_registry.port)},
        )
        try:
            slow_registry.black_hole("to_client")
            slow.start()
            async with asyncio.timeout(60):
                while not slow_registry.connection_count:
                    await asyncio.sleep(0.02)

            await scene.streaming()
            for _ in range(5):
                await scene.commits(row_count=50)
            if not b_goes_on:
                await scene.stop()
            slow_registry.heal()
            if b_goes_on:
                await slow.logged("is in use by process")
                await scene.commits()
                await scene.stop()
            await slow.logged('"streaming"')
            await scene.commits()
            assert slow.is_running
            await scene.finish()
        finally:
            await slow.end()


def with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.hostname}:{port}"))
