"""Debezium's forms of values at their edges: what Connect cannot represent, what is refused, and
defaults.

Times are held against Python's own calendar; what Debezium writes for everyday values is in
tests/debezium/test_recordings.py.
"""

from __future__ import annotations

import io
import json
import math
import struct
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from gateway.config.debezium import DebeziumSettings
from gateway.debezium import connect_times as times
from gateway.debezium.column_defaults import with_defaults
from gateway.debezium.connect_codec import (
    connect_codec,
    encode_text,
    fallback_value,
    null_value,
    placeholder,
    skip_column,
)
from gateway.debezium.connect_type import ConnectType, connect_type
from gateway.debezium.envelope_schema import CatalogColumn, ConnectColumn, connect_relation
from gateway.pgoutput.letters import KIND_BINARY, KIND_NULL, KIND_TEXT
from gateway.values.column_readers import SlowPathNeeded
from gateway.values.integers import read_required_int4, read_required_int8
from gateway.values.numeric import decimal_from_binary, decimal_from_text
from gateway.values.special_values import NotRenderable, UnrepresentableValue
from schemas.relation import ColumnDescription, Kind, RelationDescription, ReplicaIdentity, TypeFacts
from tests.debezium.encoded import without_times
from tests.events.rows import numeric_binary
from tests.schemas.relations import array_of, built_in, numeric_typmod

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PG_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
TEXT, INT4, INT8, UUID = (built_in(name) for name in ("text", "int4", "int8", "uuid"))
HSTORE = TypeFacts(20000, "public", "hstore", Kind.BASE, extension="hstore")
POINT = TypeFacts(600, "pg_catalog", "point", Kind.BASE)
BIT, VARBIT = (TypeFacts(oid, "pg_catalog", name, Kind.BASE) for oid, name in ((1560, "bit"), (1562, "varbit")))
MOOD = TypeFacts(20001, "public", "mood", Kind.ENUM, labels=("sad", "ok"))
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMETZ, INTERVAL, MONEY = (
    built_in(name) for name in ("date", "time", "timestamp", "timestamptz", "timetz", "interval", "money")
)


def type_of(facts: TypeFacts, typmod: int = -1, **options: Any) -> ConnectType:
    found = connect_type(facts, typmod, DebeziumSettings(**options))
    assert found is not None
    return found


def read(type_: ConnectType, encoded: bytes) -> Any:
    """By fastavro, of an optional field."""
    schema = fastavro.parse_schema(["null", without_times(type_.avro)])
    return fastavro.schemaless_reader(io.BytesIO(encoded), schema, None)


def text_read(type_: ConnectType, text: bytes) -> Any:
    return read(type_, encode_text(type_)(text))


def column(type_: ConnectType, *, is_optional: bool = True, **more: Any) -> ConnectColumn:
    return ConnectColumn("c", "c", type_, is_optional, **more)


# -- times
# --------------------------------------------------------------------------------------------------------------


@given(st.dates())
def test_days_are_those_of_the_calendar_in_both_forms(day: date) -> None:
    text, days = day.isoformat().encode(), (day - date(1970, 1, 1)).days
    assert times.days_from_text(text) == days == times.days_of(day.year, day.month, day.day)
    assert times.days_from_binary(struct.pack("!i", (day - date(2000, 1, 1)).days)) == days
    assert text_read(type_of(DATE, time_precision_mode="isostring"), text) == f"{day.isoformat()}Z"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (b"0001-01-01 BC", "0000-01-01Z"),
        (b"0044-03-15 BC", "-0043-03-15Z"),
        (b"12026-11-23", "+12026-11-23Z"),
        (b"infinity", "infinity"),
        (b"-infinity", "-infinity"),
    ],
)
def test_years_beyond_four_digits_have_a_sign_as_in_java(text: bytes, written: str) -> None:
    assert text_read(type_of(DATE, time_precision_mode="isostring"), text) == written


