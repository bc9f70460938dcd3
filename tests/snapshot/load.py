"""Tables with rows that are there before the gateway, and sessions that change them while they are
read."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import asyncpg

from tests.conftest import Database

PUBLICATION = "snapshot_test"
SETUP = f"""
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE shop.pair AS (a int, b text);
CREATE TABLE shop.item (id int PRIMARY KEY, n int, word text, big text, mood shop.mood, pair shop.pair, price numeric(12, 2),
                        at timestamptz, flag boolean);
ALTER TABLE shop.item ALTER big SET STORAGE EXTERNAL;
CREATE TABLE shop."Two Keys" (a text, b bigint, n int, big text, PRIMARY KEY (a, b));
ALTER TABLE shop."Two Keys" ALTER big SET STORAGE EXTERNAL;
CREATE TABLE shop.part (id int, n int, big text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE shop.part_1 PARTITION OF shop.part FOR VALUES FROM (0) TO (1000);
CREATE TABLE shop.part_2 (n int, big text, id int NOT NULL);
ALTER TABLE shop.part ATTACH PARTITION shop.part_2 FOR VALUES FROM (1000) TO (100000);
ALTER TABLE shop.part_1 ALTER big SET STORAGE EXTERNAL;
CREATE TABLE shop.keyless (a int, b text);
ALTER TABLE shop.keyless REPLICA IDENTITY FULL;
CREATE TABLE shop.full_key (id int PRIMARY KEY, n int, big text);
ALTER TABLE shop.full_key REPLICA IDENTITY FULL;
CREATE TABLE shop.empty (id int PRIMARY KEY, n int);
CREATE PUBLICATION {PUBLICATION} FOR TABLES IN SCHEMA shop WITH (publish_via_partition_root = true);
"""
PUBLICATION_BEFORE_15 = f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true);"
FILL = """
INSERT INTO shop.item
SELECT i, i, 'w' || i, repeat(i::text, 700), 'ok'::shop.mood, ROW(i, 'x,"y' || i)::shop.pair, i / 7.0, '2026-01-01Z', i % 3 = 0
FROM generate_series(1, {rows}) i;
INSERT INTO shop."Two Keys" SELECT 'k''"\\' || i % 50, i, i, repeat('b' || i, 500) FROM generate_series(1, {rows}) i;
INSERT INTO shop.part SELECT i, i, repeat('p' || i, 500) FROM generate_series(1, {rows}) i;
INSERT INTO shop.keyless SELECT i % 100, 'row ' || i % 37 FROM generate_series(1, 500) i;
INSERT INTO shop.full_key SELECT i, i, repeat('f' || i, 500) FROM generate_series(1, {rows}) i;
"""
ITEM_QUERY = """SELECT id, n, word, big, mood::text AS mood, pair::text AS pair, price, at, flag FROM shop.item"""
QUERIES = {
    "shop.item": ITEM_QUERY,
    "shop.Two-20Keys": 'SELECT * FROM shop."Two Keys"',
    "shop.part": "SELECT id, n, big FROM shop.part",
    "shop.keyless": "SELECT * FROM shop.keyless",
    "shop.full_key": "SELECT * FROM shop.full_key",
    "shop.empty": "SELECT * FROM shop.empty",
}


async def set_up(sql: asyncpg.Connection, row_count: int) -> None:
    major = sql.get_server_version().major
    setup = SETUP
    if major < 15:
        setup = setup[: setup.index("CREATE PUBLICATION")] + PUBLICATION_BEFORE_15
    await sql.execute(setup)
    await sql.execute(FILL.format(rows=row_count))


@dataclass(slots=True)
class Load:
    """`sessions` that change rows until `finish`."""

    database: Database
    seed: int
    row_count: int
    sessions: int = 3
    pause_s: float = 0.02
    """At most, between two transactions of a session."""
    _tasks: list[asyncio.Task[None]] | None = None
    _stopping: bool = False
    count: int = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(self.sessions)]

    async def finish(self) -> None:
        self._stopping = True
        await asyncio.gather(*(self._tasks or ()))

    async def _run(self, number: int) -> None:
        generator = random.Random(self.seed * 100 + number)
        sql = await self.database.connect()
        operations: list[Callable[[asyncpg.Connection, random.Random], Awaitable[None]]] = [
            *[self._small] * 12,
            self._savepoints,
            self._large,
            self._prepared,
            self._keyless,
        ]
        while not self._stopping:
            with contextlib.suppress(
                asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError, asyncpg.SerializationError
            ):
                await generator.choice(operations)(sql, generator)
                self.count += 1
            await asyncio.sleep(generator.uniform(0, self.pause_s))
        await sql.close()

    async def _small(self, sql: asyncpg.Connection, generator: random.Random) -> None:
        async with sql.transaction():
            for _ in range(generator.randrange(1, 5)):
                await sql.execute(self._statement(generator))

    def _statement(self, generator: random.Random) -> str:
        key, moved = generator.randrange(1, self.row_count), generator.randrange(self.row_count, self.row_count * 3)
        return generator.choice(
            [
                f"UPDATE shop.item SET n = n + 1 WHERE id = {key}",
                f"UPDATE shop.item SET n = n + 1 WHERE id BETWEEN {key} AND {key + 30}",
                f"UPDATE shop.item SET id = {moved} WHERE id = {key}",
                f"DELETE FROM shop.item WHERE id = {key}",
                f"INSERT INTO shop.item VALUES ({key}, 0, NULL, 'new') ON CONFLICT (id) DO UPDATE SET big = 'again' || {key}",
                f'UPDATE shop."Two Keys" SET n = n + 1 WHERE b = {key}',
                f'UPDATE shop."Two Keys" SET b = {moved} WHERE b = {key}',
                f'DELETE FROM shop."Two Keys" WHERE b = {key}',
                f"UPDATE shop.part SET n = n + 1 WHERE id BETWEEN {key} AND {key + 10}",
                f"UPDATE shop.part SET id = {moved} WHERE id = {key}",
                f"INSERT INTO shop.part VALUES ({moved}, 1, repeat('i', 3000))",
                f"UPDATE shop.full_key SET n = n + 1 WHERE id = {key}",
                f"UPDATE shop.full_key SET id = {moved} WHERE id = {key}",
                f"INSERT INTO shop.empty VALUES ({moved}, 1)",
                f"UPDATE shop.empty SET n = n + 1 WHERE id = {moved}",
            ]
        )

    async def _savepoints(self, sql: asyncpg.Connection, generator: random.Random) -> None:
        async with sql.transaction():
            await sql.execute(self._statement(generator))
            with contextlib.suppress(ZeroDivisionError):
                async with sql.transaction():
                    await sql.execute(self._statement(generator))
                    raise ZeroDivisionError
            await sql.execute(self._statement(generator))

    async def _large(self, sql: asyncpg.Connection, generator: random.Random) -> None:
        """Streamed while it is open."""
        async with sql.transaction():
            first = generator.randrange(1, self.row_count)
            await sql.execute(f"UPDATE shop.item SET n = n + 1 WHERE id BETWEEN {first} AND {first + 300}")
            await asyncio.sleep(generator.uniform(0, 0.3))
            await sql.execute(f"UPDATE shop.part SET n = n + 1 WHERE id BETWEEN {first} AND {first + 300}")

    async def _prepared(self, sql: asyncpg.Connection, generator: random.Random) -> None:
        gid = f"{self.database.name} {generator.random()}"
        await sql.execute("BEGIN")
        try:
            await sql.execute(self._statement(generator))
            await sql.execute(self._statement(generator))
            await sql.execute(f"PREPARE TRANSACTION '{gid}'")
        except asyncpg.PostgresError:
            await sql.execute("ROLLBACK")
            return
        await asyncio.sleep(generator.uniform(0, 0.5))
        await sql.execute(f"{'COMMIT' if generator.random() < 0.8 else 'ROLLBACK'} PREPARED '{gid}'")

    async def _keyless(self, sql: asyncpg.Connection, generator: random.Random) -> None:
        n = generator.randrange(100)
        await sql.execute(
            generator.choice(
                [
                    f"INSERT INTO shop.keyless VALUES ({n}, 'new')",
                    f"UPDATE shop.keyless SET b = b || 'u' WHERE a = {n} AND length(b) < 50",
                    f"DELETE FROM shop.keyless WHERE a = {n}",
                ]
            )
        )
