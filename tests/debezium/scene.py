"""Topics of the workload, and what stock tools read from them."""

from __future__ import annotations

import asyncio
import io
import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

import asyncpg
import fastavro
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from gateway.local.guard import Child
from tests.debezium import workload
from tests.debezium.encoded import Record, without_times

PUBLICATION = "everything"
WITH_BINARY = "with_binary"
"""Of the tables whose types all have a binary form."""
DELIVERY_TIMEOUT_S = 400.0


async def prepare(sql: asyncpg.Connection) -> None:
    """The tables and the publication of all of them."""
    await sql.execute(workload.TABLES)
    await sql.execute(f"create publication {PUBLICATION} for all tables")


async def run_workload(sql: asyncpg.Connection, slot: str) -> None:
    """All of it, behind a new slot."""
    await prepare(sql)
    tables = await sql.fetch(
        "select quote_ident(relname) from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' "
        "and relname <> 'moneys'"
    )
    await sql.execute(f"create publication {WITH_BINARY} for table {', '.join(row[0] for row in tables)}")
    await sql.execute("select pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    for statement in workload.STATEMENTS:
        await sql.execute(statement)


async def topics(sql: asyncpg.Connection, prefix: str) -> list[str]:
    """Of every table, of transactions and of messages, as Debezium names them."""
    rows = await sql.fetch(
        "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')"
    )
    names = [re.sub(r"[^A-Za-z0-9._-]", "_", row[0].replace("😀", "__")) for row in rows]
    return [*(f"{prefix}.public.{name}" for name in names), f"{prefix}.transaction", f"{prefix}.message"]


async def end_load(load: asyncio.Task[None], sql: asyncpg.Connection) -> None:
    """Cancel a load, and wait until what it was doing has ended on the server, perhaps a COMMIT."""
    load.cancel()
    with suppress(asyncio.CancelledError):
        await load
    await sql.execute("select")


def make_topics(bootstrap_servers: str, names: Iterable[str], partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for done in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        done.result()


class Reader:
    """Everything in the topics, decoded with the registry's schemas."""

    def __init__(self, bootstrap_servers: str, registry_url: str, names: Iterable[str], partitions: int = 1) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        self._registry_url = registry_url
        self._schemas: dict[int, tuple[Any, Any]] = {}
        self._all_places = [TopicPartition(name, partition, 0) for name in names for partition in range(partitions)]
        self._places: list[TopicPartition] = []
        self.records: list[Record] = []
        self._is_at_end = False

    async def until(self, is_last: Callable[[Record], bool], writer: Child | None = None) -> list[Record]:
        """Reads until that record is there, and every topic to the end that it has then. Fails when
        `writer` has ended."""
        return await asyncio.to_thread(self._until, is_last, writer)

    async def reaches(self, is_last: Callable[[Record], bool]) -> None:
        """Reads until that record is there. Under load there may be no end for long."""
        await asyncio.to_thread(self._reach, is_last, None)
        self._consumer.close()

    def _until(self, is_last: Callable[[Record], bool], writer: Child | None) -> list[Record]:
        self._reach(is_last, writer)
        self.records = []
        for place in self._places:
            self._read(place)
        self._consumer.close()
        return self.records

    def _reach(self, is_last: Callable[[Record], bool], writer: Child | None) -> None:
        deadline = time.monotonic() + DELIVERY_TIMEOUT_S
        self._assign()
        while True:
            if self._take(1.0):
                if is_last(self.records[-1]):
                    return
            elif len(self._places) < len(self._all_places):
                self._assign()
            if writer is not None and writer.exit_code is not None:
                raise writer.failure("has ended")
            assert time.monotonic() < deadline, f"only {len(self.records)} records"

    def _assign(self) -> None:
        """Read the topics that exist from their start, unless these are being read. The metadata of
        a broker may show a new topic late."""
        there = self._consumer.list_topics(timeout=30).topics
        places = [place for place in self._all_places if place.topic in there]
        if len(places) > len(self._places):
            self.records, self._places = [], places
            self._consumer.assign(places)

    def _read(self, place: TopicPartition) -> None:
        """From its start to its end. The consumer's position would be that of the reading before,
        for a moment."""
        self._consumer.assign([place])
        self._is_at_end = False
        while not self._is_at_end:
            self._take(0.2)

    def _take(self, timeout_s: float) -> bool:
        """Whether one more is there."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            return False
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            self._is_at_end = True
            return False
        key_schema, key = self._decode(message.key())
        value_schema, value = self._decode(message.value())
        self.records.append(Record(str(message.topic()), key, value, key_schema, value_schema))
        return True

    def _decode(self, payload: bytes | None) -> tuple[Any, Any]:
        if payload is None:
            return None, None
        if payload.startswith(b"{"):
            found = json.loads(payload)
            return found["schema"], found["payload"]
        schema_id = int.from_bytes(payload[1:5], "big")
        if schema_id not in self._schemas:
            with urlopen(f"{self._registry_url}/schemas/ids/{schema_id}", timeout=30) as answer:
                schema = json.loads(json.load(answer)["schema"])
            self._schemas[schema_id] = schema, fastavro.parse_schema(without_times(schema))
        schema, parsed = self._schemas[schema_id]
        return schema, fastavro.schemaless_reader(io.BytesIO(payload[5:]), parsed, None)


def is_the_end(record: Record) -> bool:
    """The last statement's row."""
    value = record.value
    return value is not None and (value.get("after") or {}).get("note") == "the end"
