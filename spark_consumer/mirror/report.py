"""Reports of what a batch or a merge did, for those who watch a mirror or changelog."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from schemas.lsn import format_lsn
from spark_consumer.mirror.table_states import FILL, REPLACE, VERIFY, SnapshotWindow, StoredMark
from spark_consumer.reader.table_marks import EXCLUDED, GAP, SKIP, SNAPSHOT_END

_CONSEQUENCES = {
    FILL: "The table cannot be read until a snapshot of it is complete. If it is published, run walgate snapshot start {}",
    REPLACE: "Rows that are no longer in the source may remain. If the table is published, run walgate snapshot start {}",
    VERIFY: "If the table is published, run walgate verify --table {} again",
}


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Report of one batch or merge. `tables`: table -> number of its changes. `notes` are messages
    for the operator; elsewhere, `note` is the text of a commit (table_format.py)."""

    batch: int
    commit_lsn: int
    transactions: int
    changes: int
    tables: dict[str, int]
    seconds: float
    notes: tuple[str, ...] = ()  # messages for the operator
    differences: int = 0  # found by a VERIFY
    commit_time: datetime | None = None  # of the last transaction
    stale: int = 0  # number of tables, as is `filling`
    filling: int = 0
    is_merge: bool = False  # of changes that were already reported when they were appended


def notes_of(
    marks: Sequence[StoredMark],
    ended: Mapping[str, SnapshotWindow],
    unfinished: Mapping[str, SnapshotWindow],
    incomplete: Collection[str] = (),
    unknown: Collection[str] = (),
) -> list[str]:
    """Return messages for the operator about table marks. `unfinished`: see
    table_states.unfinished; `incomplete`: see TableStates, after the marks; `unknown`: see
    table_snapshots.compare."""
    notes = [f"the snapshot of {name} ended ({window.purpose})" for name, window in ended.items()]
    notes += [
        f"{name}: its snapshot ({window.purpose}) is over before its rows were complete, since it was cancelled or the table "
        f"is no longer published. {_CONSEQUENCES[FILL if name in incomplete else window.purpose].format(shlex.quote(str(name)))}"
        for name, window in unfinished.items()
    ]
    notes += [
        f"{mark.table}: its snapshot ({REPLACE}) ended, but the mirror has not read its beginning. "
        f"{_CONSEQUENCES[REPLACE].format(shlex.quote(str(mark.table)))}"
        for mark in marks
        if mark.kind == SNAPSHOT_END and mark.table is not None and mark.facts["purpose"] == REPLACE
        if mark.table not in ended
    ]
    notes += [
        f"{name}: its key changed while its snapshot ({VERIFY}) was read, so rows that are no longer in the source were not "
        f"found. {_CONSEQUENCES[VERIFY].format(shlex.quote(str(name)))}"
        for name in unknown
    ]
    excluded = {mark.table: mark.facts["reason"] for mark in marks if mark.kind == EXCLUDED}
    notes += [
        f"{name} is not updated until a new snapshot of it is taken: {reason}" for name, reason in excluded.items()
    ]
    for mark in marks:
        if mark.kind == GAP:
            end = format_lsn(mark.facts.get("end_lsn") or mark.commit_lsn)
            notes.append(
                f"changes in the gap that ends at {end} are lost: no table is up to date until a new snapshot of it is taken"
            )
        if mark.kind == SKIP:
            notes.append(f"the transaction at {format_lsn(mark.commit_lsn)} was skipped: {mark.facts.get('detail')}")
    return notes
