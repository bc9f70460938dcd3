"""The dialect without a server: options, what is refused, and the two wire forms. What each field
holds is Debezium's own word (test_recordings.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.debezium import DebeziumSettings
from gateway.debezium.column_defaults import with_defaults
from gateway.debezium.envelope_schema import (
    MESSAGE_KEY,
    TRANSACTION_KEY,
    TRANSACTION_VALUE,
    CatalogColumn,
    NameCollision,
    UnsupportedKey,
    connect_relation,
    envelope_schema,
    field_name,
    key_schema,
    message_schema,
)
from gateway.debezium.record_writer import DebeziumTopics, DebeziumWriter
from gateway.debezium.relation_version import DebeziumVersion
from gateway.debezium.row_encoder import DebeziumEncoder
from gateway.debezium.source_block import SourceContext, SourceNames
from gateway.errors import StopForOperator, UnwritableRelation
from gateway.events.change_key import ChangeKeys
from gateway.events.errors import KeyNotSent, NeedsOptional, UnknownBinary, UnreadableValue
from gateway.events.row_encoder import RowEncoder
from gateway.names import HEARTBEAT_PREFIX
from gateway.pgoutput.errors import PgOutputError
from gateway.pgoutput.letters import NEW_TUPLE
from gateway.pgoutput.logical_message import Message
from gateway.pgoutput.row import Truncate, TuplePart
from gateway.pgoutput.stream import StreamStart
from gateway.pgoutput.transaction import Begin, Commit, Origin
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text
from gateway.pgoutput.two_phase import BeginPrepare
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.ordinary import OutOfOrder
from gateway.transactions.transaction import CHUNK_PREFIX, ExcludedMessage, MessageSelection
from schemas.lsn import Lsn
from schemas.relation import (
    ColumnDescription,
    Kind,
    Protect,
    Protection,
    RelationDescription,
    ReplicaIdentity,
    TypeFacts,
)
from schemas.topic_names import debezium_topic
from schemas.wire_format import frame
from tests.debezium.encoded import Record, Schemas, Sink, without_times
from tests.events.rows import ALL, EVERYDAY, ColumnKind, relation, rows, wire_row
from tests.pgoutput.writer import write, write_tuple_data
from tests.schemas.relations import column, numeric_typmod

TOPIC: Final = "d.public.shop_orders"
OID: Final = 16400
TIME: Final = 1_700_000_000_000_000


class SmallSink(Sink):
    """Takes no logical message, and no row that is too large to be held."""

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        return False

    def too_large(self, what: str, size: int) -> StopForOperator:
        return StopForOperator(f"{self.topic} {what}")


class Dialect:
    """A machine with one relation, and what it writes."""

    def __init__(
        self,
        options: DebeziumSettings | None = None,
        description: RelationDescription | None = None,
        required: tuple[int, ...] = (0,),
        sink: type[Sink] = Sink,
        skip_lsn: int = 0,
        written: tuple[int, int] = (0, 0),
    ) -> None:
        options = options or DebeziumSettings()
        description = description or relation()
        self.schemas, self.records = Schemas(), list[tuple[str, bytes | None, bytes | None]]()
        self.reasons: list[tuple[str, str, str]] = []
        self.left_out: list[ExcludedMessage] = []
        self.now_ns = 5
        catalog = [CatalogColumn(c.name, at in required) for at, c in enumerate(description.columns)]
        key = [column.name for column in description.identity_columns]
        connect = connect_relation(description, catalog, key, options)
        connect = with_defaults(connect, catalog)
        frames = [
            frame(self.schemas.register(each))
            for each in (MESSAGE_KEY, message_schema(options), TRANSACTION_KEY, TRANSACTION_VALUE)
        ]
        self.messages = sink("d.message", self.records)
        topics = DebeziumTopics(
            self.messages, frames[0], frames[1], Sink("d.transaction", self.records), frames[2], frames[3]
        )
        self.writer = DebeziumWriter(
            epoch=1,
            last_commit_lsn=0,
            names=SourceNames("0", "d", "db"),
            topics=topics,
            options=options,
            clock_ns=lambda: self.now_ns,
            written=written,
        )
        self.machine = TransactionMachine(
            epoch=1,
            resume_lsn=0,
            last_commit_lsn=0,
            prepared=(),
            writer=self.writer,
            messages=MessageSelection(self.left_out.append),
            skip_lsn=skip_lsn,
        )
        value_schema, of_key = envelope_schema(connect, TOPIC), key_schema(connect, TOPIC)
        key_id = None if of_key is None else self.schemas.register(of_key)
        value_id = self.schemas.register(value_schema)
        self.encoder = DebeziumEncoder(
            connect, value_id, key_id, options, lambda *reason: self.reasons.append(reason), self.machine.left_out
        )
        keys = RowEncoder(description, 1, 0 if description.identity_columns else None)
        self.version = DebeziumVersion(
            "public.shop orders", 1, keys, self.encoder, sink(TOPIC, self.records), self.writer
        )
        self.machine.announce(description.oid, None, self.version)
        self.lsn = 100

    def receive(self, message: object) -> None:
        self.lsn += 8
        self.machine.receive(message, self.lsn)

    def row(self, kind: bytes, tuples: bytes, oid: int = OID) -> None:
        self.lsn += 8
        data = kind + oid.to_bytes(4, "big") + tuples
        self.machine.change(b"\xff" * 7 + data + b"n\0\0", 7, 7 + len(data), self.lsn)

    def begin(self, commit_lsn: int = 1000, xid: int = 5) -> None:
        self.receive(Begin(Lsn(commit_lsn), TIME, xid))

    def commit(self, commit_lsn: int = 1000) -> None:
        self.receive(Commit(0, Lsn(commit_lsn), Lsn(commit_lsn + 40), TIME))

    def read(self) -> list[Record]:
        """What was written since the last time."""
        found = [
            Record(topic, self.schemas.decode(key)[1], self.schemas.decode(value)[1])
            for topic, key, value in self.records
        ]
        self.records.clear()
        return found

    def operations(self) -> list[tuple[str, Any]]:
        """Of rows: operation and key; a tombstone is "-"."""
        return [
            ("-" if one.value is None else one.value["op"], one.key and one.key["c0"])
            for one in self.read()
            if one.topic == TOPIC
        ]


def new(*values: Any) -> bytes:
    return b"N" + write_tuple_data(values)


def old(*values: Any, letter: bytes = b"O") -> bytes:
    return letter + write_tuple_data(values)


def row_of(first: int, text: bytes = b"x") -> tuple[Any, ...]:
    return (Text(b"%d" % first), Text(b"1"), Text(text), None, None, None, Text(b"y"))


# -- rows
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("required", [(), (0,), (0, 1, 2, 3, 4, 5, 6)])
@given(data=st.data())
def test_both_forms_of_the_wire_give_the_same_records(required: tuple[int, ...], data: st.DataObject) -> None:
    """The first row in binary is read the general way, the next ones where they lie."""
    kinds = EVERYDAY
    dialect, other = Dialect(required=required), Dialect(required=required)
    values = list(data.draw(rows(kinds)))
    for at in required:
        values[at] = data.draw(kinds[at].values)
    texts, binaries = (wire_row(kinds, tuple(values), binary=binary) for binary in (False, True))
    for each, sent, times in ((dialect, texts, 3), (other, binaries, 3)):
        each.begin()
        for _ in range(times):
            each.row(b"I", new(*sent))
            each.row(b"U", new(*sent))
        each.row(b"D", old(*(sent[0], *[None] * 6), letter=b"K"))
        each.commit()
    ours, theirs = dialect.read(), other.read()
    assert [one.key for one in ours] == [one.key for one in theirs]
    for one, two in zip(ours, theirs, strict=True):
        if one.value is None or two.value is None:
            assert one.value is two.value
        else:
            assert {**one.value, "source": None} == {**two.value, "source": None}


def test_a_value_whose_encoder_fails_in_an_unforeseen_way_is_found() -> None:
    def broken(value: bytes) -> bytes:
        raise TypeError(value)

    dialect = Dialect()
    encoder, version = dialect.encoder, dialect.version
    part = TuplePart(NEW_TUPLE, 6, row_of(1))
    assert version.failing(part) is None
    assert encoder._codecs[2] is not None
    encoder._codecs[2] = replace(encoder._codecs[2], from_text=broken)
    assert version.failing(part) == f"column c2 at byte {6 + 2 + 2 * len(b't00001')}"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.type)
@settings(max_examples=40)
@given(data=st.data())
def test_a_required_and_an_optional_field_hold_the_same_value(kind: ColumnKind, data: st.DataObject) -> None:
    kinds = (EVERYDAY[0], kind)
    value = data.draw(kind.values)
    found = []
    for required in ((0,), (0, 1)):
        for binary in (False, True):
            dialect = Dialect(description=relation(kinds), required=required)
            dialect.begin()
            for _ in range(2):
                dialect.row(b"I", new(*wire_row(kinds, (1, value), binary=binary)))
            found += [one.value["after"]["c1"] for one in dialect.read() if one.value is not None]
    assert all(one == found[0] or one != one for one in found)


@pytest.mark.parametrize("lsn", [100, (1 << 26) - 20, 1 << 27, 0x16B374D000, 1 << 40])
def test_the_lsn_of_a_change_is_in_its_source(lsn: int) -> None:
    dialect = Dialect()
    dialect.lsn = lsn
    dialect.begin(lsn + 1000)
    dialect.row(b"I", new(*row_of(1)))
    (record,) = dialect.read()
    assert record.value is not None and record.value["source"]["lsn"] == dialect.lsn
    assert json.loads(record.value["source"]["sequence"])[1] == str(dialect.lsn)


def test_operations_that_are_skipped_are_not_written() -> None:
    changes = (
        (b"I", new(*row_of(1))),
        (b"U", new(*row_of(1))),
        (b"U", old(*row_of(1), letter=b"K") + new(*row_of(2))),
        (b"D", old(*row_of(2), letter=b"K")),
    )
    meant = {
        ("t",): [("c", 1), ("u", 1), ("d", 1), ("-", 1), ("c", 2), ("d", 2), ("-", 2)],
        ("c",): [("u", 1), ("d", 1), ("-", 1), ("d", 2), ("-", 2), ("t", None)],
        ("u", "t"): [("c", 1), ("d", 1), ("-", 1), ("c", 2), ("d", 2), ("-", 2)],
        ("d", "t"): [("c", 1), ("u", 1), ("c", 2)],
    }
    for skipped, expected in meant.items():
        dialect = Dialect(DebeziumSettings(skipped_operations=skipped))
        dialect.begin()
        for kind, tuples in changes:
            dialect.row(kind, tuples)
        dialect.receive(Truncate(None, (OID,), False, False))
        assert dialect.operations() == expected, skipped


def test_an_update_that_is_skipped_with_its_old_tuple_is_not_written() -> None:
    dialect = Dialect(DebeziumSettings(skipped_operations=("u",)))
    dialect.begin()
    dialect.row(b"U", old(*row_of(1)) + new(*row_of(1, b"z")))
    assert dialect.operations() == []


def test_without_tombstones_a_delete_is_one_record() -> None:
    dialect = Dialect(DebeziumSettings(tombstones_on_delete=False))
    dialect.begin()
    dialect.row(b"D", old(*row_of(1), letter=b"K"))
    assert dialect.operations() == [("d", 1)]


def test_transactions_count_their_events_where_that_is_asked_for() -> None:
    dialect = Dialect(DebeziumSettings(provide_transaction_metadata=True))
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)))
    dialect.receive(Origin(Lsn(7), "remote"))
    dialect.row(b"I", new(*row_of(2)))
    dialect.commit()
    begun, one, two, end = (record.value for record in dialect.read())
    assert begun is not None and one is not None and two is not None and end is not None
    assert (begun["status"], end["status"], end["event_count"]) == ("BEGIN", "END", 2)
    assert end["data_collections"] == [{"data_collection": "public.shop orders", "event_count": 2}]
    assert (one["transaction"]["total_order"], two["transaction"]["total_order"]) == (1, 2)
    assert (one["source"]["origin"], two["source"]["origin"]) == (None, "remote")


def test_a_skipped_transaction_leaves_nothing() -> None:
    dialect = Dialect(skip_lsn=1000)
    dialect.begin(1000)
    dialect.row(b"I", new(*row_of(1)))
    dialect.row(b"I", new(*row_of(1)), oid=999)
    dialect.receive(Truncate(None, (OID,), False, False))
    dialect.receive(Message(None, True, Lsn(1), "prefix", b"content"))
    dialect.machine.drained(b"I" + OID.to_bytes(4, "big"), 0, 5, 10**9)
    dialect.commit(1000)
    assert dialect.read() == [] and dialect.machine.resume_lsn == 1040


def test_what_was_written_before_is_not_written_again_of_any_kind() -> None:
    dialect = Dialect(DebeziumSettings(skipped_operations=()), written=(5, 10_000))
    dialect.begin()
    dialect.receive(Truncate(None, (OID,), False, False))
    dialect.receive(Message(None, True, Lsn(1), "prefix", b"content"))
    dialect.row(b"I", new(*row_of(1)))
    dialect.commit()
    assert dialect.read() == []


def test_tables_of_a_truncate_that_share_the_last_lsn_come_all_again() -> None:
    """Of any number of them the record may be missing."""
    for oids, count in (((OID,), 0), ((OID, OID), 2)):
        dialect = Dialect(DebeziumSettings(skipped_operations=()), written=(5, 1000))
        dialect.begin()
        dialect.machine.receive(Truncate(None, oids, False, False), 1000)
        dialect.commit()
        assert [one.value["op"] for one in dialect.read() if one.value is not None] == ["t"] * count


# -- values
# -------------------------------------------------------------------------------------------------------------


def test_a_null_where_a_field_is_required_makes_it_optional() -> None:
    dialect = Dialect(required=(0, 2))
    dialect.begin()
    with pytest.raises(NeedsOptional, match="column c2: a row that was written before") as caught:
        dialect.row(b"I", new(*row_of(1)[:2], None, *row_of(1)[3:]))
    assert caught.value.field == (OID, "c2")


def test_an_unchanged_value_is_taken_from_the_old_tuple_or_has_its_placeholder() -> None:
    row = row_of(1, b"large")
    dialect = Dialect(description=replace(relation(), replica_identity=ReplicaIdentity.FULL))
    dialect.begin()
    dialect.row(b"U", old(*row) + new(*row[:2], UNCHANGED, *row[3:]))
    dialect.row(b"U", new(*row[:2], UNCHANGED, *row[3:]))
    dialect.row(b"U", new(row[0], UNCHANGED, *row[2:]))  # an integer has no placeholder
    after = [one.value["after"] for one in dialect.read() if one.value is not None]
    assert [one["c2"] for one in after] == ["large", "__debezium_unavailable_value", "large"]
    assert after[2]["c1"] is None
    assert [(column, "unchanged TOASTed" in reason) for _, column, reason in dialect.reasons] == [("c1", True)]


def test_a_key_that_is_unchanged_is_taken_from_the_old_one() -> None:
    kinds = (EVERYDAY[2], EVERYDAY[1])
    dialect = Dialect(description=relation(kinds))
    dialect.begin()
    dialect.row(b"U", old(Text(b"k"), None, letter=b"K") + new(UNCHANGED, Text(b"1")))
    (record,) = dialect.read()
    assert record.key == {"c0": "k"}
    assert record.value is not None and record.value["after"] == {"c0": "k", "c1": 1}


def test_a_first_row_in_binary_is_read_whatever_it_is() -> None:
    """Also one of a relation with a column that is left out."""
    pair = TypeFacts(20003, "public", "pair", Kind.COMPOSITE)
    columns = (relation().columns[0], ColumnDescription("pair", pair, -1, False), relation().columns[2])
    row = (Binary(bytes(7) + b"\1"), Text(b"(1)"), Binary(b"x"))
    for kind, tuples in ((b"I", new(*row)), (b"D", old(*row)), (b"U", old(*row) + new(*row))):
        dialect = Dialect(DebeziumSettings(tombstones_on_delete=False), replace(relation(), columns=columns))
        dialect.begin()
        for _ in range(2):
            dialect.row(kind, tuples)
        found = dialect.read()
        rows_of = [one.value["before" if kind == b"D" else "after"] for one in found if one.value is not None]
        assert rows_of == [{"c0": 1, "c2": "x"}] * 2 and [one.key for one in found] == [{"c0": 1}] * 2


def test_a_key_that_was_not_sent_stops() -> None:
    dialect = Dialect(description=relation((EVERYDAY[2], EVERYDAY[1])))
    dialect.begin()
    with pytest.raises(KeyNotSent):
        dialect.row(b"U", new(UNCHANGED, Text(b"1")))


def test_a_value_that_64_bits_do_not_hold_is_null_with_a_reason() -> None:
    facts = TypeFacts(1114, "pg_catalog", "timestamp", Kind.BASE)
    columns = (relation().columns[0], ColumnDescription("moment", facts, -1, False))
    options, described = DebeziumSettings(time_precision_mode="nanoseconds"), replace(relation(), columns=columns)
    row = new(Text(b"1"), Text(b"9999-01-01 00:00:00"))
    dialect = Dialect(options, described)
    dialect.begin()
    dialect.row(b"I", row)
    (record,) = dialect.read()
    assert record.value is not None and record.value["after"]["moment"] is None
    assert [column for _, column, _ in dialect.reasons] == ["moment"]
    dialect = Dialect(options, described, required=(0, 1))
    dialect.begin()
    with pytest.raises(NeedsOptional, match="column moment: its Kafka Connect type cannot represent"):
        dialect.row(b"I", row)
    in_key = replace(described, columns=tuple(replace(column, identity=True) for column in columns))
    dialect = Dialect(options, in_key, required=(0, 1))
    dialect.begin()
    with pytest.raises(UnwritableRelation, match="moment is part of the key"):
        dialect.row(b"I", row)


def test_what_is_no_value_of_its_type_is_named_but_not_shown() -> None:
    dialect = Dialect()
    dialect.begin()
    for kind, tuples in (
        (b"I", new(Text(b"1"), Text(b"secret"), *[None] * 5)),
        (b"U", old(*row_of(1)) + new(Text(b"1"), Text(b"secret"), *[None] * 5)),
        (b"D", old(Text(b"1"), Text(b"secret"), *[None] * 5)),
    ):
        with pytest.raises(UnreadableValue, match="column c1") as caught:
            dialect.row(kind, tuples)
        assert "secret" not in str(caught.value)


def test_a_type_without_a_binary_decoder_asks_for_text() -> None:
    money = TypeFacts(790, "pg_catalog", "money", Kind.BASE)
    columns = (relation().columns[0], ColumnDescription("price", money, -1, False))
    dialect = Dialect(description=replace(relation(), columns=columns))
    dialect.begin()
    with pytest.raises(UnknownBinary, match="column price"):
        dialect.row(b"I", new(Binary(bytes(7) + b"\1"), Binary(bytes(8))))
    dialect.row(b"I", new(Text(b"1"), Text(b"$1.00")))
    assert len(dialect.read()) == 1


@pytest.mark.parametrize(
    ("kind", "tuples"),
    [
        (b"I", new(*row_of(1)) + b"n"),
        (b"I", new(*row_of(1)[:6])),
        (b"I", b"X"),
        (b"I", b""),
        (b"U", new(*row_of(1)) + b"n"),
        (b"U", old(*row_of(1)[:6]) + new(*row_of(1))),
        (b"U", old(*row_of(1)) + new(*row_of(1)[:6])),
        (b"U", old(*row_of(1))),
        (b"U", b"X"),
        (b"D", old(*row_of(1)[:6])),
        (b"D", old(*row_of(1)) + b"n"),
        (b"D", new(*row_of(1))),
        (b"D", b"X"),
    ],
)
def test_a_row_that_is_not_whole_is_refused(kind: bytes, tuples: bytes) -> None:
    dialect = Dialect()
    dialect.begin()
    with pytest.raises(PgOutputError):
        dialect.row(kind, tuples)


def test_a_relation_without_a_key_has_records_without_one() -> None:
    description = relation(EVERYDAY, (), ReplicaIdentity.FULL)
    dialect = Dialect(description=description)
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)))
    dialect.row(b"U", old(*row_of(1)) + new(*row_of(2)))
    dialect.row(b"U", old(*row_of(1)) + new(row_of(1)[0], UNCHANGED, *row_of(1)[2:]))
    dialect.row(b"D", old(*row_of(2)))
    assert [(one.key, one.value and one.value["op"]) for one in dialect.read()] == [
        (None, "c"), (None, "u"), (None, "u"), (None, "d"),
    ]  # fmt: skip


# -- what is out of place
# -----------------------------------------------------------------------------------------------


def test_rows_out_of_place_are_errors() -> None:
    dialect = Dialect()
    with pytest.raises(OutOfOrder, match="inside a transaction"):
        dialect.row(b"I", new(*row_of(1)))
    dialect.begin()
    with pytest.raises(OutOfOrder, match="a change of relation 999"):
        dialect.row(b"I", new(*row_of(1)), oid=999)
    with pytest.raises(OutOfOrder, match="streaming was not requested"):
        dialect.receive(StreamStart(7, True))
    dialect.machine.relations.refuse(OID, StopForOperator("refused"))
    with pytest.raises(StopForOperator, match="refused"):
        dialect.row(b"I", new(*row_of(1)))


def test_a_slot_that_sends_prepared_transactions_is_refused() -> None:
    with pytest.raises(StopForOperator, match="before they commit") as caught:
        Dialect().receive(BeginPrepare(Lsn(1000), Lsn(1040), TIME, 5, "gid"))
    assert "without two_phase" in caught.value.hint


def test_a_row_that_is_too_large_to_be_held_names_its_topic() -> None:
    dialect = Dialect(sink=SmallSink)
    dialect.begin()
    with pytest.raises(StopForOperator, match=rf"{TOPIC} comes in a message of 1000000000 bytes"):
        dialect.machine.drained(b"I" + OID.to_bytes(4, "big") + b"N", 0, 6, 10**9)


# -- logical messages
# ---------------------------------------------------------------------------------------------------


def test_messages_are_written_with_their_transaction_or_without() -> None:
    dialect = Dialect(DebeziumSettings(provide_transaction_metadata=True, binary_handling_mode="hex"))
    dialect.receive(Message(None, False, Lsn(50), "alone", b"\1"))
    dialect.begin()
    dialect.receive(Message(None, True, Lsn(60), "within", b"\2"))
    dialect.receive(Message(None, True, Lsn(60), HEARTBEAT_PREFIX, b""))
    dialect.receive(Message(None, True, Lsn(60), CHUNK_PREFIX, b""))
    dialect.commit()
    found = [one.value for one in dialect.read() if one.topic == "d.message" and one.value is not None]
    assert [(one["message"]["prefix"], one["message"]["content"], one["source"]["txId"]) for one in found] == [
        ("alone", "01", None),
        ("within", "02", 5),
    ]
    assert found[0]["transaction"] is None and found[1]["transaction"]["total_order"] == 1
    assert dialect.machine.heartbeat_time == TIME


def test_rows_after_a_message_have_the_time_at_which_they_were_written() -> None:
    dialect = Dialect()
    for number, now_ns in enumerate((5_000_000, 3_600_005_000_000), 1):
        dialect.now_ns = now_ns
        dialect.begin(number * 1000)
        dialect.receive(Message(None, True, Lsn(60), "within", b"\2"))
        dialect.row(b"I", new(*row_of(number)))
        dialect.commit(number * 1000)
        message, row = (one.value for one in dialect.read())
        assert message is not None and row is not None
        assert message["ts_ms"] == row["ts_ms"] == now_ns // 1_000_000
        assert (row["ts_us"], row["ts_ns"]) == (now_ns // 1000, now_ns)


def test_a_message_that_is_too_large_has_no_place_in_its_transaction() -> None:
    dialect = Dialect(DebeziumSettings(provide_transaction_metadata=True), sink=SmallSink)
    dialect.begin()
    dialect.receive(Message(None, True, Lsn(60), "within", b"\2"))
    dialect.commit()
    assert dialect.read() == []
    dialect.begin(2000)
    dialect.receive(Message(None, True, Lsn(60), "within", b"\2"))
    dialect.row(b"I", new(*row_of(1)))
    dialect.commit(2000)
    begun, row, end = (one.value for one in dialect.read())
    assert begun is not None and row is not None and end is not None
    assert row["transaction"]["total_order"] == end["event_count"] == 1
    assert end["data_collections"] == [{"data_collection": "public.shop orders", "event_count": 1}]


def test_a_message_that_is_too_large_is_told_and_left_out() -> None:
    dialect = Dialect(sink=SmallSink)
    dialect.receive(Message(None, False, Lsn(50), "alone", b"\1"))
    dialect.begin()
    dialect.receive(Message(None, True, Lsn(60), "within", b"\2"))
    large = write(Message(None, True, Lsn(70), "drained", b"x"))
    dialect.machine.drained(large, 0, len(large), 10**9)
    assert [(one.xid, one.prefix) for one in dialect.left_out] == [(0, "alone"), (5, "within"), (5, "drained")]
    assert dialect.read() == []


# -- schemas
# ------------------------------------------------------------------------------------------------------------


def test_two_columns_that_would_be_one_field_are_refused() -> None:
    text = TypeFacts(25, "pg_catalog", "text", Kind.BASE)
    columns = tuple(ColumnDescription(name, text, -1, False) for name in ("a b", "a_b"))
    with pytest.raises(NameCollision, match="columns a b and a_b both become the field a_b"):
        connect_relation(replace(relation(), columns=columns), [], [], DebeziumSettings())


def test_a_key_that_old_tuples_do_not_have_is_what_they_have() -> None:
    description = relation(EVERYDAY, (1,))
    for key, meant in ((["c1"], (1,)), (["c0"], (1,)), (["gone"], (1,)), ([], (1,))):
        assert connect_relation(description, [], key, DebeziumSettings()).key == meant
    assert connect_relation(relation(EVERYDAY, ()), [], ["c0"], DebeziumSettings()).key == (0,)


def test_a_key_of_old_rows_is_not_a_part_of_it_that_is_the_primary_key_now() -> None:
    """Rows (1, 1) and (1, 2) of the time when (c0, c1) was the primary key are different rows."""
    description = relation(EVERYDAY, (0, 1))
    for key, meant in ((["c0"], (0, 1)), (["c1", "c0"], (1, 0)), (["c0", "c1", "c2"], (0, 1))):
        assert connect_relation(description, [], key, DebeziumSettings()).key == meant
    by_index = replace(description, replica_identity=ReplicaIdentity.INDEX)
    assert connect_relation(by_index, [], ["c0"], DebeziumSettings()).key == (0,)


def _of_an_unsupported_type(at: int) -> RelationDescription:
    pg_lsn = TypeFacts(3220, "pg_catalog", "pg_lsn", Kind.BASE)
    columns = list(relation(EVERYDAY, (0, at)).columns)
    columns[at] = replace(columns[at], facts=pg_lsn)
    return replace(relation(), columns=tuple(columns))


@pytest.mark.parametrize("key", [["c0", "c6"], ["c6", "c0"], ["c0"], []])
def test_a_key_column_of_an_unsupported_type_is_not_left_out_of_the_key(key: list[str]) -> None:
    with pytest.raises(UnsupportedKey, match="column c6 is part of the key"):
        connect_relation(_of_an_unsupported_type(6), [], key, DebeziumSettings())


def test_a_key_column_of_an_unsupported_type_is_sent_with_unknown_types() -> None:
    options = DebeziumSettings(include_unknown_datatypes=True)
    dialect = Dialect(options, _of_an_unsupported_type(6), required=(0, 6))
    dialect.begin()
    dialect.row(b"I", new(*row_of(1)[:6], Text(b"0/1")))
    dialect.row(b"D", old(Text(b"1"), *[None] * 5, Text(b"0/2"), letter=b"K"))
    assert [one.key for one in dialect.read()] == [{"c0": 1, "c6": lsn} for lsn in (b"0/1", b"0/2", b"0/2")]
    dialect.row(b"I", new(Binary(bytes(7) + b"\1"), *row_of(1)[1:6], Binary(bytes(7) + b"\3")))
    assert [one.key for one in dialect.read()] == [{"c0": 1, "c6": b"0/3"}]


def test_values_of_a_type_that_was_dropped_are_text() -> None:
    dropped = TypeFacts(20001, "public", "mood", Kind.UNKNOWN)
    columns = (relation().columns[0], ColumnDescription("mood", dropped, -1, False))
    dialect = Dialect(description=replace(relation(), columns=columns), required=(0, 1))
    dialect.begin()
    with pytest.raises(UnknownBinary, match="column mood"):
        dialect.row(b"I", new(Binary(bytes(7) + b"\1"), Binary(b"ok")))
    dialect.row(b"I", new(Text(b"1"), Text(b"ok")))
    (record,) = dialect.read()
    assert record.value is not None and record.value["after"] == {"c0": 1, "mood": "ok"}


def test_schemas_are_ones_that_fastavro_reads() -> None:
    """A record is defined once, also in an array; defaults are of the first branch."""
    numeric, text = (TypeFacts(oid, "pg_catalog", name, Kind.BASE) for oid, name in ((1700, "numeric"), (25, "text")))
    numerics = TypeFacts(1231, "pg_catalog", "_numeric", Kind.ARRAY, element=numeric)
    columns = tuple(
        ColumnDescription(f"c{number}", facts, -1, number == 0)
        for number, facts in enumerate((numeric, numeric, numerics, numerics, text, text, numeric))
    )
    description = replace(relation(), columns=columns)
    catalog = [CatalogColumn(f"c{number}", number in (0, 5), "'x'::text" * (number in (4, 5))) for number in range(7)]
    connect = with_defaults(connect_relation(description, catalog, ["c0"], DebeziumSettings()), catalog)
    envelope, of_key = envelope_schema(connect, "d.public.t"), key_schema(connect, "d.public.t")
    for schema in (envelope, of_key, *Dialect().schemas.known):
        fastavro.parse_schema(without_times(schema))
    fields = {field["name"]: field for field in envelope["fields"][0]["type"][1]["fields"]}
    assert fields["c4"] == {
        "name": "c4", "type": [{"type": "string", "connect.default": "x"}, "null"], "default": "x",
    }  # fmt: skip
    assert fields["c5"] == {"name": "c5", "type": {"type": "string", "connect.default": "x"}, "default": "x"}
    assert json.dumps(envelope).count('"fields": [{"name": "scale"') == 1


@pytest.mark.parametrize("default", ["'NaN'::real", "'-Infinity'::real", "'1.5'::real"])
def test_a_default_that_json_does_not_have_is_left_out(default: str) -> None:
    """Avro's parsers refuse a schema that contains it."""
    facts = TypeFacts(700, "pg_catalog", "float4", Kind.BASE)
    description = replace(relation(), columns=(ColumnDescription("c0", facts, -1, False),))
    catalog = [CatalogColumn("c0", True, default)]
    connect = with_defaults(connect_relation(description, catalog, [], DebeziumSettings()), catalog)
    (column,) = connect.columns
    assert column is not None and (column.has_default, column.default) == (
        ("1.5" in default),
        1.5 if "1.5" in default else None,
    )


