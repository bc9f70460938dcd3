"""While Kafka, PostgreSQL or the registry is away: who is named, and is the lag true? Commit times are the oracle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.local import Registry
from gateway.local.ports import free_port
from gateway.operate.health import ask_status, probe
from tests.conftest import Database
from tests.exactly_once.proxy import FaultProxy, ProxiedKafka
from tests.exactly_once.scene import Proxies, Scene, open_scene_behind

NAMED_S = 15.0
TRUE_S = 1.0
"""0.5 s by construction (tests/operate/test_lag.py), and what a busy machine adds to the reading of a clock."""
ALMOST_NOTHING_S = 1.5
"""A busy machine delivers a row a second late; that is no lie."""
WATCHED_S = 6.0


class Watcher:
    """Asks the gateway's port as a dashboard does."""

    def __init__(self, scene: Scene, port: int) -> None:
        self.scene, self.port = scene, port

    async def status(self) -> dict[str, Any]:
        found = await asyncio.to_thread(ask_status, "127.0.0.1", self.port)
        assert found is not None, self.scene.gateway.log_tail()
        return found

    async def until(self, holds: Callable[[dict[str, Any]], bool], what: str, within_s: float = 60.0) -> dict[str, Any]:
        begun = time.monotonic()
        while not holds(found := await self.status()):
            assert time.monotonic() - begun < within_s, f"{what}: {found}"
            await asyncio.sleep(0.2)
        return found

    async def ready(self) -> float:
        """The server's time, when nothing is owed."""
        ready = await self.until(lambda found: found["waiting_for"] == "" and found["lag_seconds"] == 0.0, "ready")
        moment: float = ready["server_time"]
        return moment

    async def clock(self) -> float:
        """The server's."""
        found: float = await self.scene.sql("SELECT extract(epoch FROM clock_timestamp())::float8")
        return found

    async def commit(self) -> None:
        await self.scene.workload.one_transaction("plain", 1)

    async def lag_is_true(self, earliest: float, latest: float) -> None:
        """The oldest commit that is owed came between these; so it is for a while, with more commits meanwhile."""
        begun, worst = time.monotonic(), 0.0
        while time.monotonic() - begun < WATCHED_S:
            before = await self.clock()
            lag = (await self.status())["lag_seconds"]
            after = await self.clock()
            worst = max(worst, before - latest - lag, lag - (after - earliest))
            await self.commit()
            await asyncio.sleep(0.2)
        print(f"lag was off by {worst:.3f} s at most")
        assert worst <= TRUE_S

    async def readyz_names(self, *words: str) -> None:
        begun, said = time.monotonic(), ""
        while not all(word in said for word in words):
            assert time.monotonic() - begun < NAMED_S, f"/readyz: {said!r}"
            await asyncio.sleep(0.2)
            said = await asyncio.to_thread(probe, "127.0.0.1", self.port)
        print(f"named after {time.monotonic() - begun:.1f} s: {said}")


async def _outage(watcher: Watcher, proxy: FaultProxy, words: tuple[str, ...]) -> None:
    earliest = await watcher.ready()
    await proxy.refuse()
    await watcher.commit()
    latest = await watcher.clock()
    naming = asyncio.create_task(watcher.readyz_names(*words))
    await watcher.lag_is_true(earliest, latest)
    await naming
    found = await watcher.status()
    assert found["state"] == "waiting" and found["waiting_since"] is not None
    await proxy.accept()
    await watcher.ready()


async def _registry_outage(watcher: Watcher, proxy: FaultProxy) -> None:
    await proxy.refuse()
    found = await watcher.until(lambda seen: seen["parts"][2]["up"] is False, "the registry is down", NAMED_S)
    assert found["parts"][2]["name"] == "registry" and found["parts"][2]["error"] and found["waiting_for"] == ""
    await watcher.commit()
    await watcher.until(lambda seen: seen["lag_seconds"] < ALMOST_NOTHING_S, "known schemas go on")
    await proxy.accept()
    await watcher.until(lambda seen: seen["parts"][2]["up"] is True, "the registry is up")


async def test_who_is_away_is_named_and_the_lag_stays_true(
    own_database: Database,
    postgres_proxy: FaultProxy,
    proxied_kafka: ProxiedKafka,
    registry: Registry,
    registry_proxy: FaultProxy,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    port = free_port()
    proxies = Proxies(postgres_proxy, proxied_kafka, registry_proxy)
    async with open_scene_behind(proxies, own_database, registry, topic_prefix, tmp_path, http__port=port) as scene:
        await scene.streaming()
        watcher = Watcher(scene, port)
        await _outage(watcher, proxied_kafka.proxy, ("Kafka", "127.0.0.1"))
        await _outage(watcher, postgres_proxy, ("PostgreSQL", "127.0.0.1"))
        await _registry_outage(watcher, registry_proxy)
        await scene.finish()
