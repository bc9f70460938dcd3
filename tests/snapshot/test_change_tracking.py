"""What is noted of the stream's changes while a table is under snapshot, and when."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.pgoutput.row import Truncate
from gateway.pgoutput.stream import StreamCommit, StreamStart, StreamStop
from gateway.snapshot.change_tracking import RecordingObserver
from gateway.snapshot.rules import stale_rows as judging
from gateway.snapshot.rules.ranges_to_read import Leaf
from gateway.snapshot.rules.stale_rows import KeyTrack, StalenessJudge
from gateway.snapshot.rules.table_progress import TableProgress
from gateway.snapshot.rules.visibility import Visibility
from schemas.lsn import Lsn
from schemas.wire_format import FRAME_BYTES
from tests.snapshot.conftest import NOT_ASKED
from tests.transactions.stream import RELATION_OID, Stream
from tests.transactions.test_machine import TIME, begin, commit

EPOCH = 3 << 32
KEY = b"key"


class Scene:
    """A stream with one relation that is being read, all of whose transactions are newer than the
    latest snapshot."""

    def __init__(self, **options: Any) -> None:
        self.stream = Stream()
        self.judge = StalenessJudge(Visibility(EPOCH + 4, EPOCH + 4), 0)
        self.table = TableProgress(self.judge, [Leaf(RELATION_OID, 10, 0)], 1 << 20, **options)
        self.table.begin()
        observer = RecordingObserver(self.stream.machine, self.judge, NOT_ASKED)
        observer.begin(RELATION_OID, self.table, ())

    @property
    def track(self) -> KeyTrack:
        assert self.table.track is not None
        return self.table.track

    @property
    def encoder(self) -> Any:
        version = self.stream.machine.in_force(RELATION_OID)
        assert version is not None
        return version.encoder

    def row(self, key: bytes | None = KEY, subxid: int | None = None) -> None:
        self.encoder.key = None if key is None else bytes(FRAME_BYTES) + key
        self.stream.row(subxid=subxid)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_keys_are_noted_at_the_commit_with_the_epoch_of_their_transaction(scene: Scene) -> None:
    begin(scene.stream, 5, 1000)
    scene.row(b"a")
    scene.row(b"b")
    assert not scene.track.keys
    commit(scene.stream, 1000)
    begin(scene.stream, 6, 2000)
    scene.row(b"b")
    commit(scene.stream, 2000)
    assert scene.track.keys == {b"a": EPOCH + 5, b"b": EPOCH + 6}
    assert scene.judge.unseen == {EPOCH + 5, EPOCH + 6} and not scene.track.xids_without_keys


def test_of_a_large_transaction_the_id_alone_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MAX_KEYS_OF_ONE", 3)
    scene = Scene()
    for xid, count in ((5, 3), (6, 4), (7, 1)):
        begin(scene.stream, xid, xid * 1000)
        for number in range(count):
            scene.row(b"%d %d" % (xid, number))
        commit(scene.stream, xid * 1000)
    assert set(scene.track.keys) == {b"5 0", b"5 1", b"5 2", b"7 0"}
    assert scene.track.xids_without_keys == {EPOCH + 6}


def test_of_many_keys_those_that_every_snapshot_sees_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MAX_KEYS", 2)
    scene = Scene()
    for xid in (5, 6, 7, 8):
        if xid == 8:
            scene.judge.observe(Visibility(EPOCH + 7, EPOCH + 7))
        begin(scene.stream, xid, xid * 1000)
        scene.row(b"%d" % xid)
        commit(scene.stream, xid * 1000)
    assert scene.track.keys == {b"7": EPOCH + 7, b"8": EPOCH + 8}


def test_a_truncate_counts_for_all_keys_and_the_next_transaction_for_its_own(scene: Scene) -> None:
    begin(scene.stream, 5, 1000)
    scene.stream.receive(Truncate(None, (RELATION_OID,), False, False))
    scene.row(b"a")
    commit(scene.stream, 1000)
    begin(scene.stream, 6, 2000)
    scene.row(b"b")
    commit(scene.stream, 2000)
    assert scene.track.xids_without_keys == {EPOCH + 5} and scene.track.keys == {b"b": EPOCH + 6}


def test_a_streamed_transaction_counts_whole_and_leaves_no_key_to_the_next(scene: Scene) -> None:
    stream = scene.stream
    stream.receive(StreamStart(5, True))
    stream.announce(subxid=5)
    scene.row(b"a", subxid=5)
    stream.receive(StreamStop())
    begin(stream, 6, 1000)
    scene.row(b"b")
    commit(stream, 1000)
    stream.receive(StreamStart(5, False))
    scene.row(b"c", subxid=5)
    stream.receive(StreamStop())
    stream.receive(StreamCommit(5, 0, Lsn(2000), Lsn(2040), TIME))
    assert scene.track.xids_without_keys == {EPOCH + 5} and scene.track.keys == {b"b": EPOCH + 6}


def test_a_table_that_is_read_at_once_knows_no_keys() -> None:
    scene = Scene(is_read_at_once=True)
    begin(scene.stream, 5, 1000)
    scene.row(None)
    scene.row(b"a")
    commit(scene.stream, 1000)
    assert scene.track.xids_without_keys == {EPOCH + 5} and not scene.track.keys


def test_a_table_that_begins_again_within_a_transaction_knows_its_id(scene: Scene) -> None:
    begin(scene.stream, 5, 1000)
    scene.row(b"a")
    scene.table.begin_again()
    scene.row(b"b")
    commit(scene.stream, 1000)
    scene.table.begin()
    assert scene.track.xids_without_keys == {EPOCH + 5} and not scene.track.keys


def test_a_table_alone_waits_for_what_is_below_its_floor_and_after_a_restart_all_do(scene: Scene) -> None:
    judge = scene.judge
    later = judge.begin(floor=EPOCH + 10)
    with_an_older_one = Visibility(EPOCH + 9, EPOCH + 12, frozenset({EPOCH + 9}))
    assert judge.admits(scene.track, with_an_older_one) and not judge.admits(later, with_an_older_one)
    assert judge.admits(later, Visibility(EPOCH + 10, EPOCH + 12, frozenset({EPOCH + 10})))
    assert judge.floor_to_store == EPOCH + 10
    judge.end(later)
    assert judge.floor_to_store == judge.floor


def test_an_update_that_left_columns_out_is_read_again(scene: Scene) -> None:
    begin(scene.stream, 5, 1000)
    scene.row(b"a")
    scene.encoder.left_out_count += 1
    scene.stream.row(b"U")
    scene.stream.row(b"U", content=b"moved")
    assert list(scene.table.keys_to_read_again) == [b"a"]
    commit(scene.stream, 1000)
    assert set(scene.track.keys) == {b"a", b"old"}
