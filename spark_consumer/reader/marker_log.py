"""The committed transactions between two positions of the transaction topic, and the notices
(schemas.markers.NOTICES) among them, cached for a query.

A streaming query requests the same interval twice (how far to go, then what to read), and the next
one soon after. Transactions that have been read are therefore kept as one contiguous interval
[start, end). Its beginning is forgotten once Spark has committed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spark_consumer.reader.broker import Broker
from spark_consumer.reader.markers import CommittedTransaction, MarkerDecoder

_LOOK_BACK = 256
STEP = 50_000  # markers read at once where the number is not known: 60 MB and a second


class MarkerLog:
    """Committed transactions by marker offset. Methods raise what Broker and MarkerDecoder
    raise."""

    def __init__(self, broker: Broker, topic: str, decoder: MarkerDecoder) -> None:
        self._broker = broker
        self._topic = topic
        self._decoder = decoder
        self._start = self._end = 0
        self._transactions: list[CommittedTransaction] = []

    def bounds(self, *, patience_s: float | None = None) -> tuple[int, int]:
        """Return the first marker offset that Kafka has, and the offset after the last one.
        `patience_s`: see Broker.offsets."""
        return self._broker.offsets(self._topic, patience_s=patience_s)

    def between(self, start: int, end: int) -> list[CommittedTransaction]:
        """Return the transactions whose committing marker lies in [start, end), in commit order."""
        if not self._start <= start <= self._end:
            self._transactions.clear()
            self._start = self._end = start
        if end > self._end:
            self._transactions.extend(self._fetch(self._end, end))
            self._end = end
        return [transaction for transaction in self._transactions if start <= transaction.marker_offset < end]

    def walk(self, start: int, end: int) -> Iterator[CommittedTransaction]:
        """Yield the same transactions as `between`, read in steps and not cached."""
        for place in range(start, end, STEP):
            yield from self._fetch(place, min(place + STEP, end))

    def forget_before(self, position: int) -> None:
        self._start = max(self._start, min(position, self._end))
        self._transactions = [
            transaction for transaction in self._transactions if transaction.marker_offset >= position
        ]

    def forget(self, is_needless: Callable[[CommittedTransaction], bool], start: int, end: int) -> None:
        """Forget the needless transactions whose followers lie in [start, end). The last
        transaction is kept, and so is each transaction that a notice follows: an offset after it is
        computed from its position and commit LSN."""
        followers = [*self._transactions[1:], None]
        self._transactions = [
            transaction
            for transaction, follower in zip(self._transactions, followers, strict=False)
            if follower is None
            or follower.is_notice
            or not start <= follower.marker_offset < end
            or not is_needless(transaction)
        ]

    def _fetch(self, start: int, end: int) -> list[CommittedTransaction]:
        found = []
        for offsets, values in self._broker.read(self._topic, 0, start, end - 1):
            for offset, value in zip(offsets, values, strict=True):
                transaction = self._decoder.decode(offset, value)
                if transaction is not None:
                    found.append(transaction)
        return found

    def first_where(self, holds: Callable[[CommittedTransaction], bool]) -> int:
        """Return the position of the first transaction for which `holds` is true; the end of the
        topic if there is none. `holds` must also be true for all later transactions. Read a few
        markers at about log2(n) positions."""
        low, high = self.bounds()
        end = high
        while low < high:
            middle = (low + high) // 2
            transaction = self.first_between(middle, high, notices=False)
            if transaction is None:
                high = middle
            elif holds(transaction):
                high = middle
                end = transaction.marker_offset
            else:
                low = transaction.marker_offset + 1
        return end

    def before_notices(self, position: int, after_lsn: int) -> int:
        """Return the position of the first notice in the unbroken row of notices before `position`
        that have LSNs above `after_lsn`. Return `position` if there is none."""
        low, _ = self.bounds()
        place = position
        while place > low:
            start = max(low, place - _LOOK_BACK)
            for entry in reversed(self._fetch(start, place)):
                if not entry.is_notice or entry.commit_lsn <= after_lsn:
                    return position
                position = entry.marker_offset
            place = start
        return position

    def newest_lsn(self, end: int) -> int:
        """Return the commit LSN of the last transaction before `end`; 0 if there is none among the
        last markers."""
        last = self._transactions if end == self._end else []
        if not last:
            low, _ = self.bounds()
            last = self._fetch(max(low, end - _LOOK_BACK), end)
        return next((entry.commit_lsn for entry in reversed(last) if not entry.is_notice), 0)

    def last_where(
        self, holds: Callable[[CommittedTransaction], bool], start: int, end: int
    ) -> CommittedTransaction | None:
        """Return the last transaction for which `holds` is true, among the markers in [start, end);
        None if there is none."""
        low, width = start, _LOOK_BACK
        while low < end:
            start = max(low, end - width)
            found = next((entry for entry in reversed(self._fetch(start, end)) if holds(entry)), None)
            if found is not None:
                return found
            end, width = start, min(4 * width, STEP)
        return None

    def first_between(
        self,
        start: int,
        end: int,
        *,
        notices: bool = True,
        is_wanted: Callable[[CommittedTransaction], object] = lambda _: True,
    ) -> CommittedTransaction | None:
        width = 64
        while start < end:
            read = self._fetch(start, min(start + width, end))
            first = next((entry for entry in read if (notices or not entry.is_notice) and is_wanted(entry)), None)
            if first is not None:
                return first
            start += width
            width = min(4 * width, STEP)
        return None
