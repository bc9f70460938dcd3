"""One database and one gateway for all scenarios; each has a schema of its own and adds its tables
to a publication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import Database, _new_database
from tests.subscription.replica import Replica, differences, rebuild
from tests.support.delivered import Decoder, Delivered, read_delivered
from tests.support.gateway_process import GatewayProcess
from tests.support.scene import wait_for_commit

DELIVERY_TIMEOUT_S = 60.0


class Publisher:
    """`publication` sends leaf partitions, `root_publication` their root."""

    publication = "scenario"
    root_publication = "scenario_root"

    def __init__(
        self, database: Database, kafka: Kafka, registry: Registry, gateway: GatewayProcess, prefix: str
    ) -> None:
        self.database = database
        self.kafka = kafka
        self.registry = registry
        self.gateway = gateway
        self.prefix = prefix
        self.connection: asyncpg.Connection

    async def execute(self, statements: str) -> None:
        await self.connection.execute(statements)

    async def schema(self) -> str:
        """A new one, with search_path set to it."""
        name = f"s_{uuid4().hex[:8]}"
        await self.execute(f"CREATE SCHEMA {name}; SET search_path = {name}")
        return name

    async def publish(self, *tables: str, publication: str = publication) -> None:
        """Each may have a column list and a row filter: `t (a, b) WHERE (a > 1)`."""
        for table in tables:
            await self.execute(f"ALTER PUBLICATION {publication} ADD TABLE {table}")

    async def caught_up(self) -> None:
        """Everything committed before is in Kafka."""
        connection = await self.database.connect()
        xid = await connection.fetchval(
            "WITH beat AS (INSERT INTO public.heartbeat DEFAULT VALUES) SELECT pg_current_xact_id()::text::bigint & 4294967295"
        )
        await connection.close()
        found = await asyncio.to_thread(
            wait_for_commit,
            self.kafka.bootstrap_servers,
            self.registry.url,
            self.prefix,
            xid,
            DELIVERY_TIMEOUT_S,
        )
        assert found, self.gateway.log_tail()

    async def delivered(self, schema: str) -> Delivered:
        await self.caught_up()
        return await asyncio.to_thread(
            read_delivered, self.kafka.bootstrap_servers, self.registry.url, self.prefix, "read_committed", schema
        )

    async def replicas(self, schema: str) -> dict[str, Replica]:
        """By table name."""
        with Decoder(self.registry.url) as decoder:
            rebuilt = rebuild(await self.delivered(schema), decoder)
        start = f"{self.prefix}.{schema}."
        return {topic.removeprefix(start): replica for topic, replica in rebuilt.items() if topic.startswith(start)}

    async def equal(self, schema: str, *tables: str) -> dict[str, Replica]:
        """The tables rebuilt from Kafka hold exactly what the source holds."""
        replicas = await self.replicas(schema)
        for table in tables:
            found = await differences(self.connection, f"{schema}.{table}", replicas.get(table, Replica()))
            assert not found, "\n".join(found[:10])
        return replicas


async def open_publisher(
    database: Database, kafka: Kafka, registry: Registry, folder: Path, prefix: str, **settings: object
) -> Publisher:
    values: dict[str, object] = {
        "source__dsn": database.dsn,
        "source__slot": f"slot_{prefix}",
        "source__publications": f"{Publisher.publication},{Publisher.root_publication}",
        "source__two_phase": True,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": prefix,
        "kafka__partitions": 2,
        "registry__url": registry.url,
        "schemas__on_incompatible": "register",
    }
    gateway = GatewayProcess(folder / f"{prefix}.log", values | settings)
    publisher = Publisher(database, kafka, registry, gateway, prefix)
    publisher.connection = await database.connect()
    await publisher.execute(
        f"""
        SET IntervalStyle = iso_8601; SET TimeZone = UTC; SET extra_float_digits = 3;
        CREATE TABLE public.heartbeat (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
        CREATE TABLE public.root_of_none (id bigint PRIMARY KEY);
        CREATE PUBLICATION {Publisher.publication} FOR TABLE public.heartbeat;
        CREATE PUBLICATION {Publisher.root_publication} FOR TABLE public.root_of_none
            WITH (publish_via_partition_root = true);
        """
    )
    return publisher


@pytest_asyncio.fixture(scope="session")
async def _publisher(
    postgres: Postgres, kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Publisher]:
    folder = tmp_path_factory.mktemp("subscription")
    async for database in _new_database(postgres):
        publisher = await open_publisher(database, kafka, registry, folder, f"p{uuid4().hex[:8]}")
        await publisher.gateway.streaming()
        yield publisher
        await publisher.gateway.kill()
        await publisher.connection.close()


@pytest_asyncio.fixture
async def publisher(_publisher: Publisher) -> Publisher:
    """Started anew where a scenario ended it."""
    if not _publisher.gateway.is_running:
        await _publisher.gateway.streaming()
    return _publisher
