"""PostgreSQL's scenario 012, nondeterministic collations: rows whose keys are equal to PostgreSQL
and yet not the same bytes.

PostgreSQL finds rows by equality, but compares the key columns of an UPDATE by their bytes, as the
readers of a topic do: a key in another spelling is another key.
"""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from gateway.local import Kafka, Registry
from tests.conftest import Database
from tests.subscription.conftest import Publisher, open_publisher
from tests.support.delivered import Decoder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

COMPOSED, DECOMPOSED = "\u00e4bc", "a\u0308bc"


async def test_012_a_nondeterministic_collation(
    database_oldest: Database, kafka: Kafka, registry: Registry, topic_prefix: str, tmp_path: Path
) -> None:
    """The oldest server, because the newest of the tests is built without ICU."""
    publisher = await open_publisher(database_oldest, kafka, registry, tmp_path, topic_prefix, source__two_phase=False)
    try:
        schema = await publisher.schema()
        try:
            await publisher.execute("CREATE COLLATION nondet (provider = icu, locale = 'und', deterministic = false)")
        except asyncpg.FeatureNotSupportedError as error:
            pytest.skip(f"this server has no nondeterministic collations: {error}")
        publisher.gateway.start()
        await publisher.gateway.logged('"streaming"')
        await follow_spellings(publisher, schema, "text COLLATE nondet", COMPOSED, DECOMPOSED)
    finally:
        await publisher.gateway.end()
        await publisher.connection.close()


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        pytest.param("citext", "abc", "aBC", marks=pytest.mark.long),
        ("numeric", "1.0", "1.00"),
        pytest.param("interval", "P1M", "P30D", marks=pytest.mark.long),
        ("float8", "0", "-0"),
    ],
)
async def test_012_other_types_that_have_several_spellings(
    publisher: Publisher, type_: str, one: str, other: str
) -> None:
    await publisher.execute("CREATE EXTENSION IF NOT EXISTS citext SCHEMA public")
    schema = await publisher.schema()
    await publisher.execute(f"SET search_path = {schema}, public")
    await follow_spellings(publisher, schema, type_, one, other)


async def follow_spellings(publisher: Publisher, schema: str, type_: str, one: str, other: str) -> None:
    """`one` and `other` are equal."""
    await publisher.execute(
        f"""
        CREATE TABLE keyed (c int, a {type_} PRIMARY KEY, b {type_});
        CREATE TABLE keyed_full (c int, a {type_} PRIMARY KEY, b {type_});
        ALTER TABLE keyed_full REPLICA IDENTITY FULL;
        CREATE TABLE loose (c int, a {type_}, b {type_});
        ALTER TABLE loose REPLICA IDENTITY FULL;
        """
    )
    await publisher.publish("keyed", "keyed_full", "loose")
    for table in ("keyed", "keyed_full"):
        await publisher.execute(
            f"""
            INSERT INTO {table} VALUES (1, '{one}', '{one}');
            UPDATE {table} SET c = 2 WHERE a = '{other}';
            UPDATE {table} SET b = '{other}', c = 3 WHERE b = '{one}';
            UPDATE {table} SET a = '{other}', c = 4 WHERE a = '{one}';
            UPDATE {table} SET a = '{other}', c = 5 WHERE a = '{one}';
            INSERT INTO {table} VALUES (0, '{one}') ON CONFLICT (a) DO UPDATE SET c = 6;
            """
        )
    await publisher.execute(
        f"""
        INSERT INTO loose VALUES (1, '{one}', '{one}'), (2, '{other}', '{one}'), (3, '{other}', '{other}');
        UPDATE loose SET b = '{other}' WHERE a = '{one}' AND c = 2;
        UPDATE loose SET a = '{one}' WHERE a = '{other}' AND c = 3;
        DELETE FROM loose WHERE a = '{one}' AND a::text COLLATE "C" = '{other}';
        """
    )
    replicas = await publisher.equal(schema, "keyed", "keyed_full", "loose")
    assert [row["c"] for row in replicas["keyed"].all_rows()] == [6]
    assert [row["c"] for row in replicas["loose"].all_rows()] == [1, 3]
    for table in ("keyed", "keyed_full"):
        await publisher.execute(f"DELETE FROM {table} WHERE a = '{one}'; INSERT INTO {table} VALUES (7, '{one}')")
    await publisher.equal(schema, "keyed", "keyed_full", "loose")
    await check_keys(publisher, schema)


async def check_keys(publisher: Publisher, schema: str) -> None:
    delivered = await publisher.delivered(schema)
    for table in ("keyed", "keyed_full"):
        events = [record for record in delivered.events if record.topic.endswith(f".{table}")]
        events.sort(key=lambda record: (record.value["change_lsn"], record.value["ordinal"], record.value["op"]))
        first = events[0].key
        assert [(r.key == first, r.value["op"], r.value["key_change"]) for r in events] == [
            (True, "INSERT", False),
            (True, "UPDATE", False),
            (True, "UPDATE", False),
            (True, "DELETE", True),
            (False, "UPDATE", False),
            (False, "UPDATE", False),
            (False, "UPDATE", False),
            (False, "DELETE", False),
            (True, "INSERT", False),
        ]
        gone, moved = events[3:5]
        with Decoder(publisher.registry.url) as decoder:
            old_key = decoder.decode(gone.key or b"")[1]
        # Not ==: 0.0 is -0.0.
        assert repr(moved.value["old_key"]) == repr(old_key if table == "keyed" else None)
        assert (moved.value["before"] or {}).get("c") == (None if table == "keyed" else 3)
