"""Servers that a test may break, and proxies in front of them. Those of the session are shared with others and stay whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from gateway.local import Postgres, Registry
from tests.conftest import TEST_SETTINGS, Database, _new_database
from tests.exactly_once.proxy import FaultProxy, ProxiedKafka

WAL_SENDER_TIMEOUT_S = 4
_EXPIRY_CHECK = "transaction.abort.timed.out.transaction.cleanup.interval.ms"


@pytest_asyncio.fixture(scope="module")
async def proxied_kafka() -> AsyncIterator[ProxiedKafka]:
    """Looks for expired transactions twice a second; Kafka's default is ten seconds."""
    async with ProxiedKafka(settings={_EXPIRY_CHECK: 500}) as broker:
        yield broker


@pytest_asyncio.fixture(scope="module")
async def own_postgres() -> AsyncIterator[Postgres]:
    settings = {**TEST_SETTINGS, "wal_sender_timeout": f"{WAL_SENDER_TIMEOUT_S}s"}
    async with Postgres(settings=settings) as server:
        yield server


@pytest_asyncio.fixture
async def own_database(own_postgres: Postgres) -> AsyncIterator[Database]:
    async for made in _new_database(own_postgres):
        yield made


@pytest_asyncio.fixture
async def postgres_proxy(own_postgres: Postgres) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(own_postgres.port) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def registry_proxy(registry: Registry) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(registry.port) as proxy:
        yield proxy
