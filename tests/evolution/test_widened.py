"""Columns that were widened before the gateway reads the rows with the former type: a snapshot has
registered the present type first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.config.settings import RegistrySettings
from gateway.local import Kafka, Postgres, Registry
from gateway.schema_errors import open_registry
from schemas.topic_names import key_subject
from tests.evolution.delivered import Delivered
from tests.support.theatre import Theatre, theatre

pytestmark = pytest.mark.integration

EX_CONFIG = 78
BEFORE = """
CREATE TABLE altered (id int PRIMARY KEY);
INSERT INTO altered VALUES (1);
ALTER TABLE altered ADD c int DEFAULT 5;
CREATE TABLE narrowed (id int PRIMARY KEY, c bigint);
CREATE PUBLICATION walgate FOR ALL TABLES;
"""
WHILE_AWAY = """
INSERT INTO altered VALUES (3);
ALTER TABLE altered ALTER id TYPE bigint;
INSERT INTO altered VALUES (4);
CREATE TABLE made (id int PRIMARY KEY, n numeric(4,2));
INSERT INTO made VALUES (1, 1.5);
ALTER TABLE made ALTER id TYPE bigint, ALTER n TYPE numeric(9,2);
INSERT INTO made VALUES (5000000000, 2.5);
"""


async def test_rows_from_before_a_widening_follow_the_schema_of_a_snapshot(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    log = tmp_path / "gateway.log"
    async with theatre(topic_prefix, postgres, kafka, registry, log, source__failover="true") as stage:
        await run(stage.sql, BEFORE)
        await stage.gateway.streaming(snapshot__mode="initial")
        await run(stage.sql, "INSERT INTO altered VALUES (2); INSERT INTO narrowed VALUES (1, 1)")
        (await stage.delivered(lambda found: has(found, "altered", {1, 2}) and has(found, "narrowed", {1}))).close()
        assert await stage.gateway.stop() == 0
        async with held_back(stage):
            await run(stage.sql, WHILE_AWAY)
            await stage.gateway.streaming(snapshot__mode="initial")
            await registered(stage, "altered", "made")
        await run(stage.sql, "INSERT INTO altered VALUES (5000000000); INSERT INTO made VALUES (3, 3.5)")
        found = await stage.delivered(
            lambda found: (
                has(found, "altered", {1, 2, 3, 4, 5_000_000_000}) and has(found, "made", {1, 3, 5_000_000_000})
            )
        )
        found.close()
        assert {row["id"]: row["n"] for row in rows(found, "made")} == {
            1: Decimal("1.50"), 3: Decimal("3.50"), 5_000_000_000: Decimal("2.50")
        }  # fmt: skip
        assert all(row["c"] == 5 for row in rows(found, "altered"))
        told = {event["relation"] for event in stage.gateway.events("earlier_columns")}
        assert told == {"public.altered", "public.made"}

        assert await stage.gateway.stop() == 0
        await run(stage.sql, "ALTER TABLE narrowed ALTER c TYPE int; INSERT INTO narrowed VALUES (2, 2)")
        stage.gateway.start()
        assert await stage.gateway.wait() == EX_CONFIG
        assert "column c changed from int8 (long) to int4 (int)" in stage.gateway.last_words()


@asynccontextmanager
async def held_back(stage: Theatre) -> AsyncIterator[None]:
    """PostgreSQL sends no changes, for want of a standby."""
    await stage.sql.execute("SELECT pg_create_physical_replication_slot('nobody', true)")
    try:
        await run(stage.sql, "ALTER SYSTEM SET synchronized_standby_slots = 'nobody'; SELECT pg_reload_conf()")
        yield
    finally:
        await run(stage.sql, "ALTER SYSTEM RESET synchronized_standby_slots; SELECT pg_reload_conf()")
        await stage.sql.execute("SELECT pg_drop_replication_slot('nobody')")


async def registered(stage: Theatre, *tables: str) -> None:
    """A snapshot has registered the schemas of these tables, with the present type of the id."""
    async with asyncio.timeout(60), open_registry(RegistrySettings(url=stage.registry.url), 10) as schemas:
        for table in tables:
            while "'long'" not in str(await schemas.latest(key_subject(f"{stage.name}.public.{table}"))):
                await asyncio.sleep(0.1)


async def run(sql: asyncpg.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            await sql.execute(statement)


def rows(found: Delivered, table: str) -> list[dict[str, Any]]:
    """Rows of the stream and of snapshots."""
    return [each.event["after"] for each in found.sent(table) if each.event.get("after") is not None]


def has(found: Delivered, table: str, ids: set[int]) -> bool:
    return ids <= {row["id"] for row in rows(found, table)}
