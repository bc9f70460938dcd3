"""What the system says about processes and ports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

TIMEOUT_S = 60.0


def runs(pid: int) -> bool:
    """False for a zombie too: it has ended, and only nobody has asked for its code."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != b"Z"


def children(pid: int) -> list[int]:
    """Pids of the process's children and of theirs."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found += [int(entry.name), *children(int(entry.name))]
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds; TimeoutError after 60 s."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.02)
