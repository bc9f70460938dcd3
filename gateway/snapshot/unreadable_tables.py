"""Tables that PostgreSQL cannot read. This module finds the reason, tries the tables again, and
lets the snapshot of the other tables end without them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.errors import WalgateError
from gateway.kafka.batches import HELD_FACTOR
from gateway.postgres.classify_errors import DRIVER_ERRORS
from gateway.postgres.connection import transaction
from gateway.postgres.credentials import Credentials
from gateway.snapshot.chunk_reader import chunk_query, connect_reader
from gateway.snapshot.pending_chunks import PendingChunks
from gateway.snapshot.progress_log import log_unreadable
from gateway.snapshot.read_plan import ReadPlan, survey
from gateway.snapshot.rules.table_progress import Chunk
from gateway.snapshot.sql import column_list, select_all
from gateway.snapshot.table_errors import DENIED, TOO_LARGE, Fault, passes_by_itself
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks

LONGEST_PAUSE: Final = 6
"""The longest pause between two attempts to read a table that needs the operator, in check
intervals (source.check_interval_s). The first pauses are 1, 2 and 4 intervals. A table that was set
aside is always tried after the longest one."""
PROBE_TIMEOUT_MS: Final = 10_000
"""Time limit for the query of each column while the reason is sought."""

_OF_FOREIGN_SERVERS: Final = ("08", "HV")
"""Classes of SQLSTATE that a query has from a foreign server: no connection, and errors of
foreign-data wrappers."""

log = structlog.get_logger()


class UnreadableTables:
    """Find the tables without which the snapshot ends, and try them again. The coordinator calls
    `set_hopeless_aside`; `run` is a task of its own."""

    def __init__(self, settings: Settings, login: Credentials, tasks: TableTasks, pending: PendingChunks) -> None:
        self._login = login
        self._largest_row = HELD_FACTOR * settings.kafka.max_record_bytes
        self._publications = settings.source.publications
        self._pause_s = settings.source.check_interval_s * LONGEST_PAUSE
        self._tasks = tasks
        self._pending = pending
        self._some = asyncio.Event()

    def set_hopeless_aside(self) -> None:
        """Set all remaining tables aside, so that the snapshot ends without them, if every one of
        them has failed HOPELESS_ATTEMPTS times. As long as a table can be read, or may recover by
        itself, the others stay in the snapshot and are tried again."""
        tasks = [task for task in self._tasks.whole_tables if not task.is_set_aside]
        if not self._tasks.snapshot.id or not tasks:
            return
        if all(task.is_hopeless and not task.awaits_boundary for task in tasks):
            log_unreadable(tasks)
            for task in tasks:
                self._tasks.set_aside(task)
            self._some.set()

    async def run(self) -> None:
        """Try the tables that were set aside again, until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(self._pause_s)
            waiting = [task for task in self._tasks.whole_tables if task.is_set_aside]
            for task in waiting:
                if await self._is_readable(task) and self._tasks.is_current(task):
                    log.info("table_readable", table=task.full_name)
                    self._tasks.readable_again(task)
                    self._pending.call()
            if not waiting:
                self._some.clear()

    async def _is_readable(self, task: TableTask) -> bool:
        """Return whether the table has changed since it failed, can be read now, or would fail for
        another reason. The next attempt to read it logs such a reason."""
        (chunk, plan), obstacle = task.failed, task.obstacle
        if chunk is None or plan is None or obstacle is None:
            return True
        try:
            sql = await connect_reader(self._login, largest_row=self._largest_row)
        except WalgateError:  # if the stream is affected too, it reports the error
            return False
        try:
            surveyed = await survey(sql, self._publications, [task.oid])
            if task.oid not in surveyed:
                return False
            now, before = surveyed[task.oid], plan.surveyed
            if now.fingerprint != before.fingerprint:
                return True
            if obstacle.sqlstate == TOO_LARGE:
                return (now.has_places, now.foreign_names) != (before.has_places, before.foreign_names)
            return await is_readable(sql, chunk, plan, obstacle.sqlstate)
        except (WalgateError, *DRIVER_ERRORS):
            return False
        finally:
            sql.terminate()


