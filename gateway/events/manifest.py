"""The manifest of a transaction: the ranges of offsets that its records have in Kafka, with their
counts.

A manifest is filled while the batches of a transaction are acknowledged, and read when the
transaction's last marker is written. The size of a manifest grows with the ranges of offsets, not
with the rows: adjacent pieces of one topic-partition are joined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.markers import ExcludedRelation, SnapshotChunk

RANGE_RECORDS = 100_000
"""The maximum number of records in a range. It allows readers to read a large transaction in
parallel, and to verify each piece."""

RANGE_GAP = 10_000
"""The maximum number of offsets between two pieces of a range that belong to other records (of
interleaved transactions, or Kafka's control records)."""


Range = tuple[int, int, int]
"""The first offset, the last offset and the record count. A plain tuple is used to save time: a
small transaction has about as many ranges as rows."""


@dataclass(slots=True)
class Manifest:
    """The manifest of a transaction. `epoch` is the epoch of the rows. `event_count` counts change
    events and transactional messages, including those of subtransactions that were rolled back."""

    epoch: int
    event_count: int = 0
    aborted_subxids: list[int] = field(default_factory=list)
    schema_ids: list[int] = field(default_factory=list)
    ranges: dict[tuple[str, int], list[Range]] = field(default_factory=dict)
    excluded: list[ExcludedRelation] = field(default_factory=list)
    snapshot: SnapshotChunk | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the transaction has no events, written or excluded."""
        return not (self.event_count or self.excluded)

    def exclude_message(self, topic: str, prefix: str) -> None:
        self.exclude(0, "", prefix, topic, "larger than kafka.max_record_bytes")

    def exclude(self, relation_oid: int, namespace: str, name: str, topic: str, reason: str) -> None:
        """Count one more event that is not written."""
        for known in self.excluded:
            if (known.relation_oid, known.name) == (relation_oid, name):
                known.event_count += 1
                return
        self.excluded.append(ExcludedRelation(relation_oid, namespace, name, topic, reason, 1))

    def add(self, place: tuple[str, int], first_offset: int, record_count: int) -> None:
        """Record that `record_count` adjacent records of this transaction were acknowledged at
        `place` (topic, partition). The pieces of one place must be added in order."""
        last_offset = first_offset + record_count - 1
        ranges = self.ranges.get(place)
        if ranges is None:
            self.ranges[place] = [(first_offset, last_offset, record_count)]
            return
        newest_first, newest_last, newest_count = ranges[-1]
        if newest_count + record_count <= RANGE_RECORDS and first_offset - newest_last - 1 <= RANGE_GAP:
            ranges[-1] = (newest_first, last_offset, newest_count + record_count)
        else:
            ranges.append((first_offset, last_offset, record_count))
