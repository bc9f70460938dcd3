"""What stock clients find in the topics of one gateway, and the commands that an operator gives
beside it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from schemas.topic_names import POSITION_TOPIC
from tests.support.gateway_process import GatewayProcess, ended, variables_of
from tests.support.markers import COMMITTING
from tests.support.topics import Topics


class Written:
    """What is in Kafka."""

    def __init__(self, topics: Topics, prefix: str) -> None:
        self._topics = topics
        self._prefix = prefix

    async def _read(self, topic: str, key_part: bytes = b"") -> list[Any]:
        found = await asyncio.to_thread(self._topics.read, topic, until=None, key_part=key_part)
        return [value for _, value in found]

    async def _ends(self) -> list[Any]:
        """Markers that end a committed transaction."""
        markers = await self._read(f"{self._prefix}.transaction")
        return [marker for marker in markers if marker["kind"] in COMMITTING]

    async def ids(self, table: str) -> set[int]:
        """Of the committed transactions."""
        rows = await self._read(f"{self._prefix}.public.{table}")
        committed = {(marker["xid"], marker["manifest"]["epoch"]) for marker in await self._ends()}
        return {row["after"]["id"] for row in rows if (row["xid"], row["epoch"]) in committed}

    async def has(self, table: str, ids: set[int]) -> None:
        """Exactly these, in the end."""
        deadline = time.monotonic() + 90
        while (found := await self.ids(table)) != ids:
            assert time.monotonic() < deadline, f"{table}: {sorted(found ^ ids)[:20]}"
            await asyncio.sleep(0.2)

    async def markers(self, kind: str) -> list[Any]:
        return [marker for marker in await self._read(f"{self._prefix}.transaction") if marker["kind"] == kind]

    async def excluded(self, table: str) -> int:
        """Changes of the table that the manifests of committed transactions name."""
        return sum(
            entry["event_count"]
            for marker in await self._ends()
            for entry in marker["manifest"]["excluded"]
            if (entry["schema"], entry["name"]) == ("public", table)
        )

    async def commit_lsns(self) -> list[int]:
        """In the order of the marker topic."""
        return [marker["marker_lsn"] for marker in await self._ends()]

    async def position(self) -> Any:
        positions = await self._read(POSITION_TOPIC, self._prefix.encode())  # part of the slot's name
        return [each for each in positions if each["prefix"] == self._prefix][-1]


async def checked(gateway: GatewayProcess, code: int, **settings: object) -> str:
    """What `walgate check` prints, which ends with `code`."""
    done = await command({**gateway.settings, **settings}, "check")
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


async def walgate(gateway: GatewayProcess, *arguments: str, code: int = 0) -> str:
    """The command with the gateway's settings, which ends with `code`; what it prints, or the
    error."""
    done = await command(gateway.settings, *arguments)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


async def command(
    settings: Mapping[str, object], *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    """`walgate` with these settings."""
    return await ended(arguments, {"PATH": os.environ["PATH"], **environment, **variables_of(settings)})
