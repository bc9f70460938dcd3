"""A mixed load for faults: every shape of transaction, from several connections, with its log in the same transactions.

Tables are in the schema `work`; each row carries `number`, the transaction that wrote it last. Every statement changes rows
and writes its own line of the log in one go (a data-modifying CTE), so the log can not say more or less than happened.
Contention is wanted: deadlocks and lost connections end in a rollback, of which the log has no trace either.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import asyncpg

from tests.exactly_once.history import create_history

PUBLICATION = "work"
TABLES = ("plain", "full", "bare", "large", "changing", "emptied")
SHARED = ("plain", "full", "bare", "large", "changing")
KEYED = ("plain", "full", "large", "changing")
STREAM_ROWS = 500
"""About 100 kB: with logical_decoding_work_mem = 64 kB sent while the transaction is open."""

_TABLES = """
    CREATE SCHEMA work;
    CREATE TABLE work.plain (id bigint PRIMARY KEY, number bigint NOT NULL, payload text);
    CREATE TABLE work.full (id bigint PRIMARY KEY, number bigint NOT NULL, payload text);
    ALTER TABLE work.full REPLICA IDENTITY FULL;
    CREATE TABLE work.bare (id bigint, number bigint NOT NULL, payload text);
    CREATE TABLE work.large (id bigint PRIMARY KEY, number bigint NOT NULL, payload text);
    ALTER TABLE work.large ALTER payload SET STORAGE EXTERNAL;
    CREATE TABLE work.changing (id bigint PRIMARY KEY, number bigint NOT NULL, payload text);
    CREATE TABLE work.emptied (id bigint PRIMARY KEY, number bigint NOT NULL, payload text);
    CREATE SEQUENCE work.key;