@pytest.mark.parametrize(
    ("type_name", "default", "number"),
    [
        ("date", "'-infinity'::date", None),
        ("timestamp", "'infinity'::timestamp", None),
        ("timestamptz", "'infinity'::timestamptz", None),
        ("text", "'infinity'::text", "infinity"),
        ("date", "'1970-01-02'::date", 1),
        ("interval", "'P1DT1S'::interval", 86_401_000_000),
        ("interval", "make_interval(days => 1)", 0),
        ("numeric", "1.005", "\x65"),
        ("numeric", "'-1.005'::numeric", "\x9b"),
    ],
)
def test_a_default_is_what_postgresql_would_store_unless_it_is_infinity(
    type_name: str, default: str, number: object
) -> None:
    """A sink would make a column with a default that its database refuses."""
    typmod = numeric_typmod(5, 2) if type_name == "numeric" else -1
    description = replace(relation(), columns=(column("c0", type_name, typmod),))
    catalog = [CatalogColumn("c0", True, default)]
    (found,) = with_defaults(connect_relation(description, catalog, [], DebeziumSettings()), catalog).columns
    assert found is not None and (found.has_default, found.default) == (number is not None, number)


def test_two_relations_may_have_one_topic() -> None:
    assert debezium_topic("d", "public", "a b") == debezium_topic("d", "public", "a_b") == "d.public.a_b"


