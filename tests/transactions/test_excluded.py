"""What an operator, or an error, leaves out: tables in quarantine, one transaction, a relation that
was refused meanwhile."""

from __future__ import annotations

import pytest

from gateway.errors import StopForOperator
from gateway.pgoutput.letters import MESSAGE
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.row import Truncate
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare
from gateway.transactions.ordinary import OutOfOrder
from gateway.transactions.transaction import Quarantined
from schemas.lsn import Lsn
from tests.pgoutput.writer import write
from tests.transactions.stream import RELATION_OID, Stream
from tests.transactions.test_machine import TIME, begin, commit, segment

BAD_OID = 5000
BAD = Quarantined(BAD_OID, "public", "bad", "cdc.public.bad", "a reason", 900)
SKIPPED_LSN = 1000


def told(stream: Stream) -> list[tuple[str, int]]:
    return [(marker.kind, marker.marker_lsn) for marker in stream.machine.take_markers()]


def test_changes_of_a_table_in_quarantine_are_counted_in_the_manifest_and_by_table() -> None:
    stream = Stream(quarantined=(BAD,))
    begin(stream, 5, 1000)
    stream.row()
    for _ in range(3):
        stream.row(oid=BAD_OID)
    stream.receive(Truncate(None, (RELATION_OID, BAD_OID), False, False))
    stream.drained(b"I" + BAD_OID.to_bytes(4, "big") + b"x", 10**9)  # too large to be held, and not wanted
    commit(stream, 1000)
    (last,) = [marker for marker in stream.machine.take_markers() if marker.manifest is not None]
    assert last.manifest is not None and last.manifest.event_count == 2 and len(stream.rows.events) == 2
    (excluded,) = last.manifest.excluded
    assert (excluded.name, excluded.event_count, excluded.reason) == ("bad", 5, "a reason")
    assert stream.machine.relations.excluded_count == {BAD_OID: 5}


def test_several_tables_are_told_apart() -> None:
    other = Quarantined(5001, "public", "other", "cdc.public.other", "a reason", 900)
    stream = Stream(quarantined=(BAD, other))
    begin(stream, 5, 1000)
    for oid in (BAD_OID, 5001, BAD_OID):
        stream.row(oid=oid)
    commit(stream, 1000)
    (last,) = [marker for marker in stream.machine.take_markers() if marker.manifest is not None]
    assert last.manifest is not None
    assert [(one.name, one.event_count) for one in last.manifest.excluded] == [("bad", 2), ("other", 1)]


def skipped(stream: Stream) -> tuple[bool, int | None]:
    return stream.machine.is_skipping, stream.machine.current_commit_lsn


def message(stream: Stream) -> None:
    stream.receive(Message(None, True, Lsn(1), "prefix", b"content"))


def test_a_skipped_transaction_leaves_one_marker_and_nothing_else() -> None:
    stream = Stream(skip_lsn=SKIPPED_LSN)
    begin(stream, 5, SKIPPED_LSN)
    assert skipped(stream) == (True, SKIPPED_LSN)
    stream.row()
    stream.row(oid=999)  # of a relation that nobody announced
    message(stream)
    large = write(Message(None, True, Lsn(1), "prefix", b"content"))
    assert large[0] == MESSAGE
    stream.drained(large, 10**9)
    commit(stream, SKIPPED_LSN)
    assert told(stream) == [("SKIP", SKIPPED_LSN)]
    assert not stream.rows.events and not stream.messages.events and not stream.left_out
    assert skipped(stream) == (False, None)
    begin(stream, 6, 2000)
    stream.row()
    commit(stream, 2000)
    assert told(stream) == [("BEGIN", 2000), ("COMMIT", 2000)] and len(stream.rows.events) == 1


def test_a_prepared_transaction_is_skipped_by_its_prepare_lsn() -> None:
    stream = Stream(skip_lsn=SKIPPED_LSN)
    stream.receive(BeginPrepare(Lsn(SKIPPED_LSN), Lsn(1040), TIME, 5, "gid"))
    assert skipped(stream) == (True, SKIPPED_LSN)
    stream.row()
    stream.receive(Prepare(0, Lsn(SKIPPED_LSN), Lsn(1040), TIME, 5, "gid"))
    assert told(stream) == [("SKIP", SKIPPED_LSN)] and stream.machine.unfinished_xids == [5]
    stream.receive(CommitPrepared(0, Lsn(1100), Lsn(1140), TIME, 5, "gid"))
    assert told(stream) == [] and stream.machine.resume_lsn == 1140


def test_a_prepare_of_another_transaction_than_begun_is_an_error() -> None:
    stream = Stream()
    stream.receive(BeginPrepare(Lsn(1000), Lsn(1040), TIME, 5, "gid"))
    with pytest.raises(OutOfOrder, match="Prepare of 5"):
        stream.receive(Prepare(0, Lsn(1000), Lsn(1040), TIME, 5, "another"))


def test_what_was_refused_in_a_skipped_transaction_stops_the_next_change() -> None:
    stream = Stream(skip_lsn=SKIPPED_LSN)
    begin(stream, 5, SKIPPED_LSN)
    stream.machine.relations.refuse(RELATION_OID, StopForOperator("readers could not read it"))
    stream.row()
    commit(stream, SKIPPED_LSN)
    begin(stream, 6, 2000)
    with pytest.raises(StopForOperator, match="readers could not read it"):
        stream.row()
    stream.announce("v2")
    stream.row()
    assert [event.operation for event in stream.rows.events] == ["INSERT:v2"]


def test_the_newest_commit_with_a_marker_is_known() -> None:
    """Of a commit without one readers hear nothing, so they are not behind it."""
    stream = Stream(quarantined=(BAD,))
    for xid, lsn, rows in ((5, 1000, 1), (6, 2000, 0)):
        begin(stream, xid, lsn)
        for _ in range(rows):
            stream.row()
        commit(stream, lsn)
    machine = stream.machine
    assert (machine.last_commit_lsn, machine.writer.marked_lsn, machine.writer.marked_time) == (2000, 1000, TIME)
    segment(stream, 7, 7)
    assert machine.unfinished_xids == [7] and machine.stream_sizes == [(7, 1)]
