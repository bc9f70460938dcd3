"""Keep the WAL of a slot within `source.wal_budget_bytes` if `source.on_wal_budget` is advance.
gateway/startup/wal_release.py decides when the slot is advanced.

The slot is advanced before Kafka is asked for anything, since the usual cause is that Kafka does
not answer. What was given up is kept in memory, across sessions, until it is durable in Kafka. If
the process ends earlier, the slot is ahead of the position: the next start stops with a data gap,
which `walgate accept-gap` records.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import structlog

from gateway.config.settings import Settings
from gateway.errors import Retry
from gateway.failpoints import failpoint
from gateway.observe import metrics
from gateway.observe.status_board import StatusBoard
from gateway.runtime.bootstrap import Bootstrap
from gateway.runtime.dialect import dialect_of
from gateway.runtime.session_memory import SessionMemory
from gateway.runtime.source_catalog import SourceCatalog
from gateway.startup.facts import Facts
from gateway.startup.position_changes import accept_gap
from gateway.startup.slot_checks import check_holder
from gateway.startup.wal_release import ReleasedWal, release_to, retained_bytes, seen
from schemas.lsn import Lsn

log = structlog.get_logger()

AGAIN_S: Final = 30.0
"""The number of seconds between two advances: an advance that frees nothing still reads all of the
WAL."""


class WalBudget:
    """Keep the budget during one session. `memory` holds what is not recorded in Kafka yet."""

    def __init__(self, settings: Settings, memory: SessionMemory, board: StatusBoard) -> None:
        self._settings = settings
        self._memory = memory
        self._board = board
        source = settings.source
        self._bytes = source.wal_budget_bytes if source.on_wal_budget == "advance" else None

    def check(self, facts: Facts) -> None:
        """Raise Retry if the slot must be advanced. This is called while the stream is read: the
        slot is then in use, and cannot be advanced."""
        if self._target(facts) is not None and time.monotonic() >= self._memory.release_again_at:
            raise Retry(
                f"the slot retains {retained_bytes(facts)} bytes of WAL, and source.wal_budget_bytes is "
                f"{self._bytes}: the gateway advances the slot",
                hint="to keep undelivered changes in the future, set source.on_wal_budget = warn and restart the gateway: the "
                "slot then retains WAL until max_slot_wal_keep_size is exceeded or the disk is full",
            )

    async def keep(self, catalog: SourceCatalog) -> None:
        """Advance the slot if necessary. This is called between two streams."""
        memory = self._memory
        if self._bytes is None or time.monotonic() < memory.release_again_at:
            return
        facts = await catalog.look()
        self._see(facts, retained_bytes(facts))
        end_lsn = self._target(facts)
        if memory.released is not None and retained_bytes(facts) < self._bytes:
            memory.released = replace(memory.released, has_freed=True)
        if end_lsn is None or any(check_holder(facts, catalog.expected)):
            return
        self._board.wait_for("PostgreSQL, which is advancing the slot")
        assert facts.slot is not None and facts.slot.confirmed_flush_lsn is not None
        before = memory.released
        if before is None:
            memory.released = ReleasedWal(facts.slot.confirmed_flush_lsn, end_lsn)
        elif before.end_lsn != end_lsn:
            memory.released = ReleasedWal(before.first_lsn, end_lsn, told_lsn=before.told_lsn)
        await catalog.advance_slot(end_lsn)
        after = await catalog.look()
        memory.release_again_at = time.monotonic() + AGAIN_S
        self._see(after, retained_bytes(facts))
        if retained_bytes(after) >= self._bytes:
            log.error(
                "wal_not_freed_yet",
                retained_bytes=retained_bytes(after),
                hint="restart_lsn advances when the server writes the list of running transactions to the WAL (every 15 s); open "
                "transactions keep it from advancing: see walgate status",
            )

    def _see(self, facts: Facts, held: int) -> None:
        """Log and count an advance once the facts show it, since the answer is lost if the
        connection fails. `held` is the number of bytes that were retained before the advance."""
        before = self._memory.released
        if before is None:
            return
        found = self._memory.released = seen(before, facts)
        if found is None or found.told_lsn is None or found.told_lsn == before.told_lsn:
            return
        first_lsn = found.first_lsn if before.told_lsn is None else before.told_lsn
        metrics.ADVANCES.inc()
        metrics.ADVANCED_BYTES.inc(found.end_lsn - first_lsn)
        log.critical(
            "slot_advanced",
            first_lsn=str(first_lsn),
            end_lsn=str(found.end_lsn),
            retained_bytes=held,
            budget_bytes=self._bytes,
            hint="changes committed between these LSNs will not reach Kafka. Keep the gateway running until Kafka answers: "
            "it then writes a GAP marker. If the gateway ends before that, it exits with code 78 at its next start, and you "
            "must run walgate accept-gap",
        )

    def _target(self, facts: Facts) -> Lsn | None:
        if self._bytes is None:
            return None
        return release_to(facts, self._memory.position, self._memory.released, self._bytes)

    async def record(self, catalog: SourceCatalog) -> None:
        """Record what was given up, with a GAP marker and in the position: the snapshot coordinator
        then reads all tables again. Raises Retry while Kafka does not answer."""
        memory = self._memory
        if memory.released is None:
            return
        reason = memory.released.reason
        async with AsyncExitStack() as stack:
            start = Bootstrap(self._settings, dialect_of(self._settings), memory, stack, self._board)
            steps = accept_gap(start.fresh_position, catalog.expected, released=reason)
            position = await start.carry_out(catalog, steps)
        failpoint("gap_recorded")
        memory.released = None
        if position.gap is None or position.gap.reason != reason:
            return  # nothing was given up, or the start stops because of another loss
        log.error("gap_recorded", slot=position.slot, resume_lsn=str(position.resume_lsn), reason=reason)
        if not self._settings.takes_snapshots:
            log.error(
                "no_snapshot_queued",
                hint="set a snapshot.mode other than never, restart the gateway, and take a new snapshot of the tables: walgate "
                "snapshot start",
            )
