"""Gateways that are killed at once, each with its own database, slot, topics, load and checker: one
alone mostly waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Database
from tests.support.scene import Scene, open_scene

LANE_COUNT = 2


@dataclass(frozen=True)
class Lane:
    number: int
    database: Database
    bootstrap_servers: str
    registry_url: str
    prefix: str
    folder: Path

    def scene(self, **settings: Any) -> AbstractAsyncContextManager[Scene]:
        """`settings`: those of open_scene."""
        return open_scene(
            self.database, self.bootstrap_servers, self.registry_url, self.prefix, self.folder, **settings
        )


async def in_each(lanes: Iterable[Lane], run: Callable[[Lane], Awaitable[None]]) -> None:
    """All at once; raises the errors of all."""

    async def one(lane: Lane) -> None:
        await run(lane)

    async with asyncio.TaskGroup() as tasks:
        for lane in lanes:
            tasks.create_task(one(lane))
