"""Counts of what a subscriber sees: the marker topic is followed while the shop is open.

It is read as any program would read it: committed records only, each marker decoded with its
schema.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import fastavro
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from gateway.errors import StopForOperator
from schemas.lsn import Lsn
from schemas.markers import COMMITTING
from schemas.records import TRANSACTION_MARKER
from schemas.wire_format import FRAME_BYTES

_SCHEMA = fastavro.parse_schema(TRANSACTION_MARKER)
_RATE_WINDOW_S = 5.0


@dataclass(slots=True)
class Delivered:
    """Counts of the marker topic: committed transactions and their events, each once; chunks of the
    snapshot are counted separately."""

    chunks: int = 0
    rows_read: int = 0
    is_all_read: bool = False
    transactions: int = 0
    events: int = 0
    streamed: int = 0
    prepared: int = 0
    epoch: int = 0
    last_commit_lsn: Lsn = field(default_factory=lambda: Lsn(0))
    lag_s: float = 0.0  # from commit in PostgreSQL to the marker here, for the newest transaction
    worst_lag_s: float = 0.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def events_per_s(self) -> float:
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - _RATE_WINDOW_S:
            self._recent.popleft()
        return sum(events for _, events in self._recent) / _RATE_WINDOW_S

    def add(self, marker: dict[str, Any]) -> None:
        """Count a marker. Raises StopForOperator if its commit LSN is not greater than the last:
        the topic is in commit order."""
        self.epoch = max(self.epoch, marker["epoch"])
        if marker["kind"] == "SNAPSHOT_END" and marker["manifest"]["snapshot"]["relation_oid"] == 0:
            self.is_all_read = True
        if marker["kind"] not in COMMITTING:
            return
        commit_lsn = Lsn(marker["marker_lsn"])
        if commit_lsn <= self.last_commit_lsn:
            raise StopForOperator(f"marker topic: commit {commit_lsn} after {self.last_commit_lsn}")
        self.last_commit_lsn = commit_lsn
        self._count(marker)
        self.lag_s = max(0.0, time.time() - marker["time"].timestamp())
        self.worst_lag_s = max(self.worst_lag_s, self.lag_s)

    def _count(self, marker: dict[str, Any]) -> None:
        events = marker["manifest"]["event_count"]
        self.events += events
        self._recent.append((time.monotonic(), events))
        if marker["manifest"]["snapshot"] is not None:
            self.chunks += 1
            self.rows_read += events
            return
        self.transactions += 1
        self.streamed += marker["kind"] == "STREAM_COMMIT"
        self.prepared += marker["kind"] == "COMMIT_PREPARED"


async def follow(bootstrap_servers: str, topic: str, delivered: Delivered) -> None:
    """Read the topic, which must exist, from its beginning until cancelled."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        client_id="walgate-demo",
    )
    try:
        await consumer.start()
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        async for record in consumer:
            marker: Any = fastavro.schemaless_reader(io.BytesIO(record.value[FRAME_BYTES:]), _SCHEMA, None)
            delivered.add(marker)
    finally:
        await asyncio.shield(consumer.stop())
