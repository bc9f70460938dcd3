"""The Spark mirror as the demo runs it: another program, spoken to by its command line and its lines of JSON."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.demo.verdict import MirrorTable
from gateway.local.guard import Child, Guard
from gateway.local.java import spark_java_home
from gateway.lsn import Lsn

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_PROGRAM = (sys.executable, "-m", "spark_consumer")


@dataclass(slots=True)
class MirrorProgress:
    """Sums over the batches that are written."""

    ready: bool = False
    batches: int = 0
    transactions: int = 0
    changes: int = 0
    commit_lsn: Lsn = field(default_factory=lambda: Lsn(0))


class Mirror:
    """One Spark job that writes every table below `folder`."""

    def __init__(self, guard: Guard, folder: Path) -> None:
        self._guard = guard
        self._child: Child | None = None
        self._read_bytes = 0
        self.folder = folder
        self.progress = MirrorProgress()

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    async def start(self, bootstrap_servers: str, registry_url: str, prefix: str) -> None:
        options = {
            "--bootstrap-servers": bootstrap_servers,
            "--registry": registry_url,
            "--prefix": prefix,
            "--path": str(self.folder),
            "--progress": "json",
        }
        words = [word for pair in options.items() for word in pair]
        self._child = await self._guard.start(
            "mirror", [*_PROGRAM, "mirror", *words], environment=_environment(), end_signal=signal.SIGTERM
        )

    async def ready(self) -> None:
        """Returns when the job reads. Raises `PartFailed` with its last lines."""

        async def has_spoken() -> bool:
            return self.read_progress().ready

        await self.child.ready(has_spoken, START_TIMEOUT_S)

    def read_progress(self) -> MirrorProgress:
        """What the job has said until now, added up."""
        if not self.child.log_path.exists():
            return self.progress
        with self.child.log_path.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_bytes += len(line)
                if line.startswith(b"{"):
                    self._add(json.loads(line))
        return self.progress

    def _add(self, line: dict[str, Any]) -> None:
        self.progress.ready = True
        if "batch" in line:
            self.progress.batches += 1
            self.progress.transactions += line["transactions"]
            self.progress.changes += line["changes"]
            self.progress.commit_lsn = Lsn.parse(line["commit_lsn"])

    async def stop(self) -> None:
        await self.child.stop(signal.SIGTERM, STOP_TIMEOUT_S)

    async def dump(self, tables: Sequence[str]) -> dict[str, MirrorTable]:
        """The rows of the tables as the mirror holds them. Raises `PartFailed` with the program's last lines."""
        raise NotImplementedError


def _environment() -> dict[str, str]:
    return {"JAVA_HOME": str(spark_java_home()), "PYTHONUNBUFFERED": "1"}
