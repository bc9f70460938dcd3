"""The demo's gateway: `walgate run` in a process of its own, configured by environment
variables."""

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
    """Gateway process that may be killed and started again. `peak_rss_bytes` is the maximum over
    all its starts."""

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
        """Start the gateway and wait until it reads the slot. Raises `PartFailed` with the last
        lines of its log."""
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
        """Kill the gateway with SIGKILL, as the kernel's OOM killer would."""
        self.measure()
        self.child.send_signal(signal.SIGKILL)
        await self.child.wait()

    async def stop(self) -> int:
        self.measure()
        return await self.child.stop(signal.SIGTERM, STOP_TIMEOUT_S)

    def measure(self) -> int:
        """Return the peak resident memory so far in bytes (proc_pid_status(5), VmHWM); 0 if there
        is no /proc."""
        status = Path(f"/proc/{self.child.pid}/status")
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            return self.peak_rss_bytes
        if "VmHWM" in fields:
            self.peak_rss_bytes = max(self.peak_rss_bytes, int(fields["VmHWM"].split()[0]) * 1024)
        return self.peak_rss_bytes


async def slot_lag_bytes(connection: asyncpg.Connection, slot: str) -> int:
    """Return the bytes of WAL that PostgreSQL keeps for the slot because they are not confirmed."""
    return await connection.fetchval(_SLOT_LAG, slot) or 0
