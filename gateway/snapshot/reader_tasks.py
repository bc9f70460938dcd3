"""The tasks that read tables, one chunk after another. A task asks TableTasks for a chunk, reads it
and commits, then waits until it is published, unless only a few small chunks are unpublished."""

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
from gateway.kafka.batches import HELD_FACTOR
from gateway.memory import memory_limit
from gateway.postgres.classify_errors import DRIVER_ERRORS
from gateway.postgres.credentials import Credentials
from gateway.snapshot.chunk_reader import (
    ChunkTooLarge,
    ReadChunk,
    RelationChanged,
    SnapshotTooOld,
    connect_reader,
    read_chunk,
)
from gateway.snapshot.pending_chunks import PendingChunks
from gateway.snapshot.progress_log import CHANGED_ATTEMPTS, WaitReasons, log_unreachable
from gateway.snapshot.read_plan import ReadPlan, ReadPlans
from gateway.snapshot.rules.table_progress import Chunk
from gateway.snapshot.table_errors import (
    DENIED,
    TOO_LARGE,
    TableTooLarge,
    errors_of,
    foreign_obstacle,
    obstacle,
    passes_by_itself,
)
from gateway.snapshot.table_task import CHANGED, HOPELESS_ATTEMPTS, TableTask
from gateway.snapshot.table_tasks import TableTasks
from gateway.snapshot.unreadable_tables import LONGEST_PAUSE, find_fault, unreachable_partitions

log = structlog.get_logger()

SHARED_BYTES: Final = 1 << 20
"""The size that chunks should have at most while other transactions arrive in the stream. These
wait until the rows are published (docs/performance.md, SL). Chunks of VERIFY keep the configured
size: a mirror compares each chunk separately, which takes seconds whatever its size."""
AHEAD_BYTES: Final = 1 << 16
AHEAD_CHUNKS: Final = 8
"""A reader goes on while its unpublished chunks are at most AHEAD_CHUNKS and have at most
AHEAD_BYTES. With small tables, it would otherwise wait for the stream longer than it reads."""
FOREIGN_ATTEMPTS: Final = HOPELESS_ATTEMPTS
"""After this many failed attempts, a partitioned table is read without its unreadable foreign
partitions, instead of being set aside. This does not apply to REPLACE and VERIFY: consumers would
delete the rows of these partitions, or report them."""
BLOCKED_S: Final = 10.0
"""The longest pause before another attempt, if the error passes without intervention."""


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_far_ahead(chunks: Collection[ReadChunk]) -> bool:
    """Return whether a reader must wait until the first of its chunks is published."""
    return len(chunks) > AHEAD_CHUNKS or sum(each.byte_count for each in chunks) > AHEAD_BYTES


