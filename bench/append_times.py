"""Times at which records were appended, by the broker's clock (topics with LogAppendTime)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

from confluent_kafka import Consumer, KafkaError, TopicPartition

_BEHIND_LAST = 8
"""How many offsets to look back for a record: the last ones of a partition may be Kafka's own
transaction markers."""


class AppendTimes:
    """Append times of records, in seconds since 1970: `with AppendTimes(bootstrap_servers) as
    times:`."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def topics(self, beginning: str) -> list[str]:
        return [name for name in self._consumer.list_topics(timeout=30).topics if name.startswith(beginning)]

    def first(self, *topics: str) -> float:
        """Return the time of the first record in any of the topics."""
        return min(
            stamp
            for place, low, _ in self._filled(topics)
            for stamp in self._stamps(place.topic, place.partition, low, 1)
        )

    def last(self, *topics: str) -> float:
        """Return the time of the last record in any of the topics."""
        return max(
            stamp
            for place, low, high in self._filled(topics)
            for stamp in self._stamps(place.topic, place.partition, max(low, high - _BEHIND_LAST), _BEHIND_LAST)
        )

    def every(self, topic: str) -> list[float]:
        """Return the times of all records, sorted."""
        return sorted(
            stamp
            for place, low, high in self._filled([topic])
            for stamp in self._stamps(place.topic, place.partition, low, high - low)
        )

    def _filled(self, topics: Iterable[str]) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield the partitions that are not empty, with their first and their next offset."""
        known = self._consumer.list_topics(timeout=30).topics
        for topic in topics:
            for partition in known[topic].partitions:
                place = TopicPartition(topic, partition)
                low, high = self._consumer.get_watermark_offsets(place, timeout=30)
                if high > low:
                    yield place, low, high

    def _stamps(self, topic: str, partition: int, offset: int, count: int) -> list[float]:
        """Return the times of up to `count` records from `offset` on."""
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        stamps: list[float] = []
        while len(stamps) < count:
            message = self._consumer.poll(30)
            if message is None:
                raise RuntimeError(f"{topic}[{partition}]: no answer")
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            if error is not None:
                raise RuntimeError(f"{topic}[{partition}]: {error}")
            stamps.append(message.timestamp()[1] / 1000)
        return stamps
