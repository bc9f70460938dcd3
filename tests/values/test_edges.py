"""Edges of the encoders and renderers that captured values do not reach: what is special, what is
refused, what is written how.

The texts are those of PostgreSQL's output functions; tests/values/test_oracle.py asks a server
about whole types.
"""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pgoutput.letters import KIND_NULL, KIND_TEXT
from gateway.values.column_codec import codec
from gateway.values.column_readers import Render, SlowPathNeeded, always_unusual
from gateway.values.dates import (
    date_from_text,
    read_timestamptz_text,
    time_from_text,
    timestamp_from_text,
    timestamptz_from_text,
)
from gateway.values.extensions import render_hstore, render_vector
from gateway.values.floats import float4_from_text, render_float4
from gateway.values.network import render_inet
from gateway.values.protected_columns import protected_codec
from gateway.values.renderers import renderer
from gateway.values.special_values import NotRenderable, UnrepresentableValue
from gateway.values.text_search import render_tsquery
from schemas.avro_types import column_type, is_numeric
from schemas.relation import Attribute, Kind, Protect, Protection, TypeFacts
from schemas.varint import encode_long
from tests.events.rows import ALL, ColumnKind, facts, numeric_binary, numeric_typmod
from tests.schemas.relations import array_of, built_in

INT4, TEXT = built_in("int4"), built_in("text")
PAIR = TypeFacts(
    20000, "public", "pair", Kind.COMPOSITE, attributes=(Attribute("n", INT4, -1), Attribute("t", TEXT, -1))
)
NO_SEND = TypeFacts(20001, "public", "aclitem", Kind.BASE, sends_binary=False)


def some(number: int) -> bytes:
    return b"\2" + encode_long(number)


def render_of(described: TypeFacts) -> Render:
    found = renderer(described)
    assert found is not None
    return found


# -- composites, arrays, what has no renderer
# ---------------------------------------------------------------------------


def composite(*attributes: tuple[int, bytes | None]) -> bytes:
    parts = [struct.pack("!Ii", oid, -1 if value is None else len(value)) + (value or b"") for oid, value in attributes]
    return struct.pack("!i", len(attributes)) + b"".join(parts)


@pytest.mark.parametrize(
    ("number", "text", "written"),
    [
        (1, b"plain", b"(1,plain)"),
        (-7, b"", b'(-7,"")'),
        (None, None, b"(,)"),
        (1, b'a "b", c\\', b'(1,"a ""b"", c\\\\")'),
        (1, b"(x)", b'(1,"(x)")'),
    ],
)
def test_composites_are_written_as_record_out_does(number: int | None, text: bytes | None, written: bytes) -> None:
    sent = None if number is None else struct.pack("!i", number)
    assert render_of(PAIR)(composite((INT4.oid, sent), (TEXT.oid, text))) == written


def test_a_composite_that_was_altered_is_not_guessed() -> None:
    one = (INT4.oid, struct.pack("!i", 1))
    for value in (composite(one), composite((TEXT.oid, b"x"), (TEXT.oid, b"y"))):
        with pytest.raises(NotRenderable):
            render_of(PAIR)(value)
    with pytest.raises(ValueError, match="composite length"):
        render_of(PAIR)(composite(one, (TEXT.oid, b"y")) + b"\0")


def test_what_holds_a_type_without_a_renderer_has_none() -> None:
    within = TypeFacts(20002, "public", "within", Kind.COMPOSITE, attributes=(Attribute("a", NO_SEND, -1),))
    for described in (NO_SEND, within, array_of(NO_SEND), TypeFacts(20003, "public", "gone", Kind.ARRAY)):
        assert renderer(described) is None


def test_arrays_of_another_element_or_more_dimensions_than_there_are_are_refused() -> None:
    render = render_of(array_of(INT4))
    one = struct.pack("!iiIiiii", 1, 0, INT4.oid, 1, 1, 4, 5)
    assert render(one) == b"{5}"
    for changed in (struct.pack("!iiI", 1, 0, TEXT.oid) + one[12:], struct.pack("!iiI", 7, 0, INT4.oid) + one[12:]):
        with pytest.raises(NotRenderable):
            render(changed)


@pytest.mark.parametrize("text", [b"{1,,2}", b"{1,2", b"{1}2}", b'{"1}'])
def test_a_text_that_is_no_array_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, UnrepresentableValue)):
        codec(column_type(array_of(INT4), -1)).from_text(text)


# -- extensions
# ---------------------------------------------------------------------------------------------------------


def counted(*texts: bytes | None) -> bytes:
    return b"".join(struct.pack("!i", -1 if text is None else len(text)) + (text or b"") for text in texts)


