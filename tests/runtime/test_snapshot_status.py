"""`walgate snapshot status` and the status page count the same tables."""

from __future__ import annotations

from gateway.runtime.snapshot_status import status_lines, status_of
from gateway.snapshot.stored_state import NOT_TO_BE_READ, RESELECT, StoredStates, StreamState, TableState


def test_rows_that_are_read_again_are_no_unfinished_table() -> None:
    tables = [
        TableState(1, "public", "b", "id", status="READING"),
        TableState(2, "public", "again", "", RESELECT, "READING"),
        TableState(3, "public", "known", "", status=NOT_TO_BE_READ),
        TableState(4, "public", "a", "id", status="DONE"),
    ]
    states = StoredStates(StreamState(), {table.relation_oid: table for table in tables})
    assert status_of(states).left == 1
    assert [table.table for table in status_of(states).tables] == ["public.b"]
    first, *rest = status_lines(states)
    assert first == "snapshots of 2 tables were started; 1 is unfinished"
    assert [line.partition(":")[0] for line in rest] == ["public.a", "public.b"]
