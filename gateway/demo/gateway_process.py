"""The gateway as the demo runs it: `walgate run` in a process of its own, set up by its
environment."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from gateway.local.guard import Child, Guard

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
_SLOT_ACTIVE = "SELECT active FROM pg_replication_slots WHERE slot_name = $1"
_SLOT_LAG = """
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint
    FROM pg_replication_slots WHERE slot_name = $1
"""


class GatewayProcess:
    """May be killed and started again; `peak_rss_bytes` is the highest of all its lives."""

    def __init__(self, guard: Guard, dsn: str, slot: str, settings: Mapping[str, str]) -> None:
        self._guard = guard
        self._dsn = dsn
        self._slot = slot
        self._settings = settings
        self._child: Child | None = None
        self.peak_rss_bytes = 0
        self.start_count = 0

    @property
    def child(self) -> Child:
        assert self._child is not None, "not started"
        return self._child

    async def start(self) -> None:
        """Returns when the slot is being read. Raises `PartFailed` with the last lines of its
        log."""
        self._child = await self._guard.start(
            "gateway",
            [sys.executable, "-m", "gateway.cli.main", "run"],
            environment=self._settings,
            end_signal=signal.SIGTERM,
        )
        self.start_count += 1

        connection = await asyncpg.connect(self._dsn)

        async def slot_is_active() -> bool:
            return bool(await connection.fetchval(_SLOT_ACTIVE, self._slot))

        try:
            await self._child.ready(slot_is_active, START_TIMEOUT_S)
        finally:
            await connection.close(timeout=2)

    async def kill(self) -> None:
        """kill -9, as the machine's own memory killer would."""
        self.measure()
        self.child.send_signal(signal.SIGKILL)
        await self.child.wait()

    async def stop(self) -> int:
        self.measure()
        return await self.child.stop(signal.SIGTERM, STOP_TIMEOUT_S)

    def measure(self) -> int:
        """Peak resident memory so far in bytes (proc_pid_status(5), VmHWM); 0 where there is no
        /proc."""
        status = Path(f"/proc/{self.child.pid}/status")
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            return self.peak_rss_bytes
        if "VmHWM" in fields:
            self.peak_rss_bytes = max(self.peak_rss_bytes, int(fields["VmHWM"].split()[0]) * 1024)
        return self.peak_rss_bytes


async def slot_lag_bytes(connection: asyncpg.Connection, slot: str) -> int:
    """WAL that PostgreSQL keeps for the slot because it is not confirmed."""
    return await connection.fetchval(_SLOT_LAG, slot) or 0
