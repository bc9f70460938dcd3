from __future__ import annotations

import pytest

from gateway.errors import DataGap
from gateway.events.manifest import Manifest
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.relation import Type
from gateway.pgoutput.row import Truncate
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.pgoutput.transaction import Begin, Commit, Origin
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from gateway.transactions.machine import RolledBackMessages
from gateway.transactions.ordinary import OutOfOrder
from gateway.transactions.transaction import Prepared
from schemas.lsn import Lsn
from tests.transactions.stream import RELATION_OID, Stream

TIME = 1_700_000_000_000_000


def begin(stream: Stream, xid: int, commit_lsn: int) -> None:
    stream.receive(Begin(Lsn(commit_lsn), TIME, xid))


def commit(stream: Stream, commit_lsn: int) -> None:
    stream.receive(Commit(0, Lsn(commit_lsn), Lsn(commit_lsn + 40), TIME))


def segment(stream: Stream, xid: int, *subxids: int, first: bool = True) -> None:
    stream.receive(StreamStart(xid, first))
    if first:
        stream.announce(subxid=xid)
    for subxid in subxids:
        stream.row(subxid=subxid)
    stream.receive(StreamStop())


def test_an_ordinary_transaction_has_two_markers_and_a_manifest() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    assert not stream.machine.at_boundary
    stream.row(b"I")
    stream.row(b"D")
    commit(stream, 1000)
    first, last = stream.machine.take_markers()
    assert (first.kind, first.xid, first.marker_lsn, first.time) == ("BEGIN", 5, 1000, TIME)
    assert (last.kind, last.xid, last.marker_lsn, last.end_lsn, last.time) == ("COMMIT", 5, 1000, 1040, TIME)
    assert last.manifest is not None
    assert (last.manifest.event_count, last.manifest.schema_ids, last.manifest.epoch) == (2, [7], 3)
    assert [event.ordinal for event in stream.rows.events] == [0, 1]
    assert stream.machine.resume_lsn == 1040
    assert stream.machine.last_commit_lsn == 1000
    assert stream.machine.at_boundary


def test_a_transaction_without_events_leaves_no_trace_but_moves_on() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    stream.receive(Type(None, 90000, "public", "mood"))
    commit(stream, 1000)
    assert stream.kinds() == []
    assert stream.machine.resume_lsn == 1040


def test_ordinals_count_over_all_tables_and_a_key_change_is_one_event_of_two_records() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    stream.row(b"U", content=b"moved")
    stream.row(b"I")
    commit(stream, 1000)
    assert [(e.operation, e.ordinal) for e in stream.rows.events] == [
        ("DELETE:v1", 0),
        ("UPDATE:v1", 0),
        ("INSERT:v1", 1),
    ]
    manifest = stream.machine.take_markers()[-1].manifest
    assert manifest is not None and manifest.event_count == 2
    assert sum(count for pieces in manifest.ranges.values() for _, _, count in pieces) == 3


def test_truncate_is_one_event_for_each_relation() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    stream.receive(Truncate(None, (RELATION_OID, RELATION_OID), cascade=True, restart_identity=False))
    commit(stream, 1000)
    assert [(e.operation, e.ordinal) for e in stream.rows.events] == [("TRUNCATE:v1", 0), ("TRUNCATE:v1", 1)]


def test_rows_of_a_stream_are_in_progress_and_name_their_subtransaction() -> None:
    stream = Stream()
    segment(stream, 10, 10, 11, 10)
    assert [e.context.subxid for e in stream.rows.events] == [-1, 11, -1]
    assert {e.context.commit_lsn for e in stream.rows.events} == {None}
    assert stream.kinds() == ["STREAM_START", "STREAM_STOP"]
    assert stream.machine.open_streams == 1
    stream.receive(StreamCommit(10, 0, Lsn(900), Lsn(940), TIME))
    (marker,) = stream.machine.take_markers()
    assert (marker.kind, marker.xid, marker.marker_lsn) == ("STREAM_COMMIT", 10, 900)
    assert marker.manifest is not None and marker.manifest.event_count == 3
    assert stream.machine.open_streams == 0


