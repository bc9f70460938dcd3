"""date, time, timestamp, timestamptz, timetz and interval as Debezium writes them: numbers in a
unit, or ISO 8601 text.

Unlike in gateway/values/dates.py, every value can be written: infinities become the sentinels that
Debezium's consumers know, and a year may be before 1 or after 9999. Decoded dates are days, and
decoded timestamps microseconds, since the Unix epoch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final

from librt.strings import read_i64_be

from gateway.pgoutput.letters import KIND_BINARY, KIND_NULL
from gateway.values.column_readers import AVRO_NULL, NOTHING, Parts, SlowPathNeeded, some_bytes
from gateway.values.dates import civil_date, divided
from gateway.values.special_values import UnrepresentableValue
from schemas.varint import SOME_SMALL, encode_some_long

INFINITY: Final = 1 << 70
"""Infinity in days and in microseconds; its negative is -infinity. No value is this large."""
PG_EPOCH_DAYS: Final = 10957
PG_EPOCH_MICROS: Final = 946_684_800_000_000
_INFINITE_DATES: Final = {INFINITY: -2147472692, -INFINITY: -2147472691}
_INFINITE_MICROS: Final = {INFINITY: 9223372036825200000, -INFINITY: -9223372036832400000}
_INFINITE_TEXT: Final = {INFINITY: b"infinity", -INFINITY: b"-infinity"}
_INFINITE_NANOS: Final = {INFINITY: (1 << 63) - 1, -INFINITY: -(1 << 63)}
"""The results of Debezium's arithmetic with the JDBC driver's sentinels."""
_DAY_MICROS: Final = 86_400_000_000
_MINUTE_MICROS: Final = 60_000_000
_MONTH_DAYS: Final = 365.25 / 12
"""The number of days in a month, in Debezium's arithmetic."""

_INT4 = struct.Struct("!i")
_INT8 = struct.Struct("!q")
_TIMETZ = struct.Struct("!qi")
_INTERVAL = struct.Struct("!qii")
_MOMENT = re.compile(
    rb"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?( BC)?"
)
_CLOCK = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?")
_DURATION = re.compile(
    rb"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?)(\d+)(?:\.(\d{1,6}))?S)?)?"
)
_INFINITIES: Final = {b"infinity": INFINITY, b"-infinity": -INFINITY}
_REMEMBERED: Final = 4096


# -- text and binary values -> days and microseconds


def days_from_text(text: bytes) -> int:
    infinite = _INFINITIES.get(text)
    return micros_from_text(text) // _DAY_MICROS if infinite is None else infinite


def days_from_binary(value: bytes) -> int:
    days: int = _INT4.unpack(value)[0]
    if days == (1 << 31) - 1:
        return INFINITY
    return -INFINITY if days == -(1 << 31) else days + PG_EPOCH_DAYS


def micros_from_text(text: bytes) -> int:
    """Parse timestamp or timestamptz. Raises ValueError."""
    infinite = _INFINITIES.get(text)
    if infinite is not None:
        return infinite
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamp")
    year = int(match[1])
    days = days_of(1 - year if match[12] else year, int(match[2]), int(match[3]))
    micros = days * _DAY_MICROS
    if match[4]:
        micros += _clock(match[4], match[5], match[6], match[7])
    return micros - _east(match[8], match[9], match[10], match[11]) * 1_000_000


def micros_from_binary(value: bytes) -> int:
    micros: int = _INT8.unpack(value)[0]
    if micros == (1 << 63) - 1:
        return INFINITY
    return -INFINITY if micros == -(1 << 63) else micros + PG_EPOCH_MICROS


def clock_from_text(text: bytes) -> int:
    """Return microseconds since midnight."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError("not a time")
    return _clock(match[1], match[2], match[3], match[4])


def clock_from_binary(value: bytes) -> int:
    micros: int = _INT8.unpack(value)[0]
    return micros


def zoned_clock_from_text(text: bytes) -> int:
    """Parse timetz into microseconds since midnight in UTC, modulo one day."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError("not a time with time zone")
    micros = _clock(match[1], match[2], match[3], match[4])
    return (micros - _east(match[5], match[6], match[7], match[8]) * 1_000_000) % _DAY_MICROS


def zoned_clock_from_binary(value: bytes) -> int:
    micros, west = _TIMETZ.unpack(value)
    return int(micros + west * 1_000_000) % _DAY_MICROS


def interval_from_text(text: bytes) -> tuple[int, int, int]:
    """Parse an interval in IntervalStyle iso_8601 into (microseconds, days, months)."""
    infinite = _INFINITIES.get(text)
    if infinite is not None:
        return infinite, 0, 0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("not an interval")
    years, months, days, hours, minutes = (int(part or 0) for part in match.group(1, 2, 3, 4, 5))
    micros = int(match[7] or 0) * 1_000_000 + int((match[8] or b"").ljust(6, b"0"))
    if match[6]:
        micros = -micros
    return (hours * 60 + minutes) * _MINUTE_MICROS + micros, days, years * 12 + months


