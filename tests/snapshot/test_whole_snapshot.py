"""The SNAPSHOT_BEGIN of a snapshot as a whole is sent before its first table, in whichever session
that is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from gateway.snapshot.progress_log import ProgressLog
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.stored_state import StoredStates, StreamState, TableState, decode_states
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks
from gateway.snapshot.whole_snapshot import WholeSnapshot
from schemas.records import SNAPSHOT_STATE
from schemas.wire_format import frame

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


def test_a_pause_ends_with_its_snapshot() -> None:
    snapshot = snapshot_of(WAITING)
    snapshot.pause()
    snapshot.end()
    assert not snapshot.is_paused
    (record,) = snapshot.take_states(frame(1), b"key", None, has_tables=False).values()
    assert decode_states({b"key": record}, {1: SNAPSHOT_STATE}).stream == StreamState()


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_snapshot_that_begins_paused_says_so(is_paused: bool) -> None:
    snapshot = WholeSnapshot(StoredStates(StreamState(paused=is_paused)))
    with capture_logs() as logs:
        snapshot.begin(1)
        ProgressLog().log(1, 0, 0, snapshot.pause_fields)
    said = [(entry.get("paused", False), "walgate snapshot resume" in entry.get("hint", "")) for entry in logs]
    assert said == [(is_paused, is_paused)] * 2


@pytest.mark.parametrize(
    ("status", "ends_all"), [(Status.ENDING, True), (Status.READING, False), (Status.WAITING, False)]
)
def test_a_table_whose_end_comes_first_in_the_stream_does_not_hold_up_the_end_of_all(
    status: Status, ends_all: bool
) -> None:
    """Otherwise that end would come alone, as that of a snapshot that was cancelled."""
    unused: Any = None
    tasks = TableTasks(
        StoredStates(StreamState()), unused, (), position_key=b"", frame=b"", chunk_bytes=1, reselects=False
    )
    one, other = (
        SimpleNamespace(oid=oid, is_reselect=False, is_set_aside=False, status=Status.ENDING) for oid in (1, 2)
    )
    other.status = status
    tasks._by_oid = cast("dict[int, TableTask]", {1: one, 2: other})
    assert tasks.are_all([cast("TableTask", one)]) == ends_all
