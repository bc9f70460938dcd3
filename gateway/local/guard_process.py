"""The guard: a small process that owns the folder and the processes of one local part, and ends
with its parent.

It is run as a script (`python -I guard_process.py`) by `gateway.local.guard`, and uses only the
standard library. The guard and its parent exchange lines of JSON: commands on standard input,
events on standard output.

    {"do": "open", "prefix", "temporary", "uid", "gid", "parent"}
        -> {"event": "opened", "folder"}
    {"do": "start", "name", "argv", "env", "cwd", "log", "uid", "gid", "end_signal"}
        -> {"event": "started", "name", "pid"} or {"event": "refused", "name", "reason"}
        -> {"event": "exited", "name", "code"} when it has ended
    {"do": "signal", "name", "signal"}
    {"do": "close"}

Everything ends on `close`, the end of standard input, SIGTERM, and the end of the parent. A pidfd
watches the parent, because a forked child of the parent may keep the pipe open. `kill -9` of the
parent therefore has the same effect as `close`. If the guard itself is killed, its children get
their `end_signal` from the kernel (prctl(2), PR_SET_PDEATHSIG); only the folder remains. PDEATHSIG
is set after setuid, which would clear it.

The guard is a subreaper (PR_SET_CHILD_SUBREAPER): processes that PostgreSQL or a Java program
leaves behind become its children, and are killed before the part counts as ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
END_TIMEOUT_S = 5.0
PARENT_CHECK_S = 1.0

_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _raise_exit)
    if _prctl is not None:
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guard = Guard(json.loads(sys.stdin.buffer.readline()))
    try:
        guard.run()
    except SystemExit:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        guard.end()


def _raise_exit(_number: int, _frame: object) -> None:
    raise SystemExit


class Guard:
    def __init__(self, opened: dict[str, Any]) -> None:
        self.parent: int = opened["parent"]
        self.folder = Path(tempfile.mkdtemp(prefix=opened["prefix"], dir=opened["temporary"]))
        if opened["uid"] is not None:
            os.chown(self.folder, opened["uid"], opened["gid"])
        self.running: dict[int, tuple[str, int]] = {}  # pid -> (name, end_signal)
        self.ended: dict[str, int] = {}  # name -> code, while its orphans still run
        self.silent = False
        self.say({"event": "opened", "folder": str(self.folder)})

    def say(self, event: dict[str, Any]) -> None:
        if self.silent:
            return
        try:
            os.write(1, json.dumps(event).encode() + b"\n")
        except OSError:
            self.silent = True

    def run(self) -> None:
        """Serve commands until something ends the guard."""
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_write)
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            parent_end = self._watch_parent(selector)
            while True:
                ready = {key.fd for key, _ in selector.select(PARENT_CHECK_S)}
                if parent_end in ready or os.getppid() != self.parent:
                    return
                if wake_read in ready:
                    os.read(wake_read, 4096)
                self.reap()
                if 0 not in ready:
                    continue
                data = os.read(0, 65536)
                *lines, pending = (pending + data).split(b"\n")
                if not data or not all(self.obey(json.loads(line)) for line in lines):
                    return

    def _watch_parent(self, selector: selectors.BaseSelector) -> int | None:
        if not hasattr(os, "pidfd_open"):
            return None  # getppid() is checked once a second instead
        try:
            descriptor = os.pidfd_open(self.parent)
        except OSError:
            return None
        selector.register(descriptor, selectors.EVENT_READ)
        return descriptor

    def obey(self, command: dict[str, Any]) -> bool:
        """Execute a command; return False if it is `close`."""
        if command["do"] == "start":
            self.start(command)
        elif command["do"] == "signal":
            for pid, (name, _) in self.running.items():
                if name == command["name"]:
                    os.kill(pid, command["signal"])
        return bool(command["do"] != "close")

    def start(self, command: dict[str, Any]) -> None:
        end_signal: int = command["end_signal"]

        def die_with_guard() -> None:
            if _prctl is not None:
                _prctl(PR_SET_PDEATHSIG, end_signal, 0, 0, 0)

        identity: dict[str, Any] = {}
        if command["uid"] is not None:
            identity = {"user": command["uid"], "group": command["gid"], "extra_groups": []}
        try:
            with open(command["log"], "ab") as log:
                child = subprocess.Popen(
                    command["argv"],
                    env=command["env"],
                    cwd=command["cwd"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_guard,
                    **identity,
                )
        except (OSError, subprocess.SubprocessError) as error:
            self.say({"event": "refused", "name": command["name"], "reason": str(error)})
            return
        child.returncode = 0  # reaped here by pid, not by the Popen object
        self.running[child.pid] = (command["name"], end_signal)
        self.say({"event": "started", "name": command["name"], "pid": child.pid})

    def reap(self) -> None:
        """Reap processes that have ended. A part has ended when none of the processes that it left
        behind is still running."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self.running:
                name, _ = self.running.pop(pid)
                self.ended[name] = os.waitstatus_to_exitcode(status)
        if not self.ended:
            return
        orphans = [pid for pid in _children() if pid not in self.running]
        for pid in orphans:
            _kill(pid, signal.SIGKILL)
        if not orphans:
            for name, code in self.ended.items():
                self.say({"event": "exited", "name": name, "code": code})
            self.ended.clear()

    def end(self) -> None:
        """End every process and remove the folder."""
        for pid, (_, end_signal) in self.running.items():
            _kill(pid, end_signal)
        deadline = time.monotonic() + END_TIMEOUT_S
        while self.running and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.01)
        while children := _children():
            for pid in children:
                _kill(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.01)
        self.reap()
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _children() -> list[int]:
    """Return the pids of this process's children, its own and the adopted ones, that still run
    (proc(5), /proc/pid/stat)."""
    found = []
    for entry in os.scandir("/proc") if os.path.isdir("/proc/self") else ():
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                # The command is in parentheses and may contain any character, parentheses too:
                # state and parent follow the last one.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != b"Z":
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main()
