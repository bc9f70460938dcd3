"""The parent's side of the guard: a private folder, and processes that end with this process,
however it ends.

    guard = await Guard.open("kafka")
    child = await guard.start("broker", ["java", ...])
    await child.wait()          # or child.send_signal(signal.SIGTERM)
    await guard.close()         # ends what runs, removes guard.folder

`guard_process.py` explains how it works.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from gateway.errors import StopForOperator
from gateway.local.accounts import Account

SCRIPT = Path(__file__).with_name("guard_process.py")
LOG_TAIL_LINES = 30
PROBE_INTERVAL_S = 0.05


class PartFailed(StopForOperator):
    """A local part did not start, or ended unexpectedly; the message ends with the last lines of
    its log."""


class Child:
    """A process under a guard. `exit_code` is set when the process, and all processes that it left
    behind, have ended; a negative code is the negated number of the signal that ended it."""

    def __init__(self, guard: Guard, name: str, log_path: Path) -> None:
        self._guard = guard
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.name = name
        self.log_path = log_path
        self.pid = 0

    @property
    def exit_code(self) -> int | None:
        return self.exited.result() if self.exited.done() else None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._guard.send({"do": "signal", "name": self.name, "signal": int(number)})

    async def wait(self) -> int:
        return await asyncio.shield(self.exited)

    async def stop(self, number: signal.Signals, timeout_s: float) -> int:
        """Send the signal, and SIGKILL if the process has not ended after `timeout_s`; return the
        exit code."""
        self.send_signal(number)
        try:
            return await asyncio.wait_for(self.wait(), timeout_s)
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
            return await self.wait()

    async def ready(self, probe: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Wait until the probe is true. Raises `PartFailed` with the log's tail if the process ends
        or the timeout is reached."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not await probe():
            if self.exit_code is not None:
                raise self.failure(f"exited with code {self.exit_code} during startup")
            if asyncio.get_running_loop().time() > deadline:
                raise self.failure(f"was not ready after {timeout_s:.0f} s")
            await asyncio.wait({self.exited}, timeout=PROBE_INTERVAL_S)

    def failure(self, what: str) -> PartFailed:
        return PartFailed(f"{self.name} {what}; its log ends with:\n{self.log_tail()}")

    def log_tail(self) -> str:
        if not self.log_path.exists():
            return "    (no log)"
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (nothing)"


class Guard:
    """Handle of a guard process. It is created by `open`, and belongs to the event loop in which it
    was opened."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._children: dict[str, Child] = {}
        self._starting: dict[str, asyncio.Future[int]] = {}
        self._events = asyncio.create_task(self._read_events())
        self.folder = folder

    @classmethod
    async def open(cls, name: str, *, account: Account | None = None, temporary: Path | None = None) -> Self:
        """Start a guard with a new folder `walgate-<name>-*`, mode 0700, owned by `account`
        (default: this user)."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(SCRIPT),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        command = {
            "do": "open",
            "prefix": f"walgate-{name}-",
            "temporary": str(temporary or tempfile.gettempdir()),
            "uid": account.uid if account else None,
            "gid": account.gid if account else None,
            "parent": os.getpid(),
        }
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(command).encode() + b"\n")
        try:
            line = await process.stdout.readline()
        except BaseException:
            process.stdin.close()  # cancelled: the guard notices it and ends
            raise
        if not line:
            raise PartFailed(f"the supervisor process of {name} did not start")
        return cls(process, Path(json.loads(line)["folder"]))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    async def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        account: Account | None = None,
        folder: Path | None = None,
        log_path: Path | None = None,
        end_signal: signal.Signals = signal.SIGKILL,
    ) -> Child:
        """Start a process; `name` must not be running. Output is appended to `<folder>/<name>.log`.

        `environment` is added to this process's own; `end_signal` is sent when the guard ends.
        Raises `PartFailed`.
        """
        if self._events.done():
            raise PartFailed(f"{name} cannot be started: its supervisor process has ended")
        child = Child(self, name, log_path or self.folder / f"{name}.log")
        self._children[name] = child
        self._starting[name] = asyncio.get_running_loop().create_future()
        self.send(
            {
                "do": "start",
                "name": name,
                "argv": [str(word) for word in argv],
                "env": {**os.environ, **(environment or {})},
                "cwd": str(folder or self.folder),
                "log": str(child.log_path),
                "uid": account.uid if account else None,
                "gid": account.gid if account else None,
                "end_signal": int(end_signal),
            }
        )
        child.pid = await self._starting[name]
        return child

    async def run(self, name: str, argv: Sequence[str | Path], **options: Any) -> None:
        """Start a process (options as in `start`) and wait for it to exit. Raises `PartFailed` if
        its exit code is not 0."""
        child = await self.start(name, argv, **options)
        if code := await child.wait():
            raise child.failure(f"exited with code {code}")

    async def close(self) -> None:
        """End all processes and remove the folder; may be called twice."""
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()
        await self._events

    async def _read_events(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event = json.loads(line)
            name = event["name"]
            if event["event"] == "started":
                self._starting.pop(name).set_result(event["pid"])
            elif event["event"] == "refused":
                self._starting.pop(name).set_exception(PartFailed(f"{name} could not be started: {event['reason']}"))
            else:
                self._children[name].exited.set_result(event["code"])
        for starting in self._starting.values():
            starting.set_exception(PartFailed("the supervisor process has ended"))
        for child in self._children.values():
            if not child.exited.done():
                child.exited.set_result(-signal.SIGKILL)
