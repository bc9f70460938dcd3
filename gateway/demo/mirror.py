"""The demo's Spark mirror: a separate program, with which the demo communicates by its command line
and the lines of JSON that it prints."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.demo.verdict import MirrorTable
from gateway.local.guard import Child, Guard
from gateway.local.spark import spark_environment
from schemas.lsn import Lsn

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
DUMP_TIMEOUT_S = 180.0
MERGE_EVERY_S = 10
"""Seconds between merges; fewer than usual, because the tables are compared at the end."""
_PROGRAM = (sys.executable, "-P", "-m", "spark_consumer")


@dataclass(slots=True)
class MirrorProgress:
    """Sums over the batches that the job has written."""

    ready: bool = False
    batches: int = 0
    transactions: int = 0
    changes: int = 0
    commit_lsn: Lsn = field(default_factory=lambda: Lsn(0))
    merged_lsn: Lsn = field(default_factory=lambda: Lsn(0))


class Mirror:
    """A Spark job that writes every table below `folder`."""

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
            "--merge-every": str(MERGE_EVERY_S),
        }
        words = [word for pair in options.items() for word in pair]
        self._child = await self._guard.start("mirror", [*_PROGRAM, "mirror", *words], environment=self._environment())

    def _environment(self) -> dict[str, str]:
        """Return variables that put all temporary files of Spark and its workers below the guard's
        folder, which is removed at the end."""
        scratch = self._guard.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        return {
            **spark_environment(),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData",
            "SPARK_LOCAL_DIRS": str(scratch),
            "TMPDIR": str(scratch),
            "PYTHONUNBUFFERED": "1",
        }

    async def ready(self) -> None:
        """Wait until the job reads. Raises `PartFailed` with the last lines of the job's log."""

        async def has_spoken() -> bool:
            return self.read_progress().ready

        await self.child.ready(has_spoken, START_TIMEOUT_S)

    def read_progress(self) -> MirrorProgress:
        """Return the sums of what the job has reported so far."""
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
        if line.get("ready"):
            self.progress.ready = True
        if "batch" in line:
            self.progress.batches += 1
            self.progress.transactions += line["transactions"]
            self.progress.changes += line["changes"]
            self.progress.commit_lsn = Lsn.parse(line["commit_lsn"])
        if "merged_lsn" in line:
            self.progress.merged_lsn = Lsn.parse(line["merged_lsn"])

    async def stop(self) -> None:
        await self.child.stop(signal.SIGTERM, STOP_TIMEOUT_S)

    async def dump(self, tables: Sequence[str]) -> dict[str, MirrorTable]:
        """Return the tables' rows in the mirror. Raises `PartFailed` with the program's last
        lines."""
        path = self._guard.folder / "dump.jsonl"
        words = [word for table in tables for word in ("--table", table)]
        child = await self._guard.start(
            "dump", [*_PROGRAM, "dump", "--mirror", str(self.folder), *words], log_path=path
        )
        if code := await asyncio.wait_for(child.wait(), DUMP_TIMEOUT_S):
            raise child.failure(f"exited with code {code}")
        return await asyncio.to_thread(_read_dump, path)


def _read_dump(path: Path) -> dict[str, MirrorTable]:
    """Read the headers of a dump, which has, for each table, a header line (a JSON object) and the
    rows (JSON arrays). Rows are read when they are iterated."""
    headers: list[tuple[str, tuple[str, ...], int]] = []
    with path.open("rb") as file:
        for line in iter(file.readline, b""):
            if line.startswith(b"{"):
                header = json.loads(line)
                headers.append((header["table"], tuple(header["columns"]), file.tell()))
    return {table: MirrorTable(columns, _Rows(path, start)) for table, columns, start in headers}


@dataclass(frozen=True, slots=True)
class _Rows:
    path: Path
    start: int

    def __iter__(self) -> Iterator[tuple[str | None, ...]]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            for line in file:
                if not line.startswith(b"["):
                    return
                yield tuple(json.loads(line))