def test_java_counts_a_character_above_the_basic_plane_as_two() -> None:
    assert debezium_topic("d", "public", "a\U0001f600\uffff") == "d.public.a___"
    assert field_name("\U0001f600\u00e9", DebeziumSettings()) == "___"


def test_what_lies_before_an_lsn_is_made_once_for_its_length() -> None:
    source = SourceContext(SourceNames("0", "d", "db"), 5, 1000, TIME, 0, None)
    found = source.head_of(3)
    assert source.head_of(3) is found is source.head
    assert source.head_of(4) != found


@pytest.mark.parametrize("name", [".", "...", "a..b", ".a", "a."])
def test_a_table_whose_name_has_empty_parts_has_a_valid_schema(name: str) -> None:
    """fastavro takes no empty part of a name either, as no registry does."""
    topic = debezium_topic("cdc", "public", name)
    relation = Dialect().encoder.relation
    for schema in (envelope_schema(relation, topic), key_schema(relation, topic)):
        assert schema is not None
        parsed: Any = fastavro.parse_schema(schema)
        assert "" not in parsed["name"].split("."), parsed["name"]


def test_copied_rows_leave_the_readers_of_the_stream_and_are_read_in_place_whatever_their_forms() -> None:
    """COPY sends binary to a stream in text, and text for a type without a binary decoder."""
    dialect = Dialect()
    encoder, source = dialect.encoder, dialect.writer.source
    stream = encoder._runs
    texts, binaries = (wire_row(EVERYDAY, (5, 6, "text", None, None, True, "x"), binary=each) for each in (False, True))
    copies = encoder.of_copies()
    assert encoder.of_copies() is copies
    expected = copies.read(new(*texts), source, 1)
    for row in (binaries, (*binaries[:2], *texts[2:]), texts, binaries):
        assert copies.read(new(*row), source, 1) == expected
        for sent in (new(*row), new(row[0], None, *row[2:])):
            parts: list[bytes] = []
            place = 3
            for read in copies._runs:
                place = read(sent, place, parts)
            assert place == len(sent)
    assert encoder._runs is stream


