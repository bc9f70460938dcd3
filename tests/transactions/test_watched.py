"""What is told to who watches the stream for snapshots, and the rows that are handed over at a
commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker
from gateway.names import HEARTBEAT_PREFIX
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.row import Truncate
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart
from gateway.pgoutput.two_phase import BeginPrepare, CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
from gateway.transactions.native_record_writer import EventVersion
from gateway.transactions.record_writer import RelationVersion
from gateway.transactions.transaction import CHUNK_PREFIX
from schemas.lsn import Lsn
from schemas.varint import encode_long
from tests.transactions.stream import OLD_KEY, RELATION_OID, RecordingChanges, RecordingEncoder, Stream
from tests.transactions.test_machine import TIME, begin, commit, segment


@dataclass
class Watching:
    """Keeps what it is told."""

    told: list[tuple[Any, ...]] = field(default_factory=list)
    changes: RecordingChanges = field(default_factory=RecordingChanges)

    def version(self, relation_oid: int, version: RelationVersion) -> RelationVersion:
        self.told.append(("version", relation_oid))
        return version.tracked(self.changes)

    def message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        self.told.append(("message", prefix, content, xid, in_stream))
        return content or None

    def committed(self, xid: int) -> None:
        self.told.append(("committed", xid))

    def committed_whole(self, xid: int, manifest: Manifest) -> None:
        self.told.append(("committed whole", xid, manifest.event_count))

    def prepared(self, xid: int) -> None:
        self.told.append(("prepared", xid))

    def aborted(self, xid: int) -> None:
        self.told.append(("aborted", xid))


def watched() -> tuple[Stream, Watching]:
    stream, watching = Stream(), Watching()
    stream.machine.set_observer(watching)
    return stream, watching


def own(content: bytes) -> Message:
    return Message(None, True, Lsn(1), CHUNK_PREFIX, content)


def test_changes_are_told_to_whom_it_names_and_so_is_the_commit() -> None:
    stream, watching = watched()
    begin(stream, 5, 1000)
    stream.row()
    stream.row(b"U", content=b"moved")
    commit(stream, 1000)
    assert watching.told == [("version", RELATION_OID), ("committed", 5)]
    assert (watching.changes.xids, watching.changes.keys) == ([5], [b"k", b"k", OLD_KEY])
    stream.machine.set_observer(None)
    begin(stream, 6, 2000)
    stream.row()
    assert len(stream.rows.events) == 4 and len(watching.changes.keys) == 3


def test_each_transaction_is_entered_also_between_segments_of_another() -> None:
    stream, watching = watched()
    segment(stream, 5, 5, 5)
    begin(stream, 6, 1000)
    stream.row()
    commit(stream, 1000)
    stream.receive(StreamStart(5, False))
    stream.receive(Truncate(5, (RELATION_OID,), False, False))
    assert (watching.changes.xids, watching.changes.truncated_count) == ([5, 6, 5], 1)


def test_an_update_that_left_columns_out_is_told_with_its_old_key() -> None:
    stream, watching = watched()
    version = stream.machine.in_force(RELATION_OID)
    assert version is not None
    begin(stream, 5, 1000)
    for content in (b"", b"moved"):
        version.encoder.left_out_count += 1
        stream.row(b"U", content=content)
        stream.row(b"U")
    assert watching.changes.unchanged == [(b"k", b"k"), (b"k", OLD_KEY)]


def test_a_message_of_our_own_is_not_published_and_arrives_with_its_commit() -> None:
    stream, watching = watched()
    begin(stream, 5, 1000)
    stream.receive(own(b"chunk"))
    stream.receive(own(b""))  # nothing to hand over, and it takes nothing away
    stream.receive(own(b"second"))
    arrived = [stream.machine.arrived]
    commit(stream, 1000)
    arrived.append(stream.machine.arrived)
    assert arrived == [b"chunk", None] and not stream.messages.events
    assert ("message", CHUNK_PREFIX, b"chunk", 5, False) in watching.told
    assert stream.machine.take_markers() == []


def test_a_message_of_our_own_in_a_prepared_transaction_is_told_as_one_without_a_commit() -> None:
    stream, watching = watched()
    stream.receive(BeginPrepare(Lsn(1300), Lsn(1340), TIME, 8, "b"))
    stream.receive(own(b""))
    stream.receive(Prepare(0, Lsn(1300), Lsn(1340), TIME, 8, "b"))
    assert ("message", CHUNK_PREFIX, b"", 8, True) in watching.told and stream.machine.arrived is None


def test_ends_of_streamed_and_prepared_transactions_are_told() -> None:
    stream, watching = watched()
    segment(stream, 5, 5, 5)
    stream.receive(StreamCommit(5, 0, Lsn(1000), Lsn(1040), TIME))
    segment(stream, 6, 6)
    stream.receive(StreamAbort(6, 6, None, None))
    segment(stream, 7, 7)
    stream.receive(StreamPrepare(0, Lsn(1100), Lsn(1140), TIME, 7, "a"))
    stream.receive(CommitPrepared(0, Lsn(1200), Lsn(1240), TIME, 7, "a"))
    stream.receive(BeginPrepare(Lsn(1300), Lsn(1340), TIME, 8, "b"))
    stream.row()
    stream.receive(Prepare(0, Lsn(1300), Lsn(1340), TIME, 8, "b"))
    stream.receive(RollbackPrepared(0, Lsn(1340), Lsn(1440), TIME, TIME, 8, "b"))
    assert [one for one in watching.told if one[0] != "version"] == [
        ("committed whole", 5, 2),
        ("aborted", 6),
        ("prepared", 7),
        ("committed whole", 7, 1),
        ("prepared", 8),
        ("aborted", 8),
    ]


def test_rows_that_were_read_are_changes_of_the_transaction_that_commits() -> None:
    @dataclass
    class Kept:
        appended: list[tuple[bytes | None, bytes]] = field(default_factory=list)

        def append(self, key: bytes | None, value: bytes, manifest: Manifest) -> None:
            self.appended.append((key, value))
            manifest.add(("cdc.public.t", 0), len(self.appended) - 1, 1)

    @dataclass
    class Encoder(RecordingEncoder):
        version: str = "v1"
        read_head: bytes = b"HEAD"

    stream, kept, encoder = Stream(), Kept(), Encoder()
    sink: Any = kept
    encoding: Any = encoder
    begin(stream, 5, 1000)
    stream.row()
    context = stream.machine.current.context if stream.machine.current is not None else None
    assert context is not None
    version = EventVersion("public.t", 9, encoding, sink)
    stream.machine.publish_read_rows(version, [(b"k1", b"row 1"), (b"k2", b"row 2")], 640)
    stream.machine.add_pending_marker(Marker("CHUNK", 5, 640))
    commit(stream, 1000)
    first = b"HEAD" + context.identity + encode_long(640)
    assert kept.appended == [
        (b"k1", first + encode_long(1) + context.commit + b"row 1"),
        (b"k2", first + encode_long(2) + context.commit + b"row 2"),
    ]
    begun, owed, last = stream.machine.take_markers()
    assert (begun.kind, owed.kind, last.kind) == ("BEGIN", "CHUNK", "COMMIT")
    assert last.manifest is not None and last.manifest.event_count == 3 and last.manifest.schema_ids == [7, 9]


def test_a_heartbeat_counts_as_owed_though_it_has_no_event() -> None:
    stream = Stream()
    begin(stream, 5, 1000)
    stream.receive(Message(None, True, Lsn(1), HEARTBEAT_PREFIX, b"slot"))
    commit(stream, 1000)
    assert stream.machine.heartbeat_time == TIME and stream.machine.take_undelivered() == (TIME, 1)
    assert stream.machine.take_markers() == [] and not stream.messages.events
    begin(stream, 6, 2000)
    commit(stream, 2000)
    assert stream.machine.take_undelivered() == (0, 0)


def test_a_truncate_in_a_stream_belongs_to_its_subtransaction() -> None:
    stream = Stream()
    segment(stream, 5, 5)
    stream.receive(StreamStart(5, False))
    stream.receive(Truncate(6, (RELATION_OID,), False, False))
    assert [event.context.subxid for event in stream.rows.events] == [-1, 6]
