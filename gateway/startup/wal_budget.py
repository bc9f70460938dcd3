"""When a slot is moved on although what it holds was not delivered: `source.on_wal_budget =
advance`. Pure.

    within the budget, or another reads the slot     nothing
    what was not confirmed holds the WAL             move the slot to the end of the WAL; Kafka need not answer
    another holds it (an open transaction, say)      nothing: a loss would free nothing
    moved already, and nothing was freed             move it to the same place again: PostgreSQL finds a later restart_lsn

What was released is told to Kafka when it answers again, by the steps of `accept_gap` (repair.py).
Only a slot whose position this process has read is moved: that of another program with the same
name stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.startup.facts import Facts
from gateway.transactions.position import Position
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class ReleasedWal:
    """The slot was moved from `first_lsn` to `end_lsn`, or is to be. `has_freed`: it has been
    within the budget since. `told_lsn`: so far the server was seen to have moved it, and the log
    tells of it."""

    first_lsn: Lsn
    end_lsn: Lsn
    has_freed: bool = False
    told_lsn: Lsn | None = None

    @property
    def reason(self) -> str:
        return f"source.wal_budget_bytes was reached: the slot was advanced to {self.end_lsn}"


def retained_bytes(facts: Facts) -> int:
    """WAL that the server keeps for the slot."""
    slot = facts.slot
    return 0 if slot is None or slot.restart_lsn is None else max(facts.server.flush_lsn - slot.restart_lsn, 0)


def seen(released: ReleasedWal, facts: Facts) -> ReleasedWal | None:
    """What is known of a move whose answer may not have come: another session may still make it.
    None: it was not made."""
    slot = facts.slot
    if slot is None or slot.confirmed_flush_lsn is None:
        return released
    if slot.confirmed_flush_lsn >= released.end_lsn:
        return replace(released, told_lsn=released.end_lsn)
    if slot.active_pid is not None:
        return released
    if released.told_lsn is None:
        return None
    return replace(released, end_lsn=released.told_lsn, has_freed=True)  # else it would not be moved on


def release_to(facts: Facts, known: Position | None, released: ReleasedWal | None, budget_bytes: int) -> Lsn | None:
    """Where the slot is to be moved on to; None: it stays. `known`: the position of the last
    session, `released`: what Kafka was not told yet."""
    slot, server = facts.slot, facts.server
    if slot is None or slot.confirmed_flush_lsn is None or known is None or server.in_recovery:
        return None
    is_ours = (server.system_identifier, server.timeline, server.database, slot.name) == (
        known.system_identifier,
        known.timeline,
        known.database,
        known.slot,
    )
    held = retained_bytes(facts)
    if not is_ours or held < budget_bytes:
        return None
    if released is not None and not released.has_freed:
        return released.end_lsn if slot.confirmed_flush_lsn <= released.end_lsn else None
    return server.flush_lsn if 2 * (server.flush_lsn - slot.confirmed_flush_lsn) >= held else None
