"""When records were appended, by the broker's clock: topics with LogAppendTime."""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, TopicPartition

_BEHIND_LAST = 8
"""A partition's last offsets may be Kafka's own transaction markers: look so far back for a record."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """Seconds since 1970; `value_bytes` is the size of the last record of a table."""

    first_s: float
    last_s: float


class AppendTimes:
    """Reads the first and the last record of each partition of the topics below a prefix."""

    def __init__(self, bootstrap_servers: str, prefix: str) -> None:
        self._prefix = prefix
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )

    def of_all(self) -> Stamps:
        """From the first record of any table to the last record of any topic."""
        first: list[int] = []
        last: list[int] = []
        try:
            topics = self._consumer.list_topics(timeout=30).topics
            for name in (name for name in topics if name.startswith(f"{self._prefix}.")):
                for partition in topics[name].partitions:
                    low, high = self._consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=30)
                    if high == low:
                        continue
                    if name not in (f"{self._prefix}.transaction", f"{self._prefix}.message"):
                        first += self._stamps(name, partition, low, 1)
                    last += self._stamps(name, partition, max(low, high - _BEHIND_LAST), _BEHIND_LAST)
        finally:
            self._consumer.close()
        return Stamps(min(first) / 1000, max(last) / 1000)

    def _stamps(self, topic: str, partition: int, offset: int, count: int) -> list[int]:
        """Milliseconds of up to `count` records from `offset` on."""
        self._consumer.assign([TopicPartition(topic, partition, offset)])
        stamps: list[int] = []
        while len(stamps) < count:
            message = self._consumer.poll(30)
            if message is None:
                raise RuntimeError(f"{topic}[{partition}]: no answer")
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                break
            if error is not None:
                raise RuntimeError(f"{topic}[{partition}]: {error}")
            stamps.append(message.timestamp()[1])
        return stamps
