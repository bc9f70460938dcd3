from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.service.gateway_process import GatewayProcess, Topics


@pytest.fixture
def topics(kafka: Kafka, registry: Registry) -> Topics:
    return Topics(kafka.bootstrap_servers, registry.url)


@pytest.fixture
def settings(database: Database, kafka: Kafka, registry: Registry, topic_prefix: str) -> dict[str, str]:
    """Environment of a gateway for the test's own database and prefix."""
    return {
        "WALGATE_SOURCE__DSN": database.dsn,
        "WALGATE_SOURCE__SLOT": topic_prefix,
        "WALGATE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "WALGATE_KAFKA__PREFIX": topic_prefix,
        "WALGATE_REGISTRY__URL": registry.url,
    }


@pytest_asyncio.fixture
async def new_gateway(settings: dict[str, str], tmp_path: Path) -> AsyncIterator[Callable[..., GatewayProcess]]:
    """`new_gateway(WALGATE_...=...)`: not started; ends with the test."""
    made: list[GatewayProcess] = []

    def make(**more: str) -> GatewayProcess:
        gateway = GatewayProcess({**settings, **more}, tmp_path / f"gateway{len(made)}.log")
        made.append(gateway)
        return gateway

    yield make
    for gateway in made:
        if gateway.process is not None and gateway.process.returncode is None:
            gateway.process.kill()
            await gateway.process.wait()
