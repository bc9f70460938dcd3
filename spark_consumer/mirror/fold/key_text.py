"""Parser for the text of a key value, as PostgreSQL prints it, that returns the value as rows have
it.

`old_key` has text for types whose Avro type cannot hold every value (schemas.avro_types.key_type);
a row has the value, or null and the text in `special`. Both must become the same key. The gateway's
sessions always use DateStyle ISO and time zone UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:\+00)?")
_LONG_LIMIT = 2**63


def parse_keys(texts: pa.Array, arrow_type: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return values of `arrow_type`, null where a row has the text in `special`, and that text
    (null elsewhere). `arrow_type` string stands for a time of day."""
    parse, storage = _parser(arrow_type)
    values: list[Any] = []
    specials: list[str | None] = []
    for text in texts.to_pylist():
        value = None if text is None else parse(text)
        values.append(value)
        specials.append(text if value is None else None)
    return pa.array(values, storage).cast(arrow_type), pa.array(specials, pa.string())


def _parser(arrow_type: pa.DataType) -> tuple[Callable[[str], Any], pa.DataType]:
    """Return a parser for the text, and the Arrow type of its results."""
    if pa.types.is_decimal(arrow_type):
        return _decimal, arrow_type
    if pa.types.is_date(arrow_type):
        return parse_date, pa.int32()
    if pa.types.is_timestamp(arrow_type):
        return parse_timestamp, pa.int64()
    if pa.types.is_string(arrow_type):
        return parse_time, arrow_type
    return _long, pa.int64()


def _decimal(text: str) -> Decimal | None:
    value = Decimal(text)
    return value if value.is_finite() else None


def _long(text: str) -> int | None:
    value = int(text)
    return value if value < _LONG_LIMIT else None


def parse_date(text: str) -> int | None:
    """Return days since 1970-01-01; None for infinity, BC and years after 9999, which a row has as
    text."""
    match = _DATE.fullmatch(text)
    return None if match is None else days_from_civil(int(match[1]), int(match[2]), int(match[3]))


def parse_timestamp(text: str) -> int | None:
    """Return microseconds since 1970-01-01 00:00; None for the same values as parse_date."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    days = parse_date(match[1])
    assert days is not None
    seconds = ((days * 24 + int(match[2])) * 60 + int(match[3])) * 60 + int(match[4])
    return seconds * 1_000_000 + int((match[5] or "0").ljust(6, "0"))


def parse_time(text: str) -> str | None:
    return None if text.startswith("24") else text


def days_from_civil(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 of a date in the proleptic Gregorian calendar. The algorithm is
    Howard Hinnant's, "chrono-Compatible Low-Level Date Algorithms"."""
    year -= month <= 2
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468
