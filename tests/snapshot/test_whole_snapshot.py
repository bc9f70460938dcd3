"""The SNAPSHOT_BEGIN of a snapshot as a whole is sent before its first table, in whichever session
that is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.snapshot.stored_state import StoredStates, StreamState, TableState
from gateway.snapshot.whole_snapshot import WholeSnapshot

WAITING = TableState(1, "public", "t", "id")


def snapshot_of(*states: TableState) -> WholeSnapshot:
    tables = {state.relation_oid: state for state in states}
    return WholeSnapshot(StoredStates(StreamState(snapshot_id="id"), tables))


@pytest.mark.parametrize("status", ["READING", "ENDING", "DONE"])
def test_a_table_that_was_begun_shows_that_the_begin_was_sent(status: str) -> None:
    assert not snapshot_of(WAITING, replace(WAITING, relation_oid=2, status=status)).record_begin()


def test_a_table_that_was_only_set_up_does_not() -> None:
    """Its id is stored before its boundary arrives, and the session may end in between."""
    snapshot = snapshot_of(WAITING)
    assert snapshot.record_begin() and not snapshot.record_begin()
