"""Decode markers of the transaction topic to committed transactions and their manifests.

Only COMMIT, STREAM_COMMIT and COMMIT_PREPARED end a transaction whose rows count. A few kinds
qualify these rows: the bounds of a snapshot, a skipped transaction, a gap. All other kinds (open
streams, prepared and rolled back transactions, a restart of the gateway) are irrelevant to a reader
of committed changes, as are unknown kinds.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import fastavro

from schemas.lsn import format_lsn
from schemas.markers import COMMITTING, NOTICES, ExcludedRelation, SnapshotChunk
from schemas.records import TRANSACTION_MARKER
from schemas.topic_names import counted
from schemas.wire_format import FRAME_BYTES
from spark_consumer.errors import MarkerError


@dataclass(frozen=True, slots=True)
class Range:
    """A range of offsets of one topic-partition, both ends included, that contains exactly
    `record_count` records of the transaction, and possibly others."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    record_count: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.first_offset}..{self.last_offset}"


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A transaction whose commit is in the transaction topic. Its records carry (xid, epoch).
    `epoch` is the epoch of the records. It is older than that of the marker if the transaction was
    prepared before the gateway was restarted.

    A notice (`kind` is one of NOTICES) has no records; its `commit_lsn` is the marker's LSN, which
    need not rise.
    """

    marker_offset: int
    kind: str
    commit_lsn: int
    commit_time_us: int | None  # since the Unix epoch, UTC
    end_lsn: int | None
    xid: int
    epoch: int
    gid: str | None
    origin: str | None
    event_count: int  # including events of aborted subtransactions; an event may be several records
    aborted_subxids: tuple[int, ...]
    schema_ids: tuple[int, ...]
    ranges: tuple[Range, ...]
    excluded: tuple[ExcludedRelation, ...] = ()
    snapshot: SnapshotChunk | None = None
    detail: str | None = None  # SKIP, GAP: the reason

    @property
    def is_notice(self) -> bool:
        return self.kind in NOTICES

    @property
    def mark_lsn(self) -> int:
        """The commit LSN of the transaction's table marks. Delivery after a gap continues at
        `end_lsn`, which may be that of the next commit: the gap ends just before it."""
        return self.end_lsn - 1 if self.kind == "GAP" and self.end_lsn else self.commit_lsn

    @property
    def topics(self) -> set[str]:
        """The topics of the transaction's records."""
        return {item.topic for item in self.ranges}

    def __str__(self) -> str:
        return (
            f"xid {self.xid} epoch {self.epoch} commit_lsn {format_lsn(self.commit_lsn)} (marker {self.marker_offset})"
        )


@cache
def marker_schema() -> Any:
    """Return this package's reader schema of TransactionMarker, in which times are integers."""
    return _parsed(TRANSACTION_MARKER)


def _parsed(schema: Any) -> Any:
    """Return fastavro's form of a marker schema, without the logical types: microseconds remain
    exact integers."""

    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: strip(item) for name, item in node.items() if name != "logicalType"}
        return [strip(item) for item in node] if isinstance(node, list) else node

    return fastavro.parse_schema(strip(schema))