def test_interleaved_streams_are_kept_apart() -> None:
    stream = Stream()
    segment(stream, 10, 10, 10)
    segment(stream, 20, 20)
    segment(stream, 10, 10, first=False)
    stream.receive(StreamCommit(20, 0, Lsn(900), Lsn(940), TIME))
    stream.receive(StreamCommit(10, 0, Lsn(950), Lsn(990), TIME))
    ends = [m for m in stream.machine.take_markers() if m.kind == "STREAM_COMMIT"]
    assert [(m.xid, m.manifest.event_count) for m in ends if m.manifest] == [(20, 1), (10, 3)]
    assert [e.ordinal for e in stream.rows.events if e.context.xid == 10] == [0, 1, 2]


def test_an_aborted_subtransaction_is_named_in_the_manifest_and_its_rows_still_count() -> None:
    stream = Stream()
    segment(stream, 10, 10, 11, 12)
    stream.receive(StreamAbort(10, 11, Lsn(500), TIME))
    stream.receive(StreamCommit(10, 0, Lsn(900), Lsn(940), TIME))
    abort, end = stream.machine.take_markers()[-2:]
    assert (abort.kind, abort.xid, abort.subxid, abort.marker_lsn, abort.manifest) == (
        "STREAM_ABORT",
        10,
        11,
        500,
        None,
    )
    assert end.manifest is not None
    assert (end.manifest.aborted_subxids, end.manifest.event_count) == ([11], 3)


def test_a_whole_abort_ends_the_stream_without_a_commit() -> None:
    stream = Stream()
    segment(stream, 10, 10)
    stream.receive(StreamAbort(10, 10, None, None))
    assert stream.kinds() == ["STREAM_START", "STREAM_STOP", "STREAM_ABORT"]
    assert stream.machine.open_streams == 0
    assert stream.machine.resume_lsn == 0


def test_a_stream_without_events_leaves_no_trace() -> None:
    stream = Stream()
    stream.receive(StreamStart(10, first_segment=True))
    stream.receive(StreamStop())
    stream.receive(StreamAbort(10, 11, None, None))
    stream.receive(StreamCommit(10, 0, Lsn(900), Lsn(940), TIME))
    assert stream.kinds() == []


def test_a_prepared_transaction_ends_with_the_manifest_of_its_prepare() -> None:
    stream = Stream()
    stream.receive(BeginPrepare(Lsn(100), Lsn(140), TIME, 30, "gid 1"))
    stream.row()
    stream.receive(Prepare(0, Lsn(100), Lsn(140), TIME, 30, "gid 1"))
    first, prepare = stream.machine.take_markers()
    assert (first.kind, first.gid) == ("BEGIN_PREPARE", "gid 1")
    assert (prepare.kind, prepare.gid, prepare.marker_lsn, prepare.end_lsn) == ("PREPARE", "gid 1", 100, 140)
    assert stream.machine.resume_lsn == 140
    assert stream.machine.last_commit_lsn == 0
    assert {e.context.commit_lsn for e in stream.rows.events} == {None}
    stream.receive(CommitPrepared(0, Lsn(200), Lsn(240), TIME, 30, "gid 1"))
    (end,) = stream.machine.take_markers()
    assert (end.kind, end.marker_lsn, end.manifest) == ("COMMIT_PREPARED", 200, prepare.manifest)
    assert stream.machine.last_commit_lsn == 200
    assert not stream.machine.prepared


def test_a_prepared_transaction_outlives_the_process_with_the_epoch_of_its_rows() -> None:
    before = Stream(epoch=3)
    before.receive(BeginPrepare(Lsn(100), Lsn(140), TIME, 30, "g"))
    before.row()
    before.receive(Prepare(0, Lsn(100), Lsn(140), TIME, 30, "g"))
    after = Stream(epoch=4, resume_lsn=140, prepared=before.machine.prepared.values())
    after.receive(CommitPrepared(0, Lsn(200), Lsn(240), TIME, 30, "g"))
    (end,) = after.machine.take_markers()
    assert end.manifest is not None and end.manifest.epoch == 3


