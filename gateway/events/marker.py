"""Markers in Avro, by hand: a small transaction costs two of them, and fastavro would take five times as long.

The layout is schemas/records/TransactionMarker.avsc; a test compares the bytes with fastavro's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.events.manifest import Manifest
from gateway.events.varint import encode_long, encode_lsn
from schemas.records import TRANSACTION_MARKER

_NULL = b"\0"
_SOME = b"\2"
_END_OF_ARRAY = b"\0"
_KINDS: dict[str, bytes] = {
    symbol: encode_long(index) for index, symbol in enumerate(TRANSACTION_MARKER["fields"][0]["type"]["symbols"])
}


@dataclass(slots=True)  # not frozen: that costs 1 us a marker, and a small transaction has two
class Marker:
    """A marker that is owed to the marker topic; `manifest` is complete once every batch before it is acknowledged."""

    kind: str
    xid: int
    marker_lsn: int
    subxid: int = -1
    end_lsn: int | None = None
    time: int | None = None
    gid: str | None = None
    origin: str | None = None
    manifest: Manifest | None = None


FIRST_TIME, LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds of the Unix epoch: 0001-01-01 and the end of 9999, what readers of timestamp-micros can hold."""


def readable_time(time: int) -> int | None:
    """None for a commit time that no reader can hold: `pg_replication_origin_xact_setup` may set it to infinity."""
    return time if FIRST_TIME <= time <= LAST_TIME else None


def encode_marker(frame: bytes, marker: Marker, epoch: int) -> bytes:
    """`frame` is the Confluent frame of the marker schema; `epoch` the incarnation that writes."""
    time = None if marker.time is None else readable_time(marker.time)
    parts = [
        frame,
        _KINDS[marker.kind],
        encode_long(marker.xid),
        encode_long(marker.subxid),
        encode_long(epoch),
        encode_lsn(marker.marker_lsn),
        _NULL if marker.end_lsn is None else _SOME + encode_lsn(marker.end_lsn),
        _NULL if time is None else _SOME + encode_long(time),
        _optional_text(marker.gid),
        _optional_text(marker.origin),
    ]
    if marker.manifest is None:
        parts.append(_NULL)
    else:
        parts.append(_SOME)
        _append_manifest(parts, marker.manifest)
    return b"".join(parts)


def _append_manifest(parts: list[bytes], manifest: Manifest) -> None:
    parts.append(encode_long(manifest.epoch))
    parts.append(encode_long(manifest.event_count))
    parts.append(_integers(manifest.aborted_subxids))
    parts.append(_integers(manifest.schema_ids))
    if manifest.ranges:
        parts.append(encode_long(sum(map(len, manifest.ranges.values()))))
        for place, ranges in manifest.ranges.items():
            encoded = _PLACES[place]
            for piece in ranges:
                first = encode_long(piece.first_offset)
                parts.append(encoded)
                parts.append(first)
                parts.append(first if piece.last_offset == piece.first_offset else encode_long(piece.last_offset))
                parts.append(encode_long(piece.record_count))
    parts.append(_END_OF_ARRAY)


class _Places(dict[tuple[str, int], bytes]):
    """(topic, partition) in Avro, remembered: there are few, and each transaction names some."""

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


def _optional_text(value: str | None) -> bytes:
    return _NULL if value is None else _SOME + _text(value)