class ReaderTasks:
    """The readers; `run` is one of them. A table that cannot be read is logged and tried again
    later, while the others are read."""

    def __init__(
        self, settings: Settings, login: Credentials, tasks: TableTasks, plans: ReadPlans, pending: PendingChunks
    ) -> None:
        self._settings = settings.snapshot
        self._publications = list(settings.source.publications)
        self._check_interval_s = settings.source.check_interval_s
        self._login = login
        self._largest_row = HELD_FACTOR * settings.kafka.max_record_bytes
        self._tasks = tasks
        self._plans = plans
        self._pending = pending
        self._wait_reasons = WaitReasons()
        self._free_at = 0.0
        self._turn = asyncio.Lock()
        self._next_transaction = 0
        self._is_shared = False
        """Whether other transactions arrived in the stream between the last two chunks."""
        self.finds_nothing = True
        """Whether the reader that last asked for a chunk found nothing to read."""

    def chunk_arrived(self, transaction_count: int) -> None:
        """Report that a chunk arrived as transaction number `transaction_count` of the stream."""
        self._is_shared, self._next_transaction = transaction_count > self._next_transaction, transaction_count + 1

    async def run(self) -> None:
        """Read chunks until cancelled."""
        sql: asyncpg.Connection | None = None
        ahead: deque[ReadChunk] = deque()
        try:
            while True:
                while ahead and (ahead[0].done.is_set() or is_far_ahead(ahead)):
                    await ahead.popleft().done.wait()
                task, chunk = await self._next()
                try:
                    if sql is None or sql.is_closed():
                        sql = await self._connect()
                    if sql is None:
                        self._tasks.give_back(chunk)
                        self._pending.more.set()  # another reader may have a connection
                        await asyncio.sleep(BLOCKED_S)
                        continue
                    result = await self.read(sql, task, chunk)
                    if result is not None:
                        ahead.append(result)
                except (TableTooLarge, *DRIVER_ERRORS) as error:
                    self._tasks.give_back(chunk)
                    if is_cancelled():  # the ROLLBACK may have failed and replaced the cancellation
                        raise asyncio.CancelledError from error
                    await self._block(task, error, sql, chunk)
                except BaseException:
                    self._tasks.give_back(chunk)
                    raise
        finally:
            if sql is not None:
                sql.terminate()

    async def _connect(self) -> asyncpg.Connection | None:
        """Open a session, or return None if that fails, for example because the server accepts no
        more connections. The stream goes on; if its connection is affected too, it reports the
        error."""
        try:
            return await connect_reader(self._login, largest_row=self._largest_row)
        except (Retry, RetrySlowly) as error:
            log.warning("reader_not_connected", reason=error.message, hint=error.hint, again_in_s=BLOCKED_S)
            return None

    async def _next(self) -> tuple[TableTask, Chunk]:
        more = self._pending.more
        while True:
            delay = self._free_at - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            now = time.monotonic()
            next_chunk = self._tasks.next_chunk(now)
            if next_chunk is not None:
                self.finds_nothing = False
                return next_chunk
            if self._tasks.waits_for_transactions(now):
                self._wait_reasons.log()
            if not self.finds_nothing:
                self.finds_nothing = True
                self._pending.wake.set()
            more.clear()
            await more.wait()

    async def read(self, sql: asyncpg.Connection, task: TableTask, chunk: Chunk) -> ReadChunk | None:
        """Read the chunk and return it. Return None if it was given back, to be read again."""
        if task.plan is None or not _is_current(task, chunk):  # it has changed while the session was opened
            self._tasks.give_back(chunk)
            return None
        if chunk.all_ranges and self._settings.may_lock and task.changed_count >= CHANGED_ATTEMPTS:
            chunk.lock_writers()
        yields = self._is_shared and task.state.purpose != "VERIFY"
        chunk.progress.sizer.limit_bytes(SHARED_BYTES if yields else None)
        emitted: list[str] = []

        def expect(message_id: str, result: ReadChunk) -> None:
            emitted.append(message_id)
            self._pending.expect(message_id, result)

        plan = task.plan
        compares_text = plan.compares_text
        try:
            turn = self._turn if self._is_shared else None
            with errors_of(plan.surveyed.relation):
                most_held = self._most_held_bytes if chunk.all_ranges else 0
                result = await read_chunk(sql, chunk, plan, self._publications, expect, turn, most_held_bytes=most_held)
        except RelationChanged:
            self._tasks.give_back(chunk)
            self._plan_outdated(task, CHANGED, begins_again=_is_current(task, chunk))
        except SnapshotTooOld:  # the table waits; meanwhile, other tables are read
            self._tasks.give_back(chunk)
        except ChunkTooLarge:
            self._tasks.give_back(chunk)
        except NeedsText:
            self._tasks.give_back(chunk)
            self._plans.use_text()
            self._plan_outdated(task, "a value has no binary form: the table is read as text", begins_again=True)
        except BaseException as error:
            for message_id in emitted:
                self._pending.forget(message_id)
            if not (chunk.keys and not compares_text and isinstance(error, asyncpg.PostgresError)):
                raise
            if passes_by_itself(error):
                raise
            self._tasks.give_back(chunk)
            plan.compare_text()
            log.info("keys_compared_as_text", table=task.full_name, sqlstate=error.sqlstate)
        else:
            self._wait_reasons.end()
            self._tasks.chunk_read(task, chunk)
            self._pending.more.set()
            if self._settings.rows_per_s is not None:
                begin = max(self._free_at, time.monotonic())
                self._free_at = begin + result.row_count / self._settings.rows_per_s
            return result
        return None

    @property
    def _most_held_bytes(self) -> int:
        """The memory for the rows of a table that is read at once. The rows of one more table than
        there are readers may be held, since they are published while another table is read."""
        return memory_limit() // 2 // (self._settings.readers + 1)

    async def _block(self, task: TableTask, error: BaseException, sql: asyncpg.Connection | None, chunk: Chunk) -> None:
        """Log an error of one table and block the table for a while. The other tables and the
        stream go on, even if the reader's session has ended."""
        # Another reader has logged it meanwhile, or the table begins again, perhaps with another plan.
        if task.is_blocked(time.monotonic()) or not _is_current(task, chunk):
            return
        # No other reader begins with the table while this one looks for the reason.
        self._tasks.block([task], time.monotonic() + BLOCKED_S)
        fault, plan = None, task.plan
        is_new = task.obstacle is None or task.obstacle.sqlstate != (getattr(error, "sqlstate", None) or "")
        if is_new and plan is not None and sql is not None and not sql.is_closed() and not passes_by_itself(error):
            fault = await find_fault(sql, chunk, plan)
        unreachable = () if plan is None or sql is None else await self._unreachable(task, plan, chunk, sql, error)
        if unreachable and task.state.purpose == "FILL":
            assert plan is not None
            plan.leave_out(unreachable)
            log_unreachable(task.full_name, unreachable)
            self._tasks.partitions_left_out(task, chunk)
            return
        name = task.state.schema, task.state.name
        if unreachable:
            blocked = foreign_obstacle(error, name, unreachable)
            is_new = blocked != task.obstacle
        elif is_new or task.obstacle is None:
            role = "" if sql is None else sql.get_settings().session_authorization
            blocked = obstacle(error, name, role, fault)
        else:
            blocked = task.obstacle
        pause = 2.0 ** min(task.attempts, 10)
        if blocked.passes:
            pause = min(pause, BLOCKED_S)
        elif blocked.sqlstate == TOO_LARGE:  # each attempt may read for minutes
            pause = min(pause, 10 * LONGEST_PAUSE) * self._check_interval_s
        else:
            pause = min(pause, LONGEST_PAUSE) * self._check_interval_s
        self._tasks.chunk_failed(task, chunk, blocked, plan, time.monotonic() + pause)
        if blocked.sqlstate in (DENIED, TOO_LARGE) and not task.is_reselect:
            self._tasks.plan_outdated(task)  # the privileges are queried again
        if is_new or not task.attempts & (task.attempts - 1):
            log.warning(
                "table_unreadable",
                table=task.full_name,
                reason=blocked.reason,
                hint=blocked.hint,
                **blocked.fields,
                attempts=task.attempts,
                again_in_s=pause,
            )
        if task.is_hopeless:
            self._pending.wake.set()

    async def _unreachable(
        self, task: TableTask, plan: ReadPlan, chunk: Chunk, sql: asyncpg.Connection, error: BaseException
    ) -> tuple[str, ...]:
        """Return the foreign partitions that cause the error, after enough failed attempts."""
        attempts = task.attempts + 1  # this one is not counted yet
        if not (chunk.all_ranges and plan.surveyed.foreign_names and attempts >= FOREIGN_ATTEMPTS):
            return ()
        if plan.unreachable or sql.is_closed():
            return ()
        try:
            return await unreachable_partitions(sql, plan, error)
        except DRIVER_ERRORS:
            sql.terminate()
            return ()

    def _plan_outdated(self, task: TableTask, reason: str, *, begins_again: bool) -> None:
        """Report that the read plan is outdated. A reselection gets a new plan. A table begins
        again if `begins_again` is true; for a chunk of an earlier generation it is false."""
        if task.is_reselect:
            self._tasks.plan_outdated(task)
            self._pending.wake.set()
        elif begins_again:
            self._tasks.begin_again(task, reason)
            self._pending.wake.set()


def _is_current(task: TableTask, chunk: Chunk) -> bool:
    """Return whether the table has not begun again since the chunk was taken."""
    return task.progress is chunk.progress and chunk.generation == chunk.progress.generation