def test_rollback_prepared_ends_it_and_one_that_was_never_seen_is_ignored() -> None:
    stream = Stream()
    segment(stream, 30, 30)
    stream.receive(StreamPrepare(0, Lsn(100), Lsn(140), TIME, 30, "g"))
    stream.receive(RollbackPrepared(0, Lsn(140), Lsn(240), TIME, TIME, 30, "g"))
    assert stream.kinds() == ["STREAM_START", "STREAM_STOP", "STREAM_PREPARE", "ROLLBACK_PREPARED"]
    stream.receive(RollbackPrepared(0, Lsn(300), Lsn(340), TIME, TIME, 31, "of before"))
    assert stream.kinds() == []
    assert stream.machine.resume_lsn == 340


def test_a_prepared_transaction_that_ended_in_a_gap_is_forgotten_when_its_end_is_passed() -> None:
    lost, kept = (Prepared(f"g{xid}", xid, 100, None, Manifest(1)) for xid in (30, 31))
    stream = Stream(resume_lsn=140, prepared=(lost, kept))
    stream.machine.note_ended(frozenset({30}), 240)
    for lsn, forgotten in ((239, []), (240, [lost]), (241, [])):
        stream.receive(Message(None, False, Lsn(lsn), "p", b""))
        assert stream.machine.pop_ended_in_gap() == forgotten
    assert [*stream.machine.prepared.values()] == [kept]


def test_commit_prepared_of_an_unknown_transaction_is_a_gap() -> None:
    with pytest.raises(DataGap, match="'nobody'"):
        Stream().receive(CommitPrepared(0, Lsn(200), Lsn(240), TIME, 30, "nobody"))


def test_a_commit_lsn_that_does_not_rise_is_out_of_order() -> None:
    stream = Stream(last_commit_lsn=1000)
    begin(stream, 5, 1000)
    stream.row()
    with pytest.raises(OutOfOrder, match="a commit at 0/3E8, expected one after 0/3E8"):
        commit(stream, 1000)


def test_a_message_outside_transactions_is_nobodys_and_moves_on() -> None:
    stream = Stream()
    stream.receive(Message(None, False, Lsn(77), "p", b"c"))
    (event,) = stream.messages.events
    assert (event.context.xid, event.ordinal, event.manifest) == (0, 0, None)
    assert stream.kinds() == []
    assert stream.machine.resume_lsn == 77


def test_a_transactional_message_is_an_event_of_its_transaction() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    stream.row()
    stream.receive(Message(None, True, Lsn(77), "p", b"c"))
    commit(stream, 1000)
    manifest = stream.machine.take_markers()[-1].manifest
    assert manifest is not None
    assert (manifest.event_count, manifest.schema_ids, set(manifest.ranges)) == (
        2,
        [7, 99],
        {("cdc.public.t", 0), ("cdc.message", 0)},
    )


def test_the_origin_is_on_rows_and_markers_that_follow() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    stream.receive(Origin(Lsn(1), "elsewhere"))
    stream.row()
    commit(stream, 1000)
    assert [m.origin for m in stream.machine.take_markers()] == ["elsewhere", "elsewhere"]
    assert stream.rows.events[0].context.origin == "elsewhere"


def test_a_relation_announced_in_an_aborted_stream_is_forgotten() -> None:
    stream = Stream()
    stream.receive(StreamStart(10, first_segment=True))
    stream.announce("v2", subxid=10)
    stream.row(subxid=10)
    stream.receive(StreamStop())
    stream.receive(StreamAbort(10, 10, None, None))
    begin(stream, 5, 1000)
    stream.row()
    assert [e.operation for e in stream.rows.events] == ["INSERT:v2", "INSERT:v1"]


