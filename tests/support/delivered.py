"""What is in Kafka, read with stock clients only: confluent-kafka, the Confluent registry client
and fastavro.

Nothing of the gateway or of `schemas` is used here: a defect that both sides share would not be
seen.
"""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.support import stock_registry

Isolation = Literal["read_committed", "read_uncommitted"]
POSITION_TOPIC = "walgate.position"
READ_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Record:
    """`value` as fastavro decodes it: dicts, aware datetimes. `key` are the raw bytes, frame
    included."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    schema_id: int
    value: dict[str, Any]


@dataclass(slots=True)
class Delivered:
    """`events` are change events and logical messages, by topic, partition and offset; the rest is
    in offset order."""

    markers: list[Record] = field(default_factory=list)
    events: list[Record] = field(default_factory=list)
    positions: list[Record] = field(default_factory=list)
    partition_counts: dict[str, int] = field(default_factory=dict)


class Decoder:
    """Confluent framing and Avro. Raises ValueError where bytes are left over or the frame is
    none."""

    def __init__(self, registry_url: str) -> None:
        self._registry = SchemaRegistryClient(stock_registry.settings(registry_url))
        self._schemas: dict[int, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._registry.__exit__()  # type: ignore[no-untyped-call]

    def schema(self, schema_id: int) -> Any:
        """As fastavro parses it, with its attributes."""
        if schema_id not in self._schemas:
            text = self._registry.get_schema(schema_id).schema_str
            assert text is not None
            self._schemas[schema_id] = fastavro.parse_schema(json.loads(text))
        return self._schemas[schema_id]

    def decode(self, framed: bytes) -> tuple[int, dict[str, Any]]:
        magic, schema_id = struct.unpack_from("!BI", framed)
        if magic != 0:
            raise ValueError(f"magic byte {magic}")
        source = io.BytesIO(framed)
        source.seek(5)
        value: Any = fastavro.schemaless_reader(source, self.schema(schema_id), None)
        if source.read(1):
            raise ValueError(f"bytes left over after a record of schema {schema_id}")
        return schema_id, value


def partition_counts(bootstrap_servers: str, prefix: str) -> dict[str, int]:
    """Of every topic below the prefix, and of the position topic where it exists."""
    consumer = _consumer(bootstrap_servers, "read_committed")
    try:
        topics = consumer.list_topics(timeout=30).topics
    finally:
        consumer.close()
    return {
        name: len(facts.partitions)
        for name, facts in topics.items()
        if name.startswith(f"{prefix}.") or name == POSITION_TOPIC
    }


def read_delivered(
    bootstrap_servers: str,
    registry_url: str,
    prefix: str,
    isolation: Isolation = "read_committed",
    namespace: str | None = None,
    known: Delivered | None = None,
) -> Delivered:
    """Everything below the prefix from the first offset to the end as it is now, and the positions
    of this prefix.

        With `namespace`: of the change topics only those of this schema. What is in `known` is not
        decoded again, and its topics are all.
    """
    counts = known.partition_counts if known else partition_counts(bootstrap_servers, prefix)
    if namespace is not None:
        counts = {t: n for t, n in counts.items() if t.count(".") == 1 or t.startswith(f"{prefix}.{namespace}.")}
    delivered = Delivered(partition_counts=counts)
    decoded = {(record.topic, record.partition, record.offset): record for record in known.events} if known else {}
    with Decoder(registry_url) as decoder:
        for topic, partition, offset, key, payload in read_raw(
            bootstrap_servers, delivered.partition_counts.items(), isolation
        ):
            if topic == POSITION_TOPIC and prefix.encode() not in payload:
                continue  # thousands, of the gateways of other tests
            record = decoded.get((topic, partition, offset))
            if record is None:
                record = Record(topic, partition, offset, key, *decoder.decode(payload))
            if topic == POSITION_TOPIC:
                if record.value["prefix"] == prefix:
                    delivered.positions.append(record)
            elif topic == f"{prefix}.transaction":
                delivered.markers.append(record)
            else:
                delivered.events.append(record)
    delivered.events.sort(key=lambda record: (record.topic, record.partition, record.offset))
    return delivered


def read_raw(
    bootstrap_servers: str, topics: Iterable[tuple[str, int]], isolation: Isolation
) -> Iterable[tuple[str, int, int, bytes | None, bytes]]:
    """(topic, partition, offset, key, value) until the end of each partition. Raises TimeoutError
    when nothing comes."""
    consumer = _consumer(bootstrap_servers, isolation)
    open_partitions = {(topic, partition) for topic, count in topics for partition in range(count)}
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        if open_partitions:
            consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in sorted(open_partitions)])
        while open_partitions:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no end of {sorted(open_partitions)[:5]}")
            messages = consumer.consume(10_000, timeout=0.05)  # waits as long when there are fewer
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            for message in messages:
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                assert topic is not None and partition is not None
                place = (topic, partition)
                error = message.error()
                if error is None:
                    value = message.value()
                    if value is not None and offset is not None:
                        yield topic, partition, offset, message.key(), value
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(place)
                elif error.fatal() or not error.retriable():
                    raise RuntimeError(f"reading {place}: {error}")
    finally:
        consumer.close()


def _consumer(bootstrap_servers: str, isolation: Isolation) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,  # an end of a partition is told when a fetch has waited
            "check.crcs": True,
        }
    )
