"""The tasks that read tables, chunk after chunk: take, read, commit; wait until it was handed over, but for a few small ones."""

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
from gateway.postgres.errors import DRIVER_ERRORS, classify_exception
from gateway.snapshot.chunk_reader import (
    ChunkTooLarge,
    ReadChunk,
    RelationChanged,
    SnapshotTooOld,
    connect_reader,
    read_chunk,
)
from gateway.snapshot.pending_chunks import PendingChunks
from gateway.snapshot.progress_log import CHANGED_ATTEMPTS, WaitReasons
from gateway.snapshot.read_plan import ReadPlans
from gateway.snapshot.rules.table_progress import Chunk, Status
from gateway.snapshot.table_errors import errors_of
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks

log = structlog.get_logger()

SHARED_BYTES: Final = 1 << 20
"""A chunk has no more where other transactions come in the stream: they wait until its rows are handed over (docs/performance.md,
SL). Not for a VERIFY: a mirror compares each chunk by itself, in seconds whatever its size."""
AHEAD_BYTES: Final = 1 << 16
AHEAD_CHUNKS: Final = 8
"""A reader goes on before its chunks are handed over while they are so small and few: small tables would wait for the stream
longer than it takes to read them."""
NOT_YET_S: Final = 0.1
BLOCKED_S: Final = 10.0
"""A table that cannot be read is tried again after so long."""

_BLOCKS: Final = {
    "42501": "GRANT SELECT ON <table> TO <role> (also on its partitions), and GRANT USAGE ON SCHEMA <schema> TO <role>. If "
    "row-level security applies to the table: ALTER ROLE <role> BYPASSRLS. If snapshot.may_lock is true: GRANT UPDATE ON <table> "
    "TO <role>, for LOCK TABLE. <role> is the gateway's role",
    "55P03": "",
}


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_far_ahead(chunks: Collection[ReadChunk]) -> bool:
    """They are as much as one reader may have read and not handed over."""
    return len(chunks) > AHEAD_CHUNKS or sum(each.byte_count for each in chunks) > AHEAD_BYTES


class ReaderTasks:
    """`run` is one of them. A table that cannot be read is named and tried again later, the others go on."""

    def __init__(self, settings: Settings, readings: TableTasks, recipes: ReadPlans, arriving: PendingChunks) -> None:
        self._settings = settings.snapshot
        self._publications = list(settings.source.publications)
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
                    _block(reading, error)
                except BaseException:
                    chunk.table.give_back(chunk)
                    raise
        finally:
            if sql is not None:
                sql.terminate()

    async def _connect(self) -> asyncpg.Connection | None:
        """None: the server takes no more connections, say. The stream goes on; if it cannot either, it tells."""
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

        try:
            turn = self._turn if self._is_shared else None
            with errors_of(reading.recipe.surveyed.relation):
                found = await read_chunk(sql, chunk, reading.recipe, self._publications, waits, turn)
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
        except BaseException:
            for number in emitted:
                self._arriving.forget(number)
            raise
        else:
            self._waits.end()
            reading.attempts = 0
            self._arriving.more.set()
            if self._settings.rows_per_s is not None:
                begin = max(self._free_at, time.monotonic())
                self._free_at = begin + found.row_count / self._settings.rows_per_s
            return found
        return None

    def _set_up_again(self, reading: TableTask, *, begins_again: bool) -> None:
        """Its recipe is void; `begins_again`: and so is what was read of the table."""
        if reading.is_reselect:
            reading.recipe = None
            self._arriving.wake.set()
        elif begins_again:
            reading.begin_again()
            self._arriving.wake.set()


def _block(reading: TableTask, error: BaseException) -> None:
    """What the server says of one table does not concern the others; nor the stream, where a session ends."""
    found = classify_exception(error, f"reading {reading.full_name}")
    sqlstate = getattr(error, "sqlstate", None) or ""
    passes = not sqlstate or sqlstate in ("55P03", "57P01", "40001", "57014")
    pause = min(2.0**reading.attempts, BLOCKED_S) if passes else BLOCKED_S
    reading.attempts = min(reading.attempts + 1, 16)
    reading.blocked_until = time.monotonic() + pause
    hint = _BLOCKS.get(sqlstate, found.hint)
    log.warning("table_unreadable", table=reading.full_name, reason=found.message, hint=hint, again_in_s=pause)
