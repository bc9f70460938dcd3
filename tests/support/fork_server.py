"""A process from which the tests' gateways and commands are forked. It has imported the program's
modules: starting Python and importing them takes 0.8 s of CPU time, a fork a tenth of that. The
fork is a separate process with its own environment, signals and exit code.

`python -m tests.support.fork_server FD` takes requests from a socket until its other end is closed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module, reload
from pathlib import Path
from types import SimpleNamespace

from gateway import early_signals, failpoints
from gateway.errors import StopForOperator

_MODULES = ("gateway.cli.main", "gateway.runtime.supervisor", "gateway.runtime.event_loop")
_ROOT = Path(__file__).parents[2]
_REQUEST_BYTES = 200_000
PROGRAM = "from walgate import main; main()"


class Forked:
    """A forked process, with the interface of subprocess.Popen: `pid`, `poll`, `send_signal`."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        weakref.finalize(self, answers.close)
        self.pid = int(answers.recv(64))
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self._code is None:
            try:
                self._code = int(self._answers.recv(64, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return None
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def can(environment: Mapping[str, str]) -> bool:
    """Return whether forking is supported here, and the environment does not affect what the server
    has imported."""
    if sys.platform != "linux" or environment.get("PYTHONPATH") not in (None, os.environ.get("PYTHONPATH")):
        return False
    try:
        failpoints.parse_failpoints(environment.get(failpoints.VARIABLE, ""))
    except StopForOperator:
        return False
    return True


def start(
    arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int, code: str = PROGRAM
) -> Forked:
    """Start `walgate` with these arguments, writing to these file descriptors; `code` is the program
    that runs in its place."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    asked = {"arguments": arguments, "environment": dict(environment), "folder": os.getcwd(), "code": code}
    request = json.dumps(asked).encode()
    socket.send_fds(_server(), [request], [theirs.fileno(), stdout, stderr])
    theirs.close()
    return Forked(ours)


def die_with_parent() -> None:
    """Kill this process when its parent ends, so that a killed test run leaves no process behind.
    For preexec_fn (prctl(2), PR_SET_PDEATHSIG; Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@cache
def _server() -> socket.socket:
    """Start the fork server, which ends with this process, and return its socket."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(theirs.fileno())]
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=_ROOT, stdin=null, stdout=null, pass_fds=[theirs.fileno()])
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _serve(requests: socket.socket) -> SimpleNamespace:
    """Serve requests. Returns only in each forked program, with the request."""
    for module in _MODULES:
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy shared memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the programs' parents
    while True:
        request, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not request:
            raise SystemExit
        if os.fork() == 0:
            requests.close()
            if _is_program(files):
                return SimpleNamespace(**json.loads(request))
        for file in files:
            os.close(file)


def _is_program(files: Sequence[int]) -> bool:
    """Fork the program, and return True in it. Its parent waits for it, and sends its pid and exit
    code."""
    answers = socket.socket(fileno=files[0])
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) == 0:
        answers.close()
        die_with_parent()
        for number, file in enumerate(files[1:], start=1):
            os.dup2(file, number)
            os.close(file)
        return True
    answers.send(str(pid).encode())
    answers.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _become(asked: SimpleNamespace) -> None:
    """Set up the process as if Python had been started with this request."""
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.environment)
    sys.argv = ["walgate", *asked.arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reload(early_signals)
    failpoints._armed = failpoints.parse_failpoints(os.environ.get(failpoints.VARIABLE, ""))


if __name__ == "__main__":
    program = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(program)
    exec(program.code, {"__name__": "__main__"})
