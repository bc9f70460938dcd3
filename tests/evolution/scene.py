"""A change of a relation, played in the four situations in which a stream can meet it.

    plain         rows, the change in a transaction of its own, rows
    transaction   rows, the change and more rows in one transaction; rows before and after it
    open          the same in a transaction that is streamed while it is open
    undone        in a streamed transaction under a savepoint that is rolled back; later again, and for good

Ids tell what a row is: FIRST and LATER have the old form, CHANGED and LAST the new one. UNDONE must
not be delivered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import asyncpg

PLAIN, TRANSACTION, OPEN, UNDONE_SITUATION = "plain", "transaction", "open", "undone"
SITUATIONS = (PLAIN, TRANSACTION, OPEN, UNDONE_SITUATION)

MANY = 500
"""Rows that no 64 kB of logical_decoding_work_mem hold: the transaction is streamed."""
FIRST = range(1, 4)
LATER = range(1000, 1003)
CHANGED = range(2000, 2003)
UNDONE = range(3000, 3000 + MANY)
LAST = range(9000, 9003)
MANY_LATER = range(1000, 1000 + MANY)
MANY_CHANGED = range(2000, 2000 + MANY)
MANY_MORE = range(4000, 4000 + MANY)

CaughtUp = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """SQL with `{t}` for the table and `{n}` for the expression of an id; `old` and `new` are
    select lists after INSERT.

        `last` is run at the very end, with the new form in place. `renamed`: the table's new name,
        where that is the change.
    """

    create: str
    old: str
    change: str
    new: str
    last: tuple[str, ...] = ()
    renamed: str = "{t}"
    setup: tuple[str, ...] = field(default=())

    async def play(self, sql: asyncpg.Connection, table: str, situation: str, caught_up: CaughtUp) -> None:
        run = _Script(self, sql, table)
        for statement in (*self.setup, self.create):
            await run.statement(statement)
        await run.rows(self.old, FIRST)
        if situation in (TRANSACTION, OPEN):
            few = situation == TRANSACTION
            await run.statement("BEGIN")
            await run.rows(self.old, LATER if few else MANY_LATER)
            await run.statement(self.change)
            await run.rows(self.new, CHANGED if few else MANY_CHANGED, self.renamed)
            await run.statement("COMMIT")
        elif situation == UNDONE_SITUATION:
            await run.statement("BEGIN")
            await run.rows(self.old, MANY_LATER)
            await run.statement("SAVEPOINT s")
            await run.statement(self.change)
            await run.rows(self.new, UNDONE, self.renamed)
            await caught_up()  # else the server may see the rollback first, and send nothing of it
            await run.statement("ROLLBACK TO s")
            await run.rows(self.old, MANY_MORE)
            await run.statement("COMMIT")
            await run.rows(self.old, CHANGED)
            await run.statement(self.change)
        else:
            await run.statement(self.change)
        await run.rows(self.new, LAST, self.renamed)
        for statement in self.last:
            await run.statement(statement)


def old_ids(situation: str) -> list[int]:
    """Ids with the old form, in order of delivery."""
    ids = {
        PLAIN: [*FIRST],
        TRANSACTION: [*FIRST, *LATER],
        OPEN: [*FIRST, *MANY_LATER],
        UNDONE_SITUATION: [*FIRST, *MANY_LATER, *MANY_MORE, *CHANGED],
    }
    return ids[situation]


def new_ids(situation: str) -> list[int]:
    """Ids with the new form, in order of delivery; they come after the old ones."""
    ids = {
        PLAIN: [*LAST],
        TRANSACTION: [*CHANGED, *LAST],
        OPEN: [*MANY_CHANGED, *LAST],
        UNDONE_SITUATION: [*LAST],
    }
    return ids[situation]


@dataclass(frozen=True)
class _Script:
    scene: Scene
    sql: asyncpg.Connection
    table: str

    async def statement(self, statement: str) -> None:
        for part in statement.replace("{t}", self.table).split(";\n"):
            await self.sql.execute(part)

    async def rows(self, select_list: str, ids: range, table: str = "{t}") -> None:
        values = select_list.replace("{n}", "n")
        await self.statement(f"INSERT INTO {table} SELECT {values} FROM generate_series({ids.start}, {ids.stop - 1}) n")