def test_a_timestamp_has_as_many_digits_as_its_type() -> None:
    iso = type_of(TIMESTAMP, time_precision_mode="isostring")
    assert text_read(iso, b"2026-11-23 01:02:03.450") == "2026-11-23T01:02:03.45Z"
    assert text_read(iso, b"2026-11-23 01:02:03") == "2026-11-23T01:02:03Z"
    for digits, fraction in ((0, ""), (3, ".450"), (6, ".450000")):
        found = text_read(type_of(TIMESTAMPTZ, digits), b"2026-11-23 01:02:03.45+00")
        assert found == f"2026-11-23T01:02:03{fraction}Z"


def test_the_infinities_are_the_sentinels_of_debezium_in_both_forms() -> None:
    for facts, size, sign in ((DATE, 4, 1), (DATE, 4, -1), (TIMESTAMP, 8, 1), (TIMESTAMP, 8, -1), (TIMESTAMPTZ, 8, 1)):
        bits = size * 8 - 1
        binary = ((1 << bits) - 1 if sign > 0 else -(1 << bits)).to_bytes(size, "big", signed=True)
        text = b"infinity" if sign > 0 else b"-infinity"
        for mode in ("adaptive", "connect", "isostring", "microseconds", "nanoseconds"):
            type_ = type_of(facts, time_precision_mode=mode)
            codec = connect_codec(column(type_))
            assert codec.from_binary is not None
            assert codec.from_binary(binary) == codec.from_text(text)
    assert text_read(type_of(TIMESTAMPTZ), b"infinity") == "infinity"
    assert text_read(type_of(TIMESTAMP, time_precision_mode="isostring"), b"-infinity") == "-infinity"
    assert text_read(type_of(TIMESTAMP), b"infinity") == 9223372036825200000


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.integers(-15 * 3600, 15 * 3600),
)
def test_a_moment_is_that_of_the_calendar_whatever_its_offset(moment: datetime, offset_s: int) -> None:
    micros = (moment - EPOCH) // MICROSECOND
    try:
        local = moment + timedelta(seconds=offset_s)
    except OverflowError:
        reject()  # a local time that Python's calendar does not have
    sign, seconds = ("-", -offset_s) if offset_s < 0 else ("+", offset_s)
    offset = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    text = f"{local.isoformat(sep=' ', timespec='microseconds').removesuffix('+00:00')}{offset}".encode()
    assert times.micros_from_text(text) == micros
    type_ = type_of(TIMESTAMPTZ)
    written = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert text_read(type_, text) == written
    codec = connect_codec(column(type_))
    since_2000 = struct.pack("!q", (moment - PG_EPOCH) // MICROSECOND)
    parts: list[bytes] = []
    data = bytes((KIND_BINARY,)) + struct.pack("!i", 8) + since_2000
    assert codec.read_binary(data + b"n", 0, parts) == 13
    assert read(type_, b"".join(parts)) == written
    assert codec.from_binary is not None and read(type_, codec.from_binary(since_2000)) == written


def test_the_reader_of_moments_knows_null_and_leaves_the_rest_to_others() -> None:
    parts: list[bytes] = []
    assert times.read_moment_text(bytes((KIND_NULL,)), 0, parts) == 1 and b"".join(parts) == b"\0"
    with pytest.raises(SlowPathNeeded):
        times.read_moment_text(bytes((KIND_TEXT,)) + b"\0\0\0\1x", 0, parts)
    for since_2000 in ((1 << 63) - 1, -(1 << 63), 300_000_000_000_000_000):  # infinities; after the year 9999
        with pytest.raises(UnrepresentableValue):
            times.read_moment_text(bytes((KIND_BINARY,)) + struct.pack("!iq", 8, since_2000), 0, parts)


def test_minutes_that_are_remembered_stay_right_when_there_are_too_many() -> None:
    type_ = type_of(TIMESTAMPTZ)
    for number in [*range(5000), 0, 4999]:
        moment = PG_EPOCH + timedelta(minutes=number)
        parts: list[bytes] = []
        times.read_moment_text(bytes((KIND_BINARY,)) + struct.pack("!iq", 8, number * 60_000_000), 0, parts)
        assert read(type_, b"".join(parts)) == f"{moment:%Y-%m-%dT%H:%M:%S}.000000Z"
        assert text_read(type_, f"{moment:%Y-%m-%d %H:%M:%S}+00".encode()) == f"{moment:%Y-%m-%dT%H:%M:%S}.000000Z"


@given(st.times(), st.integers(-15 * 3600, 15 * 3600))
def test_a_time_with_zone_is_in_utc_within_one_day(clock: time, offset_s: int) -> None:
    micros = ((clock.hour * 60 + clock.minute) * 60 + clock.second) * 1_000_000 + clock.microsecond
    wanted = (micros - offset_s * 1_000_000) % 86_400_000_000
    sign, seconds = ("-", -offset_s) if offset_s < 0 else ("+", offset_s)
    text = f"{clock.isoformat()}{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}".encode()
    binary = struct.pack("!qi", micros, -offset_s)
    assert times.zoned_clock_from_text(text) == times.zoned_clock_from_binary(binary) == wanted
    shown = (EPOCH + wanted * MICROSECOND).time().isoformat().rstrip("0" if wanted % 1_000_000 else "")
    assert text_read(type_of(TIMETZ), text) == f"{shown}Z"
    assert text_read(type_of(TIME, time_precision_mode="isostring"), clock.isoformat().encode()).endswith("Z")


INTERVALS = [
    (b"P1Y2M3DT4H5M6.789S", 14, 3, 14_706_789_000, "P1Y2M3DT4H5M6.789S"),
    (b"P-1Y-2M3DT-4H-5M-6.7S", -14, 3, -14_706_700_000, "P-1Y-2M3DT-4H-5M-6.7S"),
    (b"PT0S", 0, 0, 0, "P0Y0M0DT0H0M0S"),
    (b"P1D", 0, 1, 0, "P0Y0M1DT0H0M0S"),
]


@pytest.mark.parametrize(("text", "months", "days", "micros", "written"), INTERVALS)
def test_intervals_are_the_same_from_both_forms(text: bytes, months: int, days: int, micros: int, written: str) -> None:
    binary = struct.pack("!qii", micros, days, months)
    assert times.interval_from_text(text) == times.interval_from_binary(binary) == (micros, days, months)
    type_ = type_of(INTERVAL, interval_handling_mode="string")
    assert text_read(type_, text) == written
    seconds = (months * 365.25 / 12 + days) * 86400 + micros / 1e6
    assert text_read(type_of(INTERVAL), text) == pytest.approx(seconds * 1e6, abs=1)


def test_infinite_intervals_have_no_number_and_no_text() -> None:
    for sign in (1, -1):
        binary = struct.pack("!qii", *(((1 << bits) - 1) if sign > 0 else -(1 << bits) for bits in (63, 31, 31)))
        text = b"infinity" if sign > 0 else b"-infinity"
        assert times.interval_from_binary(binary) == times.interval_from_text(text)
        for mode in ("numeric", "string"):
            codec = connect_codec(column(type_of(INTERVAL, interval_handling_mode=mode)))
            assert codec.from_binary is not None
            for encode, value in ((codec.from_text, text), (codec.from_binary, binary)):
                with pytest.raises(UnrepresentableValue):
                    encode(value)


@pytest.mark.parametrize("read_text", [times.micros_from_text, times.clock_from_text, times.zoned_clock_from_text,
                                       times.interval_from_text, times.days_from_text])  # fmt: skip
@pytest.mark.parametrize("text", [b"", b"x", b"2020", b"25:00", b"P1", b"2020-13"])
def test_a_text_that_is_none_of_them_is_refused(read_text: Any, text: bytes) -> None:
    with pytest.raises(ValueError, match="not a"):
        read_text(text)


# -- other forms
# --------------------------------------------------------------------------------------------------------


def test_numbers_that_are_none_have_debeziums_names_or_no_value() -> None:
    numeric = built_in("numeric")
    assert text_read(type_of(numeric, decimal_handling_mode="string"), b"NaN") == "NAN"
    assert text_read(type_of(numeric, decimal_handling_mode="string"), b"-Infinity") == "NEGATIVE_INFINITY"
    assert math.isnan(text_read(type_of(numeric, decimal_handling_mode="double"), b"NaN"))
    with pytest.raises(UnrepresentableValue):
        encode_text(type_of(numeric))(b"NaN")
    found = text_read(type_of(numeric), b"-12.500")
    assert (found["scale"], int.from_bytes(found["value"], "big", signed=True)) == (1, -125)


@pytest.mark.parametrize("sign", [b"", b"-"])
def test_a_decimal_may_have_all_digits_that_postgresql_has(sign: bytes) -> None:
    found = text_read(type_of(built_in("numeric")), sign + b"7" * 131072 + b"." + b"1" * 16383)
    number = int.from_bytes(found["value"], "big", signed=True)
    ninths = 7 * (10**131072 // 9) * 10**16383 + 10**16383 // 9
    assert (found["scale"], number) == (16383, -ninths if sign else ninths)


@pytest.mark.parametrize("number", ["0", "100", "-100", "12300", "-12300", "99900", "9999900", "-9999900"])
def test_a_decimal_of_a_negative_scale_is_the_same_from_text_and_binary(number: str) -> None:
    value = Decimal(number)
    encoded = decimal_from_text(5, -2)(number.encode())
    assert encoded == decimal_from_binary(5, -2)(numeric_binary(value))
    assert int.from_bytes(encoded[2:], "big", signed=True) == value / 100


@pytest.mark.parametrize("text", [b"150", b"-150", b"10000000", b"NaN", b"1.00"])
def test_text_that_a_negative_scale_does_not_have_is_refused(text: bytes) -> None:
    with pytest.raises(UnrepresentableValue):
        decimal_from_text(5, -2)(text)


@pytest.mark.parametrize(
    ("text", "cents"),
    [(b"$1,234.56", 123456), (b"-$0.50", -50), (b"($3.00)", -300), (b"1.234,56 \xe2\x82\xac", 123456), (b"7", 700),
     (b"3.00-", -300)],
)  # fmt: skip
def test_money_is_read_whatever_the_locale(text: bytes, cents: int) -> None:
    amount = Decimal(cents).scaleb(-2)
    assert text_read(type_of(MONEY, decimal_handling_mode="double"), text) == float(amount)
    assert text_read(type_of(MONEY, decimal_handling_mode="string"), text) == str(amount)
    assert text_read(type_of(MONEY), text) == amount


GERMAN, JAPANESE, KUWAITI, SWISS = ("0,00 €", "￥0", "KD 0.000", "CHF 0.00")


@pytest.mark.parametrize(
    ("zero", "text", "amount"),
    [
        (GERMAN, "1.234,56 €", "1234.56"),
        (GERMAN, "-1,00 €", "-1.00"),
        (GERMAN, "\u2212 1,00 €", "-1.00"),
        ("€ 0,00", "€ -1,00", "-1.00"),
        (SWISS, "CHF- 5'000.00", "-5000.00"),
        (SWISS, "CHF 5'000.00", "5000.00"),
        ("kr0,00", "kr-1,00", "-1.00"),
        ("0$00", "1.234$50", "1234.50"),
        (JAPANESE, "￥-1,234", "-1234.00"),
        (JAPANESE, "￥1,234", "1234.00"),
        (JAPANESE, "￥12", "12.00"),
        (KUWAITI, "KD -9.000", "-9.000"),
        (KUWAITI, "KD 1,000.000", "1000.000"),
        ("$0.00", "($1.00)", "-1.00"),
        ("$0.00", "$0.00", "0.00"),
    ],
)
def test_money_has_the_sign_and_the_decimals_of_the_servers_locale(zero: str, text: str, amount: str) -> None:
    facts, sent = replace(MONEY, outputs=("", "", zero)), text.encode()
    assert text_read(type_of(facts, decimal_handling_mode="double"), sent) == float(amount)
    assert text_read(type_of(facts, decimal_handling_mode="string"), sent) == amount
    assert text_read(type_of(facts), sent) == Decimal(amount)


def test_money_with_more_than_two_decimals_is_not_rounded() -> None:
    facts = replace(MONEY, outputs=("", "", KUWAITI))
    assert text_read(type_of(facts, decimal_handling_mode="string"), b"KD 0.125") == "0.125"
    with pytest.raises(UnrepresentableValue):
        encode_text(type_of(facts))(b"KD 0.125")
    with pytest.raises(ValueError, match="not money"):
        encode_text(type_of(facts))(b"KD")


def test_bits_points_and_pairs() -> None:
    assert [text_read(type_of(BIT, 1), text) for text in (b"1", b"0")] == [True, False]
    assert text_read(type_of(VARBIT), b"100000001") == b"\1\1"
    assert text_read(type_of(VARBIT), b"") == b""
    found = text_read(type_of(POINT), b"(1.5,-2)")
    assert (found["x"], found["y"], found["srid"]) == (1.5, -2.0, None)
    assert struct.unpack("<BIdd", found["wkb"]) == (1, 1, 1.5, -2.0)
    pairs = b'"a"=>"1", "b \\"c\\""=>NULL'
    assert text_read(type_of(HSTORE, hstore_handling_mode="map"), pairs) == {"a": "1", 'b "c"': None}
    assert text_read(type_of(HSTORE, hstore_handling_mode="map"), b"") == {}
    assert json.loads(text_read(type_of(HSTORE), pairs)) == {"a": "1", 'b "c"': None}
    for type_, text in ((type_of(POINT), b"1,2"), (type_of(HSTORE), b"a=>1")):
        with pytest.raises(ValueError, match="not a"):
            encode_text(type_)(text)


@pytest.mark.parametrize(
    ("type_", "text", "binary"),
    [
        (type_of(built_in("numeric"), decimal_handling_mode="double"), b"-12.5", numeric_binary(Decimal("-12.5"))),
        (type_of(built_in("numeric")), b"-12.5", numeric_binary(Decimal("-12.5"))),
        (type_of(built_in("bytea"), binary_handling_mode="hex"), b"\\xfbff", b"\xfb\xff"),
        (type_of(POINT), b"(1.5,-2)", struct.pack("!dd", 1.5, -2.0)),
        (type_of(MOOD), b"ok", b"ok"),
        (type_of(TypeFacts(20004, "public", "mood", Kind.DOMAIN, base=MOOD)), b"ok", b"ok"),
        (
            type_of(TypeFacts(3906, "pg_catalog", "polygons", Kind.ENUM), include_unknown_datatypes=True),
            b"ok",
            b"ok",
        ),
    ],
)
def test_both_forms_of_the_wire_give_the_same(type_: ConnectType, text: bytes, binary: bytes) -> None:
    codec = connect_codec(column(type_))
    assert codec.from_binary is not None and codec.from_binary(binary) == codec.from_text(text)


def test_what_debezium_does_not_know_is_the_text_as_bytes_are_written() -> None:
    odd = TypeFacts(20003, "public", "pair", Kind.COMPOSITE)
    assert text_read(type_of(odd, include_unknown_datatypes=True), b"(1)") == b"(1)"
    assert text_read(type_of(odd, include_unknown_datatypes=True, binary_handling_mode="hex"), b"(1)") == "283129"


@pytest.mark.parametrize(
    ("mode", "written"), [("bytes", b"\xfb\xff"), ("base64", "+/8="), ("base64-url-safe", "-_8="), ("hex", "fbff")]
)
def test_bytes_are_written_as_is_asked_for(mode: str, written: Any) -> None:
    assert text_read(type_of(built_in("bytea"), binary_handling_mode=mode), b"\\xfbff") == written


def test_arrays_lose_their_bounds_and_nothing_else() -> None:
    type_ = type_of(array_of(INT4))
    assert text_read(type_, b"[3:4]={5,NULL}") == text_read(type_, b"{5,NULL}") == [5, None]
    codec = connect_codec(column(type_))
    assert codec.from_binary is not None
    items = struct.pack("!iii", 4, 5, -1)
    for lower in (1, 3):
        assert read(type_, codec.from_binary(struct.pack("!iiIii", 1, 1, INT4.oid, 2, lower) + items)) == [5, None]
    assert read(type_, codec.from_binary(struct.pack("!iiI", 0, 0, INT4.oid))) == []


# -- fields of each kind
# ------------------------------------------------------------------------------------------------

MANY = [
    type_of(built_in("bool")), type_of(INT4), type_of(INT8), type_of(built_in("float4")), type_of(built_in("float8")),
    type_of(TEXT), type_of(UUID), type_of(built_in("bytea")), type_of(built_in("bytea"), binary_handling_mode="hex"),
    type_of(built_in("numeric"), numeric_typmod(8, 2)), type_of(built_in("numeric")),
    type_of(built_in("numeric"), numeric_typmod(8, 2), decimal_handling_mode="string"),
    type_of(built_in("numeric"), decimal_handling_mode="string"),
    type_of(built_in("numeric"), decimal_handling_mode="double"), type_of(MONEY),
    type_of(MONEY, decimal_handling_mode="string"), type_of(MONEY, decimal_handling_mode="double"), type_of(DATE),
    type_of(DATE, time_precision_mode="isostring"), type_of(TIME), type_of(TIME, time_precision_mode="isostring"),
    type_of(TIMESTAMP), type_of(TIMESTAMP, time_precision_mode="isostring"), type_of(TIMESTAMPTZ), type_of(TIMETZ),
    type_of(INTERVAL), type_of(INTERVAL, interval_handling_mode="string"), type_of(BIT, 1), type_of(VARBIT),
    type_of(POINT), type_of(HSTORE), type_of(HSTORE, hstore_handling_mode="map"), type_of(array_of(INT4)),
    type_of(TypeFacts(20009, "public", "odd", Kind.COMPOSITE), include_unknown_datatypes=True),
]  # fmt: skip


@pytest.mark.parametrize("type_", MANY, ids=lambda type_: f"{type_.form.name} {type_.facts.name}")
def test_what_stands_for_no_value_is_a_value_of_the_type(type_: ConnectType) -> None:
    plain = fastavro.parse_schema(without_times(type_.avro))

    def whole(schema: Any, encoded: bytes) -> Any:
        stream = io.BytesIO(encoded)
        found = fastavro.schemaless_reader(stream, schema, None)
        assert not stream.read(1)
        return found

    required = column(type_, is_optional=False)
    assert not whole(plain, null_value(required)) or type_.avro in ("string",) or isinstance(type_.avro, dict)
    assert whole(["null", plain], null_value(column(type_))) is None
    default = column(type_, has_default=True, default=None)
    assert whole([plain, "null"], null_value(default)) is None
    assert fallback_value(column(type_, is_optional=False, encoded_default=b"\5")) == b"\5"
    for each, schema in ((required, plain), (column(type_), ["null", plain]), (default, [plain, "null"])):
        found = placeholder(each, "gone")
        if found is not None:
            assert whole(schema, found)


def test_arrays_have_placeholders_of_their_elements() -> None:
    for facts, meant in (
        (TEXT, ["gone"]),
        (INT4, list(b"gone")),
        (INT8, list(b"gone")),
        (DATE, list(b"gone")),
        (UUID, ["38e0f9de-817d-3645-bedd-d9ea4be8e0b2"]),
        (built_in("bool"), None),
    ):
        type_ = type_of(array_of(facts))
        found = placeholder(column(type_), "gone")
        if meant is None:
            assert found is None
        elif facts is UUID:
            assert found is not None and len(read(type_, found)) == 1
        else:
            assert found is not None and read(type_, found) == meant


def test_a_placeholder_of_numbers_has_signed_bytes_as_java_has() -> None:
    type_ = type_of(array_of(INT4))
    found = placeholder(column(type_), "z\u00fc")
    assert found is not None and read(type_, found) == [122, -61, -68]


def in_wire(kind: int, value: bytes) -> bytes:
    return bytes((kind,)) + struct.pack("!i", len(value)) + value


@pytest.mark.parametrize(("reader", "size"), [(read_required_int4, 4), (read_required_int8, 8)])
@given(data=st.data())
def test_required_integers_are_read_where_they_lie(reader: Any, size: int, data: st.DataObject) -> None:
    bits = size * 8 - 1
    number = data.draw(st.integers(-(1 << bits), (1 << bits) - 1) | st.integers(0, 1 << 20) | st.integers(-5, 1 << 14))
    parts: list[bytes] = []
    wire = in_wire(KIND_BINARY, number.to_bytes(size, "big", signed=True))
    assert reader(wire, 0, parts) == len(wire)
    assert fastavro.schemaless_reader(io.BytesIO(b"".join(parts)), "long", None) == number
    with pytest.raises(SlowPathNeeded):
        reader(in_wire(KIND_TEXT, b"5"), 0, parts)


def test_a_required_field_that_was_not_sent_is_unusual_but_in_a_key_tuple() -> None:
    for type_ in (type_of(INT4), type_of(TIMESTAMPTZ), type_of(TEXT)):
        parts: list[bytes] = []
        required = column(type_, is_optional=False)
        with pytest.raises(SlowPathNeeded):
            connect_codec(required).read_binary(b"n", 0, parts)
        assert connect_codec(required, in_key_tuple=True).read_binary(b"n", 0, parts) == 1
        assert b"".join(parts) == fallback_value(required)


def test_a_field_with_a_default_has_null_last() -> None:
    type_ = type_of(TEXT)
    codec = connect_codec(column(type_, has_default=True, default="x"))
    schema = fastavro.parse_schema(["string", "null"])
    for wire, meant in ((in_wire(KIND_TEXT, b"abc"), "abc"), (b"n", None)):
        parts: list[bytes] = []
        assert codec.read_text(wire, 0, parts) == len(wire)
        assert fastavro.schemaless_reader(io.BytesIO(b"".join(parts)), schema, None) == meant
    assert codec.from_binary is not None
    assert fastavro.schemaless_reader(io.BytesIO(codec.from_binary(b"abc")), schema, None) == "abc"


def test_a_column_that_is_left_out_is_passed_over() -> None:
    for wire in (in_wire(KIND_TEXT, b"abc"), in_wire(KIND_BINARY, b""), b"n", b"u"):
        parts: list[bytes] = []
        assert skip_column(wire + b"n", 0, parts) == len(wire) and parts == []


def test_a_type_that_cannot_be_rendered_has_no_binary_decoder() -> None:
    for type_ in (type_of(MONEY), type_of(array_of(TypeFacts(20002, "public", "citext", Kind.BASE, "citext", False)))):
        codec = connect_codec(column(type_))
        assert codec.from_binary is None
        for is_optional in (True, False):
            each = connect_codec(column(type_, is_optional=is_optional, has_default=is_optional))
            assert each.from_binary is None
            with pytest.raises((SlowPathNeeded, NotRenderable)):
                each.read_binary(in_wire(KIND_BINARY, bytes(8)), 0, [])


# -- types
# --------------------------------------------------------------------------------------------------------------


def test_types_that_debezium_leaves_out_are_left_out_unless_asked_for() -> None:
    composite = TypeFacts(20003, "public", "pair", Kind.COMPOSITE)
    unknown = TypeFacts(20004, "public", "odd", Kind.BASE, extension="odd")
    domain = TypeFacts(20005, "public", "price", Kind.DOMAIN, base=INT4)
    for facts in (composite, unknown, array_of(POINT), array_of(domain), array_of(composite), array_of(array_of(INT4))):
        assert connect_type(facts, -1, DebeziumSettings()) is None
        assert type_of(facts, include_unknown_datatypes=True).form.name == "UNKNOWN"
    assert type_of(domain).facts == INT4
    for name, extension in (("citext", "citext"), ("ltree", "ltree"), ("isbn", "isn")):
        assert type_of(TypeFacts(20006, "public", name, Kind.BASE, extension=extension)).form.name == "TEXT"
    assert connect_type(TypeFacts(20007, "public", "issn", Kind.BASE, extension="isn"), -1, DebeziumSettings()) is None
    assert type_of(TypeFacts(3904, "pg_catalog", "int4range", Kind.RANGE)).avro == "string"


# -- defaults
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "typmod", "expression", "default"),
    [
        (INT4, -1, "7", 7),
        (INT4, -1, "'-300'::integer", -300),
        (INT8, -1, "nextval('s'::regclass)", 0),
        (TEXT, -1, "'it''s'::text", "it's"),
        (TEXT, -1, "CURRENT_DATE", ""),
        (built_in("bool"), -1, "true", True),
        (built_in("bool"), -1, "false", False),
        (built_in("float8"), -1, "1.5", 1.5),
        (built_in("float4"), -1, "0.1", 0.1),
        (built_in("bytea"), -1, "'\\xff'::bytea", None),
        (built_in("numeric"), numeric_typmod(6, 2), "1.5", "\x00\x96"),
        (DATE, -1, "now()", 0),
        (TIMESTAMPTZ, -1, "now()", "1970-01-01T00:00:00.000000Z"),
        (UUID, -1, "gen_random_uuid()", "00000000-0000-0000-0000-000000000000"),
        (VARBIT, -1, "'101'::bit varying", "\x05"),
        (MOOD, -1, "'ok'::mood", "ok"),
        (MOOD, -1, "first_mood()", None),
        (TEXT, -1, "NULL::text", None),
        (INT4, -1, "(1 + 2)", None),
        (INT4, -1, "", None),
        (built_in("numeric"), -1, "1.5", None),
        (array_of(INT4), -1, "'{}'::integer[]", None),
        (INTERVAL, -1, "'1 day'::interval", None),
    ],
)
def test_defaults_are_literals_or_the_types_zero(facts: TypeFacts, typmod: int, expression: str, default: Any) -> None:
    columns = (ColumnDescription("c", facts, typmod, False),)
    description = RelationDescription(1, "public", "t", ReplicaIdentity.DEFAULT, columns)
    catalog = [CatalogColumn("c", False, expression)]
    relation = with_defaults(connect_relation(description, catalog, [], DebeziumSettings()), catalog)
    (found,) = relation.columns
    assert found is not None and (found.has_default, found.default) == (default is not None, default)


def test_a_column_that_is_left_out_has_no_default() -> None:
    columns = (ColumnDescription("c", TypeFacts(20003, "public", "pair", Kind.COMPOSITE), -1, False),)
    description = RelationDescription(1, "public", "t", ReplicaIdentity.DEFAULT, columns)
    catalog = [CatalogColumn("c", False, "'(1)'::pair")]
    assert with_defaults(connect_relation(description, catalog, [], DebeziumSettings()), catalog).columns == (None,)
