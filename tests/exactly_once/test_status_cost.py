"""What the status costs: CPU and memory of a gateway with it, against one without."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from urllib.request import urlopen

import pytest

from gateway.local import Kafka, Registry
from gateway.local.ports import free_port
from tests.conftest import Database
from tests.exactly_once.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.long]
WATCHED_S = 30.0
SCRAPE_S = 5.0
LARGEST_SHARE = 0.03
"""Of one core; 0.01 on a machine that is not busy."""
LARGEST_BYTES = 12 << 20


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def use(scene: Scene, port: int | None) -> tuple[float, int]:
    """CPU seconds of WATCHED_S with nothing to do but be asked, and resident bytes at their end."""
    if port is not None:
        scene.gateway.settings["http__port"] = port
    await scene.streaming()
    await scene.commits()
    await asyncio.sleep(3.0)
    begun = cpu_s(scene.gateway.pid)
    for _ in range(int(WATCHED_S / SCRAPE_S)):
        await asyncio.sleep(SCRAPE_S)
        if port is not None:
            for path in ("metrics", "readyz", "status"):
                await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/{path}").read())  # noqa: B023
    used = cpu_s(scene.gateway.pid) - begun, scene.gateway.resident_bytes
    await scene.stop()
    return used


async def test_the_status_costs_little(
    own_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    port = free_port()
    async with open_scene(own_database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        without, with_status = await use(scene, None), await use(scene, port)
    share = (with_status[0] - without[0]) / WATCHED_S
    more_bytes = with_status[1] - without[1]
    print(f"{100 * share:.2f} % of a core, {more_bytes / (1 << 20):.1f} MB")
    assert share < LARGEST_SHARE and more_bytes < LARGEST_BYTES