def test_hstore_and_vector_are_written_as_their_output_functions_do() -> None:
    pairs = counted(b"a", b"1", b'b "c"\\', None)
    assert render_hstore(struct.pack("!i", 2) + pairs) == b'"a"=>"1", "b \\"c\\"\\\\"=>NULL'
    assert render_hstore(struct.pack("!i", 0)) == b""
    with pytest.raises(ValueError, match="after the last pair"):
        render_hstore(struct.pack("!i", 1) + pairs)
    vector = struct.pack("!hhfff", 3, 0, 1.0, 2.5, -1e10)
    assert render_vector(vector) == b"[1,2.5,-1e+10]"
    for other in (vector[:-1], struct.pack("!hh", 3, 1) + vector[4:]):
        with pytest.raises(NotRenderable):
            render_vector(other)


# -- moments
# ------------------------------------------------------------------------------------------------------------

MOMENTS = st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - the offset is added
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def offset_text(offset: timedelta) -> str:
    seconds = abs(int(offset.total_seconds()))
    sign = "-" if offset < timedelta(0) else "+"
    text = f"{sign}{seconds // 3600:02d}"
    if seconds % 3600:
        text += f":{seconds // 60 % 60:02d}"
    return text + (f":{seconds % 60:02d}" if seconds % 60 else "")


def read_whole(text: bytes) -> bytes:
    """By the reader of columns."""
    data = bytes((KIND_TEXT,)) + struct.pack("!i", len(text)) + text
    parts: list[bytes] = []
    assert read_timestamptz_text(data + b"n", 0, parts) == len(data) and len(parts) == 3
    return b"".join(parts)


@given(moment=MOMENTS, offset_s=st.integers(-15 * 3600, 15 * 3600), fraction=st.integers(0, 999_999))
def test_an_offset_of_any_session_gives_the_moment(moment: datetime, offset_s: int, fraction: int) -> None:
    offset = timedelta(seconds=offset_s)
    local = moment.replace(microsecond=fraction, tzinfo=timezone(offset))
    text = f"{local:%Y-%m-%d %H:%M:%S}".encode()
    text += (f".{fraction:06d}".rstrip("0") if fraction else "").encode() + offset_text(offset).encode()
    expected = some((local - EPOCH) // timedelta(microseconds=1))
    assert timestamptz_from_text(text) == read_whole(text) == expected


@pytest.mark.parametrize(
    "text",
    [b"infinity", b"-infinity", b"2020-01-01 00:00:00", b"10000-01-01 00:00:00+00", b"2020-01-01 00:00:00+00 BC",
     b"9999-12-31 23:59:59-15", b"2020-01-01 00:00:00+1", b"2020-01-01 xx:00:00+00", b"2020-01-01 00:00:00.x+00",
     b"20200-01-01 00:00:00+00", b"4713-01-01 00:00:00+00 BC", b"0005-02-29 00:00:00+00 BC"],
)  # fmt: skip
def test_moments_that_avro_cannot_hold_are_special(text: bytes) -> None:
    for read in (timestamptz_from_text, read_whole):
        with pytest.raises(UnrepresentableValue):
            read(text)


def test_times_and_timestamps_that_are_none_are_special() -> None:
    for text in (b"24:00:00", b"1:00", b"", b"infinity"):
        with pytest.raises(UnrepresentableValue):
            time_from_text(text)
    for text in (b"infinity", b"2020-01-01 00:00:60", b"2020-01-01 00:00:00 BC", b"20200-01-01 00:00:00"):
        with pytest.raises(UnrepresentableValue):
            timestamp_from_text(text)


def test_february_29_of_a_year_bc_is_special() -> None:
    for read, text in ((timestamp_from_text, b"0005-02-29 00:00:00 BC"), (date_from_text, b"0005-02-29 BC")):
        with pytest.raises(UnrepresentableValue):
            read(text)


def test_minutes_that_are_remembered_stay_right_when_there_are_too_many() -> None:
    first = datetime(2020, 1, 1, tzinfo=UTC)
    for number in [*range(5000), 0, 4999]:
        moment = first + timedelta(minutes=number)
        micros = (moment - EPOCH) // timedelta(microseconds=1)
        assert timestamp_from_text(f"{moment:%Y-%m-%d %H:%M:%S}".encode()) == some(micros)


# -- numbers
# ------------------------------------------------------------------------------------------------------------


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float4_is_written_so_that_it_is_read_again(number: float) -> None:
    packed = struct.pack("!f", number)
    text = render_float4(packed)
    assert struct.pack("!f", float(text)) == packed
    assert float4_from_text(text) == b"\2" + packed[::-1]


def test_what_is_no_number_among_floats_has_its_name() -> None:
    for number, text in ((math.inf, b"Infinity"), (-math.inf, b"-Infinity"), (math.nan, b"NaN")):
        assert render_float4(struct.pack("!f", number)) == text
        assert struct.unpack("<f", float4_from_text(text)[1:])[0] == pytest.approx(number, nan_ok=True)


@given(
    st.integers(2**24, 2**30).filter(lambda n: n % 2),
    st.sampled_from(["", ".00000000000000000001", "-"]),
)
def test_a_text_beside_the_middle_of_two_float4_goes_to_its_own_side(middle: int, beside: str) -> None:
    """As a double it is the middle itself: the text decides."""
    scaled = middle << (middle.bit_length() - 25)  # half-way between two float4
    text = f"{scaled - 1}.99999999999999999999" if beside == "-" else f"{scaled}{beside}"
    found = Fraction(struct.unpack("<f", float4_from_text(text.encode())[1:])[0])
    bits = struct.unpack("<I", float4_from_text(text.encode())[1:])[0]
    exact = Fraction(text)
    neighbours = [Fraction(struct.unpack("<f", struct.pack("<I", bits + step))[0]) for step in (-1, 1)]
    assert all(abs(exact - found) <= abs(exact - other) for other in neighbours)


@pytest.mark.parametrize("unscaled", [10_000, -10_000, 123_456])
def test_a_decimal_with_more_digits_than_its_type_is_special_in_both_forms(unscaled: int) -> None:
    """The column was altered, and the row is older."""
    column = codec(column_type(built_in("numeric"), numeric_typmod(4, 2)))
    number = Decimal(unscaled).scaleb(-2)
    assert column.from_binary is not None
    for encode, value in ((column.from_text, str(number).encode()), (column.from_binary, numeric_binary(number))):
        with pytest.raises(UnrepresentableValue):
            encode(value)
    with pytest.raises(UnrepresentableValue):  # three places, of which the type keeps two
        column.from_binary(numeric_binary(Decimal("1.234")))


def test_numeric_is_known_through_an_array() -> None:
    assert is_numeric(array_of(built_in("numeric"))) and is_numeric(built_in("numeric"))
    assert not is_numeric(array_of(INT4))


# -- network, text search, protection
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((0, 0, 0, 0, 0, 0xFFFF, 0x0102, 0x0304), b"::ffff:1.2.3.4"),
        ((0, 0, 0, 0, 0, 0, 0x0102, 0x0304), b"::1.2.3.4"),
        ((0, 0, 0, 0, 0, 0, 0, 1), b"::1"),
        ((0, 0, 0, 0, 0, 0, 0, 0x0304), b"::304"),
        ((0x2001, 0xDB8, 0, 0, 0, 0, 0, 0), b"2001:db8::"),
    ],
)
def test_an_ipv4_address_within_ipv6_keeps_its_dots(words: tuple[int, ...], text: bytes) -> None:
    assert render_inet(bytes((3, 128, 0, 16)) + struct.pack("!8H", *words)) == text


