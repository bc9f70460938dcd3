"""After a promotion: the new primary may lack the end of what the old one sent.

A timeline's history file has a line for each timeline before it: number, LSN where it was left, reason (PostgreSQL manual,
26.3.6 Timelines; `readTimeLineHistory` in timeline.c). What we have read beyond that LSN is in Kafka, and in no database.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.lsn import Lsn
from gateway.operate.errors import DataGap, StopForOperator
from gateway.replication.facts import Caution, Finding


def parse_history(content: str) -> dict[int, Lsn]:
    """Timeline -> LSN where it was left. Raises StopForOperator for what is no history."""
    switches: dict[int, Lsn] = {}
    for line in content.splitlines():
        words = line.split("#")[0].split(None, 2)
        if not words:
            continue
        try:
            switches[int(words[0])] = Lsn.parse(words[1])
        except (ValueError, IndexError) as error:
            raise StopForOperator("the timeline's history can not be read", hint="see pg_wal/*.history") from error
    return switches


def check_promotion(resume_lsn: Lsn, old_timeline: int, new_timeline: int, history: str) -> Iterator[Finding]:
    """`history` is that of `new_timeline`, the server's; the position is of `old_timeline`."""
    if old_timeline == new_timeline:
        return
    left_at = parse_history(history).get(old_timeline)
    if left_at is None:
        yield DataGap(
            f"timeline {new_timeline} of the server does not come from {old_timeline}, that of the position",
            hint="is this another copy of the server? Point source.dsn to the primary that came after the old one",
        )
    elif resume_lsn > left_at:
        yield DataGap(
            f"the new primary left timeline {old_timeline} at {left_at}, but Kafka holds changes up to {resume_lsn}: "
            f"those in between ({resume_lsn - left_at} bytes of WAL) never were in this server",
            hint="decide what to do with them; then start anew: new slot, prefix and copies of the tables",
        )
    else:
        yield Caution(
            f"the server was promoted: timeline {old_timeline} went on as {new_timeline} at {left_at}, behind our position",
            "nothing is lost; see that the old primary does not come back",
        )
