"""docs/leaving.md: from the first step to the last. Other Kafka clusters are in
tests/runtime/test_moving.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.local import LocalParts, Postgres
from tests.walk.walk import TIMEOUT_S, Walk, commands, prepare, shop, walk

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

PAGE = "docs/leaving.md"
READ = ".venv/bin/python examples/read_topic.py cdc.public.orders"


@pytest_asyncio.fixture
async def walker(tmp_path: Path) -> AsyncIterator[Walk]:
    async with LocalParts() as parts:
        await shop(parts.postgres)
        made = walk(parts.postgres, parts.kafka, parts.registry, tmp_path)
        await prepare(made)
        yield made


async def test_shut_down_permanently(walker: Walk) -> None:
    drop, look, *rest = commands(PAGE, "Shut down permanently")
    async with walker.gateway():
        await walker.run_again(READ, "was there before")
        await walker.run(READ.replace("public.orders", "transaction"), "'kind': 'SNAPSHOT_END'")
    await walker.sql(drop)
    assert await walker.sql(look) == ""
    await walker.sql(*rest)
    left = "SELECT count(*) FROM pg_publication; SELECT count(*) FROM pg_roles WHERE rolname = 'walgate';"
    assert (await walker.sql(left)).split() == ["0", "0"]


async def test_another_server(walker: Walk) -> None:
    """The old one is read-only from the first step on."""
    *read_only, end, reached = commands(PAGE, "Move to another PostgreSQL")
    async with Postgres() as new:
        await shop(new)
        await walker.sql(*commands("docs/own-servers.md", "Prepare PostgreSQL"), postgres=new)
        async with walker.gateway():
            await walker.run_again(READ, "was there before")
            await walker.sql("INSERT INTO orders VALUES (2, 'the last of the old server');")
            await walker.sql(*read_only)
            async with asyncio.timeout(TIMEOUT_S):
                while await walker.sql("SHOW default_transaction_read_only;") != "on":
                    await asyncio.sleep(0.1)
            with pytest.raises(AssertionError, match="read-only transaction"):
                await walker.sql("INSERT INTO orders VALUES (3, 'too late');")
            walker.replaced["16/B374D848"] = await walker.sql(end)
            async with asyncio.timeout(TIMEOUT_S):
                while await walker.sql(reached) != "t":
                    await asyncio.sleep(0.5)
            await walker.run(READ, "the last of the old server")
        await walker.sql(*commands(PAGE, "Shut down permanently")[:1])
        moved = {
            "WALGATE_SOURCE__DSN": f"postgresql://walgate@127.0.0.1:{new.port}/shop",
            "WALGATE_SOURCE__SLOT": "walgate_new",
            "WALGATE_KAFKA__PREFIX": "new",
        }
        async with walker.gateway(moved):
            await walker.sql("INSERT INTO orders VALUES (2, 'the first of the new server');", postgres=new)
            read_new = READ.replace("cdc.", "new.")
            await walker.run_again(read_new, "was there before")
            await walker.run_again(read_new, "the first of the new server")
