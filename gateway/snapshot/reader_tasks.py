"""The tasks that read tables, chunk after chunk: take, read, commit; wait until it was handed over,
but for a few small ones."""

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
"""A chunk has no more where other transactions come in the stream: they wait until its rows are
handed over (docs/performance.md, SL). Not for a VERIFY: a mirror compares each chunk by itself, in
seconds whatever its size."""
AHEAD_BYTES: Final = 1 << 16
AHEAD_CHUNKS: Final = 8
"""A reader goes on before its chunks are handed over while they are so small and few: small tables
would wait for the stream longer than it takes to read them."""
NOT_YET_S: Final = 0.1
FOREIGN_ATTEMPTS: Final = 3
"""So many must have failed before a partitioned table is read without the foreign partitions that
cannot be read."""
BLOCKED_S: Final = 10.0
"""What passes by itself is tried again after so long at most."""


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_far_ahead(chunks: Collection[ReadChunk]) -> bool:
    """They are as much as one reader may have read and not handed over."""
    return len(chunks) > AHEAD_CHUNKS or sum(each.byte_count for each in chunks) > AHEAD_BYTES


class ReaderTasks:
    """`run` is one of them. A table that cannot be read is named and tried again later, the others
    go on."""

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
        """Other transactions came in the stream between the last two chunks."""
        self.finds_nothing = True
        """A reader, when it last looked for something to read."""

    def chunk_came(self, transaction_count: int) -> None:
        """As the transaction of that number in the stream."""
        self._is_shared, self._next_transaction = transaction_count > self._next_transaction, transaction_count + 1

    async def run(self) -> None:
        """Until cancelled."""
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
                        self._arriving.more.set()  # another reader has a connection, perhaps
                        await asyncio.sleep(BLOCKED_S)
                        continue
                    waiting = await self.read(sql, reading, chunk)
                    if waiting is not None:
                        ahead.append(waiting)
                except DRIVER_ERRORS as error:
                    chunk.table.give_back(chunk)
                    if is_cancelled():  # the ROLLBACK may have failed in place of it
                        raise asyncio.CancelledError from error
                    await self._block(reading, error, sql, chunk)
                except BaseException:
                    chunk.table.give_back(chunk)
                    raise
        finally:
            if sql is not None:
                sql.terminate()

    async def _connect(self) -> asyncpg.Connection | None:
        """None: the server takes no more connections, say. The stream goes on; if it cannot either,
        it tells."""
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
            now = time.monotonic()
            for reading in () if self._readings.is_paused else self._readings.begun.values():
                table = reading.table
                is_ready = reading.is_readable and reading.blocked_until <= now
                if table is not None and table.status is Status.READING and is_ready:
                    chunk = table.take()
                    if chunk is not None:
                        self.finds_nothing = False
                        return reading, chunk
            if not self.finds_nothing:
                self.finds_nothing = True
                self._arriving.wake.set()
            more.clear()
            await more.wait()

    async def read(self, sql: asyncpg.Connection, reading: TableTask, chunk: Chunk) -> ReadChunk | None:
        """None: it is to be read once more."""
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
        except SnapshotTooOld:
            chunk.table.give_back(chunk)
            self._waits.tell()
            await asyncio.sleep(NOT_YET_S)
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
        """What the server says of one table does not concern the others; nor the stream, where a
        session ends."""
        if time.monotonic() < reading.blocked_until:  # another reader has told it meanwhile
            return
        reading.blocked_until = (
            time.monotonic() + BLOCKED_S
        )  # no other reader begins while this one looks for the reason
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
            reading.recipe = None  # which privileges there are is looked up again
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
        """Whether foreign partitions are at fault: the table is read without them."""
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
        """Its recipe is void; `begins_again`: and so is what was read of the table."""
        if reading.is_reselect:
            reading.recipe = None
            self._arriving.wake.set()
        elif begins_again:
            reading.begin_again()
            self._arriving.wake.set()
