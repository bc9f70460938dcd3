"""Random histories of one table and its publication, against what pgoutput sent of them.

A copy of the table takes the changes that the server's own pgoutput sends under the table's name.
Where the copy ends up different from the table, the account of the table must say so. Where nothing
was done but what events tell of, it must not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from gateway.pgoutput.decode import decode
from gateway.pgoutput.relation import Relation
from gateway.pgoutput.row import Delete, Insert, Truncate, Update
from gateway.pgoutput.tuple_data import UNCHANGED, Text, TupleData
from gateway.postgres.connection import transaction
from gateway.snapshot.discovery.content_query import content_query
from gateway.snapshot.discovery.unsent_changes import keeps_old_row
from gateway.snapshot.rules.published_content import PublishedContent, new_files, read_contents, unsent
from gateway.snapshot.sql import HORIZON
from tests.conftest import Database

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CHANGES = (
    "UPDATE {t} SET v = 'new' WHERE id % 3 = 0",
    "UPDATE {t} SET id = id + 100 WHERE id % 4 = 0 AND id < 100",
    "UPDATE {t} SET m = CASE WHEN id % 2 = 0 THEN enum_first(m) ELSE enum_last(m) END",
    "DELETE FROM {t} WHERE id % 5 = 1",
    "INSERT INTO {t} SELECT g, 'more' FROM generate_series(50, 60) g ON CONFLICT DO NOTHING",
)
SOME_CHANGES = CHANGES[:2]
"""They leave most rows as they were: a copied file has some of them."""
TRUNCATES = ("TRUNCATE {t}",)
HARMLESS = (
    "VACUUM FULL {t}",
    "CLUSTER {t} USING t_pkey",
    "VACUUM (FREEZE, ANALYZE) {t}",
    "GRANT SELECT (v) ON {t} TO PUBLIC",
    "GRANT SELECT ON {t} TO PUBLIC",
    "ALTER TABLE {t} ALTER v SET STATISTICS 300",
    "ALTER TABLE {t} SET (fillfactor = 50)",
    "CREATE INDEX ON {t} (v)",
    "ALTER TABLE {t} ALTER v SET NOT NULL",
    "ALTER TYPE h.mood ADD VALUE 'new'",
    "ALTER TABLE {t} OWNER TO pg_monitor",
)
AWAY = (
    "ALTER TABLE {t} SET UNLOGGED",
    "ALTER TABLE {t} SET LOGGED",
    "ALTER TABLE {t} RENAME TO u",
    "ALTER TABLE {t} RENAME TO t",
    "ALTER TABLE {t} SET SCHEMA away",
    "ALTER SCHEMA h RENAME TO g",
    "ALTER SCHEMA g RENAME TO h",
    "ALTER TABLE {t} SET SCHEMA h",
    "ALTER TABLE {t} ALTER v TYPE text USING v || '!'",
    "ALTER PUBLICATION p DROP TABLE {t}",
    "ALTER PUBLICATION p ADD TABLE {t}",
    "ALTER PUBLICATION p SET TABLE {t} WHERE (id < 0)",
    "ALTER PUBLICATION p SET TABLE {t}",
    "ALTER PUBLICATION p DROP TABLES IN SCHEMA h",
    "ALTER PUBLICATION p ADD TABLES IN SCHEMA h",
    "ALTER PUBLICATION p SET (publish = 'insert')",
    "ALTER PUBLICATION p SET (publish = 'insert, update, delete')",
    "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
    "ALTER TYPE h.mood RENAME VALUE 'sad' TO 'gone'",
    "ALTER TYPE h.mood RENAME VALUE 'gone' TO 'sad'",
    "ALTER TABLE {t} OWNER TO CURRENT_USER",
)
KINDS = ("FOR TABLE h.t", "FOR TABLES IN SCHEMA h", "FOR ALL TABLES", "FOR TABLE h.t WHERE (id < 90)")
Row = tuple[Any, ...]
Groups = Sequence[tuple[bool, Sequence[str]]]
"""Whether the statements are one transaction, and they."""


def groups(*statements: str, longest: int) -> st.SearchStrategy[Groups]:
    return st.lists(
        st.tuples(st.booleans(), st.lists(st.sampled_from(statements), min_size=1, max_size=4)), max_size=longest
    )


@dataclass(slots=True)
class History:
    """Of the table `h.t`: `copy` is what a reader of pgoutput has, by key."""

    sql: asyncpg.Connection
    is_filtered: bool = False
    oid: int = 0
    was_announced_otherwise: bool = False
    copy: dict[str, Row] = field(default_factory=dict)

    async def begin(self, kind: str, publish: str) -> PublishedContent:
        await self.sql.execute(
            "DROP PUBLICATION IF EXISTS p; DROP SCHEMA IF EXISTS h, g, away CASCADE; CREATE SCHEMA h; CREATE SCHEMA away;"
            "CREATE TYPE h.mood AS ENUM ('sad', 'ok');"
            "CREATE TABLE h.t (id int PRIMARY KEY, v text, m h.mood);"
            "INSERT INTO h.t SELECT g, 'old', 'sad' FROM generate_series(1, 40) g;"
            f"CREATE PUBLICATION p {kind} WITH (publish = '{publish}')"
        )
        # What was removed for the last history is counted before this one begins.
        await self.sql.execute("SELECT pg_stat_force_next_flush()")
        self.is_filtered = "WHERE" in kind
        self.oid = await self.sql.fetchval("SELECT 'h.t'::regclass::oid::int8")
        await self._sent()
        self.was_announced_otherwise = False
        self.copy = {row[0]: row for row in await self.rows()}
        xmin = await self.sql.fetchval("SELECT pg_current_xact_id()::text::int8")
        async with asyncio.timeout(20):
            while (await self.content()).horizon <= xmin:
                await asyncio.sleep(0.01)
        return await self.content()

    async def content(self) -> PublishedContent:
        query = content_query(self.sql.get_server_version().major)
        async with transaction(self.sql, isolation="repeatable_read", readonly=True):
            horizon = await self.sql.fetchval(HORIZON)
            return read_contents(await self.sql.fetch(query, [self.oid], ["p"]), horizon)[self.oid]

    async def rows(self) -> list[Row]:
        condition = "id < 90" if self.is_filtered else "true"
        return [
            tuple(row)
            for row in await self.sql.fetch(f"SELECT id::text, v, m::text FROM {await self.name()} WHERE {condition}")
        ]

    async def name(self) -> str:
        name: str = await self.sql.fetchval("SELECT $1::oid::regclass::text", self.oid)
        return name

    async def run(self, history: Groups) -> None:
        for is_transaction, statements in history:
            with suppress(asyncpg.PostgresError):  # a statement that PostgreSQL refuses is none
                if is_transaction:
                    async with self.sql.transaction():
                        for statement in statements:
                            await self.sql.execute(statement.format(t=await self.name()))
                    continue
                for statement in statements:
                    await self.sql.execute(statement.format(t=await self.name()))

    async def reason(self, before: PublishedContent, blind_to: Sequence[str] = ()) -> str:
        """`blind_to`: parts of the account that are taken to be as before."""
        now = await self.content()
        if "leaves" in blind_to:
            now = replace(now, leaves=before.leaves)
        elif before.account is not None and now.account is not None:
            as_before: Any = {part: getattr(before.account, part) for part in blind_to}
            now = replace(now, account=replace(now.account, **as_before))
        if now.account is None or not now.account.memberships:
            return "it is not published"
        copied = {leaf.oid for leaf in new_files(before, now) if await keeps_old_row(self.sql, leaf, before.horizon)}
        return unsent(before, now, copied)

    async def differs(self) -> bool:
        await self.follow()
        return set(self.copy.values()) != set(await self.rows())

    async def follow(self) -> None:
        is_table = False
        for payload in await self._sent():
            message = decode(payload, in_stream=False, protocol_version=2)
            if isinstance(message, Relation) and message.relation_oid == self.oid:
                is_table = (message.namespace, message.name) == ("h", "t")
                self.was_announced_otherwise |= not is_table
            elif isinstance(message, Insert | Update | Delete) and is_table and message.relation_oid == self.oid:
                self._apply(message)
            elif isinstance(message, Truncate) and is_table and self.oid in message.relation_oids:
                self.copy.clear()

    def _apply(self, message: Insert | Update | Delete) -> None:
        if isinstance(message, Delete):
            assert message.key is not None
            self.copy.pop(values(message.key)[0], None)
            return
        after = values(message.new)
        former = None if isinstance(message, Insert) or message.key is None else values(message.key)[0]
        before = self.copy.pop(former or after[0], after)
        self.copy[after[0]] = tuple(old if new is UNCHANGED else new for old, new in zip(before, after, strict=True))

    async def _sent(self) -> list[bytes]:
        options = "'proto_version', '2', 'publication_names', 'p'"
        query = f"SELECT data FROM pg_logical_slot_get_binary_changes('h', NULL, NULL, {options})"
        return [row[0] for row in await self.sql.fetch(query)]


def values(data: TupleData) -> Row:
    return tuple(value.value.decode() if isinstance(value, Text) else value for value in data)


@pytest.fixture
def runner(database: Database) -> Iterator[tuple[asyncio.Runner, History]]:
    """With a loop of its own: hypothesis calls plain functions."""
    with asyncio.Runner() as runner:
        sql = runner.run(asyncpg.connect(database.dsn))
        runner.run(sql.execute("SELECT pg_create_logical_replication_slot('h', 'pgoutput'); SET search_path = ''"))
        yield runner, History(sql)
        runner.run(sql.execute("SELECT pg_drop_replication_slot('h')"))
        runner.run(sql.close())


EXAMPLES = [60, pytest.param(3000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.parametrize("count", EXAMPLES)
def test_what_pgoutput_does_not_send_is_noticed(runner: tuple[asyncio.Runner, History], count: int) -> None:
    loop, history = runner
    differing = 0

    @settings(max_examples=count, deadline=None, suppress_health_check=FIXTURES)
    @given(
        groups(*CHANGES, *TRUNCATES, *HARMLESS, *AWAY, *AWAY, longest=6),
        st.sampled_from(KINDS),
        st.sampled_from(("insert, update, delete, truncate", "insert, update, delete")),
    )
    def is_noticed(statements: Groups, kind: str, publish: str) -> None:
        nonlocal differing
        before = loop.run(history.begin(kind, publish))
        loop.run(history.run(statements))
        reason = loop.run(history.reason(before))
        differs = loop.run(history.differs())
        differing += differs
        assert reason or history.was_announced_otherwise or not differs

    is_noticed()
    assert differing > count // 10


@pytest.mark.parametrize("count", EXAMPLES)
def test_where_events_tell_all_nothing_is_noticed(runner: tuple[asyncio.Runner, History], count: int) -> None:
    loop, history = runner

    @settings(max_examples=count, deadline=None, suppress_health_check=FIXTURES)
    @given(groups(*SOME_CHANGES, *HARMLESS, longest=6), st.sampled_from(KINDS))
    def is_not_noticed(statements: Groups, kind: str) -> None:
        before = loop.run(history.begin(kind, "insert, update, delete, truncate"))
        loop.run(history.run(statements))
        assert loop.run(history.reason(before)) == ""
        assert not loop.run(history.differs())

    is_not_noticed()


PARTS = {
    "moved and named": ("FOR TABLES IN SCHEMA h", "ALTER TABLE {t} SET SCHEMA away", "ALTER TABLE {t} SET SCHEMA h"),
    "memberships": ("FOR TABLE h.t", "ALTER PUBLICATION p DROP TABLE {t}", "ALTER PUBLICATION p ADD TABLE {t}"),
    "types": ("FOR ALL TABLES", "ALTER TYPE h.mood RENAME VALUE 'sad' TO 'gone'"),
    "leaves": ("FOR ALL TABLES", "ALTER TABLE {t} SET UNLOGGED", "ALTER TABLE {t} SET LOGGED"),
}


@pytest.mark.parametrize("part", PARTS)
def test_without_a_part_of_the_account_something_is_missed(runner: tuple[asyncio.Runner, History], part: str) -> None:
    loop, history = runner
    kind, *statements = PARTS[part]

    def is_missed(groups: Groups) -> bool:
        before = loop.run(history.begin(kind, "insert, update, delete, truncate"))
        loop.run(history.run(groups))
        is_silent = not loop.run(history.reason(before, part.split(" and ")))
        return loop.run(history.differs()) and is_silent and not history.was_announced_otherwise

    how = settings(max_examples=300, phases=[Phase.generate], deadline=None, database=None)
    assert find(groups(*statements, *CHANGES[:1], longest=4), is_missed, settings=how)
