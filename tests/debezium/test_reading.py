"""Debezium's dialect while tables are under snapshot, without a server: who is told what, and how
rows are written."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.debezium import DebeziumSettings
from gateway.events.marker_encoder import Marker
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.row import Truncate
from gateway.pgoutput.tuple_data import UNCHANGED, Text
from gateway.transactions.record_writer import RelationVersion
from gateway.transactions.transaction import CHUNK_PREFIX
from schemas.lsn import Lsn
from schemas.wire_format import FRAME_BYTES
from tests.debezium.test_dialect import OID, Dialect, new, old, row_of
from tests.transactions.stream import RecordingChanges
from tests.transactions.test_watched import Watching


class Kept(RecordingChanges):
    """Keys without their frames."""

    def __post_init__(self) -> None:
        self.hold_key = lambda key: self.keys.append(key and key[FRAME_BYTES:])


def under_snapshot(
    *, is_tracking: bool = True, options: DebeziumSettings | None = None
) -> tuple[Dialect, Watching, Kept]:
    dialect, kept = Dialect(options), Kept()
    watching = Watching() if is_tracking else Listening()
    watching.changes = kept
    dialect.machine.set_observer(watching)
    return dialect, watching, kept


class Listening(Watching):
    """Tracks nothing until it is told to."""

    is_tracking = False

    def version(self, relation_oid: int, version: RelationVersion) -> RelationVersion:
        return super().version(relation_oid, version) if self.is_tracking else version


def test_changes_of_a_table_under_snapshot_tell_their_keys_and_are_written_once() -> None:
    dialect, watching, kept = under_snapshot()
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)))
    dialect.row(b"U", new(*row_of(1, b"y")))
    dialect.row(b"U", old(*row_of(1), letter=b"K") + new(*row_of(2)))
    dialect.row(b"D", old(*row_of(2), letter=b"K"))
    dialect.receive(Truncate(None, (OID,), False, False))
    dialect.commit()
    assert kept.keys == [b"\2\2", b"\2\2", b"\2\4", b"\2\2", b"\2\4"]
    assert kept.truncated_count == 1
    assert ("committed", 5) in watching.told
    assert dialect.operations() == [("c", 1), ("u", 1), ("d", 1), ("-", 1), ("c", 2), ("d", 2), ("-", 2)]
    assert dialect.machine.take_markers() == []


def test_where_nothing_is_read_changes_are_encoded_once() -> None:
    dialect, watching, kept = under_snapshot(is_tracking=False)
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)))
    dialect.commit()
    assert kept.keys == [] and watching.told == [("committed", 5)]


class Other(Watching):
    """Of relations that are not ours."""

    def version(self, relation_oid: int, version: RelationVersion) -> RelationVersion:
        return version


def test_a_table_that_is_not_under_snapshot_is_encoded_once() -> None:
    dialect, _, kept = under_snapshot()
    dialect.machine.set_observer(Other())
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)))
    dialect.receive(Truncate(None, (OID,), False, False))
    assert kept.keys == [] and kept.truncated_count == 0


def test_rows_that_were_read_are_written_as_they_are_and_leave_no_marker() -> None:
    dialect, _, _ = under_snapshot(options=DebeziumSettings(provide_transaction_metadata=True))
    version = dialect.machine.in_force(OID)
    assert version is not None
    dialect.begin()
    dialect.machine.publish_read_rows(version, [(b"key", new(*row_of(1))), (b"key", new(*row_of(2, b"y")))], 77)
    dialect.machine.add_pending_marker(Marker("SNAPSHOT_END", 1, 2))
    assert dialect.machine.writer.pending_count == 1
    dialect.commit()
    found = dialect.read()
    assert [record.key for record in found] == [{"c0": 1}, {"c0": 2}]
    for record in found:
        assert record.value is not None
        assert (record.value["op"], record.value["before"], record.value["transaction"]) == ("r", None, None)
        source = record.value["source"]
        assert (source["snapshot"], source["lsn"], source["txId"]) == ("incremental", 77, 5)
    assert dialect.machine.take_markers() == []
    assert (dialect.machine.writer.pending_count, dialect.machine.event_count) == (0, 2)


def test_a_row_that_was_read_and_has_no_plain_value_goes_the_general_way() -> None:
    dialect, _, _ = under_snapshot()
    version = dialect.machine.in_force(OID)
    assert version is not None
    dialect.begin()
    row = (*row_of(1)[:3], Text(b"NaN"), None, None, Text(b"y"))
    dialect.machine.publish_read_rows(version, [(b"key", new(*row))], 77)
    (record,) = dialect.read()
    assert record.value is not None and record.value["after"]["c3"] is None
    assert len(dialect.reasons) == 1


def test_a_message_of_a_chunk_is_handed_to_the_watch() -> None:
    dialect, watching, _ = under_snapshot()
    dialect.begin()
    dialect.receive(Message(None, True, Lsn(60), CHUNK_PREFIX, b"7"))
    machine: Any = dialect.machine
    assert machine.arrived == b"7"
    dialect.commit()
    assert machine.arrived is None
    assert ("message", CHUNK_PREFIX, b"7", 5, False) in watching.told
    assert dialect.read() == []


@pytest.mark.parametrize("skipped", ["c", "u", "d"])
def test_what_is_not_written_counts_all_the_same(skipped: str) -> None:
    dialect, _, kept = under_snapshot(options=DebeziumSettings(skipped_operations=(skipped,)))
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)))
    dialect.row(b"U", new(*row_of(1)))
    dialect.row(b"D", old(*row_of(1), letter=b"K"))
    assert len(kept.keys) == 3


@pytest.mark.parametrize(
    ("before", "is_told"),
    [
        (b"", True),
        (old(*row_of(1), letter=b"K"), True),
        (old(*row_of(7), letter=b"K"), True),
        (old(*row_of(1), letter=b"O"), False),
    ],
)
def test_changes_are_noted_from_the_first_update_on_that_left_a_value_out(before: bytes, is_told: bool) -> None:
    """The old row has the value, a key has not."""
    dialect, watching, kept = under_snapshot(is_tracking=False)
    told: list[int] = []

    def begins(relation_oid: int) -> bool:
        told.append(relation_oid)
        assert isinstance(watching, Listening)
        watching.is_tracking = True
        dialect.machine.set_observer(watching)
        return len(told) == 1

    dialect.machine.on_left_out = begins
    dialect.begin()
    dialect.row(b"I", new(*row_of(9)))
    assert kept.keys == []
    dialect.row(b"U", before + new(*row_of(1)[:-1], UNCHANGED))
    assert told == [OID] * is_told
    assert kept.keys[:1] == [b"\2\2"] * is_told
    dialect.row(b"U", new(*row_of(2)[:-1], UNCHANGED))
    assert kept.keys[-1] == b"\2\4"
    dialect.row(b"I", new(*row_of(3)))
    assert len(told) == 1 + is_told
    assert kept.keys[-1] == b"\2\6"


def test_without_anybody_to_read_it_again_a_value_is_only_left_out() -> None:
    dialect, _, kept = under_snapshot(is_tracking=False)
    dialect.begin()
    dialect.row(b"U", new(*row_of(1)[:-1], UNCHANGED))
    (record,) = dialect.read()
    assert record.value is not None and record.value["after"]["c6"] == "__debezium_unavailable_value"
    assert kept.keys == []