async def find_fault(sql: asyncpg.Connection, chunk: Chunk, plan: ReadPlan) -> Fault | None:
    """Find the part of the query of a chunk at which PostgreSQL fails, by querying each column
    alone. Return None if nothing was found, if the query also fails without columns and row filter,
    or if the server does not answer."""
    columns = plan.surveyed.relation.columns
    types = {column.name: column.type_name for column in columns}
    names = [column.name for column in plan.version.encoder.description.columns]
    unfiltered = replace(plan, surveyed=replace(plan.surveyed, row_filter=""))
    try:
        if not await _succeeds(sql, chunk_query(chunk, unfiltered, "")):
            return None
        if plan.surveyed.row_filter and not await _succeeds(sql, chunk_query(chunk, plan, "")):
            return Fault(is_filter=True)
        for name, is_binary in zip(names, plan.is_binary, strict=True):
            if not await _succeeds(sql, chunk_query(chunk, plan, column_list([name], [is_binary]))):
                return Fault(column=name, type_name=types.get(name, ""))
    except DRIVER_ERRORS:  # the table is logged without the fault
        sql.terminate()
    return None


async def unreachable_partitions(sql: asyncpg.Connection, plan: ReadPlan, error: BaseException) -> tuple[str, ...]:
    """Return the foreign partitions whose server does not respond, or does not send rows. Those
    that the role may read only through their root are not queried: they count if the root's `error`
    is of a foreign server. Raises what the driver raises."""
    found = []
    for name in plan.surveyed.foreign_names:
        if await _may_be_read(sql, name):
            if not await _succeeds(sql, f"SELECT FROM {name} LIMIT 1", ""):
                found.append(name)
        elif str(getattr(error, "sqlstate", "")).startswith(_OF_FOREIGN_SERVERS):
            found.append(name)
    return tuple(found)


async def _may_be_read(sql: asyncpg.Connection, name: str) -> bool:
    """Return whether the role may read the table itself."""
    try:
        allowed: bool = await sql.fetchval("SELECT pg_catalog.has_any_column_privilege($1::text, 'SELECT')", name)
    except asyncpg.InsufficientPrivilegeError:  # on its schema
        return False
    return allowed


async def is_readable(sql: asyncpg.Connection, chunk: Chunk, plan: ReadPlan, sqlstate: str) -> bool:
    """Return whether PostgreSQL can send the rows of a chunk that failed with this SQLSTATE, or now
    fails with another SQLSTATE."""
    query = chunk_query(chunk, plan, plan.columns)
    if sqlstate == DENIED:  # privileges on the columns are enough, even without ctid
        surveyed = plan.surveyed
        source = surveyed.source if chunk.range is None else f"ONLY {surveyed.leaf_names[chunk.range.leaf]}"
        query = f"{select_all(plan.columns, source, surveyed.row_filter or '')} LIMIT 1"
    try:
        return await _succeeds(sql, query, sqlstate)
    except DRIVER_ERRORS:
        return False


async def _succeeds(sql: asyncpg.Connection, query: str, sqlstate: str | None = None) -> bool:
    """Return whether PostgreSQL can send the rows of the query.

    `sqlstate` is the only error that counts as a failure. "" stands for every error, and None for
    every error that does not pass without intervention. Unless it is "", a query that takes too
    long counts as a success.
    """
    try:
        async with transaction(sql, readonly=True):
            await sql.execute(f"SET LOCAL statement_timeout = {PROBE_TIMEOUT_MS}")
            await sql.copy_from_query(query, output=_ignore, format="binary", timeout=PROBE_TIMEOUT_MS / 500)
    except asyncpg.PostgresError as error:
        return passes_by_itself(error) if sqlstate is None else bool(sqlstate) and error.sqlstate != sqlstate
    return True


async def _ignore(_: Any) -> None: ...
