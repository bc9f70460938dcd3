"""Relations that source.excluded_tables leaves out: what the rest of their transaction looks
like."""

from __future__ import annotations

import pytest

from gateway.pgoutput.row import Truncate
from gateway.pgoutput.stream import StreamAbort, StreamCommit, StreamStart, StreamStop
from gateway.transactions.native_record_writer import EventVersion
from gateway.transactions.transaction import ExcludedTable
from tests.debezium.test_dialect import OID, Dialect, new, row_of
from tests.transactions.stream import RELATION_OID, RecordingEncoder, Stream
from tests.transactions.test_machine import TIME, begin, commit

OTHER_OID = 5000


def table(*, is_marked: bool, oid: int = OTHER_OID) -> ExcludedTable:
    return ExcludedTable(oid, "repack", "table_7", "cdc.repack.table_7", is_marked)


@pytest.mark.parametrize("is_marked", [False, True])
def test_changes_are_counted_and_in_the_manifest_only_where_there_is_a_topic(is_marked: bool) -> None:
    stream = Stream()
    stream.machine.announce(OTHER_OID, None, table(is_marked=is_marked))
    begin(stream, 5, 1000)
    stream.row()
    for kind in (b"I", b"U", b"D"):
        stream.row(kind, oid=OTHER_OID)
    stream.receive(Truncate(None, (RELATION_OID, OTHER_OID), False, False))
    commit(stream, 1000)
    last = stream.machine.take_markers()[-1]
    assert last.manifest is not None
    assert (last.manifest.event_count, len(stream.rows.events)) == (2, 2)
    assert [event.ordinal for event in stream.rows.events] == [0, 1]
    told = [(each.name, each.event_count, each.reason) for each in last.manifest.excluded]
    assert told == ([("table_7", 4, "left out by source.excluded_tables")] if is_marked else [])
    assert stream.machine.relations.left_out_count == 4


def test_a_transaction_of_nothing_else_leaves_no_trace_but_moves_the_position() -> None:
    stream = Stream()
    stream.machine.announce(OTHER_OID, None, table(is_marked=False))
    begin(stream, 5, 1000)
    stream.row(oid=OTHER_OID)
    commit(stream, 1000)
    assert stream.machine.take_markers() == []
    assert stream.machine.resume_lsn > 1000


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_rename_out_of_the_schema_counts_with_its_savepoint_alone(is_kept: bool) -> None:
    """Within a stream a Relation message counts for its transaction, until its subtransaction is
    rolled back."""
    stream = Stream()
    machine = stream.machine
    machine.announce(OTHER_OID, None, table(is_marked=False))
    encoder: object = RecordingEncoder("renamed")
    stream.receive(StreamStart(5, True))
    stream.row(oid=OTHER_OID, subxid=5)
    machine.announce(OTHER_OID, 6, EventVersion("public.t", 7, encoder, stream.rows))  # type: ignore[arg-type]
    stream.row(oid=OTHER_OID, subxid=6)
    stream.receive(StreamStop())
    assert machine.in_force(OTHER_OID) is None
    if not is_kept:
        stream.receive(StreamAbort(5, 6, None, None))
    stream.receive(StreamStart(5, False))
    stream.row(oid=OTHER_OID, subxid=5)
    stream.receive(StreamStop())
    stream.receive(StreamCommit(5, 0, stream.next_lsn(), stream.next_lsn(), TIME))
    assert len(stream.rows.events) == 1 + is_kept
    assert machine.relations.left_out_count == 2 - is_kept


def test_in_the_dialect_of_debezium_they_are_left_out_too() -> None:
    dialect = Dialect()
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)))
    dialect.machine.announce(OID, None, table(is_marked=False, oid=OID))
    dialect.row(b"I", new(*row_of(2)))
    dialect.receive(Truncate(None, (OID,), False, False))
    dialect.commit()
    assert dialect.operations() == [("c", 1)]
    assert dialect.machine.relations.left_out_count == 2
