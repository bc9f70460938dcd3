"""Tables on which PostgreSQL rejects the application's UPDATE because of how they are published:
PostgreSQL is the judge."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import asyncpg
import pytest

from gateway.errors import StopForOperator
from gateway.postgres.publication import publication_facts
from gateway.startup.publication_checks import check_publications
from tests.conftest import Database
from tests.startup.facts import EXPECTED, FACTS, SERVER

pytestmark = pytest.mark.integration

COLUMNS = "a int NOT NULL, b int NOT NULL, c int"
GENERATED = f"{COLUMNS}, g int NOT NULL GENERATED ALWAYS AS (a + 1) STORED"
VIRTUAL = f"{COLUMNS}, g int GENERATED ALWAYS AS (a + 1) VIRTUAL"  # since PostgreSQL 18
KEYS = {COLUMNS: ("a", "a, b"), GENERATED: ("a", "a, g", "g"), VIRTUAL: ("a",)}
IDENTITIES = ("DEFAULT", "FULL", "NOTHING", "USING INDEX other")
LISTS = ("", "(a)", "(b)", "(a, b)", "(a, b, g)")
FILTERS = ("", "a > 0", "(a > 0 OR b > 1)", "(t IS NOT NULL)")


async def test_the_tables_on_which_updates_fail_are_named(source: Database) -> None:
    sql = await source.connect()
    has_lists = source.server.version >= 15
    server = replace(SERVER, version_num=source.server.version * 10000 + 20)
    judged = {True: 0, False: 0}
    for columns, identity, chosen, condition in product(
        KEYS, IDENTITIES, LISTS if has_lists else LISTS[:1], FILTERS if has_lists else FILTERS[:1]
    ):
        for key in KEYS[columns]:
            case = f"{columns}; {key}; {identity}; {chosen}; {condition}"
            where = f"WHERE ({condition})" if condition else ""
            try:
                await sql.execute(
                    f"CREATE TABLE t ({columns}, PRIMARY KEY ({key})); CREATE UNIQUE INDEX other ON t (b); "
                    f"ALTER TABLE t REPLICA IDENTITY {identity}; INSERT INTO t VALUES (1, 2, 3); "
                    f"CREATE PUBLICATION p FOR TABLE t {chosen} {where}"
                )
            except asyncpg.PostgresError:
                continue  # what this version does not know
            try:
                await sql.execute("UPDATE t SET c = 4")
                is_rejected = False
            except (asyncpg.ObjectNotInPrerequisiteStateError, asyncpg.InvalidColumnReferenceError):
                is_rejected = True
            facts = replace(FACTS, server=server, publications=await publication_facts(sql, ["p"]))
            found = list(check_publications(facts, EXPECTED))
            told = [
                each
                for each in found
                if isinstance(each, StopForOperator)
                or "DELETE fail" in each.message
                or "rejects UPDATE" in each.message
            ]
            assert bool(told) == is_rejected, f"{case}: {found}"
            judged[is_rejected] += 1
            await sql.execute("DROP PUBLICATION p; DROP TABLE t")
    print(f"\n{judged} on PostgreSQL {source.server.version}")
    assert min(judged.values()) >= (20 if has_lists else 3)


@pytest.mark.parametrize(
    ("published", "said", "remedy"),
    [
        ("TABLE t WHERE (b > 0)", "REPLICA IDENTITY FULL", "ALTER TABLE t REPLICA IDENTITY FULL"),
        (
            "TABLE t WHERE (b > 0)",
            "only columns of",
            "ALTER PUBLICATION p DROP TABLE t; ALTER PUBLICATION p ADD TABLE t WHERE (a > 0)",
        ),
        ("TABLE t (b)", "ADD TABLE", "ALTER PUBLICATION p DROP TABLE t; ALTER PUBLICATION p ADD TABLE t (a, b)"),
        (
            "TABLE full_t (b)",
            "REPLICA IDENTITY DEFAULT",
            "ALTER TABLE full_t REPLICA IDENTITY DEFAULT; ALTER PUBLICATION p SET TABLE full_t (a, b)",
        ),
        (
            "TABLE made_t",
            "(publish_generated_columns = stored)",
            "ALTER PUBLICATION p SET (publish_generated_columns = stored)",
        ),
    ],
)
async def test_updates_pass_once_the_advice_is_followed(
    database: Database, published: str, said: str, remedy: str
) -> None:
    sql = await database.connect()
    await sql.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b int, c int); CREATE TABLE full_t (LIKE t INCLUDING INDEXES); "
        "CREATE TABLE made_t (LIKE t, g int GENERATED ALWAYS AS (a) STORED); ALTER TABLE full_t REPLICA IDENTITY FULL; "
        f"ALTER TABLE made_t REPLICA IDENTITY FULL; CREATE PUBLICATION p FOR {published}"
    )
    table = published.split()[1]
    for is_repaired in (False, True):
        facts = replace(FACTS, publications=await publication_facts(sql, ["p"]))
        found = [each.hint for each in check_publications(facts, EXPECTED)]
        assert len(found) == (not is_repaired), found
        if is_repaired:
            await sql.execute(f"INSERT INTO {table} VALUES (1, 2, 3); UPDATE {table} SET c = 4")
        else:
            with pytest.raises(asyncpg.PostgresError, match="cannot update table"):
                await sql.execute(f"INSERT INTO {table} VALUES (1, 2, 3); UPDATE {table} SET c = 4")
            assert said in found[0]
            await sql.execute(remedy)
