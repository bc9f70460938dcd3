"""`walgate demo`: local servers, a live shop, the gateway, the mirror and a verdict on one screen.

This module starts and ends the servers; `story.py` has what happens in between. However the demo
ends (normally, or by a failure, Ctrl-C or kill -9), its processes end and its folders are removed,
because they belong to guards (gateway/local/guard.py).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import asyncpg

from gateway.demo.panel import Panel
from gateway.demo.story import STEPS as STORY_STEPS
from gateway.demo.story import Addresses, Story, StoryOptions
from gateway.errors import WalgateError
from gateway.local.artifacts import fetch_sets, unpacked
from gateway.local.guard import Guard
from gateway.local.java import java_version
from gateway.local.kafka import Kafka
from gateway.local.postgres import Postgres
from gateway.local.registry import Registry

DEFAULT_SECONDS = 30.0
DEFAULT_SEED = 1
_DATABASE = "shop"
_STEPS = ("Java", "PostgreSQL", "Kafka", "Schema registry", *STORY_STEPS)
# So low that the shop's larger transactions are streamed, and high enough that small ones are not.
_POSTGRES_SETTINGS = {"logical_decoding_work_mem": "256kB"}
_EXIT_FAILURE = 1


def run_demo(
    *,
    seconds: float = DEFAULT_SECONDS,
    seed: int = DEFAULT_SEED,
    keep: bool = False,
    kill_gateway: bool = False,
) -> int:
    """Run the demo and return the exit code: 0 if every table is equal, 1 if not or on a failure,
    130 after Ctrl-C.

    The last line on standard output is one JSON object, except after Ctrl-C.
    """
    started_at = time.monotonic()
    facts: dict[str, Any] = {"equal": False}
    try:
        with asyncio.Runner() as runner:
            runner.run(_demo(StoryOptions(seconds, seed, kill_gateway), facts, keep=keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; nothing is left behind", flush=True)
        return 128 + signal.SIGINT
    except (WalgateError, TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        print(f"walgate demo: {error or type(error).__name__}")
        facts |= {"equal": False, "error": _in_one_line(error)}
    print(json.dumps(facts | {"seconds_in_all": round(time.monotonic() - started_at, 1)}), flush=True)
    return 0 if facts["equal"] else _EXIT_FAILURE


def _in_one_line(error: BaseException) -> str:
    """Return the first and the last line: what failed, and the end of its log."""
    lines = (str(error) or type(error).__name__).splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1].strip()}"


async def _demo(options: StoryOptions, facts: dict[str, Any], *, keep: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    fetched_at = time.monotonic()
    await asyncio.to_thread(_fetch)
    async with AsyncExitStack() as stack:
        guard = await Guard.open("demo")
        stack.push_async_callback(guard.close)
        if keep:
            stack.push_async_callback(_keep, guard.folder, facts)
        ending = "kept at the end" if keep else "removed at the end"
        panel = stack.enter_context(Panel(f"walgate demo   {guard.folder}   {ending}; Ctrl-C stops it", _STEPS))
        with panel.step("Java") as step:
            step.started_at = fetched_at
            step.detail = f"{await asyncio.to_thread(java_version)}; downloads complete and verified"
        postgres = Postgres(settings=_POSTGRES_SETTINGS, databases=(_DATABASE,))
        kafka, registry = Kafka(), Registry()
        for part in (postgres, kafka, registry):
            stack.push_async_callback(part.close)
        await _start_parts(panel, postgres, kafka, registry)
        addresses = Addresses(postgres.database_dsn(_DATABASE), kafka.bootstrap_servers, registry.url)
        await Story(options, panel, guard, addresses).tell(facts)
        facts["versions"] = {
            "walgate": package_version("walgate"),
            "postgresql": postgres.server_version,
            "kafka": kafka.version,
            "apicurio": registry.version,
        }


def _fetch() -> None:
    """Download the artifacts. This must precede the panel, because a download draws a bar of its
    own."""
    fetch_sets("kafka", "delta")
    unpacked("registry")


async def _start_parts(panel: Panel, postgres: Postgres, kafka: Kafka, registry: Registry) -> None:
    """Start all three servers concurrently. Raises the first failure."""

    async def start(name: str, starting: Coroutine[Any, Any, None], detail: Callable[[], str]) -> None:
        with panel.step(name) as step:
            await starting
            step.detail = detail()

    try:
        async with asyncio.TaskGroup() as group:
            for one in (
                start("PostgreSQL", postgres.start(), lambda: f"{postgres.server_version} on port {postgres.port}"),
                start("Kafka", kafka.start(), lambda: f"{kafka.version} on port {kafka.port}"),
                start(
                    "Schema registry", registry.start(), lambda: f"Apicurio {registry.version} on port {registry.port}"
                ),
            ):
                group.create_task(one)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _keep(folder: Path, facts: dict[str, Any]) -> None:
    """Copy the mirror's tables and the logs out of the guard's folder, which is about to be
    removed."""
    kept = Path(tempfile.mkdtemp(prefix="walgate-demo-kept-"))
    await asyncio.to_thread(shutil.copytree, folder, kept, dirs_exist_ok=True)
    facts["kept"] = str(kept)
