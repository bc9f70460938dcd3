"""The backlog of a reader: the transactions in the marker topic after its position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from spark_consumer.reader.marker_log import MarkerLog
from spark_consumer.reader.markers import CommittedTransaction

# Number of markers read at each end of a backlog. A longer backlog is estimated from them, which
# takes 50 ms, whatever its length.
SAMPLE = 1_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """The transactions that wait for a reader. `changes` is exact up to 2 x SAMPLE markers, and an
    estimate if there are more. `newest_lsn`: commit LSN of the last transaction; None if there is
    none. `oldest_time_us`: commit time of the first transaction, in microseconds since the Unix
    epoch; None if there is none, or if its marker has no time."""

    changes: int
    newest_lsn: int | None
    oldest_time_us: int | None = None


def backlog(
    log: MarkerLog,
    position: int,
    end: int,
    weight: Callable[[CommittedTransaction], int] = attrgetter("event_count"),
) -> Backlog:
    """Count the transactions that wait in [position, end). Raises what MarkerLog raises.

    `weight` returns the number of changes of a transaction that the reader wants; a transaction
    with 0 does not count as waiting.
    """
    low = min(position + SAMPLE, end)
    high = max(low, end - SAMPLE)
    found = [*log.walk(position, low), *log.walk(high, end)]
    read = low - position + end - high
    changes = sum(map(weight, found))
    if read:
        changes = round(changes * (end - position) / read)
    waiting = [transaction for transaction in found if not transaction.is_notice and weight(transaction)]
    if not waiting:
        return Backlog(changes, None)
    return Backlog(changes, waiting[-1].commit_lsn, waiting[0].commit_time_us)
