"""Positions at which a read begins or ends: earliest, latest, marker:<offset>, lsn:<commit LSN>,
time:<ISO 8601>.

A read covers (start, end]: `lsn:X` is the position after the transaction that committed at X, both
as a start and as an end. The end of one read is therefore the start of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from schemas.lsn import format_lsn, parse_lsn
from spark_consumer.errors import MarkerError, MirrorError, OptionError, RangeExpired
from spark_consumer.reader.marker_log import STEP, MarkerLog
from spark_consumer.reader.markers import CommittedTransaction

# PostgreSQL takes the commit time shortly before it assigns the commit LSN, so neighbours may be
# out of order.
_TIME_DISORDER_US = 10_000_000


@dataclass(frozen=True, slots=True)
class Position:
    """A parsed position. `value`: marker offset, LSN, or microseconds since the Unix epoch."""

    kind: Literal["earliest", "latest", "marker", "lsn", "time"]
    value: int = 0


def parse_position(option: str, text: str) -> Position:
    """Parse a position. Raises OptionError, which names the option."""
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
    """Return the marker offset at which a read begins, or before which it ends."""
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


@dataclass(frozen=True, slots=True)
class Output:
    """The kind of a query's output, and parts of messages about it.

    `new_one`: what to do with a new output. `keeps`: how an output continues, with a gap, at the
    first transaction that Kafka still has; `{}` stands for its position. `restart`: what a start
    without --starting-position does.
    """

    name: str
    new_one: str
    keeps: str
    restart: str

    def lost_table(self, state: str, recorded: str) -> MirrorError:
        """Return the error about a table that lacks changes which the output has recorded."""
        return MirrorError(
            f"{state}, although the {self.name} {recorded}: the table was removed or restored alone, and changes would be "
            "missing in it",
            hint=f"Put the table back as the {self.name} last left it (if with RESTORE, by version and not by "
            "time), and restart the query. Or continue without the table: restart the query with --exclude and the table's "
            f"name, which cannot be undone at this path. Or use another path and checkpoint location{self.new_one}.",
        )


OF_MIRROR = Output(
    "mirror",
    ", and load the existing rows with walgate snapshot start",
    "start it with --starting-position {}, then run walgate snapshot start, which corrects all tables. (Without the snapshot, "
    "rows are wrong if anything was removed.)",
    "the mirror then continues where it stands",
)
OF_CHANGELOG = Output(
    "changelog",
    " for the changes that are left",
    "start it with --starting-position {}: changes that were removed will be missing in it.",
    "changes that the changelog has are not written again",
)


Lost: TypeAlias = Callable[[Iterable[CommittedTransaction]], int | None]
"""Returns the position after the last of these transactions whose records are no longer in Kafka;
None if there is none."""


def check_continues(
    position: Position,
    taken_lsn: int,
    log: MarkerLog,
    output: Output = OF_MIRROR,
    lost: Lost = lambda _: None,
) -> None:
    """Raise RangeExpired, MarkerError or OptionError if a mirror or changelog that has all changes
    up to `taken_lsn` may miss later changes.

    Retention removes markers in commit order. If Kafka still has the marker of a transaction that
    the output has, no later marker was removed. A topic that has none of these, and from which
    nothing was removed, is another topic. So is one that has earlier transactions, and none at
    `taken_lsn`. The records of later transactions may be lost although their markers are there.

    What is lost may be passed only with a given offset (marker:N), the first from which everything
    is available: the error that suggests it warns of missing changes.
    """
    low, high = log.bounds()
    # An output may have only marks, which notices become.
    first = log.first_between(
        low, high, is_wanted=lambda entry: not entry.is_notice or (low == 0 and entry.commit_lsn <= taken_lsn)
    )
    begins_after = first is None or first.commit_lsn > taken_lsn
    if not begins_after and not _has(log, taken_lsn):
        raise MarkerError(
            f"the {output.name} has all changes up to {format_lsn(taken_lsn)}, but the marker topic has earlier transactions and "
            "none there. So it is another marker topic, and changes would be missing",
            hint="First check kafka.bootstrap.servers, prefix and --path. If one of them is wrong, correct it and restart: "
            "nothing is lost. If all are right, the topic was recreated, or is that of another server: use another path and "
            f"checkpoint location{output.new_one}.",
        )
    place = low if begins_after else resolve(Position("lsn", taken_lsn), log)
    start = resolve(position, log)
    # Searching everything would take long. The error of a query names a position that may be behind
    # more markers than STEP.
    searched = max(place + STEP, start) if position.kind == "marker" else place + STEP
    later = lost(log.walk(place, min(searched, high))) and lost(log.walk(place, high))
    missed = log.first_between(later or place, start)
    is_accepted = position.kind == "marker" and start >= (later or low) and missed is None
    if (begins_after or later) and not is_accepted:
        if not begins_after:
            unknown = "records of later transactions are no longer in Kafka, although their markers are"
        elif low:
            unknown = (
                f"the marker topic now begins at offset {low}, after this position: it is unknown whether retention has "
                f"removed changes that the {output.name} does not have"
            )
        else:
            unknown = (
                "the marker topic begins after this position, and nothing was removed from it. So it is another marker "
                f"topic (a new prefix, or a recreated topic), and may lack changes that the {output.name} does not have"
            )
        raise RangeExpired(
            f"the {output.name} has all changes up to {format_lsn(taken_lsn)}, but {unknown}",
            hint=f"Use another path and checkpoint location{f' and --starting-position marker:{later}' if later else ''}"
            f"{output.new_one}. Or keep this {output.name}: {output.keeps.format(f'marker:{later or low}')}",
        )
    if missed is not None:
        raise OptionError(
            f"the {output.name} has all changes up to {format_lsn(taken_lsn)}, but its checkpoint location is new, and its "
            f"starting position is after the transaction at {format_lsn(missed.commit_lsn)}, which it would miss",
            hint=f"Restart without --starting-position: {output.restart}.",
        )


def _has(log: MarkerLog, taken_lsn: int) -> bool:
    """Return whether a topic that begins before `taken_lsn` has a transaction there, or a notice
    whose mark is there."""
    begin = log.before_notices(log.first_where(lambda transaction: transaction.commit_lsn >= taken_lsn), -1)

    def is_there(entry: CommittedTransaction) -> bool:
        return taken_lsn in (entry.commit_lsn, entry.mark_lsn)

    first = log.first_between(begin, log.bounds()[1], is_wanted=lambda entry: not entry.is_notice or is_there(entry))
    return first is not None and is_there(first)
