"""One broker and one registry for all processes of a test run: a warm one for each process would
cost a twentieth of the run.

`python -m tests.shared_servers NAME FOLDER`: starts that server, writes its port to
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

_ROOT = Path(__file__).parents[1]
_started: list[subprocess.Popen[bytes]] = []  # Python complains of one that is forgotten while it runs
_SERVERS: Mapping[str, Callable[[], Kafka | Registry]] = {
    "kafka": lambda: Kafka(jvm_options=[QUICK_START]),
    "registry": Registry,
}


@contextmanager
def shared(name: str, folder: Path) -> Iterator[int]:
    """The server's port; `folder` is the run's. The first process that asks starts the server.

    Raises `RuntimeError` with the server's last words when it does not start.
    """
    with (folder / f"{name}.users").open("a") as users, (folder / f"{name}.starting").open("a") as starting:
        fcntl.flock(users, fcntl.LOCK_SH)  # until this process ends, however it ends
        fcntl.flock(starting, fcntl.LOCK_EX)
        port = folder / f"{name}.port"
        if not port.exists():
            _start(name, folder)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield int(port.read_text())


def _start(name: str, folder: Path) -> None:
    """As a process of its own, which outlives this one, and says when it has written the port."""
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
