from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from gateway.events.logical_message import encode_logical_message
from gateway.events.manifest import Manifest
from gateway.events.marker_encoder import Marker, encode_markers
from gateway.events.transaction_context import TransactionContext
from schemas.markers import ExcludedRelation, SnapshotChunk
from schemas.records import LOGICAL_MESSAGE, TRANSACTION_MARKER

FRAME = b"\0\0\0\0\7"
KINDS = TRANSACTION_MARKER["fields"][0]["type"]["symbols"]
longs = st.integers(0, 2**63 - 1)


def read(schema: dict[str, Any], value: bytes) -> Any:
    """By fastavro, to the last byte."""
    assert value[:5] == FRAME
    source = io.BytesIO(value[5:])
    record = fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)
    assert source.read() == b""
    return record


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    manifest = Manifest(
        draw(longs),
        draw(longs),
        draw(st.lists(longs, max_size=3)),
        draw(st.lists(st.integers(0, 2**31 - 1), max_size=3)),
    )
    for topic in draw(st.lists(st.text(min_size=1, max_size=9), max_size=3, unique=True)):
        manifest.ranges[topic, draw(st.integers(0, 300))] = [draw(st.tuples(longs, longs, longs)) for _ in range(2)]
    names = st.text(max_size=9)
    manifest.excluded = draw(
        st.lists(st.builds(ExcludedRelation, longs, names, names, names, names, longs), max_size=2)
    )
    purposes = st.sampled_from(("FILL", "REPLACE", "VERIFY"))
    chunks = st.builds(SnapshotChunk, names, purposes, longs, names, names, names, longs, longs, longs)
    manifest.snapshot = draw(st.none() | chunks)
    return manifest


markers = st.builds(
    Marker,
    st.sampled_from(KINDS),
    st.sampled_from((0, 7)) | longs,  # few, so that neighbours share them
    st.sampled_from((0, 2**40)) | longs,
    st.sampled_from((-1, 0)) | st.integers(-1, 2**32 - 1),
    st.none() | longs,
    st.none() | st.sampled_from((0, 1_700_000_000_123_456)),
    st.none() | st.text(max_size=20),
    st.none() | st.text(max_size=20),
    st.none() | manifests(),
    st.none() | st.text(max_size=20),
)


@given(st.lists(markers, min_size=1, max_size=4), longs)
def test_markers_are_read_back_by_fastavro(written: list[Marker], epoch: int) -> None:
    values = list(encode_markers(FRAME, written, epoch))
    assert len(values) == len(written)
    for marker, value in zip(written, values, strict=True):
        agrees(read(TRANSACTION_MARKER, value), marker, epoch)


def agrees(record: dict[str, Any], marker: Marker, epoch: int) -> None:
    for name in ("kind", "xid", "subxid", "marker_lsn", "end_lsn", "gid", "origin", "detail"):
        assert record[name] == getattr(marker, name)
    if marker.time is None:
        assert record["time"] is None
    else:
        assert record["time"] == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=marker.time)
    assert record["epoch"] == epoch
    if marker.manifest is None:
        assert record["manifest"] is None
        return
    chunk = marker.manifest.snapshot
    assert record["manifest"] == {
        "epoch": marker.manifest.epoch,
        "event_count": marker.manifest.event_count,
        "aborted_subxids": marker.manifest.aborted_subxids,
        "schema_ids": marker.manifest.schema_ids,
        "ranges": [
            {
                "topic": topic,
                "partition": partition,
                "first_offset": first_offset,
                "last_offset": last_offset,
                "record_count": record_count,
            }
            for (topic, partition), pieces in marker.manifest.ranges.items()
            for first_offset, last_offset, record_count in pieces
        ],
        "excluded": [
            {
                "relation_oid": each.relation_oid,
                "schema": each.namespace,
                "name": each.name,
                "topic": each.topic,
                "event_count": each.event_count,
                "reason": each.reason,
            }
            for each in marker.manifest.excluded
        ],
        "snapshot": chunk
        and {
            "snapshot_id": chunk.snapshot_id,
            "relation_oid": chunk.relation_oid,
            "schema": chunk.namespace,
            "name": chunk.name,
            "topic": chunk.topic,
            "purpose": chunk.purpose,
            "chunk": chunk.chunk,
            "row_count": chunk.row_count,
            "stale_count": chunk.stale_count,
        },
    }


def encode_one(marker: Marker) -> bytes:
    (value,) = encode_markers(FRAME, [marker], 1)
    return value


def test_a_time_that_no_reader_can_hold_is_left_out() -> None:
    for time in (2**63 - 1, -(2**63), 253_402_300_800_000_000):
        assert read(TRANSACTION_MARKER, encode_one(Marker("COMMIT", 1, 2, time=time)))["time"] is None


def test_the_time_of_a_marker_is_microseconds_of_the_unix_epoch() -> None:
    marker = Marker("COMMIT", 1, 2, time=1_700_000_000_123_456)
    assert read(TRANSACTION_MARKER, encode_one(marker))["time"].isoformat() == "2023-11-14T22:13:20.123456+00:00"


@given(st.booleans(), longs, st.text(max_size=30), st.binary(max_size=300))
def test_a_logical_message_is_read_back_by_fastavro(transactional: bool, lsn: int, prefix: str, content: bytes) -> None:
    value = encode_logical_message(
        FRAME, TransactionContext(5, -1, 3, None, None, None), lsn, 9, transactional, lsn, prefix, content
    )
    assert read(LOGICAL_MESSAGE, value) == {
        "op": "MESSAGE",
        "xid": 5,
        "subxid": -1,
        "epoch": 3,
        "change_lsn": lsn,
        "ordinal": 9,
        "commit_lsn": None,
        "commit_time": None,
        "origin": None,
        "transactional": transactional,
        "message_lsn": lsn,
        "prefix": prefix,
        "content": content,
    }
