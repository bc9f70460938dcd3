"""Decide how far a micro-batch goes: whole transactions, up to a limit of rows that the query gets.
Without that limit, there is no other one.

A new offset makes Spark run a batch. The offset advances at once if there are transactions that the
query wants. If there are only others, it advances after a while. It must advance then, too:
otherwise a restart would begin far back, where retention may have removed the markers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from spark_consumer.reader.marker_log import STEP, MarkerLog
from spark_consumer.reader.markers import CommittedTransaction, check_order

# The driver holds the transactions of a micro-batch in memory: 1.2 kB each.
_TRANSACTIONS_PER_TRIGGER = 200_000
# The most markers that are read for one answer to Spark if the query wants none of them: 20
# seconds.
_MARKERS_PER_ANSWER = 20 * STEP
# Seconds for which an offset is held if no marker after it is that of a transaction.
_HOLD_WITHOUT_TRANSACTIONS_S = 60.0

Weight: TypeAlias = Callable[[CommittedTransaction], int]
"""Returns the number of rows that a query gets from a transaction or notice; 0 if it wants none."""


class Admission:
    """Decide how far a batch goes.

    `hold_s`: seconds for which an offset is held before transactions that the query does not want.
    It is 0 for a query that ends when it has read all existing transactions.
    """

    def __init__(self, weight: Weight, hold_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._weight = weight
        self._hold_s = hold_s
        self._clock = clock
        self._held: tuple[int, float] | None = None  # a position, and the time since which it is held

    def admitted(
        self, log: MarkerLog, position: int, after_commit_lsn: int, end: int, limit: int | None
    ) -> tuple[list[CommittedTransaction], int]:
        """Return the transactions of [position, end) that a batch takes, and the position after
        them; `position` itself if no batch is to run.

        Read no more of the backlog than is needed for this, and keep in memory only transactions
        that the query wants. Raises MarkerError.
        """
        reached = position
        while True:
            begin, reached = reached, min(reached + STEP, end)
            transactions = log.between(position, reached)
            check_order(transactions, after_commit_lsn)
            admitted = admit(transactions, limit, self._weight)
            if len(admitted) < len(transactions):
                return admitted, admitted[-1].marker_offset + 1
            log.forget(lambda transaction: not self._weight(transaction), begin, reached)
            is_long = limit is not None and reached - position >= _MARKERS_PER_ANSWER
            if reached == end or is_long:
                break
        if any(map(self._weight, admitted)):
            self._held = None
            return admitted, reached
        hold_s = self._hold_s if admitted or not self._hold_s else _HOLD_WITHOUT_TRANSACTIONS_S
        return (admitted, reached) if is_long or self._is_held_for(hold_s, position) else ([], position)

    def _is_held_for(self, hold_s: float, position: int) -> bool:
        if self._held is None or self._held[0] != position:
            self._held = position, self._clock()
        return self._clock() >= self._held[1] + hold_s


def admit(transactions: list[CommittedTransaction], limit: int | None, weight: Weight) -> list[CommittedTransaction]:
    """Return as many of these transactions, from the first on, as give the query at most `limit`
    rows; all if it is None.

    The result includes at least one transaction that the query wants, if there is one, and also the
    unwanted transactions up to the next wanted one.
    """
    if limit is None:
        return transactions
    rows = wanted = 0
    for place, transaction in enumerate(transactions):
        if more := weight(transaction):
            rows += more
            is_full = rows > limit or wanted >= _TRANSACTIONS_PER_TRIGGER
            if (
                is_full
                and not transaction.is_notice
                and any(not before.is_notice and weight(before) for before in transactions[:place])
            ):
                return transactions[:place]
            wanted += 1
    return transactions