def test_a_relation_announced_in_a_committed_stream_counts_for_all() -> None:
    stream = Stream()
    stream.receive(StreamStart(10, first_segment=True))
    stream.announce("v2", subxid=10)
    stream.row(subxid=10)
    stream.receive(StreamStop())
    stream.receive(StreamCommit(10, 0, Lsn(900), Lsn(940), TIME))
    begin(stream, 5, 1000)
    stream.row()
    assert stream.rows.events[-1].operation == "INSERT:v2"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Commit(0, Lsn(1), Lsn(2), TIME), "Commit, .*inside a transaction"),
        (StreamStop(), "Stream Stop, .*inside a stream segment"),
        (StreamStart(10, first_segment=False), "Stream Start of 10"),
        (StreamCommit(10, 0, Lsn(1), Lsn(2), TIME), "Stream Commit of 10, .*after its Stream Start"),
        (StreamAbort(10, 10, None, None), "Stream Abort of 10"),
        (Prepare(0, Lsn(1), Lsn(2), TIME, 3, "g"), "Prepare, .*inside a transaction"),
        (Truncate(None, (1,), cascade=False, restart_identity=False), "Truncate"),
        (Origin(Lsn(1), "x"), "Origin"),
        (Message(None, True, Lsn(1), "p", b""), "Message"),
    ],
)
def test_a_message_in_the_wrong_place_is_an_error(message: object, says: str) -> None:
    with pytest.raises(OutOfOrder, match=says):
        Stream().receive(message)


def test_a_begin_inside_a_transaction_is_an_error() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    with pytest.raises(OutOfOrder, match="but transaction 5 is open"):
        begin(stream, 6, 1100)


def test_a_row_outside_transactions_or_of_an_unknown_relation_is_an_error() -> None:
    stream = Stream()
    with pytest.raises(OutOfOrder, match=r"row message \(I\)"):
        stream.row()
    begin(stream, 5, 1000)
    with pytest.raises(OutOfOrder, match="relation 1, expected"):
        stream.row(oid=1)


def test_a_commit_of_another_lsn_than_begun_is_an_error() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    with pytest.raises(OutOfOrder, match="of the open transaction 5"):
        commit(stream, 1008)


def test_messages_of_a_stream_are_in_doubt_when_a_subtransaction_of_it_is_rolled_back() -> None:
    """The server names the whole transaction on a message, whatever subtransaction sent it
    (tests/golden)."""
    stream = Stream()
    segment(stream, 10, 10, 11)
    segment(stream, 20, 20, 21)
    stream.receive(StreamStart(10, False))
    stream.receive(Message(10, True, Lsn(777), "prefix", b"whose?"))
    stream.receive(StreamStop())
    stream.receive(StreamAbort(20, 21, None, None))
    with pytest.raises(RolledBackMessages, match="11"):
        stream.receive(StreamAbort(10, 11, None, None))


def test_messages_of_a_stream_that_is_rolled_back_whole_are_in_no_doubt() -> None:
    stream = Stream()
    segment(stream, 10, 10)
    stream.receive(StreamStart(10, False))
    stream.receive(Message(10, True, Lsn(777), "prefix", b"undone"))
    stream.receive(StreamStop())
    stream.receive(StreamAbort(10, 10, None, None))
    assert stream.kinds()[-1] == "STREAM_ABORT"


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_prepared_before_two_phase_was_switched_on_does_not_set_the_position_back(commits: bool) -> None:
    """It is sent at its end, with the LSNs of its PREPARE, behind what was delivered long since."""
    stream = Stream()
    begin(stream, 5, 5000)
    commit(stream, 5000)
    stream.receive(BeginPrepare(Lsn(1000), Lsn(1040), TIME, 4, "gid"))
    stream.announce()
    stream.row()
    stream.receive(Prepare(0, Lsn(1000), Lsn(1040), TIME, 4, "gid"))
    assert stream.machine.resume_lsn == 5040
    if commits:
        stream.receive(CommitPrepared(0, Lsn(6000), Lsn(6040), TIME, 4, "gid"))
    else:
        stream.receive(RollbackPrepared(0, Lsn(1040), Lsn(6040), TIME, TIME, 4, "gid"))
    assert stream.machine.resume_lsn == 6040
