"""A published table that is locked for long, as ALTER TABLE and VACUUM FULL do, and a registry that
is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local import Kafka, Postgres, Registry
from tests.support.proxy import FaultProxy
from tests.support.slots import until_confirmed, until_free
from tests.support.theatre import Theatre, theatre

pytestmark = pytest.mark.integration

PARTITIONED = """
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20);
"""


async def insert_and_read(stage: Theatre, row_id: int) -> None:
    await stage.sql.execute("INSERT INTO other VALUES ($1)", row_id)
    (await stage.delivered(lambda found: len(found.committed("other")) >= row_id)).close()


async def test_a_locked_table_stops_neither_the_others_nor_a_start(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with theatre(topic_prefix, postgres, kafka, registry, tmp_path / "gateway.log") as stage:
        await stage.sql.execute("CREATE TABLE locked (id int); CREATE TABLE other (id int PRIMARY KEY)")
        await stage.sql.execute(PARTITIONED)
        await stage.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES WITH (publish_via_partition_root)")
        await stage.gateway.streaming(source__check_interval_s="0.1")
        holder = await postgres.connect(topic_prefix)
        async with holder.transaction():
            await holder.execute("ALTER TABLE locked ADD more int; LOCK TABLE low")
            await stage.sql.execute("CREATE TABLE seen_by_the_check (id int PRIMARY KEY)")
            await stage.gateway.logged("public.seen_by_the_check")
            await insert_and_read(stage, 1)
            assert await stage.gateway.stop() == 0
            await until_free(stage.sql, stage.name)
            await stage.gateway.streaming()
            await stage.sql.execute("INSERT INTO parted VALUES (11)")
            await insert_and_read(stage, 2)
        await holder.execute("INSERT INTO locked VALUES (1, 2)")
        (await stage.delivered(lambda found: found.rows("locked") == [{"id": 1, "more": 2}])).close()
        await holder.close()
        assert await stage.gateway.stop() == 0
        assert "restarting" not in stage.gateway.log()


async def test_a_locked_table_with_defaults_does_not_stop_the_others_in_debezium_format(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    log = tmp_path / "gateway.log"
    debezium = {"kafka__dialect": "debezium", "debezium__skipped_operations": "none"}
    async with theatre(topic_prefix, postgres, kafka, registry, log, **debezium) as stage:
        await stage.sql.execute("CREATE TABLE locked (id serial PRIMARY KEY, at timestamptz DEFAULT now())")
        await stage.sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
        await stage.gateway.streaming()
        assert await stage.gateway.stop() == 0
        await stage.sql.execute("INSERT INTO locked DEFAULT VALUES")
        holder = await postgres.connect(topic_prefix)
        async with holder.transaction():
            await holder.execute("LOCK TABLE locked")
            await stage.gateway.streaming()
            await until_confirmed(stage.sql, stage.name, timeout_s=30)
        await holder.close()
        assert await stage.gateway.stop() == 0
        assert "restarting" not in stage.gateway.log()
        assert "a truncate has no key, so it is in the first partition only" in stage.gateway.log()


async def test_a_registry_that_is_away_is_waited_for(
    postgres: Postgres, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    async with (
        FaultProxy(registry.port) as proxy,
        theatre(topic_prefix, postgres, kafka, registry, tmp_path / "gateway.log") as stage,
    ):
        await stage.sql.execute("CREATE TABLE other (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
        url = registry.url.replace(str(registry.port), str(proxy.port))
        await stage.gateway.streaming(registry__url=url)
        await insert_and_read(stage, 1)
        await proxy.refuse()
        proxy.cut()
        await stage.sql.execute("ALTER TABLE other ADD more int; INSERT INTO other VALUES (2, 2)")
        await stage.gateway.logged("the schema registry does not answer", times=2)
        await proxy.accept()
        await stage.gateway.logged("streaming", times=2)
        await stage.sql.execute("INSERT INTO other VALUES (3, 3)")
        found = await stage.delivered(lambda found: len(found.committed("other")) >= 3)
        found.close()
        assert found.rows("other") == [{"id": 1}, {"id": 2, "more": 2}, {"id": 3, "more": 3}]
        assert await stage.gateway.stop() == 0
