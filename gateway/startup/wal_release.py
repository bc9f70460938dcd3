"""Decide when the slot is advanced although its changes were not delivered: `source.on_wal_budget =
advance`. No I/O.

    within the budget, or the slot is in use        nothing
    unconfirmed changes retain the WAL              advance the slot to the end of the WAL; Kafka
                                                    need not answer
    something else retains it (such as an open      nothing: a loss would free nothing
    transaction)
    advanced already, and nothing was freed         advance it to the same LSN again: PostgreSQL may
                                                    find a later restart_lsn

When Kafka answers again, the gap is recorded there, by the steps of `accept_gap`
(position_changes.py). Only a slot whose position this process has read is advanced: a slot of
another program with the same name is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gateway.startup.facts import Facts
from gateway.transactions.position import Position
from schemas.lsn import Lsn

_BUDGET_REACHED: Final = "source.wal_budget_bytes was reached"
"""Beginning of the reason of a gap that the gateway itself has made. It is stored."""


@dataclass(frozen=True, slots=True)
class ReleasedWal:
    """WAL that is given up: the slot was advanced from `first_lsn` to `end_lsn`, or will be.
    `has_freed` means that the slot has been within the budget since then. `told_lsn` is the LSN up
    to which the server is known to have advanced the slot; the log has reported it."""

    first_lsn: Lsn
    end_lsn: Lsn
    has_freed: bool = False
    told_lsn: Lsn | None = None

    @property
    def reason(self) -> str:
        return f"{_BUDGET_REACHED}: the slot was advanced to {self.end_lsn}"


def is_released(position: Position) -> bool:
    """Return whether the gateway itself gave up the changes before the resume LSN, and nothing has
    been delivered since."""
    gap = position.gap
    return gap is not None and gap.end_lsn == position.resume_lsn and gap.reason.startswith(_BUDGET_REACHED)


def retained_bytes(facts: Facts) -> int:
    """Return the number of bytes of WAL that the server retains for the slot."""
    slot = facts.slot
    return 0 if slot is None or slot.restart_lsn is None else max(facts.server.flush_lsn - slot.restart_lsn, 0)


def seen(released: ReleasedWal, facts: Facts) -> ReleasedWal | None:
    """Return `released` as the facts show it, since the answer to an advance may have been lost;
    None if the slot was not advanced. While another session is active on the slot, the advance may
    still be made."""
    slot = facts.slot
    if slot is None or slot.confirmed_flush_lsn is None:
        return released
    if slot.confirmed_flush_lsn >= released.end_lsn:
        return replace(released, told_lsn=released.end_lsn)
    if slot.active_pid is not None:
        return released
    if released.told_lsn is None:
        return None
    return replace(released, end_lsn=released.told_lsn, has_freed=True)  # so that the slot may be advanced further


def release_to(facts: Facts, known: Position | None, released: ReleasedWal | None, budget_bytes: int) -> Lsn | None:
    """Return the LSN to which the slot is to be advanced; None if it is to be left alone. `known`
    is the position of the last session, `released` the WAL given up so far that is not recorded in
    Kafka."""
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
