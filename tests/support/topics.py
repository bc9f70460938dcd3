"""What stock clients read from Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.support import stock_registry

READ_TIMEOUT_S = 120.0
PAUSE_S = 0.05


@dataclass
class Topics:
    """Reads whole topics with confluent-kafka and its AvroDeserializer: what a stranger would
    use."""

    bootstrap_servers: str
    registry_url: str

    def read(
        self,
        topic: str,
        isolation: str = "read_committed",
        until: Callable[[list[Any]], bool] | None = bool,
        key_part: bytes = b"",
    ) -> list[tuple[Any, Any]]:
        """(key, value) of all records, partition by partition, again and again until
        `until(values)` holds; with None, of those that are there now. Only records whose key
        contains `key_part`: those of others may be unreadable."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,  # an end of a partition is told when a fetch has waited
            }
        )
        registry = SchemaRegistryClient(stock_registry.settings(self.registry_url))
        decode = AvroDeserializer(registry)
        deadline = time.monotonic() + READ_TIMEOUT_S
        try:
            while until is not None and not until([value for _, value in _read(consumer, decode, topic, key_part)]):
                assert time.monotonic() < deadline, f"{topic}: the condition does not hold"
                time.sleep(PAUSE_S)
            return _read(
                consumer, decode, topic, key_part
            )  # partitions are read in turn: the first may have missed something
        finally:
            consumer.close()
            registry.__exit__()  # type: ignore[no-untyped-call]


def _read(consumer: Consumer, decode: Callable[..., Any], topic: str, key_part: bytes = b"") -> list[tuple[Any, Any]]:
    """All records that are in the topic now."""
    found: list[tuple[Any, Any]] = []
    known = consumer.list_topics(topic, timeout=30).topics[topic]
    if known.error is not None:
        return []
    for partition in sorted(known.partitions):
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"{topic}[{partition}]: no end of partition"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            context = SerializationContext(topic, MessageField.VALUE)
            key = message.key()
            if key_part not in (key or b""):
                continue
            if key is not None and key[:1] == b"\0":  # of positions it is text
                key = decode(key, context)
            if message.value() is not None:
                found.append((key, decode(message.value(), context)))
    return found
