"""One broker and one registry for all processes of a test run: a warm one for each process would cost a twentieth of the run.

`python -m tests.shared_servers NAME FOLDER`: starts that server, writes its port to FOLDER/NAME.port, and ends with the last
process that uses it.
"""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gateway.local import Kafka, Registry
from gateway.local.kafka import QUICK_START

_ROOT = Path(__file__).parents[1]
_POLL_S = 0.05
_started: list[subprocess.Popen[bytes]] = []  # Python complains of one that is forgotten while it runs
SERVERS: Mapping[str, Callable[[], Kafka | Registry]] = {
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
            _start(name, folder, port)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield int(port.read_text())


def _start(name: str, folder: Path, port: Path) -> None:
    """As a process of its own, which outlives this one."""
    command = [sys.executable, "-m", __name__, name, str(folder)]
    errors = folder / f"{name}.errors"
    with errors.open("w") as output:
        process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    _started.append(process)
    while not port.exists():
        if process.poll() is not None:
            raise RuntimeError(f"{name} did not start: {errors.read_text()}")
        time.sleep(_POLL_S)


async def _serve(name: str, folder: Path) -> None:
    port, being_written = folder / f"{name}.port", folder / f"{name}.port.new"
    async with SERVERS[name]() as server:
        being_written.write_text(str(server.port))
        being_written.rename(port)
        with (folder / f"{name}.users").open("a") as users:
            await asyncio.to_thread(fcntl.flock, users, fcntl.LOCK_EX)
            port.unlink()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2])))
