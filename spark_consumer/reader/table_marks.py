"""Table marks: statements of the markers about tables, such as bounds and chunks of snapshots,
excluded tables, and gaps.

A mark has the position of its marker: the commit LSN of a transaction, after the changes of that
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from spark_consumer.reader.markers import CommittedTransaction
from spark_consumer.tables import TableName

SNAPSHOT_BEGIN, SNAPSHOT_END, SNAPSHOT_CHUNK = "SNAPSHOT_BEGIN", "SNAPSHOT_END", "SNAPSHOT_CHUNK"
EXCLUDED, SKIP, GAP = "EXCLUDED", "SKIP", "GAP"
MARKER_OFFSET = "marker_offset"
ENDS_WITH_TABLE = "ends_with_table"
"""A fact of the SNAPSHOT_END of all tables: the last of them ended in the same transaction."""
KINDS = (SNAPSHOT_BEGIN, SNAPSHOT_END, SNAPSHOT_CHUNK, EXCLUDED, SKIP, GAP)


@dataclass(frozen=True, slots=True)
class TableMark:
    """A table mark. `kind` is one of KINDS; `table` is None for a mark of all tables. `facts` has
    what the marker states, and the offset of the marker, for JSON. The offset preserves the order
    of marks that are stored, since marks of one transaction have the same commit LSN."""

    kind: str
    table: TableName | None
    commit_lsn: int
    ordinal: int
    commit_time_us: int | None
    xid: int
    marker_offset: int
    facts: dict[str, Any]


def marks_of(transactions: Iterable[CommittedTransaction], wants: Callable[[TableName], bool]) -> list[TableMark]:
    """Return the marks of the tables that `wants` selects, and those that concern all tables."""
    found = [mark for transaction in transactions for mark in _marks(transaction)]
    # Noted here, since the last table may not be among those selected.
    ends = {_end_of(mark) for mark in found if mark.kind == SNAPSHOT_END and mark.table is not None}
    return [_noting(mark, ends) for mark in found if mark.table is None or wants(mark.table)]


def _end_of(mark: TableMark) -> tuple[str, int]:
    return mark.facts["snapshot_id"], mark.commit_lsn


def _noting(mark: TableMark, ends: Container[tuple[str, int]]) -> TableMark:
    """Return the mark with ENDS_WITH_TABLE, if that applies to it. `ends`: those of tables."""
    if mark.kind == SNAPSHOT_END and mark.table is None and _end_of(mark) in ends:
        return replace(mark, facts={**mark.facts, ENDS_WITH_TABLE: True})
    return mark


def _marks(transaction: CommittedTransaction) -> list[TableMark]:
    ordinal = transaction.event_count
    found = []
    snapshot = transaction.snapshot
    if snapshot is not None:
        table = TableName(snapshot.namespace, snapshot.name) if snapshot.relation_oid else None
        kind = transaction.kind if transaction.is_notice else SNAPSHOT_CHUNK
        found.append(_mark(transaction, kind, table, ordinal, asdict(snapshot)))
    elif transaction.is_notice:
        facts = {"detail": transaction.detail, "end_lsn": transaction.end_lsn}
        found.append(_mark(transaction, transaction.kind, None, ordinal, facts))
    for place, each in enumerate(transaction.excluded):
        if each.relation_oid:  # 0: logical messages
            table = TableName(each.namespace, each.name)
            found.append(_mark(transaction, EXCLUDED, table, ordinal + place, asdict(each)))
    return found


def _mark(
    transaction: CommittedTransaction, kind: str, table: TableName | None, ordinal: int, facts: dict[str, Any]
) -> TableMark:
    return TableMark(
        kind,
        table,
        transaction.mark_lsn,
        ordinal,
        transaction.commit_time_us,
        transaction.xid,
        transaction.marker_offset,
        {**facts, MARKER_OFFSET: transaction.marker_offset},
    )
