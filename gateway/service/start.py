"""What a start does with what it finds: a pure decision over the position, the slot and the settings.

The order of the first start makes a crash between any two steps repair itself: the intent (state INTENT, epoch 0) is
durable before the slot is made, so a slot that is found beside an intent is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.kafka.position import Position
from gateway.lsn import Lsn
from gateway.operate.errors import DataGap, StopForOperator


@dataclass(frozen=True, slots=True)
class Start:
    """`position` is the one to go on from; its resume_lsn is not known yet while a slot must be made."""

    position: Position
    write_intent: bool = False
    create_slot: bool = False


def decide_start(
    stored: Mapping[bytes, Position],
    fresh: Position,
    slot_flush_lsn: Lsn | None,
    marker_end_offset: int,
    *,
    adopt_slot: bool,
) -> Start:
    """`fresh` is the position of a slot that was never read; `slot_flush_lsn` is the confirmed_flush_lsn of the slot, None
    where there is none; `marker_end_offset` is that of the marker topic. Raises StopForOperator, DataGap."""
    _refuse_foreign_prefix(stored, fresh)
    known = stored.get(fresh.key)
    if known is None:
        if slot_flush_lsn is None:
            _refuse_used_prefix(fresh, marker_end_offset)
            return Start(fresh, write_intent=True, create_slot=True)
        if not adopt_slot:
            raise StopForOperator(
                f"slot {fresh.slot} exists, but no position is known for it: where it was read to, nobody can tell",
                hint="if nothing else reads it and it may go on from its confirmed_flush_lsn, set source.adopt_slot=true; "
                f"else drop it: select pg_drop_replication_slot('{fresh.slot}')",
            )
        _refuse_used_prefix(fresh, marker_end_offset)
        return Start(replace(fresh, resume_lsn=slot_flush_lsn), write_intent=True)
    current = replace(known, publications=fresh.publications, version=fresh.version)
    if known.state == "INTENT":
        if slot_flush_lsn is None:
            return Start(current, create_slot=True)
        return Start(replace(current, resume_lsn=slot_flush_lsn))
    if slot_flush_lsn is None:
        raise DataGap(
            f"slot {fresh.slot} does not exist any more; it was delivered up to {known.resume_lsn}",
            hint="what was written since is lost to it. Take a new slot name (source.slot) and a new kafka.prefix, and "
            "load the tables anew",
        )
    if marker_end_offset == 0:
        raise DataGap(
            f"the marker topic of prefix {known.prefix!r} is empty, but slot {known.slot} has written there up to "
            f"{known.resume_lsn}: it was deleted and made again",
            hint="readers can not tell what is committed any more: take a new slot and a new kafka.prefix, and load the "
            "tables anew",
        )
    return Start(current)


def _refuse_used_prefix(fresh: Position, marker_end_offset: int) -> None:
    """Epochs begin at 1 with a new position: in topics that hold an epoch 1 already, rows of both would look alike."""
    if marker_end_offset > 0:
        raise StopForOperator(
            f"prefix {fresh.prefix!r} was used before, but no position is known for slot {fresh.slot}",
            hint="set another kafka.prefix, or delete the topics of this one",
        )


def _refuse_foreign_prefix(stored: Mapping[bytes, Position], fresh: Position) -> None:
    """One slot = one prefix: the markers of two slots in one topic would have no order."""
    for key, position in stored.items():
        if key != fresh.key and position.prefix == fresh.prefix:
            raise StopForOperator(
                f"prefix {fresh.prefix!r} belongs to slot {position.slot} of database {position.database} "
                f"(system {position.system_identifier}), this is slot {fresh.slot} of {fresh.database} "
                f"(system {fresh.system_identifier})",
                hint="set another kafka.prefix, or check that source.dsn names the server that you mean",
            )
    known = stored.get(fresh.key)
    if known is not None and known.prefix != fresh.prefix:
        raise StopForOperator(
            f"slot {fresh.slot} writes to the prefix {known.prefix!r}, the setting says {fresh.prefix!r}",
            hint="set kafka.prefix back, or use a new slot: readers could not order two marker topics",
        )
