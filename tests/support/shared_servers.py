"""Shares a broker and a registry among all processes of a test run: a warmed-up pair for each
process would cost a twentieth of the run.

`python -m tests.support.shared_servers NAME FOLDER` starts that server, writes its port to
FOLDER/NAME.port, and ends with the last process that uses it.
"""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gateway.local import Kafka, Registry
from gateway.local.kafka import QUICK_START

_ROOT = Path(__file__).parents[2]
_started: list[subprocess.Popen[bytes]] = []  # Python warns if a running one is garbage-collected
_SERVERS: Mapping[str, Callable[[], Kafka | Registry]] = {
    "kafka": lambda: Kafka(jvm_options=[QUICK_START]),
    "registry": Registry,
}


@contextmanager
def shared(name: str, folder: Path) -> Iterator[int]:
    """Yield the server's port. `folder` is that of the test run. The first process that requests
    the server starts it.

    Raises `RuntimeError` with the server's error output if it does not start.
    """
    with (folder / f"{name}.users").open("a") as users, (folder / f"{name}.starting").open("a") as starting:
        fcntl.flock(users, fcntl.LOCK_SH)  # held until this process ends, for whatever reason
        fcntl.flock(starting, fcntl.LOCK_EX)
        port = folder / f"{name}.port"
        if not port.exists():
            _start(name, folder)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield int(port.read_text())


def _start(name: str, folder: Path) -> None:
    """Start the server in a process that outlives this one, and wait until it has written its
    port."""
    command = [sys.executable, "-m", __name__, name, str(folder)]
    errors, null, pipe = folder / f"{name}.errors", subprocess.DEVNULL, subprocess.PIPE
    with errors.open("w") as stderr:
        process = subprocess.Popen(command, cwd=_ROOT, stdin=null, stdout=pipe, stderr=stderr, start_new_session=True)
    _started.append(process)
    assert process.stdout is not None
    with process.stdout:
        if not process.stdout.readline():
            raise RuntimeError(f"{name} did not start: {errors.read_text()}")


async def _serve(name: str, folder: Path) -> None:
    port = folder / f"{name}.port"
    async with _SERVERS[name]() as server:
        port.write_text(str(server.port))
        print(server.port, flush=True)
        with (folder / f"{name}.users").open("a") as users:
            await asyncio.to_thread(fcntl.flock, users, fcntl.LOCK_EX)
            port.unlink()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2])))
