from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from tests.evolution.delivered import Delivered
from tests.evolution.scenes_compatible import BEGINS_AGAIN, COMPATIBLE
from tests.evolution.scenes_incompatible import INCOMPATIBLE
from tests.evolution.scripts import PUBLICATIONS, SCRIPTS, SETUP
from tests.support.theatre import theatre


@pytest_asyncio.fixture(scope="session")
async def played(
    postgres: Postgres, kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Delivered]:
    """Every compatible scene in every situation, through one gateway that stops at an incompatible
    change."""
    log = tmp_path_factory.mktemp("evolution") / "gateway.log"
    async with theatre(f"evolution_{uuid4().hex[:8]}", postgres, kafka, registry, log) as stage:
        for statement in SETUP:
            await stage.sql.execute(statement)
        for name, content in PUBLICATIONS.items():
            await stage.sql.execute(f"CREATE PUBLICATION {name} {content}")
        await stage.gateway.streaming(source__publications=",".join(PUBLICATIONS))
        for statement in SCRIPTS:
            await stage.sql.execute(statement)
        await stage.play({name: scene for name, scene in COMPATIBLE.items() if name != BEGINS_AGAIN})
        await stage.confirmed()  # read again, what was rolled back would not be sent
        await stage.play({BEGINS_AGAIN: COMPATIBLE[BEGINS_AGAIN]})
        found = await stage.end()
        assert await stage.gateway.stop() == 0, log.read_text()
        attempts = [event["reason"] for event in stage.gateway.events("restarting")]
        own = [
            reason for reason in attempts if "is in use by process" not in reason
        ]  # its own walsender, a little longer
        assert len(own) <= 1, attempts  # BEGINS_AGAIN
        yield found
        found.close()


@pytest_asyncio.fixture(scope="session")
async def registered(
    postgres: Postgres, kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Delivered]:
    """Every incompatible scene in every situation, through a gateway with
    schemas.on_incompatible=register."""
    log = tmp_path_factory.mktemp("registered") / "gateway.log"
    async with theatre(f"registered_{uuid4().hex[:8]}", postgres, kafka, registry, log) as stage:
        await stage.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
        await stage.gateway.streaming(schemas__on_incompatible="register")
        await stage.play(INCOMPATIBLE)
        found = await stage.end()
        assert await stage.gateway.stop() == 0, log.read_text()
        assert "restarting" not in log.read_text(), log.read_text()
        yield found
        found.close()
