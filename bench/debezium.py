"""Debezium Server on the same backlog, broker and registry as the gateway, tuned as well as is
known.

Its Avro is written by Confluent's converter, which the distribution contains only among the jars of
its Cassandra connector; the necessary ones are taken from there. (Apicurio's converter, in its own
class path, prints the whole schema for every record.) The rate is measured from the first record to
the last one by the broker's timestamps: it does not include the start of Java, some 5 s, but does
include the warm-up of its compiler.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen
from uuid import uuid4

import asyncpg
import fastavro
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import Consumer, TopicPartition

from bench.append_times import AppendTimes
from bench.cost import busy_s, cpu_s, peak_rss_mb
from bench.run import Run
from bench.scene import Backlogged
from bench.workloads import PUBLICATION
from gateway.local import LocalParts
from gateway.local.artifacts import locked_version, unpacked
from gateway.local.guard import Child, Guard
from gateway.local.java import java
from gateway.local.ports import HOST, free_port

ARTIFACTS = "debezium"
"""The artifact set in gateway/local/artifacts.lock."""

HEAP = "2g"
PARTITIONS = 3  # the same as the gateway's
STREAMING_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
DRAIN_TIMEOUT_S = 900.0
POLL_S = 0.1

_CONVERTER = (
    "avro",
    "common-utils",
    "commons-compress",
    "kafka-avro-serializer",
    "kafka-connect-avro-converter",
    "kafka-connect-avro-data",
    "kafka-schema-registry-client",
    "kafka-schema-serializer",
    "guava",
)
_BYTES = "org.apache.kafka.common.serialization.ByteArraySerializer"
_TUNING = {
    "debezium.source.max.batch.size": "16384",
    "debezium.source.max.queue.size": "65536",
    "debezium.source.poll.interval.ms": "10",
    "debezium.source.offset.flush.interval.ms": "5000",
    "debezium.sink.kafka.producer.linger.ms": "5",
    "debezium.sink.kafka.producer.batch.size": "524288",
    "debezium.sink.kafka.producer.buffer.memory": "134217728",
    "debezium.sink.kafka.producer.compression.type": "lz4",
    "debezium.sink.kafka.producer.acks": "all",
    # It logs bursts of warnings, thousands of lines per run.
    'quarkus.log.category."io.debezium.metrics.stats".level': "ERROR",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A running Debezium Server, created by `running`."""

    child: Child
    slot: str
    topics: tuple[str, ...]
    prefix: str

    @property
    def pid(self) -> int:
        return self.child.pid


def properties(
    parts: LocalParts, database: str, slot: str, prefix: str, folder: Path, tuning: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of application.properties."""
    registry = {
        f"debezium.format.{side}{name}": value
        for side in ("key", "value")
        for name, value in (("", "avro"), (".schema.registry.url", parts.registry.url))
    }
    return {
        "debezium.sink.type": "kafka",
        "debezium.sink.kafka.producer.bootstrap.servers": parts.kafka.bootstrap_servers,
        "debezium.sink.kafka.producer.key.serializer": _BYTES,
        "debezium.sink.kafka.producer.value.serializer": _BYTES,
        **registry,
        "debezium.source.connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "debezium.source.database.hostname": HOST,
        "debezium.source.database.port": str(parts.postgres.port),
        "debezium.source.database.user": "postgres",
        "debezium.source.database.password": parts.postgres.password,
        "debezium.source.database.dbname": database,
        "debezium.source.plugin.name": "pgoutput",
        "debezium.source.slot.name": slot,
        "debezium.source.publication.name": PUBLICATION,
        "debezium.source.publication.autocreate.mode": "disabled",
        "debezium.source.snapshot.mode": "no_data",
        "debezium.source.topic.prefix": prefix,
        "debezium.source.table.include.list": "public.*",
        "debezium.source.schema.name.adjustment.mode": "avro",
        "debezium.source.offset.storage.file.filename": str(folder / "offsets.dat"),
        "quarkus.http.host": HOST,
        "quarkus.http.port": str(free_port()),
        "quarkus.log.console.json": "false",
        **tuning,
    }


@asynccontextmanager
async def running(
    parts: LocalParts, sql: asyncpg.Connection, slot: str, more: Mapping[str, str] | None = None
) -> AsyncIterator[Server]:
    """Run a server that reads the existing `slot` from the database of `sql` into topics with a
    separate prefix. It is streaming when this yields, unless it has settings of its own (`more`):
    with these, a snapshot comes before."""
    prefix = f"d{uuid4().hex[:8]}"
    topics = await _make_topics(parts.kafka.bootstrap_servers, prefix, sql)
    guard = await Guard.open("debezium")
    try:
        child = await start_server(guard, parts, sql, slot, prefix, {**_TUNING, **(more or {})}, streams=not more)
        yield Server(child, slot, topics, prefix)
        if child.exit_code is not None:
            raise child.failure(f"ended with code {child.exit_code}")
        await child.stop(signal.SIGTERM, STOP_TIMEOUT_S)
    finally:
        await guard.close()


async def start_server(
    guard: Guard,
    parts: LocalParts,
    sql: asyncpg.Connection,
    slot: str,
    prefix: str,
    more: Mapping[str, str],
    *,
    streams: bool = True,
) -> Child:
    """Start a server that reads the existing `slot` from the database of `sql`. If `streams`,
    return once it is streaming. `more`: additional settings."""
    database = await sql.fetchval("select current_database()")
    settings = properties(parts, database, slot, prefix, guard.folder, more)
    path = guard.folder / "application.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    child = await guard.start("debezium", command(path))
    if not streams:
        return child

    async def reads() -> bool:
        query = "select active_pid from pg_replication_slots where slot_name = $1"
        return await sql.fetchval(query, slot) is not None

    await child.ready(reads, STREAMING_TIMEOUT_S)
    return child


def command(configuration: Path) -> list[str | Path]:
    """Return the command that starts a server with this application.properties."""
    home = unpacked(ARTIFACTS) / "debezium-server"
    version = locked_version(ARTIFACTS, "debezium-server-dist")
    class_path = [
        home / f"debezium-server-dist-{version}-runner.jar",
        home / "config/lib",
        home / "lib/*",
        *converter_jars(),
    ]
    return [
        java(),
        *(f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseParallelGC", "-XX:-UsePerfData"),
        f"-Djava.io.tmpdir={configuration.parent}",
        f"-Dsmallrye.config.locations={configuration}",
        *("-cp", ":".join(map(str, class_path)), "io.debezium.server.Main"),
    ]


def converter_jars() -> list[Path]:
    """Return the jars of Confluent's Avro converter, with its dependencies beyond Kafka Connect."""
    connector = unpacked(ARTIFACTS) / "debezium-server/connectors/debezium-connector-cassandra-5"
    return [jar for name in _CONVERTER for jar in sorted(connector.glob(f"{name}-[0-9]*.jar"))]


async def _make_topics(bootstrap_servers: str, prefix: str, sql: asyncpg.Connection) -> tuple[str, ...]:
    """Create the topics, which the broker does not do automatically."""
    query = "select schemaname || '.' || tablename from pg_publication_tables where pubname = $1"
    topics = tuple(f"{prefix}.{row[0]}" for row in await sql.fetch(query, PUBLICATION))
    stamps = {"message.timestamp.type": "LogAppendTime"}
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=stamps) for name in topics])
    finally:
        await admin.close()
    return topics


