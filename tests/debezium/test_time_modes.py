"""time_precision_mode: schema name, Avro type and number of each column type, as Debezium's
documentation has them ("PostgreSQL connector", "Temporal types")."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.debezium import DebeziumSettings, TimeMode
from gateway.debezium import connect_times
from gateway.debezium.connect_codec import connect_codec, encode_text
from gateway.debezium.connect_type import connect_type
from gateway.debezium.envelope_schema import ConnectColumn
from gateway.values.special_values import UnrepresentableValue
from tests.schemas.relations import built_in

MILLIS, MICROS, NANOS = 1_000, 1_000_000, 1_000_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)
DAY_MICROS: Final = 86_400 * MICROS

DOCUMENTED: Final[dict[TimeMode, dict[tuple[str, int], tuple[str, str, int]]]] = {
    "adaptive_time_microseconds": {
        ("time", 3): ("long", "io.debezium.time.MicroTime", MICROS),
        ("time", 6): ("long", "io.debezium.time.MicroTime", MICROS),
        ("time", -1): ("long", "io.debezium.time.MicroTime", MICROS),
        ("timestamp", 0): ("long", "io.debezium.time.Timestamp", MILLIS),
        ("timestamp", 3): ("long", "io.debezium.time.Timestamp", MILLIS),
        ("timestamp", 4): ("long", "io.debezium.time.MicroTimestamp", MICROS),
        ("timestamp", -1): ("long", "io.debezium.time.MicroTimestamp", MICROS),
    },
    "nanoseconds": {
        ("time", 3): ("long", "io.debezium.time.NanoTime", NANOS),
        ("time", -1): ("long", "io.debezium.time.NanoTime", NANOS),
        ("timestamp", 3): ("long", "io.debezium.time.NanoTimestamp", NANOS),
        ("timestamp", -1): ("long", "io.debezium.time.NanoTimestamp", NANOS),
    },
    "microseconds": {
        ("time", 3): ("long", "io.debezium.time.MicroTime", MICROS),
        ("timestamp", 3): ("long", "io.debezium.time.MicroTimestamp", MICROS),
        ("timestamp", -1): ("long", "io.debezium.time.MicroTimestamp", MICROS),
    },
    "adaptive": {
        ("time", 3): ("int", "io.debezium.time.Time", MILLIS),
        ("time", 4): ("long", "io.debezium.time.MicroTime", MICROS),
        ("timestamp", 3): ("long", "io.debezium.time.Timestamp", MILLIS),
        ("timestamp", 4): ("long", "io.debezium.time.MicroTimestamp", MICROS),
    },
    "connect": {
        ("time", -1): ("int", "org.apache.kafka.connect.data.Time", MILLIS),
        ("timestamp", -1): ("long", "org.apache.kafka.connect.data.Timestamp", MILLIS),
    },
}
"""(type, precision; -1: none) -> Avro type, Connect's name, units in a second."""
NUMBERED: Final = [(mode, *place, *wanted) for mode, types in DOCUMENTED.items() for place, wanted in types.items()]


@pytest.mark.parametrize(("mode", "name", "precision", "avro", "connect_name", "per_second"), NUMBERED)
@given(data=st.data())
def test_a_time_is_the_documented_number(
    mode: TimeMode, name: str, precision: int, avro: str, connect_name: str, per_second: int, data: st.DataObject
) -> None:
    type_ = connect_type(built_in(name), precision, DebeziumSettings(time_precision_mode=mode))
    assert type_ is not None
    assert (type_.avro["type"], type_.avro["connect.name"]) == (avro, connect_name)
    digits = 6 if precision < 0 else precision
    text, micros = data.draw(times(digits) if name == "time" else timestamps(digits))
    wanted = micros * per_second // MICROS
    assert read(type_, encode_text(type_)(text.encode())) == wanted


def times(digits: int) -> st.SearchStrategy[tuple[str, int]]:
    """PostgreSQL's text and microseconds of the day."""
    step = 10 ** (6 - digits)
    return st.integers(0, DAY_MICROS // step - 1).map(
        lambda number: (f"{EPOCH + number * step * MICROSECOND:%H:%M:%S.%f}", number * step)
    )


def timestamps(digits: int) -> st.SearchStrategy[tuple[str, int]]:
    """PostgreSQL's text and microseconds of the Unix epoch, of the years that 64 bits of
    nanoseconds hold."""
    step = 10 ** (6 - digits)
    last = ((1 << 63) - 1) // MILLIS // step
    return st.integers(-last, last).map(
        lambda number: (f"{EPOCH + number * step * MICROSECOND:%Y-%m-%d %H:%M:%S.%f}", number * step)
    )


