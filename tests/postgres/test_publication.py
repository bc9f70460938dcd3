"""What a publication holds, read without a lock on any table: PostgreSQL's own view
pg_publication_tables is the judge."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import asyncpg
import pytest

from gateway.local import Postgres
from gateway.pgoutput.decode import decode
from gateway.pgoutput.relation import Relation
from gateway.postgres import publication
from gateway.postgres.connection import connect_sql
from gateway.postgres.publication import (
    PublicationLoader,
    descent_of,
    publication_facts,
    published_tables,
    tables_that_held_rows,
)
from gateway.postgres.role import role_facts
from gateway.relations.attributes import ATTRIBUTES_QUERY, read_attributes
from gateway.relations.type_catalog import COLUMNS_QUERY, KEY_QUERY, TYPES_QUERY
from gateway.snapshot.discovery.unsent_changes import Comparison
from gateway.snapshot.read_plan import survey
from gateway.startup.facts import PublicationFacts
from tests.conftest import Database

pytestmark = pytest.mark.integration

SEED = int(os.environ.get("WALGATE_TEST_SEED", random.randrange(2**32)))
COUNT = 150
TABLES = """
CREATE SCHEMA other; CREATE SCHEMA "Odd ""one";
CREATE TABLE plain (id int PRIMARY KEY, gone int, a text, "B b" numeric(5,2)); ALTER TABLE plain DROP gone;
CREATE TABLE "Odd ""one"."T.1" (id int PRIMARY KEY, a text);
CREATE TABLE other.stored (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, a text);
CREATE TABLE empty ();
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TABLE parent (id int PRIMARY KEY, a text); CREATE TABLE other.child (b int) INHERITS (parent);
CREATE VIEW looks AS SELECT 1 AS id; CREATE MATERIALIZED VIEW solid AS SELECT 1 AS id; CREATE SEQUENCE counts;
CREATE FOREIGN DATA WRAPPER far; CREATE SERVER far FOREIGN DATA WRAPPER far; CREATE FOREIGN TABLE away (id int) SERVER far;
CREATE TABLE root (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE other.high (a text, id int NOT NULL); ALTER TABLE root ATTACH PARTITION other.high FOR VALUES FROM (10) TO (20);
CREATE TABLE other.sub PARTITION OF root FOR VALUES FROM (20) TO (40) PARTITION BY RANGE (id);
CREATE TABLE deep PARTITION OF other.sub FOR VALUES FROM (20) TO (30);
CREATE TABLE "Odd ""one".deep PARTITION OF other.sub FOR VALUES FROM (30) TO (40);
CREATE TABLE leaving PARTITION OF root FOR VALUES FROM (40) TO (50);
CREATE TABLE childless (id int PRIMARY KEY, a text) PARTITION BY LIST (id);
"""
NAMED = ["plain", '"Odd ""one"."T.1"', "other.stored", "empty", "parent", "ONLY parent", "other.child", "root", "low",
         "other.high", "other.sub", "deep", '"Odd ""one".deep', "leaving", "childless"]  # fmt: skip
SCHEMAS = ["public", "other", '"Odd ""one"']
LISTS = ["(id)", "(id, a)", "(twice, id)", "(a)"]
FILTERS = ["WHERE (id > 5)", "WHERE (a = 'x' AND id IS NOT NULL)"]
JUDGE = """
SELECT pubname, schemaname, tablename, to_jsonb(t) ->> 'attnames' AS attnames, to_jsonb(t) ->> 'rowfilter' AS rowfilter
FROM pg_publication_tables t WHERE pubname LIKE 'p%' ORDER BY 1, 2, 3
"""


def any_publication(choice: random.Random, name: str, version: int) -> str:
    """SQL of some publication; the server does not take all of them."""
    options = [f"publish_via_partition_root = {choice.choice(['true', 'false'])}"]
    if version >= 18:
        options.append(f"publish_generated_columns = {choice.choice(['stored', 'none'])}")
    if choice.random() < (0.3 if version >= 19 else 0.1):
        held = "ALL TABLES"
        if version >= 19 and choice.random() < 0.7:
            excepted = choice.sample([name for name in NAMED if not name.startswith("ONLY")], choice.randint(1, 3))
            held += f" EXCEPT (TABLE {', '.join(excepted)})"
    else:
        tables = choice.sample(NAMED, choice.randint(1, 4))
        if version >= 15:
            tables = [some + choice.choice(["", "", *LISTS]) + choice.choice(["", "", *FILTERS]) for some in tables]
        held = "TABLE " + ", ".join(tables)
        if version >= 15 and choice.random() < 0.4:
            schemas = "TABLES IN SCHEMA " + ", ".join(choice.sample(SCHEMAS, choice.randint(1, 3)))
            held = schemas if choice.random() < 0.3 else f"{held}, {schemas}"
    return f"CREATE PUBLICATION {name} FOR {held} WITH ({', '.join(options)})"


async def publish(sql: asyncpg.Connection, version: int) -> dict[str, str]:
    """Publications that the server takes, by name."""
    choice = random.Random(SEED)
    made = {}
    for number in range(COUNT):
        name = f"p{number}"
        statement = any_publication(choice, name, version)
        try:
            await sql.execute(statement)
        except asyncpg.PostgresError:
            continue  # a list with a schema, a filter of a root that is not published as one, a column that is not there
        made[name] = statement
    return made


async def detach_half(database: Database, sql: asyncpg.Connection) -> None:
    """Leave a DETACH CONCURRENTLY between its two transactions: somebody still reads the table."""
    reader = await database.connect()
    await reader.execute("BEGIN; SELECT FROM root")
    await sql.execute("SET lock_timeout = '100ms'")
    with pytest.raises(asyncpg.LockNotAvailableError):
        await sql.execute("ALTER TABLE root DETACH PARTITION leaving CONCURRENTLY")
    assert await sql.fetchval("SELECT count(*) FROM pg_inherits WHERE inhdetachpending") == 1
    await reader.close()


async def test_a_publication_holds_what_the_view_says(source: Database) -> None:
    await compare(source)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", [15, 16, 17])
async def test_a_publication_holds_what_the_view_says_on_versions_between(
    version: int, start_postgres: Callable[..., Awaitable[Postgres]]
) -> None:
    database = Database(await start_postgres(version), "postgres")
    try:
        await compare(database)
    finally:
        for connection in database.connections:
            connection.terminate()


async def compare_each(sql: asyncpg.Connection, facts: dict[str, PublicationFacts]) -> None:
    """Asked for alone, each relation is in the same publications in the same way."""
    for oid in await sql.fetch("SELECT oid::int8 FROM pg_class WHERE relkind IN ('r', 'p') AND oid >= 16384"):
        alone = await publication_facts(sql, list(facts), [oid[0]])
        for name, whole in facts.items():
            relations, sent_as_root = (
                tuple(relation for relation in each if relation.relation_oid == oid[0])
                for each in (whole.relations, whole.sent_as_root)
            )
            expected = replace(whole, relations=relations, sent_as_root=sent_as_root)
            assert alone[name] == expected, f"{oid[0]} in {name}, seed {SEED}"


async def compare(database: Database) -> None:
    version = database.server.version
    sql = await database.connect()
    await sql.execute(TABLES)
    if version >= 18:
        await sql.execute("CREATE TABLE virtual (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2), a text)")
    made = await publish(sql, version)
    for pending in (False, True):
        if pending:
            await detach_half(database, sql)
        facts = await publication_facts(sql, list(made))
        said = await sql.fetch(JUDGE)
        expected: dict[str, dict[str, asyncpg.Record]] = {name: {} for name in made}
        for row in said:
            expected[row["pubname"]][f"{row['schemaname']}.{row['tablename']}"] = row
        for name, statement in made.items():
            held = (*facts[name].relations, *facts[name].sent_as_root)
            found = {relation.full_name: relation for relation in held}
            assert found.keys() == expected[name].keys(), f"{statement}, seed {SEED}"
            assert len(found) == len(held), f"a table twice: {statement}, seed {SEED}"
            for table, row in expected[name].items():
                if version >= 15:
                    sent = json.loads(row["attnames"] or "[]")
                    if version == 15:  # its view lists generated columns, which it never sends
                        sent = [name for name in sent if name != "twice"]
                    assert [each.name for each in found[table].columns] == sent, f"{table}: {statement}, seed {SEED}"
                assert (found[table].row_filter is None) == (row["rowfilter"] is None), f"{statement}, seed {SEED}"
        await compare_each(sql, facts)
    print(f"\n{len(made)} publications, {len(said)} tables on PostgreSQL {version}, seed {SEED}")
    assert len(made) > COUNT // 4
    assert {found for name in made for found in expected[name]} >= {"public.root", "other.high", 'Odd "one.deep'}


ROWS = """
INSERT INTO plain VALUES (1); INSERT INTO "Odd ""one"."T.1" VALUES (1); INSERT INTO other.stored VALUES (1);
INSERT INTO parent VALUES (1); INSERT INTO other.child VALUES (2); INSERT INTO root VALUES (1), (11), (21), (31), (41);
"""
SENT_AS = """
SELECT DISTINCT ('x' || encode(substr(data, 2, 4), 'hex'))::bit(32)::int8::oid::regclass::text AS name
FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', $2)
WHERE get_byte(data, 0) = ascii('I')
"""


async def test_a_row_is_sent_as_a_row_of_the_relation_that_is_found(source: Database) -> None:
    """Also in several publications that disagree: pgoutput is the judge."""
    sql, choice = await source.connect(), random.Random(SEED)
    await sql.execute(TABLES)
    made = {f"p{number}": any_publication(choice, f"p{number}", 14) for number in range(COUNT)}
    for number, schema in enumerate(SCHEMAS if source.server.version >= 15 else ()):
        root = choice.choice(["true", "false"])
        made[f"s{number}"] = (
            f"CREATE PUBLICATION s{number} FOR TABLES IN SCHEMA {schema} WITH (publish_via_partition_root = {root})"
        )
    for statement in made.values():
        await sql.execute(statement)
    slot = f"judge_{source.name}"
    await sql.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    try:
        await sql.execute(ROWS)
        for _ in range(COUNT):
            names = choice.sample([*made], choice.randint(1, 3))
            statements = "; ".join(made[name] for name in names)
            facts = await publication_facts(sql, names)
            oids = {relation.relation_oid for each in facts.values() for relation in each.relations}
            found = {row[0] for row in await sql.fetch("SELECT unnest($1::oid[])::regclass::text", oids)}
            sent = {row["name"] for row in await sql.fetch(SENT_AS, slot, ", ".join(names))}
            assert found - {"childless", "empty"} == sent, f"{statements}, seed {SEED}"
            inherited = {pair for each in facts.values() for pair in each.inherited}
            is_lost = "parent" in sent and "other.child" not in sent
            assert inherited == ({("public.parent", "other.child")} if is_lost else set()), f"{statements}, seed {SEED}"
    finally:
        await sql.execute("SELECT pg_drop_replication_slot($1)", slot)


SHADOW = """
CREATE SCHEMA shadow;
CREATE VIEW shadow.pg_publication_rel AS SELECT r.oid, r.prpubid, r.prrelid, r.prqual, r.prattrs, false AS prexcept
    FROM pg_catalog.pg_publication_rel AS r
    UNION ALL SELECT 1, p.oid, t.oid, NULL, NULL, true FROM pg_catalog.pg_publication AS p, pg_catalog.pg_class AS t
    WHERE p.puballtables AND t.oid = ANY ('{plain,root}'::regclass[]);
CREATE PUBLICATION leaves FOR ALL TABLES; CREATE PUBLICATION roots FOR ALL TABLES WITH (publish_via_partition_root = true);
CREATE PUBLICATION listed FOR TABLE plain, parent;
"""


async def test_what_19_excepts_is_not_published(database: Database) -> None:
    """The query against a catalog as 19 has it: FOR ALL TABLES EXCEPT (TABLE plain, root) is in
    pg_publication_rel too."""
    sql = await database.connect()
    await sql.execute(TABLES + SHADOW)
    query = publication.relation_query(18).replace("pg_catalog.pg_publication_rel", "shadow.pg_publication_rel")
    query_of_some = publication.relation_query(18, of_some=True).replace(
        "pg_catalog.pg_publication_rel", "shadow.pg_publication_rel"
    )
    found: dict[str, set[str]] = {}
    names = ["leaves", "roots", "listed"]
    for (row,) in await sql.fetch(query, names):
        entry = json.loads(row)
        found.setdefault(entry["publication"], set()).add(entry["name"])
        alone = await sql.fetch(query_of_some, names, [entry["relation_oid"]])
        assert json.loads(row) in [json.loads(one[0]) for one in alone]
    view = "SELECT tablename FROM pg_publication_tables WHERE pubname = $1"
    for name in ("leaves", "roots"):
        whole = {row[0] for row in await sql.fetch(view, name)}
        gone = {"plain", "root", "low", "high", "sub", "deep", "leaving"}
        assert found[name] == whole - gone and gone & whole
    assert found["listed"] == {row[0] for row in await sql.fetch(view, "listed")} == {"plain", "parent", "child"}
    for oid in await sql.fetch("SELECT unnest('{plain,root,low,other.high}'::regclass[])::oid::int8"):
        rows = await sql.fetch(query_of_some, ["leaves", "roots"], [oid[0]])
        assert rows == []


FOREIGN = """
CREATE SCHEMA s; CREATE FOREIGN DATA WRAPPER far; CREATE SERVER far FOREIGN DATA WRAPPER far;
CREATE TABLE root (id int) PARTITION BY RANGE (id); CREATE TABLE near PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE FOREIGN TABLE away PARTITION OF root FOR VALUES FROM (10) TO (20) SERVER far;
CREATE TABLE s.sub PARTITION OF root FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE deep PARTITION OF s.sub FOR VALUES FROM (20) TO (30) SERVER far;
CREATE FOREIGN TABLE alone (id int) SERVER far;
CREATE PUBLICATION listed FOR TABLE root; CREATE PUBLICATION listed_root FOR TABLE root WITH (publish_via_partition_root);
CREATE PUBLICATION part FOR TABLE s.sub; CREATE PUBLICATION empty;
CREATE PUBLICATION all_leaves FOR ALL TABLES; CREATE PUBLICATION all_roots FOR ALL TABLES WITH (publish_via_partition_root);
"""
OF_ROOT, OF_SUB = ("public.root", "public.away"), ("s.sub", "public.deep")
OF_BOTH = (OF_ROOT, ("public.root", "public.deep"))


async def test_foreign_partitions_are_no_published_tables_and_are_named(source: Database) -> None:
    """pg_publication_tables lists those of a table that is not published as a root."""
    sql = await source.connect()
    await sql.execute(FOREIGN)
    expected = {
        "listed": (["public.near"], OF_BOTH),
        "listed_root": (["public.root"], OF_BOTH),
        "part": ([], (OF_SUB,)),
        "empty": ([], ()),
        "all_leaves": (["public.near"], OF_BOTH),
        "all_roots": (["public.root"], OF_BOTH),
    }
    if source.server.version >= 15:
        await sql.execute("CREATE PUBLICATION by_schema FOR TABLES IN SCHEMA s")
        expected["by_schema"] = ([], (OF_SUB,))
    facts = {name: (await publication_facts(sql, [name]))[name] for name in expected}
    found = {name: ([each.full_name for each in facts[name].relations], facts[name].foreign) for name in expected}
    assert found == expected
    some = await publication_facts(sql, ["listed", "part"], excluded=["deep"])
    assert {name: each.foreign for name, each in some.items()} == {"listed": (OF_ROOT,), "part": ()}
    listed = await sql.fetch("SELECT tablename FROM pg_publication_tables WHERE pubname = 'listed' ORDER BY 1")
    assert [row[0] for row in listed] == ["away", "deep", "near"]
    assert await published_tables(sql, ["listed"], 10) == [("public", "near")]


KEY_OF_ROOT_ONLY = """
CREATE TABLE root (id int NOT NULL, v text) PARTITION BY RANGE (id);
CREATE TABLE near PARTITION OF root FOR VALUES FROM (0) TO (10);
ALTER TABLE ONLY root ADD PRIMARY KEY (id);
CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);
"""
SENT = """
SELECT data FROM pg_logical_slot_get_binary_changes('key_of_root', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')
"""


async def test_the_key_of_a_root_is_that_of_its_relation_message(source: Database) -> None:
    """A primary key that not all partitions have is not valid. The stream is the judge."""
    sql = await source.connect()
    await sql.execute(KEY_OF_ROOT_ONLY)
    await sql.execute("SELECT pg_create_logical_replication_slot('key_of_root', 'pgoutput')")
    try:
        await sql.execute("INSERT INTO root VALUES (1, 'a')")
        sent = [decode(row[0], in_stream=False, protocol_version=1) for row in await sql.fetch(SENT)]
        (relation,) = [each for each in sent if isinstance(each, Relation) and each.name == "root"]
        (found,) = (await publication_facts(sql, ["p"]))["p"].relations
        assert list(found.identity_columns) == [column.name for column in relation.columns if column.key]
    finally:
        await sql.execute("SELECT pg_drop_replication_slot('key_of_root')")


async def test_a_filter_is_the_same_however_it_is_spelled(database: Database) -> None:
    sql = await database.connect()
    await sql.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t WHERE (id > 5)")

    async def row_filter() -> str | None:
        return (await publication_facts(sql, ["p"]))["p"].relations[0].row_filter

    first = await row_filter()
    await sql.execute("ALTER PUBLICATION p SET TABLE t WHERE  (  (id)   >5)")
    assert await row_filter() == first
    await sql.execute("ALTER PUBLICATION p SET TABLE t WHERE (id > 6)")
    assert await row_filter() not in (first, None)


LOCKED = """
CREATE TABLE t (id serial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), two int GENERATED ALWAYS AS (1 + 1) STORED);
CREATE TABLE root (id int) PARTITION BY RANGE (id);
CREATE TABLE sub PARTITION OF root FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF sub FOR VALUES FROM (0) TO (10);
CREATE FOREIGN DATA WRAPPER far; CREATE SERVER far FOREIGN DATA WRAPPER far;
CREATE FOREIGN TABLE away PARTITION OF root FOR VALUES FROM (10) TO (20) SERVER far;
ALTER TABLE root ADD same text DEFAULT 'x';
CREATE PUBLICATION p FOR TABLE t, root WITH (publish_via_partition_root);
"""


async def test_nothing_waits_for_a_table_that_is_locked(source: Database) -> None:
    holder = await source.connect()
    await holder.execute(LOCKED)
    if source.server.version >= 15:
        await holder.execute("CREATE PUBLICATION q FOR TABLE t (id) WHERE (id > 5)")
    await holder.execute("BEGIN; LOCK t, root; REINDEX TABLE t; ALTER SEQUENCE t_id_seq RENAME TO t_seq")
    sql = await connect_sql(source.dsn, search_path="public")
    try:
        await sql.execute("SET lock_timeout = 1")
        for name in ("t", "leaf", "away"):
            with pytest.raises(asyncpg.LockNotAvailableError):
                await sql.execute(f"SELECT FROM {name}")
        facts = await publication_facts(sql, ["p", "q"])
        relations = {relation.name: relation for each in facts.values() for relation in each.relations}
        assert await published_tables(sql, ["p", "q"], 9) == [("public", "root"), ("public", "t")]
        assert not (await role_facts(sql, ["p", "q"])).unreadable
        assert await tables_that_held_rows(sql, ["p", "q"], [*relations.values()]) == []
        oid, root = relations["t"].relation_oid, relations["root"].relation_oid
        leaf = await sql.fetchval("SELECT 'leaf'::regclass::oid::int8")
        assert root in (await descent_of(sql, leaf, root)).ancestors
        surveyed = await survey(sql, ["p", "q"], [oid, root], prints_filters=False)
        assert surveyed[root].foreign_names == ('"public"."away"',) and oid in surveyed
        assert (await Comparison(sql, ["p", "q"]).check([oid, root])).contents.keys() == {oid, root}
        columns = await sql.fetch(COLUMNS_QUERY, oid)
        assert [row[2] for row in columns] == ["nextval('t_id_seq'::regclass)", "now()", ""]
        assert [row[1] for row in await sql.fetch(KEY_QUERY, oid)] == ["id"]
        attributes = read_attributes(await sql.fetch(ATTRIBUTES_QUERY, [oid, root]))
        assert [each.missing for each in attributes[root]] == [None, b"x"]
        await sql.fetch(TYPES_QUERY, [2205, *(attribute.type_oid for attribute in attributes[oid])])
    finally:
        sql.terminate()


CHANGES = (
    "CREATE TABLE u (id int PRIMARY KEY, v varchar(3))",
    "ALTER TABLE u ADD w int",
    "ALTER TABLE u RENAME v TO words",
    "ALTER TABLE u ALTER words TYPE varchar(4)",
    "ALTER TABLE u DROP words",
    "ALTER TABLE u REPLICA IDENTITY FULL",
    "ALTER TABLE u RENAME TO v",
    "CREATE SCHEMA s; ALTER TABLE v SET SCHEMA s",
    "ALTER TABLE t DROP CONSTRAINT t_pkey",
    "ALTER PUBLICATION p SET (publish = 'insert')",
    "DROP PUBLICATION p; CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert')",
    "ALTER PUBLICATION q ADD TABLE s.v",
    "DROP TABLE t",
    "DROP PUBLICATION p",
    "DROP PUBLICATION q",
    "CREATE PUBLICATION q FOR TABLE s.v",
)


async def test_looks_again_and_again_see_what_a_first_look_sees(source: Database) -> None:
    sql = await source.connect()
    await sql.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES; CREATE PUBLICATION q FOR TABLE t"
    )
    look = PublicationLoader(["p", "q"])
    last = await look.facts(sql)
    for statement in CHANGES:
        assert await look.facts(sql) is last
        await sql.execute(statement)
        now = await look.facts(sql)
        assert now == await publication_facts(sql, ["p", "q"]) and now != last, statement
        last = now


HELD = """
CREATE SCHEMA whole; CREATE SCHEMA "Odd";
CREATE TABLE held (id int PRIMARY KEY); CREATE TABLE whole.held (id int PRIMARY KEY); CREATE TABLE "Odd"."It's" (id int);
CREATE TABLE empty (id int PRIMARY KEY); CREATE TABLE filled (id int PRIMARY KEY);
CREATE TABLE refused (id int PRIMARY KEY);
CREATE TABLE parent (id int) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parent FOR VALUES FROM (0) TO (10);
INSERT INTO held VALUES (1); INSERT INTO whole.held VALUES (1); INSERT INTO "Odd"."It's" VALUES (1);
INSERT INTO refused VALUES (1); INSERT INTO parent VALUES (1);
CREATE PUBLICATION by_name FOR TABLE held, empty, filled, parent, refused, "Odd"."It's";
INSERT INTO filled VALUES (1);
CREATE PUBLICATION everything FOR ALL TABLES; CREATE PUBLICATION nothing;
"""


async def hold(sql: asyncpg.Connection) -> None:
    """Each statement is a transaction."""
    for statement in HELD.strip().rstrip(";").split(";"):
        await sql.execute(statement)


async def tables_held(sql: asyncpg.Connection, *names: str) -> list[str]:
    """Of all that is published by name, with `names` for the publications."""
    facts = await publication_facts(sql, list(dict.fromkeys((*names, "by_name"))))
    relations = {relation.relation_oid: relation for each in facts.values() for relation in each.relations}
    return sorted(await tables_that_held_rows(sql, list(names), list(relations.values())))


async def test_tables_that_held_rows_are_told_however_they_were_listed(
    source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that another session has locked is left out."""
    sql, other = await source.connect(), await source.connect()
    await hold(sql)
    await other.execute("BEGIN; LOCK refused IN ACCESS EXCLUSIVE MODE")
    of_names = ["Odd.It's", "public.held", "public.part"]
    assert await tables_held(sql, "by_name") == of_names
    assert await tables_held(sql, "nothing") == [] and await tables_held(sql, "by_name", "everything") == []
    if source.server.version >= 15:
        await sql.execute("CREATE PUBLICATION by_schema FOR TABLES IN SCHEMA whole")
        assert await tables_held(sql, "by_name", "by_schema") == [*of_names, "whole.held"]
    monkeypatch.setattr(publication, "MOST_ASKED_S", 0.0)
    assert await tables_held(sql, "by_name") == []
    monkeypatch.undo()
    monkeypatch.setattr(publication, "MOST_ASKED", 0)
    assert await tables_held(sql, "by_name") == []


async def test_tables_that_cannot_have_held_rows_are_not_read(database: Database) -> None:
    """Each of them would be read from its beginning to its end."""
    sql = await database.connect()
    await hold(sql)
    asked: list[str] = []
    with sql.query_logger(lambda record: asked.append(record.query)):
        assert await tables_held(sql, "everything") == []
    assert not [query for query in asked if "t.xmin" in query]


async def test_what_postgresql_says_of_one_table_is_not_said_of_the_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = await database.connect()
    await hold(sql)
    monkeypatch.setattr(publication, "qualified", lambda _, name: "1/0" if name == "empty" else f'"{name}"')
    assert "public.held" in await tables_held(sql, "by_name")
