"""PostgreSQL's subscription scenarios about single changes: src/test/subscription/t/001, 002, 006,
008, 009, 010, 011, 032, 034, 100.

The publisher's half is theirs, retold; the subscriber is a replica rebuilt from Kafka, the oracle
the source tables.
"""

from __future__ import annotations

import asyncpg
import pytest

from tests.subscription.conftest import Publisher

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


async def test_001_inserts_updates_and_deletes_of_every_replica_identity(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute(
        """
        CREATE TABLE tab_ins (a int);
        ALTER TABLE tab_ins REPLICA IDENTITY FULL;
        CREATE TABLE tab_rep (a int PRIMARY KEY);
        CREATE TABLE tab_mixed (c text, b text, a int PRIMARY KEY);
        CREATE TABLE tab_include (a int, b text, CONSTRAINT covering PRIMARY KEY (a) INCLUDE (b));
        CREATE TABLE tab_full (a int, b text);
        ALTER TABLE tab_full REPLICA IDENTITY FULL;
        CREATE TABLE tab_nothing (a int);
        ALTER TABLE tab_nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE tab_no_col ();
        CREATE TABLE tab_index (a int NOT NULL, b int NOT NULL, c text);
        CREATE UNIQUE INDEX tab_index_b ON tab_index (b);
        ALTER TABLE tab_index REPLICA IDENTITY USING INDEX tab_index_b;
        """
    )
    names = ["tab_ins", "tab_rep", "tab_mixed", "tab_include", "tab_full", "tab_nothing", "tab_no_col", "tab_index"]
    await publisher.publish(*names)
    await publisher.execute(
        """
        INSERT INTO tab_ins SELECT generate_series(1, 50);
        DELETE FROM tab_ins WHERE a > 20;
        UPDATE tab_ins SET a = -a;
        INSERT INTO tab_rep SELECT generate_series(1, 50);
        DELETE FROM tab_rep WHERE a > 20;
        UPDATE tab_rep SET a = -a;
        INSERT INTO tab_mixed VALUES ('foo', 'bar', 2), (NULL, 'baz', 3);
        UPDATE tab_mixed SET c = 'one', b = NULL WHERE a = 2;
        INSERT INTO tab_include SELECT n, 'text ' || n FROM generate_series(1, 50) n;
        DELETE FROM tab_include WHERE a > 20;
        UPDATE tab_include SET a = -a;
        INSERT INTO tab_full VALUES (1, 'x'), (1, 'x'), (2, NULL), (3, 'y');
        UPDATE tab_full SET b = 'changed' WHERE a = 1;
        DELETE FROM tab_full WHERE a = 3;
        INSERT INTO tab_nothing VALUES (20), (20);
        INSERT INTO tab_no_col DEFAULT VALUES;
        INSERT INTO tab_no_col DEFAULT VALUES;
        INSERT INTO tab_index VALUES (1, 10, 'ten'), (2, 20, 'twenty');
        UPDATE tab_index SET b = 30 WHERE a = 1;
        DELETE FROM tab_index WHERE a = 2;
        BEGIN; COMMIT;
        """
    )
    replicas = await publisher.equal(schema, *names)
    assert replicas["tab_no_col"].operations == ["INSERT", "INSERT"]


async def test_001_a_table_is_replicated_from_the_moment_it_is_published(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE late (a int PRIMARY KEY); INSERT INTO late VALUES (1)")
    await publisher.publish("late")
    await publisher.execute("INSERT INTO late VALUES (2)")
    await publisher.execute(f"ALTER PUBLICATION {publisher.publication} DROP TABLE late")
    await publisher.execute("INSERT INTO late VALUES (3)")
    replicas = await publisher.replicas(schema)
    assert [row["a"] for row in replicas["late"].all_rows()] == [2]


async def test_001_toasted_values_that_did_not_change_are_kept(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute(
        """
        CREATE TABLE toasted (a int PRIMARY KEY, b text, c text);
        ALTER TABLE toasted ALTER b SET STORAGE EXTERNAL, ALTER c SET STORAGE EXTERNAL;
        """
    )
    await publisher.publish("toasted")
    await publisher.execute(
        """
        INSERT INTO toasted VALUES (1, repeat('1234567890', 300), repeat('abc', 2000)), (2, repeat('x', 5000), NULL);
        UPDATE toasted SET c = 'short' WHERE a = 1;
        UPDATE toasted SET a = 3 WHERE a = 2;
        UPDATE toasted SET b = '' WHERE a = 3;
        """
    )
    await publisher.equal(schema, "toasted")


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
async def test_002_every_family_of_types(publisher: Publisher, identity: str) -> None:
    schema = await publisher.schema()
    await publisher.execute(
        f"""
        CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
        CREATE TYPE pair AS (a int, b text);
        CREATE DOMAIN positive AS int CHECK (VALUE > 0);
        CREATE DOMAIN many AS int[];
        CREATE TABLE tst (
            id int PRIMARY KEY, arrays int[], texts text[], composite pair, composites pair[], enum mood, enums mood[],
            range int4range, ranges tstzrange[], multi int4multirange, dom positive, doms many, num numeric(10, 2), big numeric,
            ts timestamp, tstz timestamptz, d date, t time, ttz timetz, i interval, u uuid, j jsonb, js json, bits bit varying,
            ip inet, mac macaddr, money money, b bytea, f float8, p point, v tsvector, c char(4), o oid
        );
        ALTER TABLE tst REPLICA IDENTITY {identity};
        """
    )
    await publisher.publish("tst")
    await publisher.execute(
        """
        INSERT INTO tst VALUES (
            1, '{1,2,NULL}', '{a,"b c",NULL}', ROW(1, 'a'), ARRAY[ROW(1, 'a')::pair, NULL], 'ok', '{sad,happy}', '[1,10)',
            ARRAY[tstzrange('2020-01-01Z', 'infinity')], '{[1,3),[5,9)}', 7, '{1,2}', 12.30, 1e40, '2020-02-29 12:34:56.789',
            '2020-02-29 12:34:56.789+01', '2020-02-29', '23:59:59.999999', '12:00+02', '1 year 2 mons 3 days 04:05:06.7',
            'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": [1, 2]}', '{"b":  1}', B'10101', '10.0.0.0/8', '08:00:2b:01:02:03',
            12.34, '\\x00ff', 0.1, '(1,2)', 'fat cat', 'ab', 42
        );
        INSERT INTO tst (id, num, ts, tstz, d, f, arrays) VALUES (
            2, 'NaN', 'infinity', '-infinity', '0044-03-15 BC', '-Infinity', '[0:1]={1,2}'
        );
        INSERT INTO tst (id, arrays, doms) VALUES (3, '{{1,2},{3,4}}', '{}');
        UPDATE tst SET composite = NULL, enum = 'happy', range = 'empty', ts = NULL WHERE id = 1;
        UPDATE tst SET num = 1.5, d = 'infinity' WHERE id = 2;
        DELETE FROM tst WHERE id = 3;
        """
    )
    await publisher.equal(schema, "tst")


async def test_006_a_rewrite_of_the_heap_sends_no_rows(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE rewritten (a int PRIMARY KEY, b text)")
    await publisher.publish("rewritten")
    await publisher.execute("INSERT INTO rewritten VALUES (1, 'one'), (2, 'two')")
    await publisher.execute("ALTER TABLE rewritten ADD c timestamptz NOT NULL DEFAULT now()")
    await publisher.execute("INSERT INTO rewritten VALUES (3, 'three')")
    await publisher.execute("ALTER TABLE rewritten ALTER b TYPE varchar(20)")
    await publisher.execute("VACUUM FULL rewritten")
    await publisher.execute("UPDATE rewritten SET b = 'eins' WHERE a = 1")
    replicas = await publisher.replicas(schema)
    assert replicas["rewritten"].operations == ["INSERT", "INSERT", "INSERT", "UPDATE"]
    rows = {row["a"]: row["b"] for row in replicas["rewritten"].all_rows()}
    assert rows == {1: "eins", 2: "two", 3: "three"}


async def test_008_columns_in_another_order_added_and_dropped(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE changing (a int PRIMARY KEY, b text, gone int)")
    await publisher.publish("changing")
    await publisher.execute("INSERT INTO changing VALUES (1, 'one', 1)")
    await publisher.execute("ALTER TABLE changing DROP gone, ADD d bigint, ADD e text")
    await publisher.execute("INSERT INTO changing VALUES (2, 'two', 22, 'e')")
    await publisher.execute("UPDATE changing SET d = 11, e = '' WHERE a = 1")
    await publisher.equal(schema, "changing")


async def test_009_a_materialized_view_is_not_published(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE seen (a int PRIMARY KEY)")
    await publisher.publish("seen")
    await publisher.execute(
        "INSERT INTO seen VALUES (1); CREATE MATERIALIZED VIEW view AS SELECT * FROM seen; REFRESH MATERIALIZED VIEW view"
    )
    replicas = await publisher.equal(schema, "seen")
    assert replicas.keys() == {"seen"}


async def test_010_truncate_of_one_several_and_referring_tables(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute(
        """
        CREATE TABLE one (a serial PRIMARY KEY);
        CREATE TABLE two (a int PRIMARY KEY);
        CREATE TABLE three (a int PRIMARY KEY REFERENCES two);
        CREATE TABLE unpublished (a int PRIMARY KEY);
        """
    )
    await publisher.publish("one", "two", "three")
    fill = "INSERT INTO two VALUES (1), (2); INSERT INTO three VALUES (1); INSERT INTO one DEFAULT VALUES;"
    await publisher.execute(fill)
    await publisher.execute("TRUNCATE one RESTART IDENTITY")
    await publisher.execute("TRUNCATE two CASCADE")
    await publisher.execute(fill)
    await publisher.execute(
        "BEGIN; INSERT INTO one VALUES (7); TRUNCATE one, two, three, unpublished; INSERT INTO two VALUES (9); COMMIT"
    )
    await publisher.execute("BEGIN; TRUNCATE two, three; ROLLBACK")
    replicas = await publisher.equal(schema, "one", "two", "three")
    assert replicas["three"].operations == ["INSERT", "TRUNCATE", "INSERT", "TRUNCATE"]


async def test_011_generated_columns_are_sent_as_published(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute(
        "CREATE TABLE generated (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED, c int GENERATED ALWAYS AS (a * 3))"
    )
    await publisher.execute("CREATE TABLE listed (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED)")
    await publisher.publish("generated", "listed (a, b)")
    await publisher.execute("INSERT INTO generated VALUES (1), (2); UPDATE generated SET a = 6 WHERE a = 2")
    await publisher.execute("INSERT INTO listed VALUES (1), (2); UPDATE listed SET a = 6 WHERE a = 2")
    replicas = await publisher.equal(schema, "listed")
    assert {tuple(row) for row in replicas["generated"].all_rows()} == {("a",)}


async def test_032_rows_are_found_under_replica_identity_full(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE found (a int, b text); ALTER TABLE found REPLICA IDENTITY FULL")
    await publisher.publish("found")
    await publisher.execute(
        """
        INSERT INTO found SELECT n % 3, CASE WHEN n % 4 <> 0 THEN 'b' || n % 4 END FROM generate_series(1, 24) n;
        UPDATE found SET b = 'none' WHERE b IS NULL AND a = 1;
        DELETE FROM found WHERE ctid IN (SELECT ctid FROM found WHERE a = 2 LIMIT 2);
        UPDATE found SET a = NULL WHERE b = 'b1';
        """
    )
    await publisher.equal(schema, "found")


async def test_034_temporal_keys_identify_rows(publisher: Publisher) -> None:
    schema = await publisher.schema()
    columns = "a text, id int4range NOT NULL, valid_at daterange NOT NULL"
    await publisher.execute(
        f"""
        CREATE TABLE temporal_full ({columns});
        ALTER TABLE temporal_full REPLICA IDENTITY FULL;
        CREATE TABLE temporal_pk ({columns}, PRIMARY KEY (id, valid_at WITHOUT OVERLAPS));
        CREATE TABLE temporal_pk_full ({columns}, PRIMARY KEY (id, valid_at WITHOUT OVERLAPS));
        ALTER TABLE temporal_pk_full REPLICA IDENTITY FULL;
        CREATE TABLE temporal_index ({columns}, CONSTRAINT temporal_key UNIQUE (id, valid_at WITHOUT OVERLAPS));
        ALTER TABLE temporal_index REPLICA IDENTITY USING INDEX temporal_key;
        CREATE EXTENSION IF NOT EXISTS btree_gist SCHEMA public;
        CREATE TABLE temporal_scalar (id int, seen_at tsrange, a text, PRIMARY KEY (id, seen_at WITHOUT OVERLAPS));
        """
    )
    names = ["temporal_full", "temporal_pk", "temporal_pk_full", "temporal_index"]
    await publisher.publish(*names, "temporal_scalar")
    for name in names:
        await publisher.execute(
            f"""
            INSERT INTO {name} (id, valid_at, a) VALUES
                ('[1,2)', '[2000-01-01,2010-01-01)', 'a'), ('[2,3)', '[2000-01-01,2010-01-01)', 'a'),
                ('[3,4)', '[2000-01-01,2010-01-01)', 'a'), ('[3,4)', '[2010-01-01,)', 'a');
            UPDATE {name} SET a = 'b' WHERE id = '[2,3)';
            DELETE FROM {name} WHERE id = '[3,4)' AND valid_at @> '2005-01-01'::date;
            UPDATE {name} SET valid_at = valid_at * '[2005-01-01,)', a = 'c' WHERE id = '[2,3)';
            INSERT INTO {name} (id, valid_at) VALUES ('[2,3)', '[2000-01-01,2005-01-01)');
            UPDATE {name} SET id = '[5,9)' WHERE id = '[1,2)';
            UPDATE {name} SET id = '[6,9)', valid_at = '(,)' WHERE id = '[5,9)';
            """
        )
    await publisher.execute(
        """
        INSERT INTO temporal_scalar VALUES (1, '[2000-01-01,2010-01-01 12:00:00.5)', 'a'), (1, '[2010-01-01 12:00:00.5,)', 'b');
        UPDATE temporal_scalar SET a = 'c' WHERE seen_at @> '2020-01-01'::timestamp;
        UPDATE temporal_scalar SET seen_at = '(2010-01-01 12:00:00.5,infinity]' WHERE upper_inf(seen_at);
        DELETE FROM temporal_scalar WHERE seen_at @> '2005-01-01'::timestamp;
        """
    )
    replicas = await publisher.equal(schema, *names, "temporal_scalar")
    assert {name: len(replicas[name].keyed) for name in replicas} == {
        "temporal_full": 0,
        "temporal_pk": 4,
        "temporal_pk_full": 4,
        "temporal_index": 4,
        "temporal_scalar": 1,
    }


async def test_034_a_temporal_table_without_identity_takes_inserts_alone(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute(
        """
        CREATE TABLE temporal_nothing (a text, id int4range, valid_at daterange, PRIMARY KEY (id, valid_at WITHOUT OVERLAPS));
        ALTER TABLE temporal_nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE temporal_no_key (a text, id int4range, valid_at daterange);
        """
    )
    await publisher.publish("temporal_nothing", "temporal_no_key")
    for name in ("temporal_nothing", "temporal_no_key"):
        await publisher.execute(
            f"INSERT INTO {name} VALUES ('a', '[1,2)', '[2000-01-01,2010-01-01)'), (NULL, '[2,3)', '[2000-01-01,)')"
        )
        for statement in (f"UPDATE {name} SET a = 'b' WHERE id = '[2,3)'", f"DELETE FROM {name} WHERE id = '[2,3)'"):
            with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="does not have a replica identity"):
                await publisher.execute(statement)
    replicas = await publisher.equal(schema, "temporal_nothing", "temporal_no_key")
    assert replicas["temporal_nothing"].operations == ["INSERT", "INSERT"]


async def test_100_a_changed_replica_identity_counts_at_once(publisher: Publisher) -> None:
    """Missed invalidation of the replica identity index."""
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE identity (a int NOT NULL UNIQUE, b int NOT NULL)")
    await publisher.execute("ALTER TABLE identity REPLICA IDENTITY USING INDEX identity_a_key")
    await publisher.publish("identity")
    await publisher.execute("INSERT INTO identity VALUES (1, 1), (2, 2)")
    await publisher.execute(
        "CREATE UNIQUE INDEX other ON identity (b); ALTER TABLE identity REPLICA IDENTITY USING INDEX other"
    )
    await publisher.execute("UPDATE identity SET a = 9 WHERE a = 1; UPDATE identity SET b = 20 WHERE b = 2")
    delivered = await publisher.delivered(schema)
    updates = [record.value for record in delivered.events if record.value["op"] == "UPDATE"]
    moved = next(value for value in updates if value["after"]["b"] == 20)
    assert moved["old_key"] == {"b": 2}
    kept = next(value for value in updates if value["after"]["a"] == 9)
    assert kept["old_key"] is None


async def test_100_a_column_added_with_a_default_is_there_in_old_rows(publisher: Publisher) -> None:
    """Fast defaults: the attribute is missing in the old tuple on disk, and yet not null."""
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE fast (a int PRIMARY KEY, b int); ALTER TABLE fast REPLICA IDENTITY FULL")
    await publisher.publish("fast")
    await publisher.execute("INSERT INTO fast VALUES (1, 1), (2, 2)")
    await publisher.execute("ALTER TABLE fast ADD c int DEFAULT 5, DROP b")
    await publisher.execute("UPDATE fast SET a = 3 WHERE a = 2; DELETE FROM fast WHERE a = 1")
    delivered = await publisher.delivered(schema)
    befores = [
        r.value["before"] for r in delivered.events if r.value["op"] in ("UPDATE", "DELETE") and r.value["before"]
    ]
    assert befores and all(before["c"] == 5 for before in befores)
    await publisher.equal(schema, "fast")


async def test_100_unlogged_and_temporary_tables_are_not_sent(publisher: Publisher) -> None:
    schema = await publisher.schema()
    await publisher.execute("CREATE TABLE logged (a int PRIMARY KEY)")
    await publisher.publish("logged")
    await publisher.execute(
        "CREATE UNLOGGED TABLE unlogged (a int); CREATE TEMP TABLE temporary (a int);"
        "INSERT INTO unlogged VALUES (1); INSERT INTO temporary VALUES (1); INSERT INTO logged VALUES (1)"
    )
    assert (await publisher.equal(schema, "logged")).keys() == {"logged"}
