"""A mirror as the gateway's status shows it: a real one, beside a real gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.local import Kafka, Registry
from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from gateway.local.ports import free_port
from tests.conftest import Database
from tests.spark_consumer.feeder import words_of
from tests.support.scene import Scene, open_scene
from tests.support.watching import NAMED_S, TRUE_S, Watcher, status_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.long]
REACHED_S = 240.0
BETWEEN_NOTES_S = 0.5
"""The gateway notes commits five times a second."""


@asynccontextmanager
async def a_mirror(scene: Scene, path: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """In a process group of its own."""
    jar_paths = ",".join(map(str, jars("delta")))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "spark_consumer", "mirror", *words_of(scene), "--path", str(path)),
        *("--http", f"127.0.0.1:{port}", "--cores", "1"),
        env={**os.environ, "JAVA_HOME": str(spark_java_home()), "WALGATE_SPARK_JARS": jar_paths},
        start_new_session=True,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def the_mirror(found: dict[str, Any]) -> dict[str, Any]:
    (mirror,) = found["mirrors"]
    assert isinstance(mirror, dict)
    return mirror


async def test_a_mirror_is_shown_with_what_it_has_and_how_far_it_is_behind(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    port, mirror_port = free_port(), free_port()
    async with open_scene(
        database,
        kafka.bootstrap_servers,
        registry.url,
        topic_prefix,
        tmp_path,
        http__port=port,
        http__mirrors=f"http://127.0.0.1:{mirror_port}",
        source__heartbeat_interval_s=1.0,  # commits that no mirror hears of
    ) as scene:
        await scene.streaming()
        watcher = Watcher(scene, port)
        await watcher.commit()
        found = await watcher.until(lambda seen: the_mirror(seen)["up"] is False, "no mirror yet", NAMED_S)
        async with a_mirror(scene, tmp_path / "mirror", mirror_port):
            found = await watcher.until(lambda seen: the_mirror(seen)["commit_lsn"] > 0, "it has something", REACHED_S)
            await watcher.commit()
            before = the_mirror(found)["commit_lsn"]
            last = await watcher.until(lambda seen: _is_written(seen, before), "all is written", REACHED_S)
            assert the_mirror(last)["commit_lsn"] <= last["last_commit_lsn"] and the_mirror(last)["commit_time"]
        earliest = await watcher.clock()
        await watcher.commit()
        latest = await watcher.clock()
        begun = time.monotonic()
        found = await watcher.until(lambda seen: the_mirror(seen)["up"] is False, "the mirror has ended", NAMED_S)
        print(f"named after {time.monotonic() - begun:.1f} s: {the_mirror(found)['error']}")
        found = await watcher.until(lambda seen: the_mirror(seen)["lag_seconds"] > 0, "it falls behind", NAMED_S)
        now = found["server_time"]
        lag = the_mirror(found)["lag_seconds"]
        assert now - latest - TRUE_S <= lag + BETWEEN_NOTES_S and lag <= now - earliest + TRUE_S
        _, text = await status_of(scene)
        assert "HAS NOT ANSWERED" in text and "behind Kafka" in text
        assert await scene.stop() == 0
        _, text = await status_of(scene)  # by itself
        assert f"http://127.0.0.1:{mirror_port}: HAS NOT ANSWERED" in text


def _is_written(seen: dict[str, Any], before: int) -> bool:
    mirror = the_mirror(seen)
    return mirror["state"] == "running" and mirror["lag_seconds"] == 0.0 and int(mirror["commit_lsn"]) > before