def test_an_unchanged_value_that_is_never_sent_is_not_read_again() -> None:
    """Neither for reselect_unavailable_values nor for a snapshot of the table."""
    pair = TypeFacts(20003, "public", "pair", Kind.COMPOSITE)
    first, _, text = relation().columns[:3]
    columns = (
        first,
        ColumnDescription("pair", pair, -1, False),
        replace(text, protection=Protection(Protect.DROP)),
        replace(text, name="none", protection=Protection(Protect.NULL)),
        replace(text, name="sent"),
    )
    dialect = Dialect(description=replace(relation(), columns=columns))
    asked: list[int] = []

    def left_out(oid: int) -> bool:
        asked.append(oid)
        return False

    dialect.machine.on_left_out = left_out
    keys = ChangeKeys(dialect.version.encoder.description, frame(1), dialect.encoder.relation.without_values)
    dialect.begin()
    for last, is_read in ((Text(b"x"), False), (UNCHANGED, True)):
        row = new(Text(b"1"), UNCHANGED, UNCHANGED, UNCHANGED, last)
        dialect.row(b"U", row)
        dialect.row(b"U", old(Text(b"2"), *[None] * 4, letter=b"K") + row)
        assert asked == [OID, OID] * is_read
        assert keys.of(row, b"U"[0], 0, len(row))[2] is is_read
