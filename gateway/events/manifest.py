"""What a transaction consists of in Kafka: ranges of offsets with their counts.

A manifest is filled while the batches of a transaction are acknowledged, and read when its last
marker is written. Its size grows with the spans of offsets, not with the rows: neighbouring pieces
of one topic-partition are joined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RANGE_RECORDS = 100_000
"""A range is closed at this size, so that a large transaction is read in parallel and each piece is
verified."""

RANGE_GAP = 10_000
"""Offsets of others (interleaved transactions, Kafka's control records) that a range may hold
between two pieces."""


Range = tuple[int, int, int]
"""First offset, last offset, record count. A plain tuple: a small transaction has as many as it has
rows."""


@dataclass(slots=True)
class ExcludedRelation:
    """Events of a quarantined relation that a transaction had and the topics do not. `relation_oid`
    0: logical messages that were too large, by their prefix."""

    relation_oid: int
    namespace: str
    name: str
    topic: str
    reason: str
    event_count: int = 0


@dataclass(slots=True)
class SnapshotChunk:
    """What makes a transaction a chunk of a snapshot. `relation_oid` 0: the snapshot as a whole, in
    its first and last marker."""

    snapshot_id: str
    purpose: str
    """FILL, REPLACE or VERIFY."""
    relation_oid: int = 0
    namespace: str = ""
    name: str = ""
    topic: str = ""
    chunk: int = 0
    row_count: int = 0
    stale_count: int = 0


@dataclass(slots=True)
class Manifest:
    """`epoch` is that of the rows. `event_count` counts change events and transactional messages,
    aborted ones included."""

    epoch: int
    event_count: int = 0
    aborted_subxids: list[int] = field(default_factory=list)
    schema_ids: list[int] = field(default_factory=list)
    ranges: dict[tuple[str, int], list[Range]] = field(default_factory=dict)
    excluded: list[ExcludedRelation] = field(default_factory=list)
    snapshot: SnapshotChunk | None = None

    @property
    def is_empty(self) -> bool:
        """Neither topics nor `excluded` have anything of the transaction."""
        return not (self.event_count or self.excluded)

    def exclude_message(self, topic: str, prefix: str) -> None:
        self.exclude(0, "", prefix, topic, "larger than kafka.max_record_bytes")

    def exclude(self, relation_oid: int, namespace: str, name: str, topic: str, reason: str) -> None:
        """One event more that is not written."""
        for known in self.excluded:
            if (known.relation_oid, known.name) == (relation_oid, name):
                known.event_count += 1
                return
        self.excluded.append(ExcludedRelation(relation_oid, namespace, name, topic, reason, 1))

    def add(self, place: tuple[str, int], first_offset: int, record_count: int) -> None:
        """`record_count` neighbouring records of this transaction were acknowledged at `place`
        (topic, partition); the pieces of one place come in order."""
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
