"""The parts as the tests and the demo get them."""

from __future__ import annotations

import asyncio
import http.client
from urllib.parse import urlsplit

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import Database


async def test_a_database_is_ready_for_logical_decoding(database: Database) -> None:
    connection = await database.connect()
    assert await connection.fetchval("SHOW wal_level") == "logical"
    await connection.execute("SELECT pg_create_logical_replication_slot('ready', 'pgoutput', false, true)")
    await connection.close()


async def test_the_oldest_version_has_pgoutput_and_the_contrib_types(database_oldest: Database) -> None:
    connection = await database_oldest.connect()
    assert (await connection.fetchval("SHOW server_version")).startswith("14.")
    await connection.execute("SELECT pg_create_logical_replication_slot('oldest', 'pgoutput')")
    await connection.execute("CREATE EXTENSION hstore; CREATE EXTENSION citext")
    await connection.close()


async def test_a_transactional_producer_reaches_kafka(kafka: Kafka, topic_prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(topic_prefix, 3, 1)])
    await admin.close()
    async with AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic_prefix, transaction_timeout_ms=900_000
    ) as producer:
        async with producer.transaction():
            sent = await producer.send_and_wait(topic_prefix, b"value")
        assert sent.offset == 0


async def test_the_registry_answers_by_the_confluent_api(registry: Registry) -> None:
    url = urlsplit(registry.url)
    assert url.hostname is not None

    def subjects() -> int:
        connection = http.client.HTTPConnection(url.hostname or "", url.port)
        connection.request("GET", f"{url.path}/subjects")
        status = connection.getresponse().status
        connection.close()
        return status

    assert await asyncio.to_thread(subjects) == 200


async def test_postgres_goes_on_with_its_data_after_a_crash(start_postgres: object) -> None:
    async with Postgres() as server:
        connection = await server.connect()
        await connection.execute("CREATE TABLE kept (id int); INSERT INTO kept VALUES (7)")
        await server.kill()
        assert server.server_pid is None
        await server.start()
        connection = await server.connect()
        assert await connection.fetchval("SELECT id FROM kept") == 7
        await connection.close()
