"""A mixed load for faults: every shape of transaction, from several connections, with its log in
the same transactions.

Tables are in the schema `work`; each row carries `number`, the transaction that wrote it last.
Every statement changes rows and writes its own line of the log in one go (a data-modifying CTE), so
the log cannot say more or less than happened. Contention is wanted: deadlocks and lost connections
end in a rollback, of which the log has no trace either. Only the table that is truncated belongs to
its shape alone (docs/faults.md tells why).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import asyncpg

from tests.exactly_once.history import create_history
from tests.exactly_once.shapes import SHAPES, Session

PUBLICATION = "work"
TABLES = ("plain", "full", "bare", "large", "changing", "emptied")
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
    asyncpg.LockNotAvailableError,
    asyncpg.TransactionRollbackError,  # deadlocks
    asyncpg.ConfigurationLimitExceededError,  # too many prepared transactions
    asyncpg.InvalidCachedStatementError,  # a table was altered
)

_LIMITED_WAITS = {"lock_timeout": "5s"}
"""A prepared transaction whose worker lost its server keeps its locks until `finish`."""


async def create_tables(connection: asyncpg.Connection) -> None:
    """Tables, publication, log and witness slot."""
    await connection.execute(_TABLES)
    names = ", ".join(f"work.{name}" for name in TABLES)
    await connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {names}")
    await create_history(connection)


class Workload:
    """`start` lets it run in the background, `finish` ends it and returns the xid of a last, small
    transaction."""

    def __init__(
        self, dsn: str, *, seed: int, workers: int = 4, weights: Mapping[str, int] = WEIGHTS, pause_s: float = 0.3
    ) -> None:
        self._dsn = dsn
        self._seed = seed
        self._worker_count = workers
        self._weights = weights
        self._pause_s = pause_s
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.committed: Counter[str] = Counter()
        self.rolled_back_count = 0

    def start(self) -> None:
        self._stopping.clear()
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
        self._stopping.set()
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
        return await self._one(lambda session: session.insert(table, row_count, filling))

    async def one_large_row(self, table: str, size: int) -> int:
        """Of so many bytes, which do not compress, in a transaction of its own; its xid."""
        return await self._one(lambda session: session.insert_incompressible(table, size))

    async def _one(self, change: Callable[[Session], Awaitable[None]]) -> int:
        connection = await asyncpg.connect(self._dsn)
        try:
            session = Session(connection, random.Random(self._seed))
            await session.begin("one")
            await change(session)
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
        try:
            while not self._stopping.is_set():
                try:
                    if connection is None or connection.is_closed():
                        connection = await asyncpg.connect(self._dsn, timeout=5, server_settings=_LIMITED_WAITS)
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
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(generator.expovariate(1 / self._pause_s)):
                        await self._stopping.wait()
        finally:
            if connection is not None:
                connection.terminate()


async def _rolled_back(connection: asyncpg.Connection | None) -> asyncpg.Connection | None:
    """The same connection, fit for the next transaction; None when it is lost."""
    try:
        if connection is not None:
            await connection.execute("ROLLBACK")
    except _LOST:
        return None
    return connection
