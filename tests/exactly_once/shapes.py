"""One transaction of the workload, and the shapes that it may have. Every statement writes its own
line of the log.

A statement changes rows and logs them in one go (a data-modifying CTE), so the log cannot say more
or less than happened.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

import asyncpg

SHARED = ("plain", "full", "bare", "large", "changing")
KEYED = ("plain", "full", "large", "changing")
STREAM_ROWS = 500
"""About 100 kB: with logical_decoding_work_mem = 64 kB sent while the transaction is open."""


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

    async def insert_incompressible(self, table: str, size: int) -> None:
        """One row of so many bytes, which are as many in a compressed batch."""
        await self._change(
            "INSERT",
            table,
            f"INSERT INTO work.{table} (id, number, payload) "
            "SELECT new.id, $1::bigint, $1::bigint || '/' || new.id || '/' || noise.text "
            "FROM (SELECT nextval('work.key') AS id) AS new, "
            "(SELECT string_agg(md5(random()::text), '') AS text FROM generate_series(1, $4::int)) AS noise",
            size // 32,
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
    for _ in range(session.random.randint(1, 2)):
        await session.insert(session.random.choice(SHARED), session.random.randint(STREAM_ROWS, STREAM_ROWS * 3 // 2))
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
            await session.insert("plain", session.random.randint(300, 600))
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
    gid = f"work {session.number} of {session.xid}"  # unique in the cluster, where another workload may be at work
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
