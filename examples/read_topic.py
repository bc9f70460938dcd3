"""Prints change events with standard tools: confluent-kafka's consumer and its Avro deserializers,
without Walgate's code.

    python examples/read_topic.py [topic]    # default: cdc.public.orders

It uses Kafka and the registry of docker-compose.yml, unless KAFKA_BOOTSTRAP_SERVERS and
SCHEMA_REGISTRY_URL are set. It ends when it has read what exists.
"""

from __future__ import annotations

import os
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

SERVERS = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092")
REGISTRY = os.environ.get("SCHEMA_REGISTRY_URL", "http://localhost:8081/apis/ccompat/v7")


def main(topic: str) -> None:
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": REGISTRY}))
    consumer = Consumer(
        {
            "bootstrap.servers": SERVERS,
            "group.id": "read-topic",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found = consumer.list_topics(topic, timeout=10).topics[topic]
    if found.error is not None:
        raise SystemExit(f"{topic}: {found.error}")
    partitions = found.partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    waiting = set(partitions)
    while waiting:
        record = consumer.poll(10)
        if record is None:
            raise SystemExit(f"nothing comes from {SERVERS}")
        if (error := record.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise SystemExit(str(error))
            waiting.discard(record.partition())
            continue
        key = deserialize(record.key(), SerializationContext(topic, MessageField.KEY))
        change = deserialize(record.value(), SerializationContext(topic, MessageField.VALUE))
        if "op" not in change:  # a marker of cdc.transaction, or a logical decoding message
            print(record.partition(), record.offset(), change)
            continue
        # commit_lsn is null if the event was written while the transaction was open: the marker
        # topic shows whether it was committed.
        state = "committed" if change["commit_lsn"] else "in progress"
        print(record.partition(), record.offset(), change["op"], key, change["after"], f"xid {change['xid']} {state}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cdc.public.orders")
