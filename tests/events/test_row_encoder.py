"""Rows in Avro: byte for byte what fastavro writes for the event that was meant, whole; and nothing
from rubbish."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.events.errors import KeyNotSent, UnknownBinary, UnreadableValue
from gateway.events.row_encoder import RowEncoder
from gateway.events.transaction_context import TransactionContext
from gateway.pgoutput.errors import PgOutputError
from gateway.pgoutput.letters import NEW_TUPLE
from gateway.pgoutput.row import TuplePart
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text, TupleValue
from schemas.change_schema import change_schema, key_schema
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts
from schemas.varint import encode_long
from schemas.wire_format import frame
from tests.events.rows import (
    ALL,
    BOOL,
    BYTEA,
    DATE,
    EVERYDAY,
    INT4,
    INT8,
    NUMERIC,
    PG_EPOCH,
    TEXT,
    TIMESTAMPTZ,
    WIDE,
    ColumnKind,
    avro_bytes,
    avro_row,
    facts,
    relation,
    rows,
    wire_row,
)
from tests.pgoutput.writer import write_tuple_data
from tests.values.oracle import read_avro

CONTEXT = TransactionContext(771, -1, 3, 0x16B374D848, 1_790_000_000_000_000, "remote")
IN_PROGRESS = TransactionContext(771, 775, 3, None, None, None)
VALUE_ID, KEY_ID = 7, 300_000
CHANGE_LSN, ORDINAL = 0x16B374D000, 130
BEFORE, AFTER = b"\xff" * 5, b"nnn\0"
"""Bytes around the message, as in a full read buffer."""

Row = tuple[TupleValue, ...]


def encoder_of(description: RelationDescription) -> RowEncoder:
    return RowEncoder(description, VALUE_ID, KEY_ID if description.identity_columns else None)


def encode(
    encoder: RowEncoder, operation: str, payload: bytes, context: TransactionContext = CONTEXT
) -> tuple[bytes | None, bytes, tuple[bytes | None, bytes] | None]:
    data = BEFORE + payload + AFTER
    method: Any = {"insert": encoder.insert, "update": encoder.update, "delete": encoder.delete}[operation]
    key, value, *moved = method(data, len(BEFORE), len(BEFORE) + len(payload), context, CHANGE_LSN, ORDINAL)
    return key, value, moved[0] if moved else None


def new(row: Row) -> bytes:
    return b"N" + write_tuple_data(row)


def key_tuple(row: Row) -> bytes:
    return b"K" + write_tuple_data(row)


def old(row: Row) -> bytes:
    return b"O" + write_tuple_data(row)


def event(description: RelationDescription, value: bytes) -> dict[str, Any]:
    assert value[:5] == frame(VALUE_ID)
    return read_avro(value, parsed(description))


def key_event(description: RelationDescription, key: bytes | None) -> dict[str, Any] | None:
    if key is None:
        return None
    assert key[:5] == frame(KEY_ID)
    return read_avro(key, parsed_key(description))


@cache
def parsed(description: RelationDescription) -> Any:
    return fastavro.parse_schema(change_schema(description, "cdc"))


@cache
def parsed_key(description: RelationDescription) -> Any:
    schema = key_schema(description, "cdc")
    assert schema is not None
    return fastavro.parse_schema(schema)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("kinds", [ALL, EVERYDAY, WIDE, (TEXT,), (BOOL, INT4, TEXT)], ids=len)
@settings(max_examples=40)
@given(data=st.data(), context=st.sampled_from([CONTEXT, IN_PROGRESS]))
def test_an_insert_is_what_fastavro_writes(
    kinds: tuple[ColumnKind, ...], binary: bool, data: st.DataObject, context: TransactionContext
) -> None:
    description = relation(kinds)
    encoder = encoder_of(description)
    for _ in range(2):  # the encoder learns on the first row whether the server sends binary
        values = data.draw(rows(kinds))
        key, value, _ = encode(encoder, "insert", new(wire_row(kinds, values, binary=binary)), context)
        expected = {
            "op": "INSERT", "xid": context.xid, "subxid": context.subxid, "epoch": context.epoch, "change_lsn": CHANGE_LSN,
            "ordinal": ORDINAL, "commit_lsn": context.commit_lsn, "commit_time": context.commit_time,
            "origin": context.origin, "key_change": False, "old_key": None, "before": None,
            "after": avro_row(description, values), "unchanged": [], "special": {},
        }  # fmt: skip
        assert value == frame(VALUE_ID) + avro_bytes(parsed(description), expected)
        assert key == frame(KEY_ID) + avro_bytes(parsed_key(description), {"c0": values[0]})


@pytest.mark.parametrize("kinds", [ALL, WIDE], ids=len)
@settings(max_examples=50)
@given(data=st.data())
def test_text_and_binary_rows_give_the_same_records(kinds: tuple[ColumnKind, ...], data: st.DataObject) -> None:
    description = relation(kinds, (0, 3, len(kinds) - 1), ReplicaIdentity.FULL)
    of_text, of_binary = encoder_of(description), encoder_of(description)
    first, second = data.draw(rows(kinds)), data.draw(rows(kinds))
    text, binary = ([wire_row(kinds, row, binary=form) for row in (first, second)] for form in (False, True))
    assert messages_of(of_text, *text) == messages_of(of_binary, *binary)


def messages_of(encoder: RowEncoder, first: Row, second: Row) -> list[Any]:
    return [
        encode(encoder, "insert", new(first)),
        encode(encoder, "update", old(first) + new(second)),
        encode(encoder, "update", new(second)),
        encode(encoder, "delete", old(first)),
    ]


def test_an_update_under_the_same_key_is_one_record() -> None:
    kinds = (INT8, TEXT)
    description = relation(kinds)
    key, value, moved = encode(encoder_of(description), "update", new(wire_row(kinds, (5, "a"), binary=True)))
    assert moved is None
    assert key_event(description, key) == {"c0": 5}
    assert event(description, value)["op"] == "UPDATE"
    assert event(description, value)["after"] == {"c0": 5, "c1": "a"}


@pytest.mark.parametrize("binary", [False, True])
def test_a_changed_key_gives_a_delete_under_the_old_one(binary: bool) -> None:
    kinds = (INT8, TEXT)
    description = relation(kinds)
    payload = key_tuple(wire_row(kinds, (5, None), binary=binary)) + new(wire_row(kinds, (6, "a"), binary=binary))
    key, value, moved = encode(encoder_of(description), "update", payload)
    assert moved is not None
    assert key_event(description, key) == {"c0": 6}
    assert key_event(description, moved[0]) == {"c0": 5}
    update, gone = event(description, value), event(description, moved[1])
    assert (update["op"], update["key_change"], update["old_key"]) == ("UPDATE", False, {"c0": 5})
    assert (gone["op"], gone["key_change"], gone["old_key"]) == ("DELETE", True, {"c0": 5})
    assert gone["before"] is None
    assert gone["after"] is None
    identity = ("xid", "subxid", "epoch", "change_lsn", "ordinal", "commit_lsn", "commit_time", "origin")
    assert all(update[name] == gone[name] for name in identity)


def test_a_key_tuple_with_the_same_key_is_no_change_of_the_key() -> None:
    """The server sends one where an identity column is stored out of line, whatever its value."""
    kinds = (TEXT, INT8)
    description = relation(kinds)
    payload = key_tuple((Text(b"long"), None)) + new((UNCHANGED, Text(b"1")))
    key, value, moved = encode(encoder_of(description), "update", payload)
    assert moved is None
    assert key_event(description, key) == {"c0": "long"}
    assert event(description, value)["unchanged"] == ["c0"]
    assert event(description, value)["old_key"] == {"c0": "long"}


@pytest.mark.parametrize("binary", [False, True])
def test_under_full_the_old_tuple_is_the_before_image(binary: bool) -> None:
    kinds = (INT8, TEXT)
    description = relation(kinds, (0,), ReplicaIdentity.FULL)
    encoder = encoder_of(description)
    same = old(wire_row(kinds, (5, "a"), binary=binary)) + new(wire_row(kinds, (5, "b"), binary=binary))
    for _ in range(2):
        key, value, moved = encode(encoder, "update", same)
        assert moved is None
        assert key_event(description, key) == {"c0": 5}
        assert event(description, value)["before"] == {"c0": 5, "c1": "a"}
        assert event(description, value)["after"] == {"c0": 5, "c1": "b"}
        assert event(description, value)["old_key"] is None
    other = old(wire_row(kinds, (5, "a"), binary=binary)) + new(wire_row(kinds, (6, None), binary=binary))
    key, value, moved = encode(encoder, "update", other)
    assert moved is not None
    assert key_event(description, moved[0]) == {"c0": 5}
    assert event(description, moved[1])["key_change"] is True
    assert event(description, moved[1])["before"] == {"c0": 5, "c1": "a"}
    assert event(description, value)["after"] == {"c0": 6, "c1": None}


def test_under_full_an_unchanged_identity_column_is_taken_from_the_old_tuple() -> None:
    kinds = (TEXT, INT8)
    description = relation(kinds, (0,), ReplicaIdentity.FULL)
    payload = old((Text(b"long"), Text(b"1"))) + new((UNCHANGED, Text(b"2")))
    key, value, moved = encode(encoder_of(description), "update", payload)
    assert moved is None
    assert key_event(description, key) == {"c0": "long"}
    assert event(description, value)["before"] == {"c0": "long", "c1": 1}
    assert event(description, value)["after"] == {"c0": None, "c1": 2}
    assert event(description, value)["unchanged"] == ["c0"]


def test_a_delete_carries_the_key_tuple_or_the_old_tuple() -> None:
    kinds = (INT8, TEXT)
    description = relation(kinds)
    key, value, _ = encode(encoder_of(description), "delete", key_tuple((Text(b"5"), None)))
    assert key_event(description, key) == {"c0": 5}
    assert event(description, value)["old_key"] == {"c0": 5}
    assert event(description, value)["key_change"] is False
    full = relation(kinds, (0,), ReplicaIdentity.FULL)
    key, value, _ = encode(encoder_of(full), "delete", old((Text(b"5"), Text(b"x"))))
    assert key_event(full, key) == {"c0": 5}
    assert event(full, value)["before"] == {"c0": 5, "c1": "x"}
    assert event(full, value)["old_key"] is None


def test_a_truncate_has_neither_key_nor_rows() -> None:
    description = relation()
    told = event(description, encoder_of(description).truncate(CONTEXT, CHANGE_LSN, ORDINAL))
    assert told["op"] == "TRUNCATE"
    assert (told["old_key"], told["before"], told["after"]) == (None, None, None)


def test_null_unchanged_and_special_stay_three_things() -> None:
    kinds = (INT8, TEXT, NUMERIC, NUMERIC)
    description = relation(kinds)
    payload = new((Text(b"1"), UNCHANGED, Text(b"NaN"), None))
    for operation in ("insert", "update"):
        told = event(description, encode(encoder_of(description), operation, payload)[1])
        assert told["after"] == {"c0": 1, "c1": None, "c2": None, "c3": None}
        assert told["unchanged"] == ["c1"]
        assert told["special"] == {"c2": "NaN"}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("identity", [(1,), (2,), (2, 3), (0, 2), (4, 6)], ids=str)
@given(data=st.data())
@settings(max_examples=30)
def test_keys_are_the_same_whatever_else_the_row_holds(
    identity: tuple[int, ...], binary: bool, data: st.DataObject
) -> None:
    """Fast or with care, with NULLs, UNCHANGED and special values around: a row's key is that of
    its identity columns."""
    kinds = (TEXT, INT8, NUMERIC, DATE, TEXT, TIMESTAMPTZ, INT4)
    description = relation(kinds, identity)
    values = data.draw(rows(kinds))
    plain = wire_row(kinds, values, binary=binary)
    odd = tuple(
        value if index in identity else data.draw(st.sampled_from([value, None, UNCHANGED]))
        for index, value in enumerate(plain)
    )
    encoder = encoder_of(description)
    encode(encoder, "insert", new(plain))
    key, value, _ = encode(encoder, "update", new(odd))
    expected = {
        f"c{index}": kinds[index].text(values[index]).decode()
        if kinds[index] in (NUMERIC, DATE) and values[index] is not None
        else values[index]
        for index in identity
    }
    assert key_event(description, key) == expected
    unchanged = [f"c{index}" for index, each in enumerate(odd) if each is UNCHANGED]
    assert event(description, value)["unchanged"] == unchanged
    assert encode(encoder_of(description), "insert", new(plain))[0] == key


def test_runs_of_unchanged_columns_stay_what_they_are() -> None:
    description = relation(WIDE)
    plain = wire_row(WIDE, (1, *(None,) * (len(WIDE) - 1)), binary=True)
    encoder = encoder_of(description)
    encode(encoder, "insert", WIDE_ROW)
    for index in range(1, len(WIDE)):
        unchanged = (*plain[:index], UNCHANGED, *plain[index + 1 :])
        key, value, _ = encode(encoder, "update", new(unchanged))
        assert key_event(description, key) == {"c0": 1}
        assert event(description, value)["unchanged"] == [f"c{index}"]
        assert event(description, value)["after"] == {"c0": 1, **{f"c{n}": None for n in range(1, len(WIDE))}}


def test_special_values_of_both_images_do_not_mix() -> None:
    kinds = (INT8, DATE)
    description = relation(kinds, (0,), ReplicaIdentity.FULL)
    payload = old((Text(b"1"), Text(b"infinity"))) + new((Text(b"1"), Text(b"-infinity")))
    told = event(description, encode(encoder_of(description), "update", payload)[1])
    assert told["special"] == {"before.c1": "infinity", "c1": "-infinity"}
    gone = event(description, encode(encoder_of(description), "delete", old((Text(b"1"), Text(b"infinity"))))[1])
    assert gone["special"] == {"before.c1": "infinity"}


@pytest.mark.parametrize("values", [("1.50", b"infinity"), ("NaN", b"2026-01-01"), ("1.50", b"0044-03-15 BC")])
def test_key_columns_that_may_be_special_are_text_in_the_key(values: tuple[str, bytes]) -> None:
    kinds = (NUMERIC, DATE)
    description = relation(kinds, (0, 1))
    key, _, _ = encode(encoder_of(description), "insert", new((Text(values[0].encode()), Text(values[1]))))
    assert key_event(description, key) == {"c0": values[0], "c1": values[1].decode()}


def test_a_relation_without_identity_has_no_keys() -> None:
    description = relation(EVERYDAY, (), ReplicaIdentity.NOTHING)
    key, value, _ = encode(encoder_of(description), "insert", new(wire_row(EVERYDAY, (None,) * 7, binary=False)))
    assert key is None
    assert event(description, value)["after"] == avro_row(description, (None,) * 7)


def test_a_relation_without_columns_still_has_rows() -> None:
    description = relation((), ())
    key, value, _ = encode(encoder_of(description), "insert", new(()))
    assert key is None
    assert event(description, value)["after"] == {}


def test_a_column_without_send_function_comes_as_text_among_binary_ones() -> None:
    acl = TypeFacts(1033, "pg_catalog", "aclitem", Kind.BASE, sends_binary=False)
    columns = (ColumnDescription("id", facts(20, "int8"), -1, True), ColumnDescription("acl", acl, -1, False))
    description = RelationDescription(1, "public", "t", ReplicaIdentity.DEFAULT, columns)
    encoder = encoder_of(description)
    for _ in range(2):
        _, value, _ = encode(encoder, "insert", new((Binary(struct.pack("!q", 4)), Text(b"a=r/b"))))
        assert event(description, value)["after"] == {"id": 4, "acl": "a=r/b"}


def test_a_binary_value_of_an_unknown_type_asks_for_text() -> None:
    columns = (ColumnDescription("price", TypeFacts(790, "pg_catalog", "money", Kind.BASE), -1, False),)
    description = RelationDescription(1, "public", "t", ReplicaIdentity.DEFAULT, columns)
    for operation, letter in (("insert", b"N"), ("update", b"N"), ("delete", b"O")):
        with pytest.raises(UnknownBinary, match=r"public\.t, column price: .* money"):
            encode(encoder_of(description), operation, letter + write_tuple_data((Binary(bytes(8)),)))
    _, value, _ = encode(encoder_of(description), "insert", new((Text("1,00 €".encode()),)))
    assert event(description, value)["after"] == {"price": "1,00 €"}


def test_an_identity_column_that_was_not_sent_stops() -> None:
    description = relation((TEXT, INT8))
    with pytest.raises(KeyNotSent, match=r"public\.shop orders, column c0: .* \(at byte 8\)"):
        encode(encoder_of(description), "update", new((UNCHANGED, Text(b"1"))))


def test_a_value_that_is_not_of_its_type_is_named_but_not_shown() -> None:
    description = relation((INT8, BOOL))
    with pytest.raises(
        UnreadableValue, match=r"column c0: the value at byte 8 is not a valid int8 in text format"
    ) as caught:
        encode(encoder_of(description), "insert", new((Text(b"secret"), None)))
    assert "secret" not in str(caught.value)
    with pytest.raises(UnreadableValue, match="int8 in binary form"):
        encode(encoder_of(description), "insert", new((Binary(b"\0\0\0\1"), None)))


@pytest.mark.parametrize(("in_stream", "head_bytes"), [(False, 5), (True, 9)])
@pytest.mark.parametrize("form", [Text, Binary])
def test_an_error_names_the_byte_of_the_message_where_the_value_begins(
    form: type[Text | Binary], in_stream: bool, head_bytes: int
) -> None:
    """Wherever the message lies in what was read: behind its head come the letter, the column
    count, and c0 and c1."""
    context = TransactionContext(771, 775, 3, None, None, None, in_stream)
    description = relation((TEXT, BOOL, INT8), (0,), ReplicaIdentity.FULL)
    good, bad = (form(b"text"), None, None), (form(b"text"), UNCHANGED, form(b"secret"))
    first = head_bytes + 3 + len(b"t0000text") + 1
    second = first + 1 + 3 + len(b"t0000text") + 1
    for operation, payload, offset in [
        ("insert", new(bad), first),
        ("update", new(bad), first),
        ("update", old(good) + new(bad), second),
        ("delete", old(bad), first),
    ]:
        with pytest.raises(UnreadableValue, match=f"column c2: the value at byte {offset} is not"):
            encode(encoder_of(description), operation, payload, context)
    with pytest.raises(PgOutputError, match=f"Delete, tuple part at byte {head_bytes}: expected one of K O, got 0x4e"):
        encode(encoder_of(description), "delete", new(good), context)


PAYLOADS = {
    "insert": new(wire_row(EVERYDAY, (1, 2, "text", None, None, True, "x"), binary=True)),
    "update": old(wire_row(EVERYDAY, (1, 2, "text", None, None, True, "x"), binary=True))
    + new(wire_row(EVERYDAY, (1, 2, "text", None, None, True, None), binary=True)),
    "delete": key_tuple(wire_row(EVERYDAY, (1, None, None, None, None, None, None), binary=True)),
}


_NOT_NUMBERS = {TIMESTAMPTZ: PG_EPOCH, BOOL: True, TEXT: "x", BYTEA: b"x"}
WIDE_ROW = new(wire_row(WIDE, tuple(_NOT_NUMBERS.get(kind, 5) for kind in WIDE), binary=True))


@pytest.mark.parametrize(
    ("operation", "kinds", "payload"),
    [*((operation, EVERYDAY, payload) for operation, payload in PAYLOADS.items()), ("insert", WIDE, WIDE_ROW)],
    ids=[*PAYLOADS, "wide"],
)
def test_every_prefix_of_a_row_is_refused(operation: str, kinds: tuple[ColumnKind, ...], payload: bytes) -> None:
    encoder = encoder_of(relation(kinds))
    encode(encoder, operation, payload)
    for length in range(len(payload)):
        data = BEFORE + payload + AFTER
        method: Any = {"insert": encoder.insert, "update": encoder.update, "delete": encoder.delete}[operation]
        with pytest.raises(PgOutputError):
            method(data, len(BEFORE), len(BEFORE) + length, CONTEXT, CHANGE_LSN, ORDINAL)


@pytest.mark.parametrize("operation", PAYLOADS)
@pytest.mark.parametrize("rubbish", [b"\0", b"n", b"N", PAYLOADS["insert"]])
def test_bytes_after_a_row_are_refused(operation: str, rubbish: bytes) -> None:
    with pytest.raises(PgOutputError):
        encode(encoder_of(relation()), operation, PAYLOADS[operation] + rubbish)


@pytest.mark.parametrize("count", [0, 6, 8])
def test_a_tuple_with_another_number_of_columns_is_refused(count: int) -> None:
    with pytest.raises(PgOutputError, match=f"number of columns of the new tuple at byte 6: expected 7, got {count}"):
        encode(encoder_of(relation()), "insert", new((None,) * count))


def test_bytes_after_a_row_with_an_unchanged_value_are_refused() -> None:
    for binary in (False, True):
        row = wire_row(EVERYDAY, (1, *(None,) * 6), binary=binary)
        encoder = encoder_of(relation())
        encode(encoder, "insert", new(row))
        with pytest.raises(PgOutputError):
            encode(encoder, "update", new((*row[:3], UNCHANGED, *row[4:])) + b"n")


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_an_old_tuple_with_another_number_of_columns_is_refused(operation: str) -> None:
    description = relation((INT8, INT4), (0, 1), ReplicaIdentity.FULL)
    after = new((None,) * 2) if operation == "update" else b""
    with pytest.raises(PgOutputError, match="number of columns of the old tuple"):
        encode(encoder_of(description), operation, old((None,)) + after)


@pytest.mark.parametrize("identity", [(), (0,), (1, 0), (5, 2), (4, 0)])
@settings(max_examples=40)
@given(data=st.data())
def test_a_copied_row_is_what_an_insert_of_it_would_be(identity: tuple[int, ...], data: st.DataObject) -> None:
    description = relation(EVERYDAY, identity)
    values = data.draw(rows(EVERYDAY))
    forms = data.draw(st.lists(st.booleans(), min_size=7, max_size=7))
    texts, binaries = (wire_row(EVERYDAY, values, binary=binary) for binary in (False, True))
    row = tuple(two if form else one for one, two, form in zip(texts, binaries, forms, strict=True))
    encoder = encoder_of(description).of_copies(forms)
    copied = new(row)
    key, tail = encoder.copied(copied + b"n", len(copied))
    head = encoder.read_head + CONTEXT.identity + encode_long(CHANGE_LSN) + encode_long(ORDINAL) + CONTEXT.commit
    expected_key, expected, _ = encode(encoder_of(description), "insert", new(binaries))
    told, meant = event(description, head + tail), event(description, expected)
    assert (told.pop("op"), meant.pop("op")) == ("READ", "INSERT")
    assert told == meant and key == expected_key
    with pytest.raises(PgOutputError):
        encoder.copied(copied + b"n", len(copied) + 1)


def test_a_special_value_in_a_copied_row_stays_special() -> None:
    description = relation((INT8, DATE))
    encoder = encoder_of(description).of_copies([False, False])
    copied = new((Text(b"1"), Text(b"infinity")))
    _, tail = encoder.copied(copied + b"n", len(copied))
    head = encoder.read_head + CONTEXT.identity + encode_long(CHANGE_LSN) + encode_long(ORDINAL) + CONTEXT.commit
    told = event(description, head + tail)
    assert (told["after"], told["special"]) == ({"c0": 1, "c1": None}, {"c1": "infinity"})


@pytest.mark.parametrize("operation", ["insert", "update"])
def test_a_special_value_that_has_no_text_is_asked_for_in_text(operation: str) -> None:
    """A numeric of an unknown sign: neither a decimal, nor one of the values that PostgreSQL has
    beside them."""
    kinds = (INT8, NUMERIC)
    row = (Binary(struct.pack("!q", 1)), Binary(struct.pack("!HhHHH", 1, 0, 0x1234, 0, 7)))
    for description in (relation(kinds), relation(kinds, (0, 1))):
        with pytest.raises(UnknownBinary, match="column c1"):
            encode(encoder_of(description), operation, new(row))


def test_null_in_an_identity_column_that_may_be_special_is_null_in_the_key() -> None:
    description = relation((NUMERIC, INT4), (0, 1), ReplicaIdentity.FULL)
    for binary in (False, True):
        key, _, _ = encode(encoder_of(description), "insert", new(wire_row((NUMERIC, INT4), (None, 5), binary=binary)))
        assert key_event(description, key) == {"c0": None, "c1": 5}


@given(
    payload=st.binary(max_size=80),
    operation=st.sampled_from(["insert", "update", "delete"]),
    start=st.sampled_from([b"", b"N\0\2", b"O\0\2", b"K\0\2"]),
)
def test_arbitrary_bytes_raise_nothing_but_the_documented_errors(payload: bytes, operation: str, start: bytes) -> None:
    with suppress(PgOutputError, UnreadableValue, KeyNotSent):
        encode(encoder_of(relation((INT8, NUMERIC))), operation, start + payload)


def test_a_value_whose_encoder_fails_in_an_unforeseen_way_is_found() -> None:
    def broken(value: bytes) -> bytes:
        raise TypeError(value)

    encoder = encoder_of(relation((TEXT, BOOL, INT8)))
    part = TuplePart(NEW_TUPLE, 6, (Text(b"text"), None, Text(b"1")))
    assert encoder.failing(part) is None
    codecs = encoder._tuples._codecs
    codecs[2] = replace(codecs[2], from_text=broken)
    assert encoder.failing(part) == f"column c2 at byte {6 + 2 + len(b't0000text') + 1}"
    assert encoder.failing(replace(part, values=(Text(b"text"), None, None))) is None