"""

WEIGHTS: Mapping[str, int] = {
    "small": 40,
    "streamed": 10,
    "aborted": 8,
    "savepoints": 14,
    "prepared": 10,
    "altered": 4,
    "truncated": 3,
    "moved": 8,
    "message": 4,
}
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that was lost in the middle of an answer
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    OSError,
)
_ROLLED_BACK = (
    asyncpg.TransactionRollbackError,  # deadlocks
    asyncpg.ConfigurationLimitExceededError,  # too many prepared transactions
    asyncpg.InvalidCachedStatementError,  # a table was altered
)


async def create_tables(connection: asyncpg.Connection) -> None:
    """Tables, publication, log and witness slot."""
    await connection.execute(_TABLES)
    names = ", ".join(f"work.{name}" for name in TABLES)
    await connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {names}")
    await create_history(connection)


class Workload:
    """`start` lets it run in the background, `finish` ends it and returns the xid of a last, small transaction."""

    def __init__(
        self, dsn: str, *, seed: int, workers: int = 4, weights: Mapping[str, int] = WEIGHTS, pause_s: float = 0.3
    ) -> None:
        self._dsn = dsn
        self._seed = seed
        self._worker_count = workers
        self._weights = weights
        self._pause_s = pause_s
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.committed: Counter[str] = Counter()
        self.rolled_back_count = 0

    def start(self) -> None:
        self._stopping = False
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(self._worker_count)]

    async def run_transactions(self, count: int) -> None:
        """So many more, in the background or, where nothing runs, now."""
        wanted = self.committed.total() + count
        if not self._tasks:
            self.start()
        while self.committed.total() < wanted:
            await asyncio.wait(self._tasks, timeout=0.05, return_when=asyncio.FIRST_EXCEPTION)
            for task in self._tasks:
                if task.done():
                    task.result()

    async def finish(self) -> int:
        """No worker any more, no prepared transaction left open."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        self._tasks = []
        connection = await asyncpg.connect(self._dsn)
        try:
            for (gid,) in await connection.fetch(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            ):
                await connection.execute(f"COMMIT PREPARED '{gid}'")
        finally:
            await connection.close()
        return await self.one_transaction("plain", 1)

    async def one_transaction(self, table: str, row_count: int, filling: int = 60) -> int:
        """Insert so many rows in a transaction of its own; its xid."""
        connection = await asyncpg.connect(self._dsn)
        try:
            session = Session(connection, random.Random(self._seed))
            await session.begin("one")
            await session.insert(table, row_count, filling)
            await session.end()
            return session.xid
        finally:
            await connection.close()

    async def cancel(self) -> None:
        """For the end of a test that failed; after `finish` there is nothing to do."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _work(self, number: int) -> None:
        generator = random.Random(f"{self._seed}/{number}")
        connection: asyncpg.Connection | None = None
        while not self._stopping:
            try:
                if connection is None or connection.is_closed():
                    connection = await asyncpg.connect(self._dsn, timeout=5)
                session = Session(connection, generator)
                shape = generator.choices(list(self._weights), list(self._weights.values()))[0]
                if await SHAPES[shape](session):
                    self.committed[shape] += 1
                else:
                    self.rolled_back_count += 1
            except _LOST:
                connection = None
                await asyncio.sleep(0.1)
            except _ROLLED_BACK:
                self.rolled_back_count += 1
                connection = await _rolled_back(connection)
            await asyncio.sleep(generator.expovariate(1 / self._pause_s) if self._pause_s else 0)
        if connection is not None and not connection.is_closed():
            await connection.close()


async def _rolled_back(connection: asyncpg.Connection | None) -> asyncpg.Connection | None:
    """The same connection, fit for the next transaction; None when it is lost."""
    try:
        if connection is not None:
            await connection.execute("ROLLBACK")
    except _LOST:
        return None
    return connection


class Session:
    """One transaction on one connection; `step` counts its statements."""

    def __init__(self, connection: asyncpg.Connection, generator: random.Random) -> None:
        self.connection = connection
        self.random = generator
        self.number = 0
        self.xid = 0
        self.step = 0

    async def begin(self, shape: str) -> None:
        await self.connection.execute("BEGIN")
        row = await self.connection.fetchrow(
            "INSERT INTO history.transactions "
            "VALUES (nextval('history.number'), pg_current_xact_id()::text::bigint & 4294967295, $1) "
            "RETURNING number, xid",
            shape,
        )
        self.number, self.xid, self.step = row["number"], row["xid"], 0

    async def _change(self, operation: str, table: str, statement: str, *arguments: object) -> None:
        """`statement` may use $1 = number of this transaction, and $4.. for the arguments."""
        self.step += 1
        await self.connection.execute(
            f"WITH changed AS ({statement} RETURNING id) INSERT INTO history.statements "
            f"SELECT $1::bigint, $2::int, $3::text, 'work.{table}', coalesce(array_agg(id), '{{}}') FROM changed",
            self.number, self.step, operation, *arguments,
        )  # fmt: skip

    async def insert(self, table: str, row_count: int, filling: int = 60) -> None:
        await self._change(
            "INSERT",
            table,
            f"INSERT INTO work.{table} (id, number, payload) "
            "SELECT id, $1::bigint, $1::bigint || '/' || id || '/' || repeat('x', $5::int) "
            "FROM (SELECT nextval('work.key') AS id FROM generate_series(1, $4::int)) AS new",
            row_count,
            filling,
        )

    def _some(self, row_count: int) -> str:
        """Condition for about so many of the newest rows; other sessions change them too."""
        back = self.random.randint(1, 40) * row_count
        newest = f"(SELECT last_value - {back} FROM work.key)"
        return f"id BETWEEN {newest} AND {newest} + {row_count}"

    async def update(self, table: str, row_count: int) -> None:
        """The payload stays: a TOASTed one is not sent again."""
        await self._change(
            "UPDATE", table, f"UPDATE work.{table} SET number = $1::bigint WHERE {self._some(row_count)}"
        )

    async def rewrite(self, table: str, row_count: int) -> None:
        await self._change(
            "UPDATE",
            table,
            f"UPDATE work.{table} SET number = $1::bigint, payload = $1::bigint || '/new/' || id WHERE {self._some(row_count)}",
        )

    async def delete(self, table: str, row_count: int) -> None:
        await self._change(
            "DELETE", table, f"DELETE FROM work.{table} WHERE $1::bigint > 0 AND {self._some(row_count)}"
        )

    async def move(self, table: str, row_count: int) -> None:
        """New keys for old rows."""
        await self._change(
            "UPDATE",
            table,
            f"UPDATE work.{table} SET number = $1::bigint, id = nextval('work.key') WHERE {self._some(row_count)}",
        )

    async def truncate(self) -> None:
        self.step += 1
        await self.connection.execute("TRUNCATE work.emptied")
        await self._log("TRUNCATE", "work.emptied")

    async def message(self) -> None:
        self.step += 1
        await self.connection.execute("SELECT pg_logical_emit_message(true, 'work', $1::text)", str(self.number))
        await self._log("MESSAGE", "")

    async def _log(self, operation: str, relation: str) -> None:
        await self.connection.execute(
            "INSERT INTO history.statements VALUES ($1, $2, $3, $4, '{}')", self.number, self.step, operation, relation
        )

    async def anything(self, scale: int = 1) -> None:
        """One random statement; `scale` multiplies its rows."""
        choice = self.random.random()
        rows = self.random.randint(1, 5) * scale
        if choice < 0.55:
            table = self.random.choice(SHARED)
            await self.insert(table, rows, 2500 if table == "large" and scale == 1 else 60)
        elif choice < 0.75:
            await self.update(self.random.choice(KEYED), rows)
        elif choice < 0.85:
            await self.rewrite(self.random.choice(KEYED), rows)
        else:
            await self.delete(self.random.choice(KEYED), rows)

    async def end(self, commit: bool = True) -> bool:
        await self.connection.execute("COMMIT" if commit else "ROLLBACK")
        return commit


async def _small(session: Session) -> bool:
    await session.begin("small")
    for _ in range(session.random.randint(1, 5)):
        await session.anything()
    return await session.end()


async def _streamed(session: Session) -> bool:
    """Several segments, with the transactions of others in between."""
    await session.begin("streamed")
    for _ in range(session.random.randint(1, 3)):
        await session.insert(session.random.choice(SHARED), session.random.randint(STREAM_ROWS, 2 * STREAM_ROWS))
        await asyncio.sleep(session.random.random() * 0.05)
        await session.anything(scale=30)
    return await session.end()


async def _aborted(session: Session) -> bool:
    await session.begin("aborted")
    if session.random.random() < 0.5:
        await session.insert("plain", STREAM_ROWS)
        await asyncio.sleep(session.random.random() * 0.05)
    await session.anything(scale=5)
    return await session.end(commit=False)


async def _savepoints(session: Session) -> bool:
    """Up to five levels; rolled back, released, or left open."""
    await session.begin("savepoints")
    large = session.random.random() < 0.6
    depth = 0
    for _ in range(session.random.randint(3, 12)):
        choice = session.random.random()
        if choice < 0.3 and depth < 5:
            depth += 1
            await session.connection.execute(f"SAVEPOINT s{depth}")
        elif choice < 0.45 and depth:
            depth = session.random.randint(1, depth)
            await session.connection.execute(f"ROLLBACK TO s{depth}")
        elif choice < 0.55 and depth:
            depth = session.random.randint(1, depth)
            await session.connection.execute(f"RELEASE s{depth}")
            depth -= 1
        elif large and choice < 0.75:
            await session.insert("plain", session.random.randint(300, 900))
            await asyncio.sleep(session.random.random() * 0.02)
        else:
            await session.anything()
    return await session.end()


async def _prepared(session: Session) -> bool:
    await session.begin("prepared")
    if session.random.random() < 0.3:
        await session.insert("plain", STREAM_ROWS)
        await session.connection.execute("SAVEPOINT s")
        await session.insert("full", 300)
        await session.connection.execute("ROLLBACK TO s")
    for _ in range(session.random.randint(1, 3)):
        await session.anything()
    gid = f"work {session.number}"
    await session.connection.execute(f"PREPARE TRANSACTION '{gid}'")
    await asyncio.sleep(session.random.random() * 0.5)
    commits = session.random.random() < 0.7
    await session.connection.execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{gid}'")
    return commits


async def _altered(session: Session) -> bool:
    """DDL between the rows of one transaction; in part rolled back."""
    await session.begin("altered")
    await session.insert("changing", 2)
    rolled_back = session.random.random() < 0.3
    if rolled_back:
        await session.connection.execute("SAVEPOINT s")
    if session.random.random() < 0.5:
        await session.connection.execute("ALTER TABLE work.changing ADD COLUMN IF NOT EXISTS extra int DEFAULT 7")
    else:
        await session.connection.execute("ALTER TABLE work.changing DROP COLUMN IF EXISTS extra")
    rows = STREAM_ROWS if session.random.random() < 0.3 else 3
    await session.insert("changing", rows)
    if rolled_back:
        await session.connection.execute("ROLLBACK TO s")
        await session.insert("changing", 2)
    return await session.end(commit=session.random.random() < 0.85)


async def _truncated(session: Session) -> bool:
    await session.begin("truncated")
    await session.insert("emptied", 2)
    await session.truncate()
    await session.insert("emptied", 3)
    return await session.end(commit=session.random.random() < 0.85)


async def _moved(session: Session) -> bool:
    await session.begin("moved")
    for _ in range(session.random.randint(1, 3)):
        await session.move(session.random.choice(KEYED), session.random.randint(1, 4))
    return await session.end()


async def _message(session: Session) -> bool:
    await session.connection.execute("SELECT pg_logical_emit_message(false, 'aside', 'outside of transactions')")
    await session.begin("message")
    await session.message()
    await session.anything()
    return await session.end()


SHAPES: Mapping[str, Callable[[Session], Awaitable[bool]]] = {
    "small": _small,
    "streamed": _streamed,
    "aborted": _aborted,
    "savepoints": _savepoints,
    "prepared": _prepared,
    "altered": _altered,
    "truncated": _truncated,
    "moved": _moved,
    "message": _message,
}
