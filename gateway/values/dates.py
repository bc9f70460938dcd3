"""Encode date, time, timestamp and timestamptz as numbers of days or microseconds, and render these
types, timetz and interval as text.

The binary forms count days (int32) or microseconds (int64) since 2000-01-01 (`date.c`,
`timestamp.c`); the extremes are -infinity and infinity. Avro dates and timestamps count since the
Unix epoch, in UTC. Only the years 1 to 9999 are Avro values, because common readers (Python's
datetime among them) can hold these. All others are special values.
"""

from __future__ import annotations

import re
import struct
from datetime import date
from typing import Final

from librt.strings import read_i32_be, read_i64_be

from gateway.pgoutput.letters import KIND_BINARY, KIND_NULL, KIND_TEXT
from gateway.values.column_readers import AVRO_NULL, NOTHING, UNSIGNED, Parts, SlowPathNeeded
from gateway.values.special_values import UnrepresentableValue
from schemas.varint import CHUNK, CHUNK_BITS, CHUNK_MASK, HALF_BITS, HALF_MASK, HIGH, MORE, SOME_EVEN, encode_some_long

_INT4 = struct.Struct("!i")
_INT8 = struct.Struct("!q")
_TIMETZ = struct.Struct("!qi")
_PG_EPOCH_DAYS: Final = 10957
_PG_EPOCH_MICROS: Final = 946_684_800_000_000
_DAY_MICROS: Final = 86_400_000_000
_UNIX_ORDINAL: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = 1 - _UNIX_ORDINAL
_LAST_DAY: Final = date(9999, 12, 31).toordinal() - _UNIX_ORDINAL
_FIRST_MICROS: Final = _FIRST_DAY * _DAY_MICROS
_LAST_MICROS: Final = (_LAST_DAY + 1) * _DAY_MICROS - 1
_FOUR_CHUNKS_LOW: Final = CHUNK
_FOUR_CHUNKS_HIGH: Final = CHUNK * CHUNK
"""A timestamp without its two lowest chunks is between these from 1970-01-26 to the year 3111."""
_PG_EPOCH_REST: Final = _PG_EPOCH_MICROS >> HALF_BITS
"""_PG_EPOCH_MICROS without its lowest HALF_BITS bits, which are 0."""

_DATE = re.compile(rb"(\d{4})-(\d\d)-(\d\d)")
_CLOCK = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_OFFSET = re.compile(rb"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")
_REMEMBERED_MINUTES: Final = 4096


class _Minutes(dict[bytes, int]):
    """A cache of the microseconds of `yyyy-mm-dd hh:mm:`. Rows that were written at about the same
    time have few different minutes."""

    def __missing__(self, text: bytes) -> int:
        micros = _days_of_text(text[:10]) * _DAY_MICROS + _MINUTES_OF_DAY[text[11:]]
        if len(self) >= _REMEMBERED_MINUTES:
            self.clear()
        self[text] = micros
        return micros


