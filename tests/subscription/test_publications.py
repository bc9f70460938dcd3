"""PostgreSQL's scenarios about what a publication holds: 007, 013, 024, 025, 028, 031."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.subscription.conftest import Publisher, open_publisher
from tests.subscription.replica import Replica, differences, rebuild
from tests.support.delivered import Decoder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

_PARTITIONED = """
    CREATE TABLE tab1 (a int PRIMARY KEY, b text) PARTITION BY LIST (a);
    CREATE TABLE tab1_1 (b text, a int NOT NULL);
    ALTER TABLE tab1 ATTACH PARTITION tab1_1 FOR VALUES IN (1, 2, 3);
    CREATE TABLE tab1_2 PARTITION OF tab1 FOR VALUES IN (4, 5, 6);
    CREATE TABLE tab1_def PARTITION OF tab1 DEFAULT;
"""
_MOVES = """
    INSERT INTO tab1 VALUES (1, 'one'), (3, 'three'), (5, 'five'), (0, 'zero');
    UPDATE tab1 SET a = 2 WHERE a = 1;
    UPDATE tab1 SET a = 6 WHERE a = 2;
    UPDATE tab1 SET b = 'drei' WHERE a = 3;
    DELETE FROM tab1 WHERE a IN (5, 0);
"""


@pytest_asyncio.fixture
async def own_publisher(
    database: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> AsyncIterator[Publisher]:
    """With a gateway of its own that is not started yet."""
    publisher = await open_publisher(database, kafka, registry, tmp_path, topic_prefix)
    yield publisher
    await publisher.gateway.end()
    await publisher.connection.close()


async def test_013_leaf_partitions_and_rows_that_move_between_them(publisher: Publisher) -> None:
    """A row that moves is a delete in one partition and an insert in the other, in one
    transaction."""
    schema = await publisher.schema()
    await publisher.execute(_PARTITIONED)
    await publisher.publish("tab1")
    await publisher.execute(_MOVES)
    replicas = await publisher.equal(schema, "tab1_1", "tab1_2", "tab1_def")
    assert "tab1" not in replicas
    await publisher.execute(
        "TRUNCATE tab1_2; ALTER TABLE tab1 DETACH PARTITION tab1_1; INSERT INTO tab1_1 VALUES ('aside', 2)"
    )
    replicas = await publisher.equal(schema, "tab1_2")
    assert {row["a"] for row in replicas["tab1_1"].all_rows()} == {3}, "a detached partition is not published any more"


async def test_013_a_partitioned_table_published_as_its_root(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute(_PARTITIONED)
    await publisher.publish("tab1", publication=publisher.root_publication)
    await publisher.execute(_MOVES)
    await publisher.execute("CREATE TABLE tab1_3 PARTITION OF tab1 FOR VALUES IN (7, 8)")
    await publisher.execute("INSERT INTO tab1 VALUES (7, 'seven'); UPDATE tab1 SET a = 8 WHERE a = 7")
    replicas = await publisher.equal(schema, "tab1")
    assert replicas.keys() == {"tab1"}
    await publisher.execute("TRUNCATE tab1; INSERT INTO tab1 VALUES (4, 'again')")
    await publisher.equal(schema, "tab1")


async def test_024_another_list_of_publications_after_a_restart(own_publisher: Publisher) -> None:
    publisher = own_publisher
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE one (a int PRIMARY KEY); CREATE TABLE two (a int PRIMARY KEY)")
    await publisher.execute(f"CREATE PUBLICATION more FOR TABLE {schema}.two")
    await publisher.publish("one")
    publisher.gateway.start()
    await publisher.gateway.logged('"streaming"')
    await publisher.execute("INSERT INTO one VALUES (1); INSERT INTO two VALUES (1)")
    await publisher.caught_up()
    await publisher.gateway.stop()
    publisher.gateway.start(source__publications=f"{publisher.publication},more")
    await publisher.gateway.logged('"streaming"', times=2)
    await publisher.execute("INSERT INTO one VALUES (2); INSERT INTO two VALUES (2)")
    replicas = await publisher.equal(schema, "one")
    assert [row["a"] for row in replicas["two"].all_rows()] == [2]


async def test_025_tables_of_a_published_schema_come_by_themselves(own_publisher: Publisher) -> None:
    publisher = own_publisher
    schema = await publisher.schema()
    await publisher.execute(
        f"CREATE PUBLICATION whole FOR TABLES IN SCHEMA {schema}; CREATE TABLE first (a int PRIMARY KEY)"
    )
    publisher.gateway.start(source__publications=f"{publisher.publication},whole")
    await publisher.gateway.logged('"streaming"')
    await publisher.execute(
        "INSERT INTO first VALUES (1); CREATE TABLE second (a int PRIMARY KEY, b text); INSERT INTO second VALUES (2, 'x')"
    )
    await publisher.equal(schema, "first", "second")
    await publisher.execute("ALTER TABLE second SET SCHEMA public")
    await publisher.execute("INSERT INTO public.second VALUES (3, 'unseen'); INSERT INTO first VALUES (4)")
    replicas = await publisher.equal(schema, "first")
    assert [row["a"] for row in replicas["second"].all_rows()] == [2]


async def test_028_a_row_filter_turns_updates_into_inserts_and_deletes(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute(
        "CREATE TABLE filtered (a int PRIMARY KEY, b text); ALTER TABLE filtered REPLICA IDENTITY FULL"
    )
    await publisher.publish("filtered WHERE (a > 1000 AND b <> 'hidden')")
    await publisher.execute(
        """
        INSERT INTO filtered VALUES (1, 'low'), (1001, 'high'), (1002, 'hidden'), (1003, 'stays');
        UPDATE filtered SET b = 'shown' WHERE a = 1002;
        UPDATE filtered SET b = 'hidden' WHERE a = 1001;
        UPDATE filtered SET a = 2000 WHERE a = 1003;
        UPDATE filtered SET a = 5 WHERE a = 2000;
        UPDATE filtered SET a = 3000 WHERE a = 1;
        DELETE FROM filtered WHERE a = 1001;
        """
    )
    rebuilt = await publisher.replicas(schema)
    found = await differences(
        publisher.connection,
        f"(SELECT * FROM {schema}.filtered WHERE a > 1000 AND b <> 'hidden') AS seen",
        rebuilt["filtered"],
    )
    assert not found
    assert rebuilt["filtered"].operations == ["INSERT", "INSERT", "INSERT", "DELETE", "UPDATE", "DELETE", "INSERT"]


async def test_028_a_row_filter_over_a_toasted_column(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute(
        """
        CREATE TABLE toasted (a int NOT NULL, b text NOT NULL);
        ALTER TABLE toasted ALTER b SET STORAGE EXTERNAL;
        CREATE UNIQUE INDEX toasted_both ON toasted (a);
        ALTER TABLE toasted REPLICA IDENTITY FULL;
        """
    )
    await publisher.publish("toasted WHERE (a < 10 AND b = repeat('1234567890', 300))")
    await publisher.execute(
        "INSERT INTO toasted VALUES (1, repeat('1234567890', 300)), (2, 'other'); UPDATE toasted SET a = a + 5"
    )
    rebuilt = await publisher.replicas(schema)
    assert [(row["a"], len(row["b"])) for row in rebuilt["toasted"].all_rows()] == [(6, 3000)]


async def test_031_only_listed_columns_are_sent(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE listed (a int PRIMARY KEY, secret text, c int)")
    await publisher.publish("listed (a, c)")
    await publisher.execute(
        "INSERT INTO listed VALUES (1, 'canary', 10), (2, 'canary', 20); "
        "UPDATE listed SET secret = 'canary 2', c = 11 WHERE a = 1"
    )
    await publisher.execute(
        "ALTER TABLE listed DROP COLUMN secret, ADD COLUMN d text; UPDATE listed SET d = 'unlisted' WHERE a = 2"
    )
    rebuilt = await publisher.replicas(schema)
    assert not await differences(publisher.connection, f"(SELECT a, c FROM {schema}.listed) AS seen", rebuilt["listed"])
    assert all(row.keys() == {"a", "c"} for row in rebuilt["listed"].all_rows())
    assert "canary" not in publisher.gateway.log()


async def test_031_a_column_list_that_changes_counts_from_then_on(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE relisted (a int PRIMARY KEY, b int, c int)")
    await publisher.publish("relisted (a, b)")
    await publisher.execute("INSERT INTO relisted VALUES (1, 1, 1)")
    await publisher.execute(f"ALTER PUBLICATION {publisher.publication} DROP TABLE relisted")
    await publisher.publish("relisted (a, c)")
    await publisher.execute("INSERT INTO relisted VALUES (2, 2, 2)")
    rebuilt = await publisher.replicas(schema)
    rows = {row["a"]: (row.get("b"), row.get("c")) for row in rebuilt["relisted"].all_rows()}
    assert rows == {1: (1, None), 2: (None, 2)}


async def test_a_replica_that_differs_is_found(publisher: Publisher) -> None:
    """The comparison itself: each kind of difference shows."""
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE compared (a int PRIMARY KEY, b text)")
    await publisher.publish("compared")
    await publisher.execute("INSERT INTO compared VALUES (1, 'x'), (2, NULL)")
    delivered = await publisher.delivered(schema)
    topic = f"{publisher.prefix}.{schema}.compared"

    async def found(replica: Replica) -> list[str]:
        return await differences(publisher.connection, f"{schema}.compared", replica)

    with Decoder(publisher.registry.url) as decoder:
        replica = rebuild(delivered, decoder)[topic]
    assert not await found(replica)
    first = next(iter(replica.keyed))
    replica.keyed[first]["b"] = "y"
    assert len(await found(replica)) == 1
    del replica.keyed[first]
    assert len(await found(replica)) == 2


async def test_007_publications_that_swap_their_names(own_publisher: Publisher) -> None:
    """From the commit on, the name stands for the other tables."""
    publisher = own_publisher
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE one (a int PRIMARY KEY); CREATE TABLE two (a int PRIMARY KEY)")
    await publisher.execute(f"CREATE PUBLICATION other FOR TABLE {schema}.two, public.heartbeat")
    await publisher.publish("one")
    publisher.gateway.start()
    await publisher.gateway.logged('"streaming"')
    await publisher.execute("INSERT INTO one VALUES (1); INSERT INTO two VALUES (1)")
    await publisher.caught_up()
    name = publisher.publication
    await publisher.execute(
        f"""
        BEGIN;
        ALTER PUBLICATION {name} RENAME TO swapped;
        ALTER PUBLICATION other RENAME TO {name};
        ALTER PUBLICATION swapped RENAME TO other;
        COMMIT;
        INSERT INTO one VALUES (2); INSERT INTO two VALUES (2)
        """
    )
    replicas = await publisher.replicas(schema)
    assert [row["a"] for row in replicas["one"].all_rows()] == [1]
    assert [row["a"] for row in replicas["two"].all_rows()] == [2]