async def drain(backlogged: Backlogged) -> Run:
    parts = backlogged.parts
    sql = await backlogged.connect()
    async with backlogged.slot_copy(sql) as slot, running(parts, sql, slot) as server:
        walsender_pid = await sql.fetchval("select active_pid from pg_replication_slots where slot_name = $1", slot)
        with RecordCount(parts.kafka.bootstrap_servers, server.topics) as count:
            await count.reaches(1, server)
            began_cpu_s, broker_cpu_s, busy = cpu_s(server.pid), cpu_s(parts.kafka.pid), busy_s()
            walsender_began_cpu_s = cpu_s(walsender_pid)
            await count.reaches(backlogged.changes, server)
        server_cpu_s = cpu_s(server.pid) - began_cpu_s
        walsender_cpu_s = cpu_s(walsender_pid)
        broker_cpu_s = cpu_s(parts.kafka.pid) - broker_cpu_s
        other_cpu_s = busy_s() - busy - server_cpu_s - (walsender_cpu_s - walsender_began_cpu_s) - broker_cpu_s
        rss_mb = peak_rss_mb(server.pid)
        seconds = await asyncio.to_thread(took_s, parts.kafka.bootstrap_servers, server.topics)
    await sql.close()
    return Run(
        rows=backlogged.changes,
        took_s=seconds,
        gateway_cpu_s=server_cpu_s,
        walsender_cpu_s=walsender_cpu_s,
        broker_cpu_s=broker_cpu_s,
        other_cpu_s=other_cpu_s,
        peak_rss_mb=rss_mb,
    )


def took_s(bootstrap_servers: str, topics: tuple[str, ...]) -> float:
    with AppendTimes(bootstrap_servers) as times:
        return times.last(*topics) - times.first(*topics)


class RecordCount:
    """Counts the records in the topics. There are no transactions, so it is the sum of the
    partitions' end offsets."""

    def __init__(self, bootstrap_servers: str, topics: Iterable[str]) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "bench"})
        self._places = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def now(self) -> int:
        return sum(self._consumer.get_watermark_offsets(place, timeout=30)[1] for place in self._places)

    async def reaches(self, count: int, server: Server, poll_s: float = POLL_S) -> float:
        """Return the Unix time at which that many records existed."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while await asyncio.to_thread(self.now) < count:
            if server.child.exit_code is not None or time.monotonic() > deadline:
                raise server.child.failure(f"did not deliver {count:,} records")
            await asyncio.sleep(poll_s)
        return time.time()


class CommitTimes:
    """The commit time of a record's transaction, which the value has in `source`."""

    def __init__(self, registry_url: str) -> None:
        self._registry_url = registry_url
        self._schemas: dict[int, Any] = {}

    def __call__(self, value: bytes) -> float:
        schema_id = int.from_bytes(value[1:5], "big")
        schema = self._schemas.get(schema_id)
        if schema is None:
            with urlopen(f"{self._registry_url}/schemas/ids/{schema_id}", timeout=30) as answer:
                schema = fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
            self._schemas[schema_id] = schema
        event: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        micros: int = event["source"]["ts_us"]
        return micros / 1e6
