"""Where a read begins and ends: earliest, latest, marker:<offset>, lsn:<commit LSN>, time:<ISO 8601>.

A read covers (start, end]: `lsn:X` as a start is behind the transaction that committed at X, as an end it is behind it too.
So the end of one read is the start of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from spark_consumer.errors import OptionError
from spark_consumer.lsn import parse_lsn
from spark_consumer.reader.markers import MarkerLog

# PostgreSQL takes commit times a little before the commit's place in the log is fixed, so neighbours may be out of order.
_TIME_DISORDER_US = 10_000_000


@dataclass(frozen=True, slots=True)
class Position:
    """`value`: marker offset, LSN, or microseconds since the Unix epoch."""

    kind: Literal["earliest", "latest", "marker", "lsn", "time"]
    value: int = 0


def parse_position(option: str, text: str) -> Position:
    """Raises OptionError."""
    word, _, rest = text.strip().partition(":")
    try:
        match word:
            case "earliest" | "latest" if not rest:
                return Position(word)
            case "marker":
                return Position("marker", int(rest))
            case "lsn":
                return Position("lsn", parse_lsn(rest))
            case "time":
                moment = datetime.fromisoformat(rest)
                moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
                return Position("time", round(moment.timestamp() * 1_000_000))
    except ValueError:
        pass
    raise OptionError(
        f"invalid value for {option}: {text!r}",
        hint="Write earliest, latest, marker:<offset>, lsn:16/B374D848 or time:2026-01-31T12:00:00Z "
        "(a time without a time zone is UTC).",
    )


def resolve(position: Position, log: MarkerLog) -> int:
    """The marker offset to begin at, or to end before."""
    low, high = log.bounds()
    match position.kind:
        case "earliest":
            return low
        case "latest":
            return high
        case "marker":
            if not low <= position.value <= high:
                raise OptionError(
                    f"marker:{position.value} is outside the marker topic, whose offsets range from {low} to {high}"
                )
            return position.value
        case "lsn":
            found = log.first_where(lambda transaction: transaction.commit_lsn > position.value)
            return log.before_notices(found, position.value)
    early = log.first_where(lambda transaction: (transaction.commit_time_us or 0) > position.value - _TIME_DISORDER_US)
    for transaction in log.walk(early, high):
        if (transaction.commit_time_us or 0) > position.value:
            return transaction.marker_offset
    return high
