"""Free ports on 127.0.0.1."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
FIRST_PORT = 12_000
ATTEMPTS = 200
DEFAULT_EPHEMERAL_START = 32_768
_taken: set[int] = set()


def _ephemeral_start() -> int:
    """Return the first port that the kernel chooses automatically (ip(7), ip_local_port_range)."""
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not setting.exists():
        return DEFAULT_EPHEMERAL_START
    start = int(setting.read_text().split()[0])
    return start if start > FIRST_PORT + ATTEMPTS else 65_535


def free_port() -> int:
    """Return a port that nothing listens on and that was not returned to this process before.

    A part that is stopped starts again on the same port. No client connection can take the port in
    between, because it is below the ports of outgoing connections.
    """
    chooser = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = chooser.randrange(FIRST_PORT, _ephemeral_start())
        if port in _taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        _taken.add(port)
        return port
    raise OSError(f"no free port found on {HOST}")


async def answers(port: int) -> bool:
    """Return whether something accepts connections on the port."""
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    return True