class MarkerDecoder:
    """Decode a marker record to a CommittedTransaction, or to None if its kind neither ends a
    transaction nor is a notice.

    `writer_schemas`: schema id -> schema, looked up once for each id; it may raise
    SourceUnavailable. `topic`: the topic of the markers, for errors.
    """

    def __init__(self, writer_schemas: Mapping[int, Any], topic: str) -> None:
        self._writer_schemas = writer_schemas
        self._topic = topic
        self._parsed: dict[int, Any] = {}

    def decode(self, offset: int, value: bytes) -> CommittedTransaction | None:
        marker = self._decode_avro(offset, value)
        if marker["kind"] not in COMMITTING and marker["kind"] not in NOTICES:
            return None
        manifest = marker["manifest"]
        if manifest is None and marker["kind"] in NOTICES:
            manifest = _NO_MANIFEST
        if manifest is None:
            raise MarkerError(f"{self._place(offset)}: the {marker['kind']} of xid {marker['xid']} has no manifest")
        transaction = CommittedTransaction(
            marker_offset=offset,
            kind=marker["kind"],
            commit_lsn=marker["marker_lsn"],
            commit_time_us=marker["time"],
            end_lsn=marker["end_lsn"],
            xid=marker["xid"],
            epoch=manifest["epoch"],
            gid=marker["gid"],
            origin=marker["origin"],
            event_count=manifest["event_count"],
            aborted_subxids=tuple(manifest["aborted_subxids"]),
            schema_ids=tuple(manifest["schema_ids"]),
            ranges=tuple(Range(**item) for item in manifest["ranges"]),
            excluded=tuple(ExcludedRelation.of_record(item) for item in manifest["excluded"]),
            snapshot=None if manifest["snapshot"] is None else SnapshotChunk.of_record(manifest["snapshot"]),
            detail=marker["detail"],
        )
        check_ranges(transaction)
        return transaction

    def _decode_avro(self, offset: int, value: bytes) -> dict[str, Any]:
        if len(value) < FRAME_BYTES or value[0] != 0:
            raise MarkerError(f"{self._place(offset)}: the record is not in Confluent's wire format")
        schema_id = int.from_bytes(value[1:FRAME_BYTES], "big")
        if schema_id not in self._parsed:
            self._parsed[schema_id] = _parsed(self._writer_schemas[schema_id])
        data = io.BytesIO(value)
        data.seek(FRAME_BYTES)
        try:
            marker: Any = fastavro.schemaless_reader(data, self._parsed[schema_id], marker_schema())
        except Exception as problem:  # fastavro raises a dozen exception types
            raise MarkerError(
                f"{self._place(offset)}: the marker does not decode with schema {schema_id}: {type(problem).__name__}"
            ) from problem
        if data.tell() != len(value):
            raise MarkerError(
                f"{self._place(offset)}: the marker has {len(value) - data.tell()} extra bytes at its end"
            )
        return dict(marker)

    def _place(self, offset: int) -> str:
        return f"{self._topic}[0] offset {offset}"


_NO_MANIFEST: dict[str, Any] = {
    "epoch": 0, "event_count": 0, "aborted_subxids": [], "schema_ids": [], "ranges": [], "excluded": [], "snapshot": None,
}  # fmt: skip


def check_ranges(transaction: CommittedTransaction) -> None:
    """Check that a manifest is consistent: ranges are disjoint within a topic-partition, and have
    at most as many records as offsets."""
    if not 0 <= transaction.xid < 2**32 or not 0 <= transaction.epoch < 2**31:
        raise MarkerError(f"{transaction}: xid or epoch is out of range")
    last: dict[tuple[str, int], int] = {}
    for item in sorted(transaction.ranges, key=lambda item: (item.topic, item.partition, item.first_offset)):
        place = (item.topic, item.partition)
        if not 0 < item.record_count <= item.last_offset - item.first_offset + 1 or item.first_offset < 0:
            raise MarkerError(
                f"{transaction}: the manifest in its marker is invalid: {counted(item.record_count, 'record')} in {item}"
            )
        if item.first_offset <= last.get(place, -1):
            raise MarkerError(f"{transaction}: two ranges of the manifest in its marker overlap at {item}")
        last[place] = item.last_offset


def check_order(transactions: Iterable[CommittedTransaction], after_commit_lsn: int) -> None:
    """Check that commit_lsn rises strictly from each committing marker to the next. It also rises
    across restarts of the gateway."""
    for transaction in transactions:
        if transaction.is_notice:
            continue
        if transaction.commit_lsn <= after_commit_lsn:
            raise MarkerError(
                f"{transaction} does not come after commit_lsn {format_lsn(after_commit_lsn)}",
                hint="The marker topic contains the markers of two slots, or was recreated: use a new checkpoint location, and "
                "a new mirror or changelog, and set startingPosition (--starting-position) to marker:<offset>, the offset of the "
                "first marker of the slot that is to be read.",
            )
        after_commit_lsn = transaction.commit_lsn
