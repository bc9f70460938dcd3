"""Destinations of records in Debezium's dialect."""

from __future__ import annotations

from typing import Protocol

from gateway.errors import StopForOperator


class KeyedSink(Protocol):
    """The destination of one topic's records, which are partitioned as by Kafka's own clients."""

    def append_hashed(self, key: bytes | None, value: bytes | None) -> None: ...

    def offer_hashed(self, key: bytes, value: bytes) -> bool:
        """Append the record; return False if it is larger than the topic accepts."""
        ...

    def too_large(self, what: str, size: int) -> StopForOperator: ...
