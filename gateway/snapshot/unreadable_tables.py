"""Tables that PostgreSQL cannot read: what is at fault, when they can be read, and how the others
end without them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.errors import WalgateError
from gateway.postgres.connection import transaction
from gateway.postgres.credentials import login_of
from gateway.postgres.errors import DRIVER_ERRORS
from gateway.snapshot.chunk_reader import chunk_query, connect_reader
from gateway.snapshot.pending_chunks import PendingChunks
from gateway.snapshot.progress_log import tell_unreadable
from gateway.snapshot.read_plan import ReadPlan, survey
from gateway.snapshot.rules.table_progress import Chunk
from gateway.snapshot.sql import column_list, select_all
from gateway.snapshot.table_errors import DENIED, Fault, passes_by_itself
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks

RETRIES_A_PAUSE: Final = 6
"""A table that a person must look at is tried again after one check of the publications, then after
two, four, and at last after so many."""
PROBE_TIMEOUT_MS: Final = 10_000
"""Looking for what is at fault takes no longer for each column."""

log = structlog.get_logger()


class UnreadableTables:
    """`look` is for the conductor, `run` is a task of its own."""

    def __init__(self, settings: Settings, readings: TableTasks, arriving: PendingChunks) -> None:
        self._login = login_of(settings.source)
        self._publications = settings.source.publications
        self._pause_s = settings.source.check_interval_s * RETRIES_A_PAUSE
        self._readings = readings
        self._arriving = arriving
        self._some = asyncio.Event()

    def look(self) -> None:
        """Where every table that is left has failed again and again, the snapshot ends."""
        readings = [reading for reading in self._readings.whole_tables if not reading.is_set_aside]
        if not self._readings.snapshot_id or not readings:
            return
        if all(reading.is_hopeless and not reading.is_marked for reading in readings):
            tell_unreadable([reading.full_name for reading in readings])
            for reading in readings:
                self._readings.set_aside(reading)
            self._some.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(self._pause_s)
            waiting = [reading for reading in self._readings.whole_tables if reading.is_set_aside]
            for reading in waiting:
                if await self._is_readable(reading) and self._readings.by_oid.get(reading.oid) is reading:
                    log.info("table_readable", table=reading.full_name)
                    self._readings.take_up(reading)
                    self._arriving.call()
            if not waiting:
                self._some.clear()

    async def _is_readable(self, reading: TableTask) -> bool:
        """Whether the table is not what it was when it failed, or what failed would succeed now, or
        fail for another reason, of which the table is told then."""
        chunk, recipe, obstacle = reading.failed, reading.failed_recipe, reading.obstacle
        if chunk is None or recipe is None or obstacle is None:
            return True
        try:
            sql = await connect_reader(self._login)
        except WalgateError:  # the stream tells it, if it cannot go on either
            return False
        try:
            surveyed = await survey(sql, self._publications, [reading.oid])
            if reading.oid not in surveyed:
                return False
            is_changed = surveyed[reading.oid].fingerprint != recipe.surveyed.fingerprint
            return is_changed or await is_readable(sql, chunk, recipe, obstacle.sqlstate)
        except (WalgateError, *DRIVER_ERRORS):
            return False
        finally:
            sql.terminate()


async def find_fault(sql: asyncpg.Connection, chunk: Chunk, recipe: ReadPlan) -> Fault | None:
    """What PostgreSQL fails at in the rows of the chunk: each column is asked for alone. None:
    nothing was found, or the server does not answer."""
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
    """Foreign partitions whose server does not answer, or not with rows. Raises what the driver
    raises."""
    names = recipe.surveyed.foreign_names
    return tuple([name for name in names if not await _succeeds(sql, f"SELECT FROM {name} LIMIT 1", "")])


async def is_readable(sql: asyncpg.Connection, chunk: Chunk, recipe: ReadPlan, sqlstate: str) -> bool:
    """Whether PostgreSQL can send the rows of a chunk that failed with this code; also where it
    fails with another one."""
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
    """Whether PostgreSQL can send what the query gives; also where that takes too long to find out.
    `sqlstate`: of the only error that counts, "" for all; None: all count that do not pass by
    themselves."""
    try:
        async with transaction(sql, readonly=True):
            await sql.execute(f"SET LOCAL statement_timeout = {PROBE_TIMEOUT_MS}")
            await sql.copy_from_query(query, output=_ignore, format="binary", timeout=PROBE_TIMEOUT_MS / 500)
    except asyncpg.PostgresError as error:
        return passes_by_itself(error) if sqlstate is None else bool(sqlstate) and error.sqlstate != sqlstate
    return True


async def _ignore(_: Any) -> None: ...
