from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.support.gateway_process import GatewayProcess
from tests.support.topics import Topics


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    return Topics(kafka.bootstrap_servers, registry.url)


@pytest.fixture
def settings(database: Database, kafka: Kafka, registry: Registry, topic_prefix: str) -> dict[str, str]:
    """Settings of a gateway for the test's own database and prefix."""
    return {
        "source__dsn": database.dsn,
        "source__slot": topic_prefix,
        "kafka__bootstrap_servers": kafka.bootstrap_servers,
        "kafka__prefix": topic_prefix,
        "registry__url": registry.url,
    }


@pytest_asyncio.fixture
async def new_gateway(settings: dict[str, str], tmp_path: Path) -> AsyncIterator[Callable[..., GatewayProcess]]:
    """`new_gateway(kafka__prefix=...)`: not started; ends with the test."""
    made: list[GatewayProcess] = []

    def make(**more: str) -> GatewayProcess:
        gateway = GatewayProcess(tmp_path / f"gateway{len(made)}.log", {**settings, **more})
        made.append(gateway)
        return gateway

    yield make
    for gateway in made:
        await gateway.end()
