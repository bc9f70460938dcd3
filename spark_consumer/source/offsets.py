"""Offsets of a streaming query in Spark's checkpoint.

Offsets are checked against the marker topic, which may have been recreated since they were written.
"""

from __future__ import annotations

from typing import TypeAlias

from schemas.lsn import format_lsn
from spark_consumer.errors import MarkerError
from spark_consumer.reader.markers import CommittedTransaction

StreamOffset: TypeAlias = dict[str, int]
"""{"position": next marker offset, "commit_lsn": of the last transaction before it}.

An offset also has `last`, the marker offset of the last transaction or notice, unless that is
directly before the position. Other markers, and Kafka's own control records, may be in between. The
end offset of a query's first batch also has `began`, the position at which that batch begins.
"""


def last_commit_lsn(transactions: list[CommittedTransaction], commit_lsn: int) -> int:
    """Return the commit LSN of the last of these transactions; `commit_lsn` if there are only
    notices."""
    return next((each.commit_lsn for each in reversed(transactions) if not each.is_notice), commit_lsn)


def last_marker(offset: StreamOffset) -> int:
    return offset.get("last", offset["position"] - 1)


def offset_after(transactions: list[CommittedTransaction], before: StreamOffset, position: int) -> StreamOffset:
    """Return the offset with this position, which is after these transactions. They follow the
    offset `before`."""
    last = transactions[-1].marker_offset if transactions else last_marker(before)
    offset = {"position": position, "commit_lsn": last_commit_lsn(transactions, before["commit_lsn"])}
    return offset if last == position - 1 else {**offset, "last": last}


def check_last(transactions: list[CommittedTransaction], offset: StreamOffset, before: StreamOffset) -> None:
    """Raise MarkerError unless `offset` fits the last of these transactions, which follow the
    offset `before`."""
    expected = offset_after(transactions, before, offset["position"])
    if (last_marker(expected), expected["commit_lsn"]) != (last_marker(offset), offset["commit_lsn"]):
        found = transactions[-1] if transactions else "no commit"
        raise other_topic(f"marker {last_marker(offset)} of the marker topic is {found}", offset)


def other_topic(what: str, offset: StreamOffset) -> MarkerError:
    return MarkerError(
        f"the query is at commit_lsn {format_lsn(offset['commit_lsn'])} at offset {offset['position']} of the "
        f"marker topic, but {what}",
        hint="First check kafka.bootstrap.servers, prefix and the checkpoint location. If one of them is wrong, correct it and "
        "restart the query: nothing is lost. If all are right, the topic was recreated, and changes may be missing from the "
        "output of this query: use a new checkpoint location, and a new mirror or changelog.",
    )
