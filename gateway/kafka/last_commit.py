"""Read the newest commit from the marker topic. No gateway needs to be running."""

from __future__ import annotations

import io
from typing import Any, Final

import fastavro
from aiokafka.structs import TopicPartition

from gateway.config.kafka import KafkaSettings
from gateway.kafka.aiokafka_internals.admin import Consumer
from gateway.kafka.partition_reader import open_reader, true_ends
from schemas.lsn import Lsn
from schemas.markers import COMMITTING
from schemas.records import TRANSACTION_MARKER
from schemas.wire_format import FRAME_BYTES

_LOOKED_AT: Final = 500
"""The number of newest offsets to read first, including those of control records."""
_POLL_MS: Final = 200
_SCHEMA: Final = fastavro.parse_schema(TRANSACTION_MARKER)

Marker = dict[str, Any]


async def last_commit(settings: KafkaSettings, marker_topic: str, timeout_s: float) -> tuple[int, float] | None:
    """Return the LSN and the Unix time in seconds of the last commit, or None if the newest markers
    contain no commit. Raises WalgateError."""
    place = TopicPartition(marker_topic, 0)
    async with open_reader(settings, marker_topic, timeout_s) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        first = (await consumer.beginning_offsets([place]))[place]
        markers = await _markers(consumer, place, max(first, end - _LOOKED_AT), end)
    timed = [marker for marker in markers if marker is not None and marker["kind"] in COMMITTING and marker["time"]]
    return (int(timed[-1]["marker_lsn"]), timed[-1]["time"].timestamp()) if timed else None


async def newest_commit_lsn(settings: KafkaSettings, marker_topic: str, timeout_s: float) -> Lsn | None:
    """Return the LSN of the newest commit; 0 if the marker topic has never contained one. Raises
    WalgateError.

    Return None if the LSN is not known: retention has removed all commits, an open Kafka
    transaction hides the newest markers, or a newer version of the gateway has written them.
    """
    place = TopicPartition(marker_topic, 0)
    async with open_reader(settings, marker_topic, timeout_s) as consumer:
        consumer.assign([place])
        until = (await true_ends(settings, [place]))[place]
        if (await consumer.end_offsets([place]))[place] < until:
            return None
        first = (await consumer.beginning_offsets([place]))[place]
        count = _LOOKED_AT
        while until > first:
            since = max(first, until - count)
            markers = await _markers(consumer, place, since, until)
            if None in markers:
                return None
            # Not simply the last: with at_least_once, a former gateway may write markers late.
            commits = [int(marker["marker_lsn"]) for marker in markers if marker and marker["kind"] in COMMITTING]
            if commits:
                return Lsn(max(commits))
            until, count = since, 2 * count
    return Lsn(0) if first == 0 else None


async def _markers(consumer: Consumer, place: TopicPartition, since: int, until: int) -> list[Marker | None]:
    """Return the committed markers between two offsets, with None for each one that cannot be
    decoded."""
    markers: list[Marker | None] = []
    consumer.seek(place, since)
    while await consumer.position(place) < until:
        records = (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, [])
        markers += [_decoded(record.value) for record in records if record.offset < until]
    return markers


def _decoded(value: bytes | None) -> Marker | None:
    try:
        marker: Any = fastavro.schemaless_reader(io.BytesIO((value or b"")[FRAME_BYTES:]), _SCHEMA, None)
    except (ValueError, IndexError, EOFError, KeyError, TypeError, OverflowError):
        return None  # a marker of a gateway with another schema, or a record of another program
    return dict(marker) if marker["marker_lsn"] >= 0 else None
