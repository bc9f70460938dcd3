"""Whatever ends the parent, nothing of a part is left."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.local import Guard, PartFailed
from tests.local.processes import children, runs, until

ROOT = Path(__file__).parents[2]
# A program that leaves a process of another session behind, as a PostgreSQL backend is one.
FAMILY = ["sh", "-c", "setsid sleep 1000 & echo $! >&2; exec sleep 1000"]


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    opened = await Guard.open("test")
    yield opened
    await opened.close()


@asynccontextmanager
async def _parent(source: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """A Python process that says one line of JSON and then waits."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout is not None
    yield parent, json.loads(await parent.stdout.readline())
    await parent.wait()
    await parent.stdout.read()


async def test_the_folder_is_private_and_goes_with_the_guard() -> None:
    guard = await Guard.open("test")
    assert guard.folder.stat().st_mode & 0o777 == 0o700
    child = await guard.start("family", FAMILY)
    await until(lambda: len(children(guard.pid)) == 2)
    family = children(guard.pid)
    await guard.close()
    assert not guard.folder.exists()
    assert [pid for pid in family if runs(pid)] == []
    assert child.exit_code == -signal.SIGKILL


async def test_a_killed_child_takes_what_it_left_behind_with_it(guard: Guard) -> None:
    child = await guard.start("family", FAMILY)
    await until(lambda: len(children(guard.pid)) == 2)
    family = children(guard.pid)
    child.send_signal(signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    assert [pid for pid in family if runs(pid)] == []


async def test_a_name_can_be_started_again_after_it_ended(guard: Guard) -> None:
    await guard.run("once", ["true"])
    await guard.run("once", ["true"])


async def test_a_failing_program_shows_the_end_of_its_log(guard: Guard) -> None:
    with pytest.raises(PartFailed, match=r"broken exited with code 3; its log ends with:\n    a clear reason"):
        await guard.run("broken", ["sh", "-c", "echo a clear reason; exit 3"])


async def test_a_program_that_is_not_there_is_refused(guard: Guard) -> None:
    with pytest.raises(PartFailed, match="missing could not be started"):
        await guard.start("missing", ["/nowhere/at/all"])


async def test_a_start_that_ends_early_is_not_waited_for(guard: Guard) -> None:
    async def never() -> bool:
        return False

    child = await guard.start("early", ["sh", "-c", "echo no port; exit 1"])
    with pytest.raises(PartFailed, match=r"exited with code 1 during startup; its log ends with:\n    no port"):
        await child.ready(never, timeout_s=20)


async def test_a_child_that_ignores_the_signal_is_killed(guard: Guard) -> None:
    child = await guard.start("deaf", ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"])
    await until(lambda: "deaf" in child.log_tail())
    assert await child.stop(signal.SIGTERM, timeout_s=0.1) == -signal.SIGKILL


async def test_children_end_when_the_guard_itself_is_killed() -> None:
    guard = await Guard.open("test")
    child = await guard.start("orphan", ["sleep", "1000"])
    os.kill(guard.pid, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    await until(lambda: not runs(child.pid))
    with pytest.raises(PartFailed, match="its supervisor process has ended"):
        await guard.start("late", ["true"])
    await guard.close()
    shutil.rmtree(guard.folder)


async def test_the_guard_ends_although_a_fork_of_the_killed_parent_holds_its_pipe() -> None:
    source = """
import asyncio, json, os, time
from gateway.local import Guard
async def main():
    guard = await Guard.open("test")
    child = await guard.start("sleeper", ["sleep", "1000"])
    fork = os.fork()
    if not fork:
        time.sleep(1000)
    print(json.dumps({"folder": str(guard.folder), "pids": [guard.pid, child.pid], "fork": fork}), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    async with _parent(source) as (parent, said):
        parent.kill()
        try:
            await until(lambda: not any(map(runs, said["pids"])))
            assert not Path(said["folder"]).exists()
            assert runs(said["fork"])
        finally:
            os.kill(said["fork"], signal.SIGKILL)


async def test_kill_9_of_the_parent_leaves_no_process_no_port_and_no_folder() -> None:
    source = """
import asyncio, json
from gateway.local import LocalParts
async def main():
    async with LocalParts() as parts:
        await (await parts.postgres.connect()).execute("CREATE TABLE t AS SELECT 1")
        print(json.dumps({
            "folders": [str(part._guard.folder) for part in (parts.postgres, parts.kafka, parts.registry)],
            "ports": [parts.postgres.port, parts.kafka.port, parts.registry.port],
        }), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    async with _parent(source) as (parent, said):
        family = children(parent.pid)
        assert len(family) > 8  # three guards, two of Java, a postmaster and its backends
        parent.kill()
    await until(lambda: not any(map(runs, family)))
    assert [folder for folder in said["folders"] if Path(folder).exists()] == []
    for port in said["ports"]:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
