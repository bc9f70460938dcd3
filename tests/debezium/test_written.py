"""What a connector wrote before it was replaced is not written again: events up to `written_lsn` of
one transaction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.debezium import DebeziumSettings
from gateway.debezium.envelope_schema import CatalogColumn, connect_relation, envelope_schema, key_schema
from gateway.debezium.record_writer import DebeziumTopics, DebeziumWriter
from gateway.debezium.relation_version import DebeziumVersion
from gateway.debezium.row_encoder import DebeziumEncoder
from gateway.debezium.source_block import SourceNames
from gateway.events.row_encoder import RowEncoder
from gateway.pgoutput.row import Insert
from gateway.pgoutput.transaction import Begin, Commit
from gateway.pgoutput.tuple_data import Text
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.transaction import MessageSelection
from schemas.lsn import Lsn
from schemas.wire_format import frame
from tests.debezium.encoded import Schemas, Sink
from tests.pgoutput.writer import write
from tests.schemas.relations import column, relation

Row = tuple[int, int]
"""LSN and value."""
XID, WRITTEN_LSN = 77, 1000


def written_by(transactions: list[tuple[int, list[Row]]]) -> list[int]:
    """Values of the records that a machine writes which takes over in XID at WRITTEN_LSN.
    Transactions: xid and rows."""
    options, schemas = DebeziumSettings(), Schemas()
    connect = connect_relation(relation(column("id", "int4", key=True)), [CatalogColumn("id", True)], ["id"], options)
    value_id = schemas.register(envelope_schema(connect, "d.public.orders"))
    key_id = schemas.register(key_schema(connect, "d.public.orders"))
    sink = Sink("d.public.orders", [])
    writer = DebeziumWriter(
        epoch=1, last_commit_lsn=900, names=SourceNames("0", "d", "db"),
        topics=DebeziumTopics(sink, frame(1), frame(1)), options=options, clock_ns=lambda: 0,
        written=(XID, WRITTEN_LSN),
    )  # fmt: skip
    machine = TransactionMachine(
        epoch=1,
        resume_lsn=900,
        last_commit_lsn=900,
        prepared=(),
        writer=writer,
        messages=MessageSelection(lambda message: None),
    )
    encoder = DebeziumEncoder(connect, value_id, key_id, options, lambda *reason: None)
    keys = RowEncoder(connect.description, 0, 0)
    machine.announce(16400, None, DebeziumVersion("public.orders", 0, keys, encoder, sink, writer))
    commit_lsn = 5000
    for xid, rows in transactions:
        commit_lsn += 100
        machine.receive(Begin(Lsn(commit_lsn), 0, xid), commit_lsn)
        for lsn, value in rows:
            data = write(Insert(None, 16400, (Text(str(value).encode()),)))
            machine.change(b"\xff" * 7 + data + b"n\0\0", 7, 7 + len(data), lsn)
        machine.receive(Commit(0, Lsn(commit_lsn), Lsn(commit_lsn + 40), 0), commit_lsn + 40)
    return [schemas.decode(value)[1]["after"]["id"] for _, _, value in sink.records]


def numbered(lsns: list[int]) -> list[Row]:
    return list(zip(lsns, range(len(lsns)), strict=True))


@given(st.sets(st.integers(900, 1100), min_size=1))
def test_the_transaction_goes_on_behind_its_last_event(lsns: set[int]) -> None:
    rows = numbered(sorted(lsns))
    assert written_by([(XID, rows)]) == [value for lsn, value in rows if lsn > WRITTEN_LSN]


@given(st.lists(st.integers(900, 1100), min_size=1).map(sorted), st.integers(2, 9))
def test_rows_that_share_the_last_lsn_come_all_again(lsns: list[int], count: int) -> None:
    """Of a COPY that the connector stopped in: any number of them may be missing."""
    rows = numbered(sorted([lsn for lsn in lsns if lsn != WRITTEN_LSN] + [WRITTEN_LSN] * count))
    assert written_by([(XID, rows)]) == [value for lsn, value in rows if lsn >= WRITTEN_LSN]


@given(st.lists(st.integers(900, 1100)).map(sorted))
def test_other_transactions_are_whole(lsns: list[int]) -> None:
    """One that was open at the same time may have rows before the last event: it committed
    later."""
    rows = numbered(lsns)
    assert written_by([(XID, [(950, -1)]), (78, rows)]) == [value for _, value in rows]
    assert written_by([(76, rows), (XID, [(WRITTEN_LSN, -1)])]) == [value for _, value in rows]


def test_a_later_transaction_of_the_same_xid_is_whole() -> None:
    assert written_by([(XID, [(990, 1), (1010, 2)]), (XID, [(6000, 3)])]) == [2, 3]
