"""Encode markers in Avro without fastavro: a small transaction has two of them, and fastavro would
take five times as long.

The layout is schemas/records/TransactionMarker.avsc; a test compares the bytes with fastavro's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.events.manifest import Manifest
from gateway.values.column_readers import some_bytes
from schemas.markers import ExcludedRelation, SnapshotChunk
from schemas.records import TRANSACTION_MARKER
from schemas.varint import encode_long, encode_lsn, encode_some_lsn

_NULL = b"\0"
_SOME = b"\2"
_END_OF_ARRAY = b"\0"
_NO_SUBXID = encode_long(-1)
_ONE = encode_long(1)
_NOT_SPECIAL: Final = b"\0\0"
"""The end of a manifest that has nothing excluded and is no chunk of a snapshot."""
_KINDS: dict[str, bytes] = {
    symbol: encode_long(index) for index, symbol in enumerate(TRANSACTION_MARKER["fields"][0]["type"]["symbols"])
}
_PURPOSES: Final = {"FILL": encode_long(0), "REPLACE": encode_long(1), "VERIFY": encode_long(2)}


# Not frozen: that would cost 1 us for each marker, and a small transaction has two.
@dataclass(slots=True)
class Marker:
    """A marker that is owed to the marker topic. `manifest` is complete once every batch before the
    marker is acknowledged."""

    kind: str
    xid: int
    marker_lsn: int
    subxid: int = -1
    end_lsn: int | None = None
    time: int | None = None
    gid: str | None = None
    origin: str | None = None
    manifest: Manifest | None = None
    detail: str | None = None


FIRST_TIME, LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The beginning of year 1 and the end of year 9999, in microseconds since the Unix epoch: the
limits of consumers of timestamp-micros."""


def readable_time(time: int) -> int | None:
    """Return the commit time, or None if consumers cannot represent it:
    `pg_replication_origin_xact_setup` can set it to infinity."""
    return time if FIRST_TIME <= time <= LAST_TIME else None


def encode_markers(frame: bytes, markers: Iterable[Marker], epoch: int) -> Iterator[bytes]:
    """Encode markers. `frame` is the Confluent frame of the marker schema, and `epoch` the epoch of
    the session that writes the markers.

    The markers that begin and end a small transaction are adjacent and have the same xid, commit
    LSN and commit time, which are encoded once.
    """
    encoded_epoch = encode_long(epoch)
    xid = subxid = marker_lsn = 0
    time: int | None = None
    identity = encode_long(0) + encode_long(0) + encoded_epoch
    encoded_lsn, encoded_time = encode_lsn(0), _NULL
    for marker in markers:
        if marker.xid != xid or marker.subxid != subxid:
            xid, subxid = marker.xid, marker.subxid
            identity = encode_long(xid) + (_NO_SUBXID if subxid == -1 else encode_long(subxid)) + encoded_epoch
        if marker.marker_lsn != marker_lsn:
            marker_lsn = marker.marker_lsn
            encoded_lsn = encode_lsn(marker_lsn)
        if marker.time != time:
            time = marker.time
            readable = None if time is None else readable_time(time)
            encoded_time = _NULL if readable is None else encode_some_lsn(readable)
        parts = [
            frame,
            _KINDS[marker.kind],
            identity,
            encoded_lsn,
            _NULL if marker.end_lsn is None else encode_some_lsn(marker.end_lsn),
            encoded_time,
            _NULL if marker.gid is None else some_bytes(marker.gid.encode()),
            _NULL if marker.origin is None else some_bytes(marker.origin.encode()),
        ]
        manifest = marker.manifest
        if manifest is None:
            parts.append(_NULL)
        else:
            parts.append(_SOME)
            parts.append(encoded_epoch if manifest.epoch == epoch else encode_long(manifest.epoch))
            _append_manifest(parts, manifest)
        parts.append(_NULL if marker.detail is None else some_bytes(marker.detail.encode()))
        yield b"".join(parts)


def _append_manifest(parts: list[bytes], manifest: Manifest) -> None:
    """Append the manifest without its epoch."""
    parts.append(encode_long(manifest.event_count))
    parts.append(_integers(manifest.aborted_subxids))
    parts.append(_integers(manifest.schema_ids))
    if manifest.ranges:
        size_at = len(parts)
        parts.append(_NULL)
        size = 0
        for place, ranges in manifest.ranges.items():
            for first_offset, last_offset, record_count in ranges:
                first = encode_long(first_offset)
                last = first if last_offset == first_offset else encode_long(last_offset)
                parts.append(_PLACES[place] + first + last + (_ONE if record_count == 1 else encode_long(record_count)))
                size += 1
        parts[size_at] = encode_long(size)
    parts.append(_END_OF_ARRAY)
    if manifest.excluded or manifest.snapshot is not None:
        parts.append(_excluded(manifest.excluded))
        parts.append(_NULL if manifest.snapshot is None else _SOME + _snapshot(manifest.snapshot))
    else:
        parts.append(_NOT_SPECIAL)


def _excluded(relations: list[ExcludedRelation]) -> bytes:
    if not relations:
        return _END_OF_ARRAY
    parts = [encode_long(len(relations))]
    for each in relations:
        parts += (encode_long(each.relation_oid), _text(each.namespace), _text(each.name), _text(each.topic))
        parts += (encode_long(each.event_count), _text(each.reason))
    return b"".join(parts) + _END_OF_ARRAY


def _snapshot(chunk: SnapshotChunk) -> bytes:
    return b"".join(
        (
            _text(chunk.snapshot_id),
            encode_long(chunk.relation_oid),
            _text(chunk.namespace),
            _text(chunk.name),
            _text(chunk.topic),
            _PURPOSES[chunk.purpose],
            encode_long(chunk.chunk),
            encode_long(chunk.row_count),
            encode_long(chunk.stale_count),
        )
    )


class _Places(dict[tuple[str, int], bytes]):
    """A cache of the Avro encodings of (topic, partition). There are few such pairs, and each
    transaction names some of them."""

    def __missing__(self, place: tuple[str, int]) -> bytes:
        topic, partition = place
        encoded = self[place] = _text(topic) + encode_long(partition)
        return encoded


_PLACES: Final = _Places()


def _integers(values: list[int]) -> bytes:
    if not values:
        return _END_OF_ARRAY
    return encode_long(len(values)) + b"".join(map(encode_long, values)) + _END_OF_ARRAY


def _text(value: str) -> bytes:
    encoded = value.encode()
    return encode_long(len(encoded)) + encoded