def read(type_: Any, encoded: bytes) -> Any:
    """By fastavro, of a nullable field."""
    plain = {"type": type_.avro["type"]}
    return fastavro.schemaless_reader(io.BytesIO(encoded), ["null", plain], None)


@pytest.mark.parametrize("mode", [mode for mode in get_args(TimeMode) if mode not in ("connect", "isostring")])
def test_a_date_is_days_in_every_mode(mode: TimeMode) -> None:
    type_ = connect_type(built_in("date"), -1, DebeziumSettings(time_precision_mode=mode))
    assert type_ is not None
    assert (type_.avro["type"], type_.avro["connect.name"]) == ("int", "io.debezium.time.Date")
    assert read(type_, encode_text(type_)(b"2026-11-23")) == (datetime(2026, 11, 23, tzinfo=UTC) - EPOCH).days


@pytest.mark.parametrize("text", [b"2262-04-11 23:47:16.854776", b"1677-09-21 00:12:43.145224", b"0001-01-01 00:00:00"])
def test_nanoseconds_beyond_64_bits_are_refused(text: bytes) -> None:
    """They become null with a warning; a number that has wrapped around would be another time."""
    type_ = connect_type(built_in("timestamp"), -1, DebeziumSettings(time_precision_mode="nanoseconds"))
    assert type_ is not None
    with pytest.raises(UnrepresentableValue):
        encode_text(type_)(text)


@given(st.sampled_from(NUMBERED), st.integers(0, DAY_MICROS - 1))
def test_binary_and_text_make_the_same_bytes(case: tuple[Any, ...], micros: int) -> None:
    mode, name, precision, *_ = case
    micros -= micros % 10 ** (6 - (6 if precision < 0 else precision))
    type_ = connect_type(built_in(name), precision, DebeziumSettings(time_precision_mode=mode))
    assert type_ is not None
    codec = connect_codec(ConnectColumn("c", "c", type_, True))
    moment = datetime(2000, 1, 1, tzinfo=UTC) + micros * MICROSECOND
    text = f"{moment:%H:%M:%S.%f}" if name == "time" else f"{moment:%Y-%m-%d %H:%M:%S.%f}"
    assert codec.from_binary is not None
    assert codec.from_binary(micros.to_bytes(8, "big", signed=True)) == codec.from_text(text.encode())


@given(
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001 - of UTC, as the strategy wants it
    st.sampled_from(["+00", "+02", "-07:30", "+05:53:28"]),
)
def test_a_timestamptz_is_utc_with_six_digits(local: datetime, offset: str) -> None:
    """PostgreSQL leaves out the zeros at a fraction's end."""
    text = f"{local.year:04}-{local:%m-%d %H:%M:%S}"
    if local.microsecond:
        text += f".{local.microsecond:06}".rstrip("0")
    hours, minutes, seconds = (int(part) for part in (*offset[1:].split(":"), "0", "0")[:3])
    east = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    utc = local - (-east if offset[0] == "-" else east)
    wanted = f"{utc.year:04}-{utc:%m-%dT%H:%M:%S}.{utc.microsecond:06}Z"
    assert zoned(f"{text}{offset}".encode()) == wanted


@given(st.data())
def test_the_short_way_of_a_timestamptz_refuses_what_the_general_one_refuses(data: st.DataObject) -> None:
    text = bytearray(b"2026-11-23 07:45:25.123456+00")
    place = data.draw(st.integers(0, len(text) - 1))
    text[place : place + data.draw(st.integers(0, 2))] = data.draw(
        st.sampled_from([b"", b"0", b"9", b" ", b".", b"+", b"x0"])
    )
    try:
        wanted = connect_times.moment_text(6)(connect_times.micros_from_text(bytes(text)))
    except ValueError:
        with pytest.raises(ValueError, match="timestamp"):
            connect_times.encode_moment_text(bytes(text))
    else:
        assert connect_times.encode_moment_text(bytes(text)) == wanted


def zoned(text: bytes) -> str:
    type_ = connect_type(built_in("timestamptz"), -1, DebeziumSettings())
    assert type_ is not None
    assert type_.avro["connect.name"] == "io.debezium.time.ZonedTimestamp"
    return str(read(type_, encode_text(type_)(text)))
