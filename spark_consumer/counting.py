"""Which records of a read belong to its transactions, and the proof that none is missing.

A range may hold records of other transactions, of void epochs and of aborted subtransactions. A record belongs to a range when
its (xid, epoch) are the transaction's and its offset lies within. Records of aborted subtransactions are counted, then dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_consumer.columnar.cursor import Longs
from spark_consumer.columnar.head import DELETE, TRUNCATE, Heads
from spark_consumer.errors import TransactionIncomplete
from spark_consumer.lsn import format_lsn
from spark_consumer.planning import Read


@dataclass(frozen=True, slots=True)
class Matched:
    """Places of the records to give out, and for each the place of its range in the read."""

    rows: Longs
    ranges: Longs

    def keep(self, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Matched:
        return Matched(self.rows[mask], self.ranges[mask])


class RangeCounter:
    """Counts the records of one read, chunk by chunk in the order of their offsets; `finish` compares with the manifests."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._unique = read.unique_keys
        self._span = read.last_offset - read.first_offset + 2
        places = np.searchsorted(self._unique, read.transaction_keys)
        self._starts = places * self._span + (read.first_offsets - read.first_offset)
        self._seen = np.zeros(len(read.record_counts), np.int64)

    def match(self, heads: Heads, offsets: Longs) -> Matched:
        """The records that belong to a range of this read and to no aborted subtransaction."""
        read = self._read
        keys = heads.epoch << 32 | heads.xid
        places = np.searchsorted(self._unique, keys)
        places[places == len(self._unique)] = 0
        rows = np.flatnonzero((self._unique[places] == keys) & (heads.xid >> 32 == 0))
        places, at = places[rows], offsets[rows]
        # The last range of the transaction that begins at or before the record; ranges of one transaction are disjoint.
        ranges = np.searchsorted(self._starts, places * self._span + (at - read.first_offset), side="right") - 1
        inside = (ranges >= 0) & (read.transaction_keys[ranges] == keys[rows]) & (at <= read.last_offsets[ranges])
        rows, ranges, places = rows[inside], ranges[inside], places[inside]
        self._seen += np.bincount(ranges, minlength=len(self._seen))
        matched = Matched(rows, ranges)
        if not len(read.aborted):
            return matched
        return matched.keep(~np.isin(places << 32 | heads.subxid[rows], read.aborted))

    def finish(self) -> None:
        """Raises TransactionIncomplete unless each range held exactly its records."""
        read = self._read
        wrong = np.flatnonzero(self._seen != read.record_counts)
        if not len(wrong):
            return
        at = int(wrong[0])
        key = int(read.transaction_keys[at])
        raise TransactionIncomplete(
            f"{read.topic}[{read.partition}] {read.first_offsets[at]}..{read.last_offsets[at]}: {self._seen[at]} records "
            f"of xid {key & 0xFFFFFFFF} epoch {key >> 32} (commit_lsn {format_lsn(int(read.commit_lsns[at]))}), but its "
            f"manifest says {read.record_counts[at]} ({len(wrong)} of {len(self._seen)} ranges of this read are wrong)",
            hint="Records are missing, doubled, or of another topic with this name. Nothing of this read was used.",
        )


def fold(heads: Heads, matched: Matched, read: Read) -> Matched:
    """One change for each event: TRUNCATE is a record in every partition of its topic, and a change of key is an UPDATE under the
    new key and a DELETE under the old one. The TRUNCATE of one partition and the UPDATE (it has old_key) stay."""
    operation = heads.operation[matched.rows]
    drop = (operation == TRUNCATE) & ~read.keeps_truncate[matched.ranges]
    deletes = matched.rows[operation == DELETE]
    if len(deletes):
        drop |= np.isin(matched.rows, heads.key_changes(deletes))
    return matched.keep(~drop) if drop.any() else matched
