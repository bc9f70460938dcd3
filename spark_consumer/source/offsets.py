"""Offsets of a streaming query in Spark's checkpoint.

They are checked against the marker topic, which may have been recreated since.
"""

from __future__ import annotations

from typing import TypeAlias

from schemas.lsn import format_lsn
from spark_consumer.errors import MarkerError
from spark_consumer.reader.markers import CommittedTransaction

StreamOffset: TypeAlias = dict[str, int]
"""{"position": next marker offset, "commit_lsn": of the last transaction before it}.

The end offset of a query's first batch also has `began`, the position at which that batch begins.
"""


def offset_after(transactions: list[CommittedTransaction], commit_lsn: int) -> StreamOffset:
    """Return the offset after these transactions. `commit_lsn`: of the last transaction before
    them, which applies if there are only notices."""
    for transaction in transactions:
        commit_lsn = commit_lsn if transaction.is_notice else transaction.commit_lsn
    return {"position": transactions[-1].marker_offset + 1, "commit_lsn": commit_lsn}


def check_last(transactions: list[CommittedTransaction], offset: StreamOffset, commit_lsn: int) -> None:
    """Raise MarkerError unless `offset` is the one after the last of these transactions.

    `commit_lsn`: of the last transaction before them.
    """
    if not transactions or not offset_after(transactions, commit_lsn).items() <= offset.items():
        found = transactions[-1] if transactions else "no commit"
        raise other_topic(f"marker {offset['position'] - 1} of the marker topic is {found}", offset)


def other_topic(what: str, offset: StreamOffset) -> MarkerError:
    return MarkerError(
        f"the query is at commit_lsn {format_lsn(offset['commit_lsn'])} at offset {offset['position']} of the "
        f"marker topic, but {what}",
        hint="First check kafka.bootstrap.servers, prefix and the checkpoint location. If one of them is wrong, correct it and "
        "restart the query: nothing is lost. If all are right, the topic was recreated, and changes may be missing from the "
        "output of this query: use a new checkpoint location, and a new mirror or changelog.",
    )