def lexeme(text: bytes) -> bytes:
    return b"\1\0\0" + text + b"\0"


def phrase(distance: int) -> bytes:
    return b"\2\4" + struct.pack("!H", distance)


def query(*nodes: bytes) -> bytes:
    return struct.pack("!i", len(nodes)) + b"".join(nodes)


def test_phrases_keep_their_distance_and_their_order() -> None:
    assert render_tsquery(query(phrase(2), lexeme(b"rat"), lexeme(b"fat"))) == b"'fat' <2> 'rat'"
    nested = query(phrase(1), phrase(1), lexeme(b"c"), lexeme(b"b"), lexeme(b"a"))
    assert render_tsquery(nested) == b"'a' <-> ( 'b' <-> 'c' )"
    other = query(phrase(1), lexeme(b"c"), phrase(1), lexeme(b"b"), lexeme(b"a"))
    assert render_tsquery(other) == b"'a' <-> 'b' <-> 'c'"


@pytest.mark.parametrize("value", [query(lexeme(b"a"), lexeme(b"b")), query(b"\3\0\0"), query(lexeme(b"a")) + b"\0"])
def test_nodes_that_are_no_query_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"operands|node"):
        render_tsquery(value)


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind.type != "float8"], ids=lambda kind: kind.type)
@given(data=st.data())
def test_a_rule_gives_the_same_for_both_forms(kind: ColumnKind, data: st.DataObject) -> None:
    column = column_type(facts(kind.oid, kind.type), kind.typmod)
    value = data.draw(kind.values)
    for action in (Protect.HASH, Protect.TRUNCATE):
        each = protected_codec(column.facts, Protection(action, 3, b"a key of the hashes!"))
        assert each.from_binary is not None
        assert each.from_binary(kind.binary(value)) == each.from_text(kind.text(value))


@pytest.mark.parametrize("action", [Protect.NULL, Protect.DROP])
def test_a_value_that_a_rule_hides_is_null_whatever_it_is(action: Protect) -> None:
    each = protected_codec(TEXT, Protection(action))
    assert each.from_binary is not None
    assert {each.from_text(b"secret"), each.from_binary(b"secret")} == {b"\0"}


def test_a_column_without_a_decoder_takes_nothing_but_null() -> None:
    parts: list[bytes] = []
    assert always_unusual(bytes((KIND_NULL,)), 0, parts) == 1 and parts == [b"\0"]
    with pytest.raises(SlowPathNeeded):
        always_unusual(bytes((KIND_TEXT,)) + b"\0\0\0\1x", 0, parts)
