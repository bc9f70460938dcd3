"""Why PostgreSQL does not give the rows of a table: whether that passes by itself, what is at fault, and what to do.

Every table stands alone here: no error of a statement that reads one is an error of the gateway, of the stream or of another
table. So there is no unexpected one; what is not named below is told with PostgreSQL's own words and tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from gateway.errors import InternalError
from gateway.postgres.connection import transaction
from gateway.postgres.errors import DRIVER_ERRORS, classify_exception
from gateway.snapshot.chunk_reader import chunk_query
from gateway.snapshot.read_plan import ReadPlan
from gateway.snapshot.rules.table_progress import Chunk
from gateway.snapshot.sql import column_list, select_all

PASSES: Final = ("08", "40", "53", "55P03", "57", "58")
"""Connections, conflicts, resources, locks, cancellation and shutdown, the server's disks: by class or by code."""
DENIED: Final = "42501"
PRIVATE: Final = ("22", "23", "P0", "38", "39")
"""Their messages may quote values of rows."""
PROBE_TIMEOUT_MS: Final = 10_000
"""Looking for what is at fault takes no longer for each column."""

_PRIVILEGES: Final = (
    "GRANT SELECT ON <table> TO <role> (also on its partitions), and GRANT USAGE ON SCHEMA <schema> TO <role>. If only the "
    "published columns may be read: GRANT SELECT (ctid, <columns>) ON <table> TO <role>, with the columns of the row filter. If "
    "row-level security applies to the table: ALTER ROLE <role> BYPASSRLS. If snapshot.may_lock is true: GRANT UPDATE ON <table> "
    "TO <role>, for LOCK TABLE. <role> is the gateway's role"
)
_DAMAGED: Final = (
    "PostgreSQL finds damaged data in the table: see the server's log, and restore the table from a backup. The table is read as "
    "soon as PostgreSQL can read it"
)
_FILTER: Final = (
    "the row filter of the publication fails for a row. Correct the filter (ALTER PUBLICATION ... SET TABLE ... WHERE ...) or "
    "the row. The table is read as soon as that is done"
)
_COLUMN: Final = (
    "PostgreSQL cannot print a value of this column. Correct the value, or the output function of the type; or leave the column "
    "out of the publication (PostgreSQL 15 and later, with a column list). The table is read as soon as that is done"
)
_OTHER: Final = "see the server's log. The other tables are read, and this one as soon as PostgreSQL can read it"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """`reason` quotes no values. `column`, `type_name`: of the value that cannot be printed, where one was found. `passes`: by
    itself, soon."""

    sqlstate: str
    reason: str
    hint: str
    passes: bool
    column: str = ""
    type_name: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """For the log."""
        return {"column": self.column, "type": self.type_name} if self.column else {}


def passes_by_itself(error: BaseException) -> bool:
    """A lost connection, a lock, a lack of resources."""
    sqlstate = getattr(error, "sqlstate", None) or ""
    return not sqlstate or sqlstate.startswith(PASSES)


def obstacle(error: BaseException, table: str, fault: Fault | None = None) -> Obstacle:
    """What to say of an error that came while the table was read."""
    known = classify_exception(error, f"reading {table}")
    sqlstate = getattr(error, "sqlstate", None) or ""
    is_private = sqlstate.startswith(PRIVATE)
    reason = f"reading {table}: {type(error).__name__} ({sqlstate})" if is_private else known.message
    if passes_by_itself(error):
        hint = "" if sqlstate == "55P03" or isinstance(known, InternalError) else known.hint
        return Obstacle(sqlstate, reason, hint, passes=True)
    if sqlstate == DENIED:
        return Obstacle(sqlstate, reason, _PRIVILEGES, passes=False)
    if sqlstate.startswith("XX00") and sqlstate != "XX000":
        return Obstacle(sqlstate, reason, _DAMAGED, passes=False)
    if fault is None:
        return Obstacle(sqlstate, reason, _OTHER, passes=False)
    if fault.is_filter:
        return Obstacle(sqlstate, reason, _FILTER, passes=False)
    return Obstacle(sqlstate, reason, _COLUMN, passes=False, column=fault.column, type_name=fault.type_name)


@dataclass(frozen=True, slots=True)
class Fault:
    """The row filter, or a column."""

    is_filter: bool = False
    column: str = ""
    type_name: str = ""


async def find_fault(sql: asyncpg.Connection, chunk: Chunk, recipe: ReadPlan) -> Fault | None:
    """What PostgreSQL fails at in the rows of the chunk: each column is asked for alone. None: nothing was found, or the server
    does not answer."""
    columns = recipe.surveyed.relation.columns
    types = {column.name: column.type_name for column in columns}
    names = [column.name for column in recipe.version.encoder.description.columns]
    try:
        if recipe.surveyed.row_filter and not await _succeeds(sql, chunk_query(chunk, recipe, "")):
            return Fault(is_filter=True)
        for name, is_binary in zip(names, recipe.is_binary, strict=True):
            if not await _succeeds(sql, chunk_query(chunk, recipe, column_list([name], [is_binary]))):
                return Fault(column=name, type_name=types.get(name, ""))
    except DRIVER_ERRORS:  # the table is told without it
        sql.terminate()
    return None


async def unreachable_partitions(sql: asyncpg.Connection, recipe: ReadPlan) -> tuple[str, ...]:
    """Foreign partitions whose server does not answer, or not with rows. Raises what the driver raises."""
    names = recipe.surveyed.foreign_names
    return tuple([name for name in names if not await _succeeds(sql, f"SELECT FROM {name} LIMIT 1", "")])


async def is_readable(sql: asyncpg.Connection, chunk: Chunk, recipe: ReadPlan, sqlstate: str) -> bool:
    """Whether PostgreSQL can send the rows of a chunk that failed with this code; also where it fails with another one."""
    query = chunk_query(chunk, recipe, recipe.columns)
    if sqlstate == DENIED:  # a privilege on columns is enough, which does not go for places of rows
        surveyed = recipe.surveyed
        source = surveyed.source if chunk.range is None else f"ONLY {surveyed.leaf_names[chunk.range.leaf]}"
        query = f"{select_all(recipe.columns, source, surveyed.row_filter or '')} LIMIT 1"
    try:
        return await _succeeds(sql, query, sqlstate)
    except DRIVER_ERRORS:
        return False


async def _succeeds(sql: asyncpg.Connection, query: str, sqlstate: str | None = None) -> bool:
    """Whether PostgreSQL can send what the query gives; also where that takes too long to find out. `sqlstate`: of the only
    error that counts, "" for all; None: all count that do not pass by themselves."""
    try:
        async with transaction(sql, readonly=True):
            await sql.execute(f"SET LOCAL statement_timeout = {PROBE_TIMEOUT_MS}")
            await sql.copy_from_query(query, output=_ignore, format="binary", timeout=PROBE_TIMEOUT_MS / 500)
    except asyncpg.PostgresError as error:
        return passes_by_itself(error) if sqlstate is None else bool(sqlstate) and error.sqlstate != sqlstate
    return True


async def _ignore(_: Any) -> None: ...
