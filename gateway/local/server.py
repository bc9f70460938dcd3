"""Base class of the three servers: a private folder that a guard owns, and one process in it."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from gateway.local.guard import Child, Guard


class Server(ABC):
    """A server that may be stopped and started again with the same data, until it is closed."""

    def __init__(self) -> None:
        self._guard: Guard | None = None
        self._process: Child | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the process (PostgreSQL's postmaster); None if it does not run."""
        return self._process.pid if self._process is not None and self._process.exit_code is None else None

    @property
    def folder(self) -> Path:
        """Folder of the data and logs."""
        assert self._guard is not None, "not started"
        return self._guard.folder

    @abstractmethod
    async def start(self) -> None:
        """Start the server, unless it runs, and wait until it answers. The first start creates the
        data; later ones keep it. Raises `PartFailed` with the log's tail."""

    async def _stop(self, number: signal.Signals, timeout_s: float) -> None:
        if self._process is not None:
            await self._process.stop(number, timeout_s)

    async def kill(self) -> None:
        """Kill the server and all its children with SIGKILL, and keep its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def close(self) -> None:
        """Stop the server and remove its folder."""
        if self._guard is not None:
            await self._guard.close()
            self._guard = self._process = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
