"""Tables that PostgreSQL cannot read: finds the reason, tries them again, and lets the snapshot of
the others end without them."""

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
"""A table that needs the operator is tried again after 1, 2 and 4 checks of the publications, and
then after each 6."""
PROBE_TIMEOUT_MS: Final = 10_000
"""Time limit for each column when looking for the reason."""

log = structlog.get_logger()


class UnreadableTables:
    """Sets unreadable tables aside (`look`, called by the coordinator) and tries them again (`run`,
    a task of its own)."""

    def __init__(self, settings: Settings, readings: TableTasks, arriving: PendingChunks) -> None:
        self._login = login_of(settings.source)
        self._publications = settings.source.publications
        self._pause_s = settings.source.check_interval_s * RETRIES_A_PAUSE
        self._readings = readings
        self._arriving = arriving
        self._some = asyncio.Event()

    def look(self) -> None:
        """Set all remaining tables aside if each of them failed repeatedly, so that the snapshot
        ends."""
        readings = [reading for reading in self._readings.whole_tables if not reading.is_set_aside]
        if not self._readings.snapshot_id or not readings:
            return
        if all(reading.is_hopeless and not reading.is_marked for reading in readings):
            tell_unreadable([reading.full_name for reading in readings])
            for reading in readings:
                self._readings.set_aside(reading)
            self._some.set()

    async def run(self) -> None:
        """Try the tables that were set aside again, until cancelled."""
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
        """Return whether the table has changed since it failed, or can be read now, or would fail
        for another reason, which is then logged."""
        chunk, recipe, obstacle = reading.failed, reading.failed_recipe, reading.obstacle
        if chunk is None or recipe is None or obstacle is None:
            return True
        try:
            sql = await connect_reader(self._login)
        except WalgateError:  # if the stream is affected too, it reports the error
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
    """Find what PostgreSQL fails at in the rows of the chunk, by querying each column alone.
    Returns None if nothing was found, or the server does not answer."""
    columns = recipe.surveyed.relation.columns
    types = {column.name: column.type_name for column in columns}
    names = [column.name for column in recipe.version.encoder.description.columns]
    try:
        if recipe.surveyed.row_filter and not await _succeeds(sql, chunk_query(chunk, recipe, "")):
            return Fault(is_filter=True)
        for name, is_binary in zip(names, recipe.is_binary, strict=True):
            if not await _succeeds(sql, chunk_query(chunk, recipe, column_list([name], [is_binary]))):
                return Fault(column=name, type_name=types.get(name, ""))
    except DRIVER_ERRORS:  # the table is logged without the fault
        sql.terminate()
    return None


async def unreachable_partitions(sql: asyncpg.Connection, recipe: ReadPlan) -> tuple[str, ...]:
    """Return the foreign partitions whose server does not respond, or not with rows. Raises what
    the driver raises."""
    names = recipe.surveyed.foreign_names
    return tuple([name for name in names if not await _succeeds(sql, f"SELECT FROM {name} LIMIT 1", "")])


async def is_readable(sql: asyncpg.Connection, chunk: Chunk, recipe: ReadPlan, sqlstate: str) -> bool:
    """Return whether PostgreSQL can send the rows of a chunk that failed with this SQLSTATE, or now
    fails with another one."""
    query = chunk_query(chunk, recipe, recipe.columns)
    if sqlstate == DENIED:  # privileges on the columns are enough, even without ctid
        surveyed = recipe.surveyed
        source = surveyed.source if chunk.range is None else f"ONLY {surveyed.leaf_names[chunk.range.leaf]}"
        query = f"{select_all(recipe.columns, source, surveyed.row_filter or '')} LIMIT 1"
    try:
        return await _succeeds(sql, query, sqlstate)
    except DRIVER_ERRORS:
        return False


async def _succeeds(sql: asyncpg.Connection, query: str, sqlstate: str | None = None) -> bool:
    """Return whether PostgreSQL can send the rows of the query.

    `sqlstate` is the only error that counts as a failure; "" stands for any error, None for any
    that does not pass without intervention. Unless it is "", a query that takes too long counts as
    a success.
    """
    try:
        async with transaction(sql, readonly=True):
            await sql.execute(f"SET LOCAL statement_timeout = {PROBE_TIMEOUT_MS}")
            await sql.copy_from_query(query, output=_ignore, format="binary", timeout=PROBE_TIMEOUT_MS / 500)
    except asyncpg.PostgresError as error:
        return passes_by_itself(error) if sqlstate is None else bool(sqlstate) and error.sqlstate != sqlstate
    return True


async def _ignore(_: Any) -> None: ...
