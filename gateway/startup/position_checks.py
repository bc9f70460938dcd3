"""Checks of the position: which slot owns the topic prefix, and whether the slot and the server
still have the changes that follow the position.

The order in which the facts were read is the proof (see the theory in `__init__.py`): the slot
before the position, the position before the end of the WAL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gateway.errors import ACCEPT_GAP, NEW_PREFIX, UNTIL_NOW_BEHIND_RESUME_LSN, DataGap, StopForOperator
from gateway.startup.connect_offset import DebeziumOffset
from gateway.startup.facts import Facts, Stored
from gateway.startup.findings import Finding
from gateway.transactions.position import Position
from schemas.lsn import Lsn
from schemas.topic_names import POSITION_TOPIC

_CHECK_SERVER = (
    "first check source.dsn. If it points to the wrong server, nothing has been lost: correct it and start the "
    "gateway. "
)


def adoption_obstacle(known: Position, fresh: Position, facts: Facts) -> str | None:
    """Return why `known`, a position of the same slot on a server with another system identifier,
    cannot continue as `fresh`; None if it can.

    pg_upgrade (17 and newer) preserves a logical slot only if nothing was written after the LSN
    that the slot has confirmed. The new server's WAL begins after that of the old one. So nothing
    lies between the position and the slot that was preserved.
    """
    if (known.database, known.slot, known.prefix) != (fresh.database, fresh.slot, fresh.prefix):
        return f"the resume LSN belongs to slot {known.slot} of {known.database}, topic prefix {known.prefix!r}"
    if facts.server.version_num < 170000:
        return "this server is older than PostgreSQL 17, and pg_upgrade preserves logical slots only in 17 and later"
    if facts.slot is None or facts.slot.confirmed_flush_lsn is None:
        return f"this server has no slot {fresh.slot}: pg_upgrade did not preserve it"
    if known.resume_lsn > facts.slot.confirmed_flush_lsn:
        return (
            f"the resume LSN {known.resume_lsn} is beyond {facts.slot.confirmed_flush_lsn}, the confirmed_flush_lsn of slot "
            f"{fresh.slot}: this server is not an upgrade of the one that the resume LSN belongs to"
        )
    return None


def check_offset(offset: DebeziumOffset, facts: Facts) -> Iterator[Finding]:
    """Check that the slot exists, and that the offset can belong to it. No other process that reads
    the slot can cause these errors."""
    if facts.slot is None or facts.slot.confirmed_flush_lsn is None:
        yield StopForOperator(
            "adopt: the slot does not exist",
            hint="set source.slot to the connector's slot.name, and source.dsn to its database. If the slot was dropped, the "
            "changes since then can no longer be read: use a new source.slot and a new kafka.prefix",
        )
    if offset.in_snapshot:
        yield StopForOperator(
            "adopt: the connector has not finished its snapshot",
            hint="start the connector again, and let it run until it is streaming. Then stop it, get its offset again, and "
            "run this command with it",
        )
    elif offset.lsn > facts.server.flush_lsn:
        yield StopForOperator(
            f"adopt: the offset {offset.lsn} is after the end of the WAL, {facts.server.flush_lsn}: it belongs to another server",
            hint="check source.dsn, and that the offset is of the connector that used this slot. If the server was "
            "restored to an earlier state, use a new source.slot and a new kafka.prefix",
        )


def check_not_ahead(offset: DebeziumOffset, facts: Facts) -> Iterator[Finding]:
    """Check that the slot continues where the connector stopped.

    A connector confirms its stored offset, never more. If more than that was confirmed, the offset
    is outdated, or another process has read the slot.
    """
    slot = facts.slot
    if slot and slot.confirmed_flush_lsn and slot.confirmed_flush_lsn > max(offset.lsn, offset.commit_lsn):
        yield StopForOperator(
            f"adopt: slot {slot.name} is confirmed up to {slot.confirmed_flush_lsn}, after the offset {offset.lsn}: the "
            "offset is outdated, or another process has read the slot",
            hint="use the slot that the connector was reading when it stopped, and the offset that it stored then. If only the "
            "slot is ahead, and the connector had lsn.flush.mode = connector_and_driver, the slot itself says where to "
            "continue: set source.adopt_slot = true, and snapshot.mode = on_command so that no table is read again, and start "
            "the gateway (docs/debezium.md). Otherwise use a new source.slot and kafka.prefix",
        )


def position_before_rename(stored: Stored, fresh: Position, facts: Facts) -> Position | None:
    """Return the position of this slot under a former name of its database (ALTER DATABASE RENAME),
    or None.

    A slot stays in its database, and its name is unique in the server. A slot that was dropped and
    recreated begins after everything that was delivered.
    """
    if facts.slot is None or facts.slot.confirmed_flush_lsn is None or fresh.key in stored.positions:
        return None
    of_slot = (fresh.system_identifier, fresh.slot, fresh.prefix)
    for position in stored.positions.values():
        if (position.system_identifier, position.slot, position.prefix) == of_slot:
            return position if facts.slot.confirmed_flush_lsn <= position.resume_lsn else None
    return None


def after_rename(stored: Stored, former: Position, fresh: Position) -> Stored:
    positions = {key: position for key, position in stored.positions.items() if key != former.key}
    return replace(stored, positions={**positions, fresh.key: replace(former, database=fresh.database)})


def check_prefix(positions: Mapping[bytes, Position], fresh: Position, facts: Facts) -> Iterator[Finding]:
    """Refuse a prefix that another slot uses, or a prefix that is not the one used so far: the
    markers of two slots in one topic would have no order. `fresh` is the position of a first
    start."""
    for key, position in positions.items():
        if key != fresh.key and position.prefix == fresh.prefix:
            yield StopForOperator(
                f"topic prefix {fresh.prefix!r} belongs to slot {position.slot} of database {position.database} (system "
                f"identifier {position.system_identifier}), but this is slot {fresh.slot} of {fresh.database} (system "
                f"identifier {fresh.system_identifier})",
                hint=_other_server_hint(position, fresh, facts),
            )
    known = positions.get(fresh.key)
    if known is not None:
        yield from check_own_prefix(known, fresh)


def check_own_prefix(known: Position, fresh: Position) -> Iterator[Finding]:
    if known.prefix != fresh.prefix:
        yield StopForOperator(
            f"changes of slot {fresh.slot} are written with the topic prefix {known.prefix!r}, but kafka.prefix is "
            f"{fresh.prefix!r}",
            hint="if this server is a copy of another one, choose another source.slot. Otherwise "
            f"set kafka.prefix = {known.prefix}, or use a new slot. The changes of one slot must have one topic "
            "prefix: consumers could not order transactions across two marker topics",
        )


def _other_server_hint(position: Position, fresh: Position, facts: Facts) -> str:
    other = (
        "check source.dsn and source.slot: one of them may be wrong. If both are as intended, set another kafka.prefix"
    )
    if position.state == "INTENT":
        return (
            f"{other}. If both gateways were started for the first time at the same moment, start the one that is meant to have "
            "this prefix again"
        )
    if position.system_identifier == fresh.system_identifier or adoption_obstacle(position, fresh, facts):
        return other
    command = f"walgate adopt --from-system {position.system_identifier}"
    return (
        "if pg_upgrade created this server from the one with system identifier "
        f"{position.system_identifier}, run {command}. Otherwise, or if you are not sure, {other}"
    )


def check_first_start(stored: Stored, fresh: Position, facts: Facts, *, adopt_slot: bool) -> Iterator[Finding]:
    """Check a start without a stored position. Its epochs begin at 1: in topics that already
    contain an epoch 1, rows of the two epochs could not be distinguished."""
    if stored.marker_topic_used:
        yield StopForOperator(
            f"topic prefix {fresh.prefix!r} has been used before, but no resume LSN is stored for slot {fresh.slot}",
            hint="set another kafka.prefix, or delete the topics with this prefix if their records are no longer needed",
        )
    if facts.slot is not None and not adopt_slot:
        yield StopForOperator(
            f"slot {fresh.slot} exists, but no resume LSN is stored for it, so it is not known which changes have been "
            "consumed through it",
            hint="if this is the slot of a Debezium connector that the gateway replaces, keep it, and run walgate adopt "
            "--from-debezium (docs/debezium.md, Migrating from a connector). If something else reads this slot, choose another "
            "source.slot. If nothing does, and its confirmed_flush_lsn "
            "is the right place to start, set source.adopt_slot = true; if it is not the right place, choose another "
            f"source.slot, or drop this slot: SELECT pg_drop_replication_slot('{fresh.slot}')",
        )


def check_progress(before: Facts, stored: Stored, after: Facts, known: Position) -> Iterator[Finding]:
    """Check that no changes are missing after `known`, the last delivered position. `before` was
    read before `stored`, and `after` was read after it."""
    assert before.moment < stored.moment < after.moment, "facts in another order prove nothing"
    if after.slot is None:
        yield DataGap(
            f"slot {known.slot} no longer exists; changes up to {known.resume_lsn} were delivered",
            hint=_CHECK_SERVER
            + "If the slot was dropped (as Patroni does unless its configuration names the slot: docs/checklist.md, Failover), "
            "or this is a new primary to which it was not synchronized, later changes can no longer be read: "
            + ACCEPT_GAP,
        )
    elif before.slot is not None and before.slot.confirmed_flush_lsn is not None:
        confirmed = before.slot.confirmed_flush_lsn
        ahead = confirmed - known.resume_lsn
        if ahead > 0 and stored.lacks_positions_after(known):
            yield DataGap(
                f"slot {known.slot} is confirmed up to {confirmed}, and the marker topic has commits up to "
                f"{stored.newest_commit_lsn}, but the stored resume LSN is {known.resume_lsn}: Kafka has lost the newest records "
                f"of {POSITION_TOPIC}",
                hint="perhaps nothing is missing from the topics of changes, but it is not known where to continue: "
                + (NEW_PREFIX if stored.sends_twice_from(confirmed, known) else ACCEPT_GAP),
            )
        elif ahead > 0:
            yield DataGap(
                f"slot {known.slot} is confirmed up to {confirmed}, but the stored resume LSN "
                f"is {known.resume_lsn}: another process advanced the slot by {ahead} bytes of WAL, or the "
                "slot was dropped and recreated",
                hint=_CHECK_SERVER + "If it is the right server, " + ACCEPT_GAP,
            )
    if not stored.marker_topic_used:
        yield DataGap(
            f"the marker topic of topic prefix {known.prefix!r} is empty, but changes of slot {known.slot} were delivered up to "
            f"{known.resume_lsn}: the topic was deleted and recreated",
            hint="consumers can no longer determine what is committed: " + NEW_PREFIX,
        )
    elif stored.lacks_markers_of(known):
        yield DataGap(
            f"the newest commit in the marker topic of topic prefix {known.prefix!r} is at {stored.newest_commit_lsn}, but "
            f"changes of slot {known.slot} were delivered up to the commit at {known.marked_lsn}: Kafka has lost the newest "
            "markers",
            hint="consumers do not see the transactions whose markers are lost: " + ACCEPT_GAP,
        )
    yield from check_set_back(after, known)


def set_back_lsn(facts: Facts, known: Position) -> Lsn | None:
    """Return the end of the WAL of a server that was set back to an earlier state than `known`, as
    it was when a start found this. Return None if the server was not set back. The LSNs of a
    standby or an old primary are not compared, nor is anything without the slot.

    The server that `known` was read from is recognized by its slot, which is confirmed beyond that
    LSN. In the server that was set back, only another process could have advanced it so far.
    """
    slot, server = facts.slot, facts.server
    if slot is None or server.in_recovery or server.timeline < known.timeline:
        return None
    if known.resume_lsn > server.flush_lsn:
        return max(server.flush_lsn, known.set_back_lsn)
    was_read = slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn > known.set_back_lsn
    return None if was_read or not known.set_back_lsn else known.set_back_lsn


def check_set_back(facts: Facts, known: Position) -> Iterator[Finding]:
    """Check that the server is not in an earlier state than `known`, and was not when a start
    stopped for that reason: its WAL passes the resume LSN later, but what it wrote until then is
    not sent. `facts` were read after `known`."""
    lsn = set_back_lsn(facts, known)
    if lsn is not None:
        is_now = known.resume_lsn > facts.server.flush_lsn
        beyond = f"the stored resume LSN {known.resume_lsn} {'is' if is_now else 'was'} after the end of the WAL, {lsn}"
        yield DataGap(
            f"{beyond}: the server is in an earlier state than when the gateway last read from it, and Kafka may contain changes "
            "that the server does not have",
            hint=_CHECK_SERVER
            + "If the server was restored, with its slot, to an earlier state, or is a standby that was "
            "promoted before it had received all WAL, " + UNTIL_NOW_BEHIND_RESUME_LSN,
        )
