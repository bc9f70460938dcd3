"""The tasks that read tables, one chunk after another: take, read, commit, and wait until the chunk
was handed over, except for a few small ones."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection
from typing import Final

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.errors import NeedsText, Retry, RetrySlowly
from gateway.postgres.credentials import login_of
from gateway.postgres.errors import DRIVER_ERRORS
from gateway.snapshot.chunk_reader import (
    ChunkTooLarge,
    ReadChunk,
    RelationChanged,
    SnapshotTooOld,
    connect_reader,
    read_chunk,
)
from gateway.snapshot.pending_chunks import PendingChunks
from gateway.snapshot.progress_log import CHANGED_ATTEMPTS, WaitReasons, tell_unreachable
from gateway.snapshot.read_plan import ReadPlan, ReadPlans
from gateway.snapshot.rules.table_progress import Chunk, Status
from gateway.snapshot.table_errors import DENIED, errors_of, obstacle, passes_by_itself
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks
from gateway.snapshot.unreadable_tables import RETRIES_A_PAUSE, find_fault, unreachable_partitions

log = structlog.get_logger()

SHARED_BYTES: Final = 1 << 20
"""The size of a chunk while other transactions arrive in the stream, since they wait until its rows
are handed over (docs/performance.md, SL). It does not apply to VERIFY: a mirror compares each chunk
separately, which takes seconds whatever its size."""
AHEAD_BYTES: Final = 1 << 16
AHEAD_CHUNKS: Final = 8
"""A reader goes on while its chunks that were not handed over yet are at most this many and this
large: with small tables, it would otherwise wait for the stream longer than it reads."""
FOREIGN_ATTEMPTS: Final = 3
"""A partitioned table is read without its unreadable foreign partitions after this many failed
attempts."""
BLOCKED_S: Final = 10.0
"""The longest pause before another attempt after an error that passes without intervention."""


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_far_ahead(chunks: Collection[ReadChunk]) -> bool:
    """Return whether a reader must wait until the first of its chunks is handed over."""
    return len(chunks) > AHEAD_CHUNKS or sum(each.byte_count for each in chunks) > AHEAD_BYTES


class ReaderTasks:
    """The readers; `run` is one of them. A table that cannot be read is logged and tried again
    later, while the others are read."""

    def __init__(self, settings: Settings, readings: TableTasks, recipes: ReadPlans, arriving: PendingChunks) -> None:
        self._settings = settings.snapshot
        self._publications = list(settings.source.publications)
        self._check_interval_s = settings.source.check_interval_s
        self._login = login_of(settings.source)
        self._readings = readings
        self._recipes = recipes
        self._arriving = arriving
        self._waits = WaitReasons()
        self._free_at = 0.0
        self._turn = asyncio.Lock()
        self._next_transaction = 0
        self._is_shared = False
        """Other transactions arrived in the stream between the last two chunks."""
        self.finds_nothing = True
        """A reader found nothing to read when it last looked."""

    def chunk_came(self, transaction_count: int) -> None:
        """Note that a chunk arrived as transaction number `transaction_count` of the stream."""
        self._is_shared, self._next_transaction = transaction_count > self._next_transaction, transaction_count + 1

    async def run(self) -> None:
        """Read chunks until cancelled."""
        sql: asyncpg.Connection | None = None
        ahead: deque[ReadChunk] = deque()
        try:
            while True:
                while ahead and (ahead[0].done.is_set() or is_far_ahead(ahead)):
                    await ahead.popleft().done.wait()
                reading, chunk = await self._next()
                try:
                    if sql is None or sql.is_closed():
                        sql = await self._connect()
                    if sql is None:
                        chunk.table.give_back(chunk)
                        self._arriving.more.set()  # another reader may have a connection
                        await asyncio.sleep(BLOCKED_S)
                        continue
                    waiting = await self.read(sql, reading, chunk)
                    if waiting is not None:
                        ahead.append(waiting)
                except DRIVER_ERRORS as error:
                    chunk.table.give_back(chunk)
                    if is_cancelled():  # the ROLLBACK may have failed and replaced the cancellation
                        raise asyncio.CancelledError from error
                    await self._block(reading, error, sql, chunk)
                except BaseException:
                    chunk.table.give_back(chunk)
                    raise
        finally:
            if sql is not None:
                sql.terminate()

    async def _connect(self) -> asyncpg.Connection | None:
        """Open a session, or return None if that fails, for example because the server accepts no
        more connections. The stream goes on; if it is affected too, it reports the error."""
        try:
            return await connect_reader(self._login)
        except (Retry, RetrySlowly) as error:
            log.warning("reader_not_connected", reason=error.message, hint=error.hint, again_in_s=BLOCKED_S)
            return None

    async def _next(self) -> tuple[TableTask, Chunk]:
        more = self._arriving.more
        while True:
            delay = self._free_at - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            now, waits = time.monotonic(), False
            for reading in () if self._readings.is_paused else self._readings.begun.values():
                table = reading.table
                is_ready = reading.is_readable and reading.blocked_until <= now
                if table is not None and table.status is Status.READING and is_ready:
                    chunk = table.take()
                    if chunk is not None:
                        self.finds_nothing = False
                        return reading, chunk
                    waits |= table.is_too_early
            if waits:
                self._waits.tell()
            if not self.finds_nothing:
                self.finds_nothing = True
                self._arriving.wake.set()
            more.clear()
            await more.wait()

    async def read(self, sql: asyncpg.Connection, reading: TableTask, chunk: Chunk) -> ReadChunk | None:
        """Read the chunk and return it, or return None if it was given back to be read again."""
        if reading.recipe is None or reading.table is not chunk.table:  # it has changed while the session was opened
            chunk.table.give_back(chunk)
            return None
        chunk.is_locked = bool(chunk.whole) and self._settings.may_lock and reading.changed_count >= CHANGED_ATTEMPTS
        sizer, yields = chunk.table.sizer, self._is_shared and reading.state.purpose != "VERIFY"
        sizer.chunk_bytes = min(SHARED_BYTES, sizer.most_bytes) if yields else sizer.most_bytes
        emitted: list[str] = []

        def waits(number: str, found: ReadChunk) -> None:
            emitted.append(number)
            self._arriving.expect(number, found)

        recipe = reading.recipe
        compares_text = recipe.compares_text
        try:
            turn = self._turn if self._is_shared else None
            with errors_of(recipe.surveyed.relation):
                found = await read_chunk(sql, chunk, recipe, self._publications, waits, turn)
        except RelationChanged:
            chunk.table.give_back(chunk)
            is_current = reading.table is chunk.table and chunk.generation == chunk.table.generation
            self._set_up_again(reading, begins_again=is_current)
        except SnapshotTooOld:  # the table waits; meanwhile, other tables are read
            chunk.table.give_back(chunk)
        except ChunkTooLarge:
            chunk.table.give_back(chunk)
        except NeedsText:
            chunk.table.give_back(chunk)
            self._recipes.text_only = True
            self._set_up_again(reading, begins_again=True)
        except BaseException as error:
            for number in emitted:
                self._arriving.forget(number)
            if not (chunk.keys and not compares_text and isinstance(error, asyncpg.PostgresError)):
                raise
            if passes_by_itself(error):
                raise
            chunk.table.give_back(chunk)
            recipe.compares_text = True
            log.info("keys_compared_as_text", table=reading.full_name, sqlstate=error.sqlstate)
        else:
            self._waits.end()
            reading.succeeds(chunk)
            self._arriving.more.set()
            if self._settings.rows_per_s is not None:
                begin = max(self._free_at, time.monotonic())
                self._free_at = begin + found.row_count / self._settings.rows_per_s
            return found
        return None

    async def _block(
        self, reading: TableTask, error: BaseException, sql: asyncpg.Connection | None, chunk: Chunk
    ) -> None:
        """Log an error of one table and block the table for a while. Other tables go on, and so
        does the stream, even if a session ended."""
        if time.monotonic() < reading.blocked_until:  # another reader has logged it meanwhile
            return
        # No other reader begins with the table while this one looks for the reason.
        reading.blocked_until = time.monotonic() + BLOCKED_S
        fault, recipe = None, reading.recipe
        is_new = reading.obstacle is None or reading.obstacle.sqlstate != (getattr(error, "sqlstate", None) or "")
        if is_new and recipe is not None and sql is not None and not sql.is_closed() and not passes_by_itself(error):
            fault = await find_fault(sql, chunk, recipe)
        if recipe is not None and sql is not None and await self._leaves_out(reading, recipe, chunk, sql):
            return
        if is_new or reading.obstacle is None:
            role = "" if sql is None else sql.get_settings().session_authorization
            blocked = obstacle(error, (reading.state.schema, reading.state.name), role, fault)
        else:
            blocked = reading.obstacle
        pause = 2.0 ** min(reading.attempts, 10)
        pause = min(pause, BLOCKED_S) if blocked.passes else min(pause, RETRIES_A_PAUSE) * self._check_interval_s
        reading.fails(chunk, blocked, recipe)
        if blocked.sqlstate == DENIED and not reading.is_reselect:
            reading.recipe = None  # look up the privileges again
        reading.blocked_until = time.monotonic() + pause
        if is_new or not reading.attempts & (reading.attempts - 1):
            log.warning(
                "table_unreadable",
                table=reading.full_name,
                reason=blocked.reason,
                hint=blocked.hint,
                **blocked.fields,
                attempts=reading.attempts,
                again_in_s=pause,
            )
        if reading.is_hopeless:
            self._arriving.wake.set()

    async def _leaves_out(self, reading: TableTask, recipe: ReadPlan, chunk: Chunk, sql: asyncpg.Connection) -> bool:
        """Return whether foreign partitions are at fault; the table is then read without them."""
        if not (chunk.whole and recipe.surveyed.foreign_names and reading.attempts >= FOREIGN_ATTEMPTS):
            return False
        if recipe.unreachable or sql.is_closed():
            return False
        try:
            recipe.unreachable = await unreachable_partitions(sql, recipe)
        except DRIVER_ERRORS:
            sql.terminate()
            return False
        if recipe.unreachable:
            tell_unreachable(reading.full_name, recipe.unreachable)
            reading.succeeds(chunk)
            reading.blocked_until = 0.0
        return bool(recipe.unreachable)

    def _set_up_again(self, reading: TableTask, *, begins_again: bool) -> None:
        """Handle an outdated read plan. A reselection gets a new plan; a table begins again if
        `begins_again`, which is false for a chunk of an earlier generation."""
        if reading.is_reselect:
            reading.recipe = None
            self._arriving.wake.set()
        elif begins_again:
            reading.begin_again()
            self._arriving.wake.set()