_minutes = _Minutes()
_MINUTES_OF_DAY: Final = {b"%02d:%02d:" % (m // 60, m % 60): m * 60_000_000 for m in range(1440)}
_SECONDS: Final = {b"%02d" % second: second * 1_000_000 for second in range(60)}


def _days_of_text(text: bytes) -> int:
    """Return days since 1970-01-01. Raises UnrepresentableValue for anything but yyyy-mm-dd
    (infinity, BC, a year of five digits)."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise UnrepresentableValue
    try:
        day = date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:  # February 29 of a year BC: " BC" is at the end of a timestamp
        raise UnrepresentableValue from None
    return day.toordinal() - _UNIX_ORDINAL


def date_from_text(value: bytes) -> bytes:
    return encode_some_long(_days_of_text(value))


def date_from_binary(value: bytes) -> bytes:
    days = _INT4.unpack(value)[0] + _PG_EPOCH_DAYS
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise UnrepresentableValue
    return encode_some_long(days)


def time_from_text(value: bytes) -> bytes:
    micros = _micros_of_clock(value)
    if micros >= _DAY_MICROS:  # 24:00:00
        raise UnrepresentableValue
    return encode_some_long(micros)


def time_from_binary(value: bytes) -> bytes:
    micros: int = _INT8.unpack(value)[0]
    if micros >= _DAY_MICROS:
        raise UnrepresentableValue
    return encode_some_long(micros)


def _micros_of_clock(text: bytes) -> int:
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise UnrepresentableValue
    fraction = int(match[4].ljust(6, b"0")) if match[4] else 0
    return ((int(match[1]) * 60 + int(match[2])) * 60 + int(match[3])) * 1_000_000 + fraction


def timestamp_from_text(value: bytes) -> bytes:
    """Encode `yyyy-mm-dd hh:mm:ss[.ffffff]`. Raises UnrepresentableValue for infinity, BC and years
    after 9999."""
    try:
        micros = _minutes[value[:17]] + _SECONDS[value[17:19]]
    except KeyError:
        raise UnrepresentableValue from None
    if len(value) > 19:
        if value[19] != 46 or not value[20:].isdigit():  # '.'; otherwise a fifth digit of the year, or BC
            raise UnrepresentableValue
        micros += int(value[20:].ljust(6, b"0"))
    return encode_some_long(micros)


def timestamptz_from_text(value: bytes) -> bytes:
    """Encode a timestamp with an offset, which is `+00` because the session's time zone is UTC."""
    if value[-3:] == b"+00":
        return timestamp_from_text(value[:-3])
    return _timestamptz_with_offset(value)


def _timestamptz_with_offset(value: bytes) -> bytes:
    match = _OFFSET.fullmatch(value, max(value.rfind(b"+"), value.rfind(b"-", 11)))
    if match is None:
        raise UnrepresentableValue
    clock = value[: match.start()]
    micros = _days_of_text(clock[:10]) * _DAY_MICROS + _micros_of_clock(clock[11:])
    seconds = int(match[2]) * 3600 + int(match[3] or 0) * 60 + int(match[4] or 0)
    micros -= seconds * 1_000_000 * (-1 if match[1] == b"-" else 1)
    if not _FIRST_MICROS <= micros <= _LAST_MICROS:
        raise UnrepresentableValue
    return encode_some_long(micros)


def read_timestamptz_text(data: bytes, position: int, parts: Parts) -> int:
    """Read a timestamptz in UTC without slicing it first; append three parts. Text that does not
    end in `+00` is left to `timestamptz_from_text`. Raises UnrepresentableValue if the text before
    `+00` is not `yyyy-mm-dd hh:mm:ss[.ffffff]`."""
    if data[position] == KIND_TEXT:
        length: int = read_i32_be(data, position + 1)
        start = position + 5
        end = start + (length & UNSIGNED)
        # Check the length first: compiled, a slice whose end lies before its start is an error.
        if length < 22 or data[end - 3 : end] != b"+00":
            parts += (timestamptz_from_text(data[start:end]), NOTHING, NOTHING)
            return end
        fraction = data[start + 19 : end - 3]
        if fraction and (fraction[0] != 46 or not fraction[1:].isdigit()):  # as in timestamp_from_text
            raise UnrepresentableValue
        try:
            micros = _minutes[data[start : start + 17]] + _SECONDS[data[start + 17 : start + 19]]
        except KeyError:
            raise UnrepresentableValue from None
        if fraction:
            micros += int(fraction[1:].ljust(6, b"0"))
        rest = micros >> HALF_BITS
        high = rest >> CHUNK_BITS
        if _FOUR_CHUNKS_LOW <= high < _FOUR_CHUNKS_HIGH:
            parts.append(SOME_EVEN[micros & HALF_MASK])
            parts.append(MORE[rest & CHUNK_MASK])
            parts.append(HIGH[high])
        else:
            parts += (encode_some_long(micros), NOTHING, NOTHING)
        return end
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        parts.append(NOTHING)
        parts.append(NOTHING)
        return position + 1
    raise SlowPathNeeded


def timestamp_from_binary(value: bytes) -> bytes:
    micros = _INT8.unpack(value)[0] + _PG_EPOCH_MICROS
    if not _FIRST_MICROS <= micros <= _LAST_MICROS:
        raise UnrepresentableValue
    return encode_some_long(micros)


def read_timestamp(data: bytes, position: int, parts: Parts) -> int:
    """Read a timestamp or timestamptz; append three parts."""
    if data[position] == KIND_BINARY:
        since_2000: int = read_i64_be(data, position + 5)
        rest = (since_2000 >> HALF_BITS) + _PG_EPOCH_REST
        high = rest >> CHUNK_BITS
        if _FOUR_CHUNKS_LOW <= high < _FOUR_CHUNKS_HIGH:
            parts.append(SOME_EVEN[since_2000 & HALF_MASK])
            parts.append(MORE[rest & CHUNK_MASK])
            parts.append(HIGH[high])
        elif _FIRST_MICROS <= since_2000 + _PG_EPOCH_MICROS <= _LAST_MICROS:
            parts += (encode_some_long(since_2000 + _PG_EPOCH_MICROS), NOTHING, NOTHING)
        else:
            raise UnrepresentableValue
        return position + 13
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        parts.append(NOTHING)
        parts.append(NOTHING)
        return position + 1
    raise SlowPathNeeded


# Binary -> the server's own text (DateStyle ISO, TimeZone UTC), for special values and for ranges

_INFINITE_DAYS: Final = {(1 << 31) - 1: b"infinity", -(1 << 31): b"-infinity"}
_INFINITE_MICROS: Final = {(1 << 63) - 1: b"infinity", -(1 << 63): b"-infinity"}


def render_date(value: bytes) -> bytes:
    days: int = _INT4.unpack(value)[0]
    if days in _INFINITE_DAYS:
        return _INFINITE_DAYS[days]
    text, is_bc = _calendar(days)
    return text + b" BC" if is_bc else text


def render_time(value: bytes) -> bytes:
    return _clock(_INT8.unpack(value)[0])


def render_timetz(value: bytes) -> bytes:
    """Render a timetz, whose zone is in seconds *west* of Greenwich."""
    micros, west = _TIMETZ.unpack(value)
    return _clock(micros) + _offset(-west)


def render_timestamp(value: bytes) -> bytes:
    return _render_timestamp(_INT8.unpack(value)[0], b"")


def render_timestamptz(value: bytes) -> bytes:
    return _render_timestamp(_INT8.unpack(value)[0], b"+00")


def _render_timestamp(micros: int, zone: bytes) -> bytes:
    if micros in _INFINITE_MICROS:
        return _INFINITE_MICROS[micros]
    days, clock = divmod(micros, _DAY_MICROS)
    text, is_bc = _calendar(days)
    return text + b" " + _clock(clock) + zone + (b" BC" if is_bc else b"")


def _clock(micros: int) -> bytes:
    seconds, fraction = divmod(micros, 1_000_000)
    text = b"%02d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)
    return text + (b".%06d" % fraction).rstrip(b"0") if fraction else text


def _offset(east: int) -> bytes:
    """Render an offset as EncodeTimezone does: seconds are only written if they are not zero, and
    minutes only if they or the seconds are not zero."""
    seconds = abs(east)
    text = b"%c%02d" % (b"+" if east >= 0 else b"-", seconds // 3600)
    if seconds % 3600:
        text += b":%02d" % (seconds // 60 % 60)
    return text + b":%02d" % (seconds % 60) if seconds % 60 else text


def _calendar(days: int) -> tuple[bytes, bool]:
    """Return the ISO date of a number of days since 2000-01-01, and whether the date is BC
    (`datetime.c`, j2date)."""
    year, month, day = civil_date(days + _PG_EPOCH_DAYS)
    is_bc = year <= 0
    return b"%04d-%02d-%02d" % (1 - year if is_bc else year, month, day), is_bc


def civil_date(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970-01-01 in the proleptic Gregorian
    calendar. The year 0 is 1 BC."""
    # Count days since 0000-03-01 in eras of 400 years (H. Hinnant, "chrono-Compatible Low-Level
    # Date Algorithms").
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    return year, month, day_of_year - (153 * shifted_month + 2) // 5 + 1


_INTERVAL = struct.Struct("!qii")
_INFINITE: Final = {
    ((1 << 63) - 1, (1 << 31) - 1, (1 << 31) - 1): b"infinity",  # since 17
    (-(1 << 63), -(1 << 31), -(1 << 31)): b"-infinity",
}


def render_interval(value: bytes) -> bytes:
    """Render an interval as EncodeInterval in `datetime.c` does: each part has its own sign;
    seconds and their fraction have a common sign."""
    micros, days, months = _INTERVAL.unpack(value)
    if (micros, days, months) in _INFINITE:
        return _INFINITE[micros, days, months]
    if not (micros or days or months):
        return b"PT0S"
    years, months = divided(months, 12)
    parts = ["P"]
    parts += [f"{number}{unit}" for number, unit in ((years, "Y"), (months, "M"), (days, "D")) if number]
    if micros:
        parts.append("T" + _interval_clock(micros))
    return "".join(parts).encode()


def _interval_clock(micros: int) -> str:
    hours, micros = divided(micros, 3_600_000_000)
    minutes, micros = divided(micros, 60_000_000)
    text = "".join(f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M")) if number)
    if micros:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        sign = "-" if micros < 0 else ""
        text += f"{sign}{seconds}" + (f".{fraction:06d}".rstrip("0") if fraction else "") + "S"
    return text


def divided(number: int, divisor: int) -> tuple[int, int]:
    """Divide as C does, rounding towards zero."""
    quotient, rest = divmod(abs(number), divisor)
    return (-quotient, -rest) if number < 0 else (quotient, rest)
