"""Checks of timelines: whether this server is an old primary, and whether a promoted server has
everything that was delivered.

A timeline's history file has a line for each earlier timeline: its number, the LSN where it was
left, and the reason (PostgreSQL manual, 26.3.6 Timelines; `readTimeLineHistory` in timeline.c).
Changes that were read beyond that LSN are in Kafka, and in no database.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.errors import UNTIL_NOW_BEHIND_RESUME_LSN, DataGap, NextSession, RetrySlowly
from gateway.startup.findings import Finding, OperatorWarning
from gateway.transactions.position import Position
from schemas.lsn import Lsn


class NotPrimary(RetrySlowly):
    """This server is not the primary; another host of the DSN may be."""

    def change(self, next_session: NextSession) -> None:
        next_session.avoid_server()


class LeftBehind(NotPrimary):
    """This server was the primary before a failover."""


def check_timeline(timeline: int, expected: int | None) -> Iterator[Finding]:
    """Refuse an old primary, which may just be the first host that answered. `timeline` is the
    server's timeline, which for a standby is known on the replication connection only."""
    if expected is not None and timeline < expected:
        yield LeftBehind(
            f"the server is on timeline {timeline}, but the resume LSN is on {expected}: this server is an old primary",
            hint="the other hosts of source.dsn are tried next: make sure that the current primary is one of them. Only if this "
            "server was restored from a backup and no other primary runs, let it be the only host of source.dsn, and run walgate "
            "accept-gap --until-now (docs/gap.md)",
        )


def parse_history(content: str) -> dict[int, Lsn]:
    """Return the LSN where each timeline was left. Raises RetrySlowly if `content` is not a
    history."""
    switches: dict[int, Lsn] = {}
    for line in content.splitlines():
        words = line.split("#")[0].split(None, 2)
        if not words:
            continue
        try:
            switches[int(words[0])] = Lsn.parse(words[1])
        except (ValueError, IndexError) as error:
            raise RetrySlowly(
                "the server's timeline history cannot be read", hint="restore the server's pg_wal/*.history files"
            ) from error
    return switches


def position_at_fork(position: Position, left_at: Lsn | None) -> Position:
    """Return the position on a server that left the position's timeline at `left_at`. An idle
    position may be after the fork, because it follows WAL that has nothing for Kafka. If everything
    that was delivered precedes the fork, the position goes back to it. Nothing in Kafka is then
    missing on the server, and whatever the server commits comes after the fork."""
    content_lsn = position.content_lsn or position.resume_lsn
    if left_at is None or position.resume_lsn <= left_at or content_lsn > left_at:
        return position
    return replace(
        position,
        resume_lsn=left_at,
        last_commit_lsn=min(position.last_commit_lsn, Lsn(content_lsn - 1)),
        skip_lsn=position.skip_lsn if position.skip_lsn < left_at else Lsn(0),
    )


def check_promotion(
    slot: str, resume_lsn: Lsn, last_commit_lsn: Lsn, old_timeline: int, new_timeline: int, history: str
) -> Iterator[Finding]:
    """Check that the promoted server has everything that was delivered. `history` belongs to
    `new_timeline`, the server's; the position is on `old_timeline`."""
    if old_timeline == new_timeline:
        return
    left_at = parse_history(history).get(old_timeline)
    if left_at is None:
        yield DataGap(
            f"timeline {new_timeline} of the server is not a child of {old_timeline}, the timeline of the resume LSN",
            hint="this may be another copy of the server: point source.dsn to the primary that succeeded the old one",
        )
    elif resume_lsn > left_at > last_commit_lsn:
        # An idle position follows WAL without transactions for Kafka.
        yield DataGap(
            f"the new primary forked off timeline {old_timeline} at {left_at}, before the resume LSN {resume_lsn}: the "
            f"{resume_lsn - left_at} bytes of WAL in between were never on this server. All transactions in Kafka committed "
            "before that, so this server has them; but what it commits before its WAL has passed the resume LSN cannot be sent",
            hint=UNTIL_NOW_BEHIND_RESUME_LSN,
        )
    elif resume_lsn > left_at:
        yield DataGap(
            f"the new primary forked off timeline {old_timeline} at {left_at}, but Kafka contains changes up to "
            f"{resume_lsn}: those in between ({resume_lsn - left_at} bytes of WAL) were never on this server",
            hint=UNTIL_NOW_BEHIND_RESUME_LSN,
        )
    else:
        yield OperatorWarning(
            f"the server was promoted: timeline {new_timeline} forked off timeline {old_timeline} at {left_at}, "
            f"{'at' if resume_lsn == left_at else 'after'} the resume LSN",
            "nothing is lost. Start the old primary only as a standby of the new one. If it still has the slot then, "
            f"run on it: SELECT pg_drop_replication_slot('{slot}'). Its own slot retains WAL, and keeps PostgreSQL from "
            "synchronizing the slot to it",
        )
