"""Select the records of a read that belong to its transactions, all records of a fetch at once, and
prove that none is missing.

reader/completeness.py applies the same rule to one record at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_consumer.columnar.cursor import Longs
from spark_consumer.columnar.head import DELETE, TRUNCATE, Heads
from spark_consumer.reader.completeness import check_counts
from spark_consumer.reader.read_planning import Numbers, Read


@dataclass(frozen=True, slots=True)
class Matched:
    """The indexes of the records to return and, for each record, the index of the range that it
    belongs to in the read."""

    rows: Longs
    ranges: Longs

    def keep(self, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Matched:
        return Matched(self.rows[mask], self.ranges[mask])


def longs(values: Numbers) -> Longs:
    return np.frombuffer(values, np.int64)


class RangeCounter:
    """Count the records of one read, chunk by chunk in the order of their offsets; `finish`
    compares the counts with the manifests."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._keys = longs(read.transaction_keys)
        self._last_offsets = longs(read.last_offsets)
        self._unique = np.unique(self._keys)
        self._span = read.last_offset - read.first_offset + 2
        places = np.searchsorted(self._unique, self._keys)
        self._starts = places * self._span + (longs(read.first_offsets) - read.first_offset)
        self._seen = np.zeros(len(read.record_counts), np.int64)
        aborted = np.array(read.aborted, np.int64).reshape(-1, 2)
        self._aborted = np.searchsorted(self._unique, aborted[:, 0]) << 32 | aborted[:, 1]

    def match(self, heads: Heads, offsets: Longs) -> Matched:
        """Return the records that belong to a range of this read and to no aborted
        subtransaction."""
        keys = heads.epoch << 32 | heads.xid
        places = np.searchsorted(self._unique, keys)
        places[places == len(self._unique)] = 0
        rows = np.flatnonzero((self._unique[places] == keys) & (heads.xid >> 32 == 0))
        places, at = places[rows], offsets[rows]
        # Find the last range of the transaction that begins at or before the record; ranges of one
        # transaction are disjoint.
        starts = places * self._span + (at - self._read.first_offset)
        ranges = np.searchsorted(self._starts, starts, side="right") - 1
        inside = (ranges >= 0) & (self._keys[ranges] == keys[rows]) & (at <= self._last_offsets[ranges])
        rows, ranges, places = rows[inside], ranges[inside], places[inside]
        self._seen += np.bincount(ranges, minlength=len(self._seen))
        matched = Matched(rows, ranges)
        if not len(self._aborted):
            return matched
        return matched.keep(~np.isin(places << 32 | heads.subxid[rows], self._aborted))

    def finish(self) -> None:
        """Raise TransactionIncomplete unless each range had exactly the number of records in the
        manifests."""
        if (self._seen != longs(self._read.record_counts)).any():
            check_counts(self._read, self._seen.tolist())


def fold(heads: Heads, matched: Matched, read: Read) -> Matched:
    """Keep one record for each event. A TRUNCATE has a record in every partition of its topic, and
    only the record in one partition is kept. A change of a row's key has an UPDATE under the new
    key and a DELETE under the old key. Only the UPDATE is kept; its `old_key` or `before` has the
    old key."""
    operation = heads.operation[matched.rows]
    drop = operation == TRUNCATE
    if drop.any():
        drop &= np.frombuffer(read.keeps_truncate, np.uint8)[matched.ranges] == 0
    deletes = matched.rows[operation == DELETE]
    if len(deletes):
        drop |= np.isin(matched.rows, heads.key_changes(deletes))
    return matched.keep(~drop) if drop.any() else matched
