"""What waits in the marker topic behind a position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from spark_consumer.reader.marker_log import MarkerLog
from spark_consumer.reader.markers import CommittedTransaction

# Markers at each end of a backlog by which a longer one is judged: 50 ms, whatever waits.
SAMPLE = 1_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """`changes`: exact up to 2 x SAMPLE markers, else an estimate. `newest_lsn`: of the last
    transaction; None: nothing waits. `oldest_time_us`: commit time of the first one, since the Unix
    epoch; None: nothing waits, or its marker has none."""

    changes: int
    newest_lsn: int | None
    oldest_time_us: int | None = None


def backlog(
    log: MarkerLog,
    position: int,
    end: int,
    weight: Callable[[CommittedTransaction], int] = attrgetter("event_count"),
) -> Backlog:
    """Counts what waits in [position, end). Raises what MarkerLog raises.

    `weight`: the changes of a transaction that are wanted; where it is 0, the transaction does not
    wait.
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
