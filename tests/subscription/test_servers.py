"""PostgreSQL's scenarios about servers, roles and forms: 005, 014, 022, 027, 030; and the oldest
server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.local import Kafka, Postgres, Registry
from tests.conftest import Database
from tests.subscription.conftest import Publisher, open_publisher
from tests.support.slots import until_free

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest_asyncio.fixture
async def latin_database(postgres: Postgres) -> AsyncIterator[Database]:
    name = f"latin_{uuid4().hex[:8]}"
    admin = await postgres.connect()
    await admin.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    yield Database(postgres, name)
    inside = await postgres.connect(name)
    await inside.execute(
        "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
        "WHERE active AND database = current_database()"
    )
    await inside.close()
    await admin.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1", name
    )
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def test_005_a_latin1_database_arrives_as_utf8(
    latin_database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    publisher = await open_publisher(latin_database, kafka, registry, tmp_path, topic_prefix)
    try:
        schema = await publisher.schema()
        await publisher.execute("CREATE TABLE encoded (a int PRIMARY KEY, b text)")
        await publisher.publish("encoded")
        publisher.gateway.start()
        await publisher.gateway.logged('"streaming"')
        await publisher.execute("INSERT INTO encoded VALUES (1, 'Motörhead'), (2, E'\\xe9\\xff')")
        replicas = await publisher.equal(schema, "encoded")
        assert {row["b"] for row in replicas["encoded"].all_rows()} == {"Motörhead", "éÿ"}
    finally:
        await publisher.gateway.end()
        await publisher.connection.close()


async def test_014_text_and_binary_change_places_in_mid_life(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    publisher = await open_publisher(database, kafka, registry, tmp_path, topic_prefix)
    try:
        schema = await publisher.schema()
        await publisher.execute(
            "CREATE TABLE forms "
            "(a int PRIMARY KEY, n numeric(12, 3), t timestamptz, u uuid, f float8, x int[], i interval, s text)"
        )
        await publisher.publish("forms")
        for number, form in enumerate(("on", "off", "auto")):
            publisher.gateway.start(source__binary=form)
            await publisher.gateway.logged('"streaming"', times=number + 1)
            await publisher.execute(
                f"INSERT INTO forms VALUES ({number}, 1.5, '2020-01-01 12:00+02', gen_random_uuid(), 0.1, '{{1,NULL}}', "
                f"'1 day 2 hours', '{form}'); UPDATE forms SET n = n + 1"
            )
            await publisher.caught_up()
            assert await publisher.gateway.stop() == 0
        publisher.gateway.start()
        await publisher.equal(schema, "forms")
    finally:
        await publisher.gateway.end()
        await publisher.connection.close()


async def test_027_a_role_with_no_right_but_replication_is_enough(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """Row security of the table does not hide rows from the stream either: who may replicate reads
    everything."""
    publisher = await open_publisher(database, kafka, registry, tmp_path, topic_prefix)
    role = f"least_{topic_prefix}"
    dsn = database.dsn_of(role)
    try:
        schema = await publisher.schema()
        await publisher.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{database.server.password}'")
        await publisher.execute(
            "CREATE TABLE guarded (a int PRIMARY KEY, b text); ALTER TABLE guarded ENABLE ROW LEVEL SECURITY"
        )
        await publisher.publish("guarded")
        publisher.gateway.start(source__dsn=dsn)
        await publisher.gateway.logged('"streaming"')
        await publisher.execute("INSERT INTO guarded VALUES (1, 'x')")
        await publisher.equal(schema, "guarded")
    finally:
        await publisher.gateway.end()
        await publisher.execute(f"DROP ROLE IF EXISTS {role}")
        await publisher.connection.close()


@pytest.mark.parametrize("origin", ["any", "none"])
async def test_030_changes_of_another_origin(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path, origin: str
) -> None:
    publisher = await open_publisher(database, kafka, registry, tmp_path, topic_prefix)
    node = f"node_{topic_prefix}"
    try:
        schema = await publisher.schema()
        await publisher.execute("CREATE TABLE local (a int PRIMARY KEY)")
        await publisher.publish("local")
        publisher.gateway.start(source__origin=origin)
        await publisher.gateway.logged('"streaming"')
        await publisher.execute("INSERT INTO local VALUES (1)")
        await publisher.execute(f"SELECT pg_replication_origin_create('{node}')")
        await publisher.execute(f"SELECT pg_replication_origin_session_setup('{node}')")
        await publisher.execute(
            "BEGIN; SELECT pg_replication_origin_xact_setup('0/123456', now()); INSERT INTO local VALUES (2); COMMIT"
        )
        await publisher.execute(
            f"SELECT pg_replication_origin_session_reset(); SELECT pg_replication_origin_drop('{node}')"
        )
        delivered = await publisher.delivered(schema)
        told = {
            record.value["after"]["a"]: record.value["origin"] for record in delivered.events if record.value["after"]
        }
        told = {a: name for a, name in told.items() if a in (1, 2)}
        assert told == ({1: None, 2: node} if origin == "any" else {1: None})
    finally:
        await publisher.gateway.end()
        await publisher.connection.close()


async def test_the_oldest_server_streams_commits_and_rolls_back(
    database_oldest: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """15-18 of PostgreSQL's scenarios on the oldest version: protocol 2, aborts without LSN, no
    two-phase."""
    publisher = await open_publisher(database_oldest, kafka, registry, tmp_path, topic_prefix, source__two_phase=False)
    fill = "INSERT INTO test_tab SELECT n, sha256(n::text::bytea)::text FROM generate_series({}, {}) n"
    try:
        schema = await publisher.schema()
        await publisher.execute("CREATE TABLE test_tab (a int PRIMARY KEY, b text)")
        await publisher.publish("test_tab")
        publisher.gateway.start()
        await publisher.gateway.logged('"streaming"')
        await publisher.execute("INSERT INTO test_tab VALUES (0, 'small')")
        await publisher.execute(
            f"BEGIN; {fill.format(1, 1000)}; SAVEPOINT s; {fill.format(1001, 2000)}; ROLLBACK TO s; {fill.format(2001, 3000)}; "
            "ALTER TABLE test_tab ADD c int; INSERT INTO test_tab VALUES (5000, 'altered', 1); COMMIT"
        )
        await publisher.execute(f"BEGIN; {fill.format(6000, 8000)}; ROLLBACK")
        await publisher.execute("BEGIN; TRUNCATE test_tab; INSERT INTO test_tab VALUES (1, 'x', 1); ROLLBACK")
        replicas = await publisher.equal(schema, "test_tab")
        assert len(replicas["test_tab"].keyed) == 2002
    finally:
        await publisher.gateway.end()
        await publisher.connection.close()


async def test_022_prepared_transactions_come_through_a_server_between(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The first database is published to the gateway's by PostgreSQL's own subscription, in two
    phases, a large one streamed."""
    name = f"first_{topic_prefix}"
    admin = await database.server.connect()
    await admin.execute(f"CREATE DATABASE {name}")
    first = await database.server.connect(name)
    publisher = await open_publisher(database, kafka, registry, tmp_path, topic_prefix)
    table = "CREATE TABLE public.cascaded (a int PRIMARY KEY, b text)"
    try:
        await first.execute(f"{table}; CREATE PUBLICATION source FOR TABLE public.cascaded")
        await first.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)")
        await publisher.execute(table)
        await publisher.publish("public.cascaded")
        await publisher.execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{database.server.database_dsn(name)}' PUBLICATION source "
            f"WITH (create_slot = false, slot_name = '{name}', copy_data = false, two_phase = true, streaming = on)"
        )
        await becomes(publisher, "SELECT subtwophasestate = 'e' FROM pg_subscription WHERE subname = $1", name)
        await publisher.gateway.streaming()
        for number, end in enumerate(("COMMIT", "ROLLBACK", "COMMIT")):
            gid = f"{name}_{number}"
            await first.execute(f"BEGIN; INSERT INTO public.cascaded VALUES ({10 * number}, 'kept'); SAVEPOINT s")
            await first.execute(f"INSERT INTO public.cascaded VALUES ({10 * number + 1}, 'undone'); ROLLBACK TO s")
            await first.execute(f"PREPARE TRANSACTION '{gid}'")
            prepared = "SELECT count(*) = $1 FROM pg_prepared_xacts WHERE database = current_database()"
            await becomes(publisher, prepared, 1)
            await first.execute(f"{end} PREPARED '{gid}'")
            await becomes(publisher, prepared, 0)
        fill = "INSERT INTO public.cascaded SELECT n, repeat('x', 100) FROM generate_series({}, {}) n"
        await first.execute(f"BEGIN; {fill.format(1000, 1999)}; SAVEPOINT s; {fill.format(2000, 2999)}; ROLLBACK TO s")
        await first.execute(f"{fill.format(3000, 3999)}; PREPARE TRANSACTION '{name}_streamed'")
        await becomes(publisher, prepared, 1)
        await first.execute(f"COMMIT PREPARED '{name}_streamed'")
        await becomes(publisher, prepared, 0)
        replicas = await publisher.equal("public", "cascaded")
        expected = [0, 20, *range(1000, 2000), *range(3000, 4000)]
        assert sorted(row["a"] for row in replicas["cascaded"].all_rows()) == expected
    finally:
        await publisher.gateway.end()
        await publisher.execute(f"ALTER SUBSCRIPTION {name} DISABLE")
        await publisher.execute(f"ALTER SUBSCRIPTION {name} SET (slot_name = NONE)")
        await publisher.execute(f"DROP SUBSCRIPTION {name}")
        await publisher.connection.close()
        await first.close()
        await until_free(admin, name)
        await admin.execute(f"SELECT pg_drop_replication_slot('{name}')")
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()


async def becomes(publisher: Publisher, query: str, *arguments: object) -> None:
    async with asyncio.timeout(60):
        while not await publisher.connection.fetchval(query, *arguments):
            await asyncio.sleep(0.05)
