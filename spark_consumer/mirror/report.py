"""What a batch, or a merge, did: for who watches a mirror or changelog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from schemas.lsn import format_lsn
from spark_consumer.mirror.table_states import Mark, Window
from spark_consumer.reader.table_marks import EXCLUDED, GAP, SKIP


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did. `tables`: changes of each."""

    batch: int
    commit_lsn: int
    transactions: int
    changes: int
    tables: dict[str, int]
    seconds: float
    notes: tuple[str, ...] = ()  # what a person should know
    differences: int = 0  # that a VERIFY has found
    commit_time: datetime | None = None  # of the last transaction
    stale: int = 0  # tables
    filling: int = 0
    is_append: bool = False  # and merged later
    is_merge: bool = False  # of changes that were reported when they were appended


def notes_of(marks: Sequence[Mark], ended: Mapping[str, Window]) -> list[str]:
    """What of the signs a person should read."""
    notes = [f"the snapshot of {name} ended ({window.purpose})" for name, window in ended.items()]
    excluded = {mark.table: mark.facts["reason"] for mark in marks if mark.kind == EXCLUDED}
    notes += [
        f"{name} is not updated until a new snapshot of it is taken: {reason}" for name, reason in excluded.items()
    ]
    for mark in marks:
        if mark.kind == GAP:
            notes.append(
                f"changes in the gap that ends at {format_lsn(mark.commit_lsn)} are lost: no table is up to date until a new "
                "snapshot of it is taken"
            )
        if mark.kind == SKIP:
            notes.append(f"the transaction at {format_lsn(mark.commit_lsn)} was skipped: {mark.facts.get('detail')}")
    return notes
