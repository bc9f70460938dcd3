"""Servers that a test may break, and proxies in front of them. Those of the session are shared with
others and stay whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import TEST_SETTINGS, Database, _drop, _new_database
from tests.exactly_once.lanes import LANE_COUNT, Lane
from tests.support.proxy import FaultProxy, ProxiedKafka

WAL_SENDER_TIMEOUT_S = 4
_EXPIRY_CHECK = "transaction.abort.timed.out.transaction.cleanup.interval.ms"


@pytest_asyncio.fixture(scope="session")
async def _proxied_kafka() -> AsyncIterator[ProxiedKafka]:
    """Looks for expired transactions twice a second; Kafka's default is ten seconds. A broker that
    was killed may register again when its session has ended, by default after nine seconds."""
    settings: dict[str, str | int] = {
        _EXPIRY_CHECK: 500,
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
    }
    async with ProxiedKafka(settings=settings) as broker:
        yield broker


@pytest_asyncio.fixture
async def proxied_kafka(_proxied_kafka: ProxiedKafka) -> AsyncIterator[ProxiedKafka]:
    """Whole again after each test."""
    yield _proxied_kafka
    _proxied_kafka.proxy.heal()
    await _proxied_kafka.proxy.accept()
    await _proxied_kafka.start()


@pytest_asyncio.fixture(scope="session")
async def own_postgres() -> AsyncIterator[Postgres]:
    settings = {**TEST_SETTINGS, "wal_sender_timeout": f"{WAL_SENDER_TIMEOUT_S}s"}
    async with Postgres(settings=settings) as server:
        yield server


@pytest_asyncio.fixture
async def own_database(own_postgres: Postgres) -> AsyncIterator[Database]:
    """Survives that the test restarts the server."""
    name = f"test_{uuid4().hex[:12]}"
    admin = await own_postgres.connect()
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    database = Database(own_postgres, name)
    yield database
    await own_postgres.start()
    for connection in database.connections:
        connection.terminate()
    admin = await own_postgres.connect()
    await _drop(admin, own_postgres, name)
    await admin.close()


@pytest_asyncio.fixture
async def lanes(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[list[Lane]]:
    async with AsyncExitStack() as stack:
        new_database = asynccontextmanager(_new_database)
        yield [
            Lane(
                number,
                await stack.enter_async_context(new_database(postgres)),
                kafka.bootstrap_servers,
                registry.url,
                f"{topic_prefix}_{number}",
                tmp_path,
            )
            for number in range(LANE_COUNT)
        ]


@pytest_asyncio.fixture
async def postgres_proxy(own_postgres: Postgres) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(own_postgres.port) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def registry_proxy(registry: Registry) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(registry.port) as proxy:
        yield proxy
