"""docs/leaving.md, Move to another Kafka cluster: both ways, with two real clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.local import Kafka
from gateway.local.kafka import QUICK_START
from tests.conftest import Database
from tests.runtime.test_gateway import committed
from tests.support.gateway_process import GatewayProcess
from tests.support.slots import until_confirmed, until_free
from tests.support.topics import Topics

NewGateway = Callable[..., GatewayProcess]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def ids(topics: Topics, prefix: str, count: int) -> list[int]:
    """Of the rows in the topic, once there are `count`: what was read, and what was inserted."""
    rows = await asyncio.to_thread(topics.read, f"{prefix}.public.t", until=lambda found: len(found) >= count)
    return sorted(value["after"]["id"] for _, value in rows)


@pytest.mark.long
async def test_a_second_gateway_writes_to_the_new_cluster_before_the_first_ends(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    old = new_gateway()
    await old.streaming()
    await sql.execute("INSERT INTO t VALUES (1), (2)")
    await committed(topics, topic_prefix, 1)
    async with Kafka(jvm_options=[QUICK_START]) as moved_to:
        there, prefix = Topics(moved_to.bootstrap_servers, topics.registry_url), f"{topic_prefix}_new"
        new = new_gateway(
            source__slot=prefix,
            kafka__prefix=prefix,
            kafka__bootstrap_servers=moved_to.bootstrap_servers,
            snapshot__mode="initial",
        )
        await new.streaming()
        assert await ids(there, prefix, 2) == [1, 2], "the existing rows are read"
        await sql.execute("INSERT INTO t VALUES (3)")
        assert await ids(there, prefix, 3) == [1, 2, 3]
        assert await ids(topics, topic_prefix, 3) == [1, 2, 3], "both receive every commit"
        assert await old.stop() == 0
        await until_free(sql, topic_prefix)
        await sql.execute("SELECT pg_drop_replication_slot($1)", topic_prefix)
        await sql.execute("INSERT INTO t VALUES (4)")
        assert await ids(there, prefix, 4) == [1, 2, 3, 4]
        assert await new.stop() == 0
    await sql.close()


async def test_the_same_cluster_under_another_address_is_no_other_cluster(
    database: Database, new_gateway: NewGateway, kafka: Kafka, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION walgate FOR ALL TABLES")
    gateway = new_gateway()
    await gateway.streaming()
    await sql.execute("INSERT INTO t VALUES (1)")
    await until_confirmed(sql, topic_prefix)
    assert await gateway.stop() == 0
    await sql.execute("INSERT INTO t VALUES (2)")
    await gateway.streaming(kafka__bootstrap_servers=f"localhost:{kafka.port}")
    markers = await committed(topics, topic_prefix, 2)
    assert [marker["kind"] for marker in markers] == ["EPOCH", "BEGIN", "COMMIT", "EPOCH", "BEGIN", "COMMIT"]
    assert await ids(topics, topic_prefix, 2) == [1, 2]
    await sql.close()
