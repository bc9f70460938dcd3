"""Keys that are read without encoding the row, for a dialect whose records have other keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.change_key import ChangeKeys
from gateway.events.errors import KeyNotSent, UnknownBinary
from gateway.pgoutput.errors import PgOutputError
from gateway.pgoutput.tuple_data import UNCHANGED, Binary, Text, TupleValue
from schemas.relation import Protect, Protection, RelationDescription, ReplicaIdentity
from schemas.wire_format import frame
from tests.events.rows import ALL, DATE, INT4, INT8, NUMERIC, TEXT, avro_bytes, relation, rows, wire_row
from tests.events.test_row_encoder import AFTER, BEFORE, KEY_ID, encode, encoder_of, key_event, parsed_key
from tests.pgoutput.writer import write_tuple_data

PAIR = (INT8, TEXT)


def part(letter: bytes, row: tuple[TupleValue, ...]) -> bytes:
    return letter + write_tuple_data(row)


def keys_of(description: RelationDescription, kind: bytes, payload: bytes) -> tuple[bytes | None, bytes | None, bool]:
    keys = ChangeKeys(description, frame(KEY_ID) if description.identity_columns else None)
    return keys.of(BEFORE + payload + AFTER, kind[0], len(BEFORE), len(BEFORE) + len(payload))


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("letter", [b"K", b"O"])
@given(data=st.data())
def test_keys_are_what_fastavro_writes(letter: bytes, binary: bool, data: st.DataObject) -> None:
    description = relation(ALL, (0, 3))
    first, second = data.draw(rows(ALL)), data.draw(rows(ALL))
    before, after = (wire_row(ALL, values, binary=binary) for values in (first, second))
    old_key, key = (
        frame(KEY_ID) + avro_bytes(parsed_key(description), {"c0": values[0], "c3": values[3]})
        for values in (first, second)
    )
    assert keys_of(description, b"I", part(b"N", after)) == (key, key, False)
    assert keys_of(description, b"U", part(b"N", after)) == (key, key, False)
    assert keys_of(description, b"U", part(letter, before) + part(b"N", after)) == (key, old_key, False)
    assert keys_of(description, b"D", part(letter, before)) == (old_key, old_key, False)


@pytest.mark.parametrize("values", [("1.50", b"infinity"), ("NaN", b"2026-01-01"), ("1.50", b"0044-03-15 BC")])
def test_special_values_in_a_key_are_what_a_change_event_has(values: tuple[str, bytes]) -> None:
    description = relation((NUMERIC, DATE), (0, 1))
    payload = part(b"N", (Text(values[0].encode()), Text(values[1])))
    key, _, _ = keys_of(description, b"I", payload)
    assert key == encode(encoder_of(description), "insert", payload)[0]
    assert key_event(description, key) == {"c0": values[0], "c1": values[1].decode()}


def test_an_update_that_lacks_a_value_is_recognized_whatever_precedes_it() -> None:
    description = relation((INT8, TEXT, TEXT), (0, 1), ReplicaIdentity.FULL)
    row = Text(b"1"), Text(b"key"), Text(b"large")
    whole = part(b"N", row)
    lacking = part(b"N", (*row[:2], UNCHANGED))
    key = keys_of(description, b"I", whole)[0]
    assert keys_of(description, b"U", lacking) == (key, key, True)
    assert keys_of(description, b"U", part(b"O", row) + lacking) == (key, key, True)
    # The new tuple lacks a column of the key itself, which the old tuple has.
    of_old = part(b"O", row) + part(b"N", (Text(b"1"), UNCHANGED, Text(b"small")))
    assert keys_of(description, b"U", of_old) == (key, key, True)


def test_a_column_whose_rule_sends_nothing_lacks_no_value() -> None:
    plain = relation(PAIR)
    hidden = replace(plain.columns[1], protection=Protection(Protect.DROP, 0, b""))
    description = replace(plain, columns=(plain.columns[0], hidden))
    assert not keys_of(description, b"U", part(b"N", (Text(b"1"), UNCHANGED)))[2]


def test_a_relation_without_identity_has_no_key() -> None:
    description = relation((INT4, TEXT), (), ReplicaIdentity.NOTHING)
    assert keys_of(description, b"I", part(b"N", (Text(b"1"), Text(b"x")))) == (None, None, False)


def test_a_key_that_was_not_sent_stops() -> None:
    with pytest.raises(KeyNotSent):
        keys_of(relation(PAIR, (1,)), b"U", part(b"N", (Text(b"1"), UNCHANGED)))


def test_a_key_in_binary_whose_type_has_no_known_form_asks_for_text() -> None:
    unknown = replace(relation(PAIR).columns[0].facts, oid=99_999, name="unknown")
    description = relation(PAIR)
    first = replace(description.columns[0], facts=unknown)
    described = replace(description, columns=(first, description.columns[1]))
    with pytest.raises(UnknownBinary):
        keys_of(described, b"I", part(b"N", (Binary(b"1"), None)))


@pytest.mark.parametrize("kind", [b"I", b"U", b"D"])
def test_every_prefix_of_a_message_is_refused(kind: bytes) -> None:
    row = Text(b"12"), Text(b"some text")
    whole = {b"I": part(b"N", row), b"U": part(b"K", row) + part(b"N", row), b"D": part(b"K", row)}[kind]
    for end in range(len(whole)):
        with pytest.raises(PgOutputError):
            keys_of(relation(PAIR), kind, whole[:end])
    with pytest.raises(PgOutputError):
        keys_of(relation(PAIR), kind, whole + b"n")
    with pytest.raises(PgOutputError):
        keys_of(relation((INT8, TEXT, TEXT)), kind, whole)
    with pytest.raises(PgOutputError):
        keys_of(relation(PAIR), kind, whole.replace(b"t\0\0\0\x09", b"x\0\0\0\x09"))
