"""What a gateway left in Kafka, as a stranger reads it: confluent-kafka's Consumer, the registry's
schemas and fastavro.

Every event is decoded with its writer's schema; `read_as` decodes it again with another version of
its subject as the reader's schema, by fastavro's own schema resolution.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from fastavro.types import Schema

from schemas.topic_names import topic_name, transaction_topic, value_subject
from schemas.wire_format import read_schema_id
from tests.support import stock_registry

READ_TIMEOUT_S = 60.0
_FRAME_BYTES = 5


@dataclass(frozen=True)
class Record:
    """One record: `event` (and `key`, None where there is none) decoded with the schemas that wrote
    them."""

    topic: str
    partition: int
    schema_id: int
    key: dict[str, Any] | None
    event: dict[str, Any]
    payload: bytes


class Delivered:
    """All records under a prefix, read to the end of every partition when `is_complete(self)`
    holds."""

    def __init__(
        self, bootstrap_servers: str, registry_url: str, prefix: str, is_complete: Callable[[Delivered], bool]
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._registry = SchemaRegistryClient(stock_registry.settings(registry_url))
        self._prefix = prefix
        self._parsed: dict[int, Schema] = {}
        self._places: dict[tuple[str, int], int] = {}
        self.records: list[Record] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        try:
            self._read()
            while not is_complete(self):
                assert time.monotonic() < deadline, f"{len(self.records)} records, and the condition does not hold"
                time.sleep(0.1)  # a reading costs the gateway's CPU time
                self._read()
            self._read()  # partitions are read in turn: what an early one got meanwhile is not in yet
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._registry.__exit__()  # type: ignore[no-untyped-call]

    # -- of a table
    # -------------------------------------------------------------------------------------------------

    def topic(self, table: str) -> str:
        namespace, _, name = table.rpartition(".")
        return topic_name(self._prefix, namespace or "public", name)

    def sent(self, table: str) -> list[Record]:
        """Everything in the table's topic, committed or not."""
        topic = self.topic(table)
        return [record for record in self.records if record.topic == topic]

    def committed(self, table: str) -> list[Record]:
        """Events of committed transactions only, in order of commit and ordinal, as the markers
        tell."""
        transactions: dict[tuple[int, int], tuple[int, set[int]]] = {}
        for marker in self.markers:
            if marker["kind"] in ("COMMIT", "STREAM_COMMIT", "COMMIT_PREPARED"):
                manifest = marker["manifest"]
                place = (marker["marker_lsn"], set(manifest["aborted_subxids"]))
                transactions[marker["xid"], manifest["epoch"]] = place
        found: list[tuple[int, int, Record]] = []
        for record in self.sent(table):
            commit_lsn, aborted = transactions.get((record.event["xid"], record.event["epoch"]), (None, set()))
            if commit_lsn is not None and record.event["subxid"] not in aborted:
                found.append((commit_lsn, record.event["ordinal"], record))
        return [record for _, _, record in sorted(found, key=lambda each: each[:2])]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """`after` of the committed events that have one."""
        return [each.event["after"] for each in self.committed(table) if each.event["after"] is not None]

    @property
    def markers(self) -> list[dict[str, Any]]:
        topic = transaction_topic(self._prefix)
        return [record.event for record in self.records if record.topic == topic]

    # -- schemas
    # ----------------------------------------------------------------------------------------------------

    def versions(self, table: str) -> dict[int, dict[str, Any]]:
        """The value schemas of a table by id, as the registry has them, oldest first."""
        subject = value_subject(self.topic(table))
        found = [self._registry.get_version(subject, number) for number in self._registry.get_versions(subject)]
        return {each.schema_id or 0: json.loads(each.schema.schema_str or "") for each in found}

    def schema(self, schema_id: int) -> Schema:
        if schema_id not in self._parsed:
            text = self._registry.get_schema(schema_id).schema_str
            self._parsed[schema_id] = fastavro.parse_schema(json.loads(text or ""))
        return self._parsed[schema_id]

    def read_as(self, record: Record, reader: dict[str, Any]) -> dict[str, Any]:
        """The event again, with `reader` as the reader's schema. Raises SchemaResolutionError where
        it cannot be."""
        return self._decode(record.payload, fastavro.parse_schema(reader))

    def _decode(self, payload: bytes, reader: Schema | None = None) -> dict[str, Any]:
        source = io.BytesIO(payload[_FRAME_BYTES:])
        event: Any = fastavro.schemaless_reader(source, self.schema(read_schema_id(payload)), reader)
        assert source.read(1) == b""
        return dict(event)

    # -- reading
    # ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "tests",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # an end of a partition is told when a fetch has waited
            }
        )
        try:
            known = consumer.list_topics(timeout=30).topics
            places = [
                TopicPartition(topic, partition, self._places.get((topic, partition), OFFSET_BEGINNING))
                for topic, metadata in known.items()
                if topic.startswith(f"{self._prefix}.")
                for partition in metadata.partitions
            ]
            if places:
                consumer.assign(places)
                self._read_to_ends(consumer, len(places))
        finally:
            consumer.close()

    def _read_to_ends(self, consumer: Consumer, count: int) -> None:
        ends: set[tuple[str, int]] = set()
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(ends) < count:
            messages = consumer.consume(1000, 0.1)  # waits as long when there are fewer
            assert messages or time.monotonic() < deadline, f"only {len(ends)} of {count} partitions have an end"
            for message in messages:
                place = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ends.add(place)
                    continue
                key, value = message.key(), message.value()
                assert isinstance(value, bytes) and not isinstance(key, str)
                self._places[place] = (message.offset() or 0) + 1
                decoded = None if key is None else self._decode(key)
                self.records.append(Record(*place, read_schema_id(value), decoded, self._decode(value), value))
