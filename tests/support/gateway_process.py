"""The gateway as operators run it: a separate process, configured by its environment, ended by
signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import fork_server

OPTIONS = ("run", "--log-format", "json")
COMMAND = (str(Path(sys.executable).parent / "walgate"), *OPTIONS)
START_TIMEOUT_S = 90.0
EXIT_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 120.0
DEFAULTS = {"snapshot__mode": "never"}
"""Settings for most tests, which are about transactions that commit after the start."""


class GatewayProcess:
    """A gateway that can be started repeatedly with the same settings: names like `kafka__prefix`,
    and their values."""

    def __init__(
        self, log_path: Path, settings: Mapping[str, object], defaults: Mapping[str, object] = DEFAULTS
    ) -> None:
        self.log_path = log_path
        self._defaults = defaults
        self.settings = dict(settings)
        self.command: tuple[str, ...] = COMMAND
        self.code = fork_server.PROGRAM
        self._process: subprocess.Popen[bytes] | fork_server.Forked | None = None
        self.start_count = 0

    def start(self, failpoints: str = "", **settings: object) -> None:
        """Start the gateway. `settings` are for this start only."""
        assert not self.is_running
        environment = self.environment(**settings)
        if failpoints:
            environment["WALGATE_FAILPOINTS"] = failpoints
        with self.log_path.open("ab") as log:
            self._process = started(self.command, environment, log.fileno(), log.fileno(), self.code)
        self.start_count += 1

    def environment(self, **settings: object) -> dict[str, str]:
        """Return the environment of a start with these settings besides its own."""
        return environment_of({**self._defaults, **self.settings, **settings})

    async def streaming(self, failpoints: str = "", **settings: object) -> None:
        """Start, and wait until the stream is open."""
        before = len(self.events("streaming"))
        self.start(failpoints, **settings)
        await self.logged('"streaming"', times=before + 1, timeout_s=START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """True if the process was stopped by SIGSTOP, of a test or of a failpoint; it must not have
        ended."""
        assert self.is_running, f"the gateway has ended:\n{self.log_tail(60)}"
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self, timeout_s: float = EXIT_TIMEOUT_S) -> int:
        """Return the exit code; negative if a signal ended it. Raises TimeoutError."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while (code := self._process.poll()) is None:
            if time.monotonic() > deadline:
                await self._log_tasks()
                raise TimeoutError(f"the gateway still runs after {timeout_s} s:\n{self.log_tail(60)}")
            await asyncio.sleep(0.01)
        return code

    async def _log_tasks(self) -> None:
        """Make the gateway log where each of its tasks waits, for a test's error message."""
        self.signal(signal.SIGUSR1)
        await asyncio.sleep(0.5)  # the gateway may not respond at all

    async def tasks(self) -> list[dict[str, Any]]:
        """Return where each task of the gateway waits now."""
        before, times = len(self.events("task")), len(self.events("tasks"))
        self.signal(signal.SIGUSR1)
        await self.logged('"event": "tasks"', times=times + 1)
        return self.events("task")[before:]

    async def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self.is_running:
            self.signal(signal.SIGKILL)
            await self.wait()

    async def end(self) -> None:
        """Send SIGTERM, then SIGKILL if the gateway does not end in time: an open transaction would
        block other gateways."""
        if self.is_running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await self.wait(15)
        await self.kill()

    async def stop(self) -> int:
        if self.is_running:
            self.signal(signal.SIGTERM)
        code = await self.wait()
        assert "was never retrieved" not in self.log(), self.log_tail()
        return code

    @property
    def resident_bytes(self) -> int:
        """The resident set size, from /proc."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self, line_count: int = 30) -> str:
        return "\n".join(self.log().splitlines()[-line_count:])

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log lines of one event, as JSON."""
        found = []
        for line in self.log().splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                if entry.get("event") == name:
                    found.append(entry)
        return found

    def last_words(self) -> str:
        """Return reason and hint of the last stop that needed the operator."""
        last = self.events("stopped")[-1]
        return f"{last['reason']}\nhint: {last.get('hint', '')}"

    async def logged(self, text: str, *, times: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until the log contains the text `times` times. Raises TimeoutError, or
        AssertionError if the gateway ends before."""
        deadline = time.monotonic() + timeout_s
        while self.log().count(text) < times:
            if time.monotonic() > deadline:
                await self._log_tasks()
                raise TimeoutError(f"{text!r} is not in the log {times} times after {timeout_s} s:\n{self.log_tail()}")
            assert self.is_running, f"ended with {self.exit_code} before {text!r}:\n{self.log_tail()}"
            await asyncio.sleep(0.02)


def environment_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the environment of the tests, with only these settings of Walgate."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("WALGATE_")}
    return others | variables_of(settings)


def variables_of(settings: Mapping[str, object]) -> dict[str, str]:
    return {f"WALGATE_{name.upper()}": _as_text(value) for name, value in settings.items()}


async def ended(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `walgate` until it ends. Raises TimeoutError."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = started((COMMAND[0], *arguments), environment, stdout.fileno(), stderr.fileno())
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                while (code := process.poll()) is None:
                    await asyncio.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())


def started(
    command: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int, code: str = fork_server.PROGRAM
) -> subprocess.Popen[bytes] | fork_server.Forked:
    """Start a program; it is forked if it is the installed `walgate`, in whose place `code` runs."""
    if command[0] == COMMAND[0] and fork_server.can(environment):
        return fork_server.start(command[1:], environment, stdout, stderr, code)
    if code != fork_server.PROGRAM:
        command = (sys.executable, "-P", "-c", code, *command[1:])
    return subprocess.Popen(
        command,
        env=environment,
        stdout=stdout,
        stderr=stderr,
        stdin=subprocess.DEVNULL,
        preexec_fn=fork_server.die_with_parent,
    )


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
