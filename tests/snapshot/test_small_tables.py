"""Many small tables: what each costs at the server, whatever else the computer does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.snapshot.load import PUBLICATION
from tests.snapshot.scene import open_scene

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TABLES = 100
TRANSACTIONS_OF_START = 100
"""Of the test and of a gateway that starts and ends."""
TRANSACTIONS_OF_TABLE = 2

COMMITTED = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


async def test_a_small_table_costs_one_transaction_and_a_share_of_others(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Its chunk; what begins and ends tables, and looks at the catalog, is for many of them."""
    async with open_scene(database, kafka, registry, topic_prefix, tmp_path, kafka__partitions=1) as scene:
        for number in range(TABLES):
            await scene.sql.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY); INSERT INTO t{number} VALUES (1)")
        await scene.sql.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        await scene.sql.execute("SELECT pg_stat_force_next_flush()")
        before = await scene.sql.fetchval(COMMITTED)
        await scene.gateway.streaming()
        await scene.snapshot_done()
        begun = [event["count"] for event in scene.gateway.events("tables_begun")]
        await scene.gateway.stop()  # sessions that end write their statistics
        after = await scene.sql.fetchval(COMMITTED)
        print(f"{TABLES} tables: {after - before} transactions, begun {begun}")
        assert sum(begun) == len(scene.gateway.events("table_read")) == TABLES
        assert after - before < TABLES * TRANSACTIONS_OF_TABLE + TRANSACTIONS_OF_START
