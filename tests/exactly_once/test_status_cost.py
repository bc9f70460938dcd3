"""What it costs to be watched in every way: CPU and memory of a gateway that writes heartbeats and
is asked for metrics, status and page each second or two, against one that is not."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from bench.watching import HEARTBEAT_S, watching
from gateway.local import Kafka, Registry
from gateway.local.ports import free_port
from tests.conftest import Database
from tests.support.scene import Scene, open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.long]
WATCHED_S = 30.0
LARGEST_SHARE = 0.01
"""Of one core."""
LARGEST_BYTES = 12 << 20


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def use(scene: Scene, *, watched: bool) -> tuple[float, int]:
    """CPU seconds of WATCHED_S with nothing to do but be asked, and resident bytes at their end."""
    port = free_port()
    if watched:
        await scene.streaming(http__port=port, source__heartbeat_interval_s=HEARTBEAT_S)
    else:
        await scene.streaming()
    await scene.commits()
    async with watching(port) if watched else nullcontext():
        await asyncio.sleep(5.0)  # what is done once: imports, connections
        begun = cpu_s(scene.gateway.pid)
        await asyncio.sleep(WATCHED_S)
        used = cpu_s(scene.gateway.pid) - begun, scene.gateway.resident_bytes
    await scene.stop()
    return used


async def test_the_status_costs_little(
    own_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with open_scene(own_database, kafka.bootstrap_servers, registry.url, topic_prefix, tmp_path) as scene:
        without, with_status = await use(scene, watched=False), await use(scene, watched=True)
    share = (with_status[0] - without[0]) / WATCHED_S
    more_bytes = with_status[1] - without[1]
    print(f"{100 * share:.2f} % of a core, {more_bytes / (1 << 20):.1f} MB")
    assert share < LARGEST_SHARE and more_bytes < LARGEST_BYTES
