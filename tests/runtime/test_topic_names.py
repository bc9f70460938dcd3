"""Tables whose topics Kafka would not take by their names stream beside the others, also after a
restart and a rename."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from schemas.topic_names import topic_name, topic_names
from tests.conftest import Database
from tests.runtime.test_gateway import committed
from tests.support.gateway_process import GatewayProcess
from tests.support.topics import Topics

NewGateway = Callable[..., GatewayProcess]
LONG = ("производство данных", "заказы клиентов за прошлый год")


async def rows(topics: Topics, topic: str, count: int) -> list[int]:
    """The ids of the records of a topic, once there are `count`."""
    found = await asyncio.to_thread(topics.read, topic, until=lambda values: len(values) >= count)
    return sorted(value["after"]["id"] for _, value in found if value["after"] is not None)


@pytest.mark.parametrize(
    ("early", "late"), [(("s", "o_i"), ("s_o", "i")), pytest.param(("s_o", "i"), ("s", "o_i"), marks=pytest.mark.long)]
)
async def test_tables_whose_names_collide_or_are_too_long_all_stream(
    database: Database,
    new_gateway: NewGateway,
    topics: Topics,
    topic_prefix: str,
    early: tuple[str, str],
    late: tuple[str, str],
) -> None:
    sql = await database.connect()
    await sql.execute(
        'CREATE SCHEMA s; CREATE SCHEMA s_o; CREATE SCHEMA "производство данных"; CREATE PUBLICATION walgate FOR ALL TABLES'
    )
    tables = {relation: '"{}"."{}"'.format(*relation) for relation in (early, late, LONG)}

    async def write(relation: tuple[str, str], number: int) -> None:
        await sql.execute(f"INSERT INTO {tables[relation]} VALUES ($1)", number)

    gateway = new_gateway()
    await sql.execute(f"CREATE TABLE {tables[early]} (id int PRIMARY KEY)")
    await gateway.streaming()
    for relation in (late, LONG):
        await sql.execute(f"CREATE TABLE {tables[relation]} (id int PRIMARY KEY)")
        await write(relation, 1)
    await write(early, 1)
    await committed(topics, topic_prefix, 3)
    expected = {
        early: topic_name(topic_prefix, *early),
        late: topic_names(topic_prefix, *late)[1],
        LONG: topic_names(topic_prefix, *LONG)[0],
    }
    for relation, topic in expected.items():
        assert await rows(topics, topic, 1) == [1], relation
    named = {entry["topic"] for entry in gateway.events("topic_named")}
    assert named == {expected[late], expected[LONG]}

    await gateway.kill()
    for relation in (late, LONG, early):  # the other one is met first
        await write(relation, 2)
    await gateway.streaming()
    await committed(topics, topic_prefix, 6)
    for relation, topic in expected.items():
        assert await rows(topics, topic, 2) == [1, 2], relation

    # A rename to a name that collides, and away from it, in one transaction with rows.
    async with sql.transaction():
        await sql.execute(f"ALTER TABLE {tables[late]} RENAME TO plain")
        await sql.execute(f'INSERT INTO "{late[0]}".plain VALUES (3)')
        await sql.execute(f"CREATE TABLE {tables[late]} (id int PRIMARY KEY)")
        await write(late, 4)
    await committed(topics, topic_prefix, 7)
    assert await rows(topics, topic_name(topic_prefix, late[0], "plain"), 1) == [3]
    assert await rows(topics, expected[late], 3) == [1, 2, 4]
    assert len(gateway.events("topic_named")) == 2, "logged once"
    assert await gateway.stop() == 0
    await sql.close()


async def test_a_topic_by_setting_holds_the_table_and_no_other(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    await sql.execute("CREATE PUBLICATION walgate FOR ALL TABLES")
    given = f"{topic_prefix}.chosen"
    gateway = new_gateway(kafka__topic_names=f'{{"public.a": "{given}"}}')
    await gateway.streaming()
    await sql.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (2)")
    await committed(topics, topic_prefix, 1)
    assert await rows(topics, given, 1) == [1]
    assert await rows(topics, f"{topic_prefix}.public.b", 1) == [2]
    assert await gateway.stop() == 0

    gateway.start(kafka__topic_names=f'{{"public.b": "{given}"}}')
    await sql.execute("INSERT INTO b VALUES (3)")
    assert await gateway.wait() == 78
    assert f"assigns topic {given} to public.b, but the topic contains changes of public.a" in gateway.log()
    await gateway.streaming(kafka__topic_names="{}")  # the way out: nothing was skipped
    await sql.execute("INSERT INTO a VALUES (4)")
    await committed(topics, topic_prefix, 3)
    assert await rows(topics, f"{topic_prefix}.public.b", 2) == [2, 3]
    assert await rows(topics, f"{topic_prefix}.public.a", 1) == [4]
    await sql.close()


async def test_partitions_have_topics_only_where_rows_come_as_their_own(
    database: Database, new_gateway: NewGateway, topics: Topics, topic_prefix: str
) -> None:
    """PostgreSQL describes a partition also where it sends its rows as those of the root."""
    sql = await database.connect()
    await sql.execute(
        "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF whole FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE mid PARTITION OF whole FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);"
        "CREATE TABLE mid_all PARTITION OF mid FOR VALUES FROM (10) TO (20);"
        "CREATE PUBLICATION walgate FOR TABLE whole WITH (publish_via_partition_root = true)"
    )
    admin = AdminClient({"bootstrap.servers": topics.bootstrap_servers})

    def tables_with_topics() -> set[str]:
        named = [name.removeprefix(f"{topic_prefix}.public.") for name in admin.list_topics(timeout=30).topics]
        return {"whole", "low", "mid", "mid_all", "high"}.intersection(named)

    gateway = new_gateway(snapshot__mode="never")
    await gateway.streaming()
    await sql.execute("INSERT INTO whole VALUES (1), (11); UPDATE whole SET id = 2 WHERE id = 1")
    await committed(topics, topic_prefix, 1)
    assert tables_with_topics() == {"whole"}

    # Rows are written while partitions are published by themselves, and read when the catalog says
    # that roots are.
    assert await gateway.stop() == 0
    await sql.execute("ALTER PUBLICATION walgate SET (publish_via_partition_root = false)")
    await sql.execute(
        "CREATE TABLE high PARTITION OF whole FOR VALUES FROM (20) TO (30); INSERT INTO whole VALUES (21)"
    )
    await sql.execute("ALTER PUBLICATION walgate SET (publish_via_partition_root = true)")
    await sql.execute("INSERT INTO whole VALUES (22)")
    await gateway.streaming()
    await committed(topics, topic_prefix, 3)
    assert tables_with_topics() == {"whole", "high"}
    assert await rows(topics, f"{topic_prefix}.public.high", 1) == [21]
    assert 22 in await rows(topics, f"{topic_prefix}.public.whole", 5)  # one is the DELETE of the old key
    assert await gateway.stop() == 0
    await sql.close()