def interval_from_binary(value: bytes) -> tuple[int, int, int]:
    micros, days, months = _INTERVAL.unpack(value)
    if (micros, days, months) == ((1 << 63) - 1, (1 << 31) - 1, (1 << 31) - 1):
        return INFINITY, 0, 0
    if (micros, days, months) == (-(1 << 63), -(1 << 31), -(1 << 31)):
        return -INFINITY, 0, 0
    return micros, days, months


def _clock(hour: bytes, minute: bytes, second: bytes, fraction: bytes | None) -> int:
    micros = int(fraction.ljust(6, b"0")) if fraction else 0
    return ((int(hour) * 60 + int(minute)) * 60 + int(second)) * 1_000_000 + micros


def _east(sign: bytes | None, hours: bytes | None, minutes: bytes | None, seconds: bytes | None) -> int:
    """Return seconds east of Greenwich."""
    if sign is None:
        return 0
    east = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return -east if sign == b"-" else east


def days_of(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar, for any year (H. Hinnant,
    days_from_civil)."""
    shifted = year - 1 if month <= 2 else year
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


# -- days and microseconds -> Avro: each takes the result of a function above


def encode_days(days: int) -> bytes:
    return encode_some_long(_INFINITE_DATES.get(days, days))


def encode_day_text(days: int) -> bytes:
    """Encode io.debezium.time.IsoDate."""
    if days in _INFINITE_TEXT:
        return some_bytes(_INFINITE_TEXT[days])
    return some_bytes(_day_text(days) + b"Z")


def clock_in(per_second: int) -> Callable[[int], bytes]:
    """Return the encoder of a time of day in units of which `per_second` make a second."""

    def encode(micros: int) -> bytes:
        return encode_some_long(micros * per_second // 1_000_000)

    return encode


def encode_clock_text(micros: int) -> bytes:
    """Encode io.debezium.time.IsoTime or io.debezium.time.ZonedTime."""
    return some_bytes(_clock_text(micros % _DAY_MICROS) + b"Z")


def moment_in(per_second: int) -> Callable[[int], bytes]:
    """Return the encoder of a timestamp in units of which `per_second` make a second. The encoder
    raises UnrepresentableValue for a number that does not fit into 64 bits."""
    is_nanos = per_second > 1_000_000
    infinite = _INFINITE_NANOS if is_nanos else {
        sign: number * per_second // 1_000_000 for sign, number in _INFINITE_MICROS.items()
    }  # fmt: skip

    def encode(micros: int) -> bytes:
        if micros in infinite:
            return encode_some_long(infinite[micros])
        number = micros * per_second // 1_000_000
        if not -(1 << 63) <= number < 1 << 63:
            raise UnrepresentableValue
        return encode_some_long(number)

    return encode


def moment_text(digits: int | None) -> Callable[[int], bytes]:
    """Return the encoder of io.debezium.time.ZonedTimestamp with `digits` digits of fractional
    seconds; for None, of IsoTimestamp with as many digits as the value has."""
    parted = 10 ** (6 - (digits or 0))

    def encode(micros: int) -> bytes:
        if micros in _INFINITE_TEXT:
            return some_bytes(_INFINITE_TEXT[micros])
        days, clock = divmod(micros, _DAY_MICROS)
        if digits is None:
            return some_bytes(_day_text(days) + b"T" + _clock_text(clock) + b"Z")
        seconds, fraction = divmod(clock, 1_000_000)
        text = _day_text(days) + b"T" + _whole_seconds(seconds)
        if digits:
            text += b".%0*d" % (digits, fraction // parted)
        return some_bytes(text + b"Z")

    return encode


_of_six_digits: Final = moment_text(6)


def encode_duration(interval: tuple[int, int, int]) -> bytes:
    """Encode io.debezium.time.MicroDuration. A month has its average length, and the arithmetic is
    Debezium's, in floating point. Raises UnrepresentableValue for the infinities."""
    micros, days, months = interval
    if abs(micros) == INFINITY:
        raise UnrepresentableValue
    hours, rest = divided(micros, 60 * _MINUTE_MICROS)
    minutes, rest = divided(rest, _MINUTE_MICROS)
    seconds = (((months * _MONTH_DAYS + days) * 24 + hours) * 60 + minutes) * 60 + rest / 1e6
    return encode_some_long(max(-(1 << 63), min(int(seconds * 1e6), (1 << 63) - 1)))


def encode_duration_text(interval: tuple[int, int, int]) -> bytes:
    """Encode io.debezium.time.Interval, in which every field is present. Raises
    UnrepresentableValue for the infinities."""
    micros, days, months = interval
    if abs(micros) == INFINITY:
        raise UnrepresentableValue
    years, months = divided(months, 12)
    hours, rest = divided(micros, 60 * _MINUTE_MICROS)
    minutes, rest = divided(rest, _MINUTE_MICROS)
    seconds, fraction = divmod(abs(rest), 1_000_000)
    text = f"P{years}Y{months}M{days}DT{hours}H{minutes}M{'-' if rest < 0 else ''}{seconds}"
    return some_bytes((text + (f".{fraction:06d}".rstrip("0") if fraction else "") + "S").encode())


def _day_text(days: int) -> bytes:
    """Format as Java's ISO_LOCAL_DATE does: a year before 0 or after 9999 gets a sign."""
    year, month, day = civil_date(days)
    if 0 <= year <= 9999:
        return b"%04d-%02d-%02d" % (year, month, day)
    return b"%s%04d-%02d-%02d" % (b"+" if year > 0 else b"-", abs(year), month, day)


def _whole_seconds(seconds: int) -> bytes:
    return b"%02d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)


def _clock_text(micros: int) -> bytes:
    """Format a time as Java's ISO_LOCAL_TIME does."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = _whole_seconds(seconds)
    return text + (b".%06d" % fraction).rstrip(b"0") if fraction else text


# -- fast path: the usual timestamptz, read in place


class _Minutes(dict[int, bytes]):
    """Cache: minutes since the Unix epoch -> union branch 1, length 27 and `yyyy-mm-ddThh:mm:`.
    Rows written at about the same time fall into few distinct minutes."""

    def __missing__(self, minute: int) -> bytes:
        days, rest = divmod(minute, 1440)
        year = civil_date(days)[0]
        if not 0 <= year <= 9999:
            raise UnrepresentableValue
        encoded = SOME_SMALL[27] + _day_text(days) + b"T%02d:%02d:" % (rest // 60, rest % 60)
        if len(self) >= _REMEMBERED:
            self.clear()
        self[minute] = encoded
        return encoded


class _MinutesOfText(dict[bytes, bytes]):
    """Cache: `yyyy-mm-dd hh:mm:` in UTC -> the same bytes as in _Minutes."""

    def __missing__(self, text: bytes) -> bytes:
        encoded = _minutes[micros_from_text(text + b"00") // _MINUTE_MICROS]
        if len(self) >= _REMEMBERED:
            self.clear()
        self[text] = encoded
        return encoded


_minutes: Final = _Minutes()
_minutes_of_text: Final = _MinutesOfText()
_SECOND_TEXTS: Final = frozenset(b"%02d" % second for second in range(60))
_SECONDS: Final = tuple(b"%02d." % second for second in range(60))
_THOUSANDS: Final = tuple(b"%03d" % number for number in range(1000))
_LAST_THOUSANDS: Final = tuple(b"%03dZ" % number for number in range(1000))
_ZEROS: Final = b"000000Z"


def encode_moment_text(value: bytes) -> bytes:
    """Encode timestamptz in text as ZonedTimestamp of six digits. Text that does not have the form
    `yyyy-mm-dd hh:mm:ss[.ffffff]+00` is parsed by the general function."""
    # The length is checked first: when compiled, a slice that ends before it begins is an error.
    if len(value) >= 22 and value[-3:] == b"+00" and value[17:19] in _SECOND_TEXTS and value[10:11] == b" ":
        fraction = value[19:-3]
        if not fraction:
            return _minutes_of_text[value[:17]] + value[17:19] + b".000000Z"
        if fraction[0] == 46 and fraction[1:].isdigit() and len(fraction) <= 7:
            return _minutes_of_text[value[:17]] + value[17:19] + fraction.ljust(7, b"0") + b"Z"
    return _of_six_digits(micros_from_text(value))


def read_moment_text(data: bytes, position: int, parts: Parts) -> int:
    """Read timestamptz in binary as ZonedTimestamp of six digits, which takes four parts."""
    if data[position] == KIND_BINARY:
        since_2000: int = read_i64_be(data, position + 5)
        if since_2000 == (1 << 63) - 1 or since_2000 == -(1 << 63):
            raise UnrepresentableValue
        minute, rest = divmod(since_2000 + PG_EPOCH_MICROS, _MINUTE_MICROS)
        parts.append(_minutes[minute])
        second = rest // 1_000_000
        parts.append(_SECONDS[second])
        fraction = rest - second * 1_000_000
        if fraction:
            thousands = fraction // 1000
            parts.append(_THOUSANDS[thousands])
            parts.append(_LAST_THOUSANDS[fraction - thousands * 1000])
        else:
            parts.append(_ZEROS)
            parts.append(NOTHING)
        return position + 13
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        parts.append(NOTHING)
        parts.append(NOTHING)
        parts.append(NOTHING)
        return position + 1
    raise SlowPathNeeded
