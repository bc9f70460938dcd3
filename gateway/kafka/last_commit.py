"""Read the LSN and the time of the newest commit from the marker topic. No gateway needs to be
running."""

from __future__ import annotations

import asyncio
import io
from typing import Any, Final

import fastavro
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from gateway.config.kafka import KafkaSettings
from gateway.kafka.classify_errors import READING, classify
from gateway.kafka.partition_reader import partition_reader
from gateway.kafka.producer import STOP_TIMEOUT_S
from gateway.kafka.shutdown import close_with_timeout
from schemas.markers import COMMITTING
from schemas.records import TRANSACTION_MARKER
from schemas.wire_format import FRAME_BYTES

_LOOKED_AT: Final = 500
"""The number of newest offsets to read, including those of control records."""
_POLL_MS: Final = 200
_SCHEMA: Final = fastavro.parse_schema(TRANSACTION_MARKER)


async def last_commit(settings: KafkaSettings, marker_topic: str, timeout_s: float) -> tuple[int, float] | None:
    """Return the LSN and the Unix time in seconds of the last commit, or None if the newest markers
    contain no commit. Raises WalgateError."""
    place = TopicPartition(marker_topic, 0)
    consumer = partition_reader(settings)
    found: tuple[int, float] | None = None
    try:
        async with asyncio.timeout(timeout_s):
            await consumer.start()
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            first = (await consumer.beginning_offsets([place]))[place]
            consumer.seek(place, max(first, end - _LOOKED_AT))
            while await consumer.position(place) < end:
                for record in (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, []):
                    found = _commit(record.value) or found
    except (KafkaError, OSError, TimeoutError) as error:
        raise classify(error, f"reading {marker_topic}", READING) from error
    finally:
        await close_with_timeout(consumer.stop(), STOP_TIMEOUT_S)
    return found


def _commit(value: bytes | None) -> tuple[int, float] | None:
    if value is None:
        return None
    try:
        marker: Any = fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), _SCHEMA, None)
    except (ValueError, IndexError, EOFError, KeyError, TypeError):
        return None  # a marker of a gateway with another schema: nothing but this display needs its commit
    if marker["kind"] not in COMMITTING or marker["time"] is None:
        return None
    return int(marker["marker_lsn"]), marker["time"].timestamp()
