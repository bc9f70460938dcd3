"""Markers of the transaction topic, as the gateway writes them and its readers know them.

records/TransactionMarker.avsc describes each field. Ranges of offsets have no class here: the
gateway keeps them as tuples, and readers plan with a class of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

COMMITTING: Final = frozenset({"COMMIT", "STREAM_COMMIT", "COMMIT_PREPARED"})
"""The kinds of markers that end a transaction whose rows count."""
NOTICES: Final = frozenset({"SNAPSHOT_BEGIN", "SNAPSHOT_END", "SKIP", "GAP"})
"""The kinds of markers that have no records, but say something about the rows of other
transactions."""


@dataclass(slots=True)
class ExcludedRelation:
    """A relation whose events in a transaction were not written to its topic, and the number of
    these events. If `relation_oid` is 0, the events are logical messages that were too large, and
    `name` is their prefix."""

    relation_oid: int
    namespace: str
    name: str
    topic: str
    reason: str
    event_count: int = 0

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> ExcludedRelation:
        """Return the instance that an Avro record of a manifest describes."""
        return cls(
            record["relation_oid"],
            record["schema"],
            record["name"],
            record["topic"],
            record["reason"],
            record["event_count"],
        )


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Mark a transaction as a chunk of a snapshot. In the markers that begin and end a snapshot,
    `relation_oid` 0 stands for all its relations. `purpose` is FILL, REPLACE or VERIFY."""

    snapshot_id: str
    purpose: str
    relation_oid: int = 0
    namespace: str = ""
    name: str = ""
    topic: str = ""
    chunk: int = 0
    row_count: int = 0
    stale_count: int = 0

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> SnapshotChunk:
        """Return the instance that an Avro record of a manifest describes."""
        fields = {name: record[name] for name in cls.__slots__ if name != "namespace"}
        return cls(namespace=record["schema"], **fields)
