"""Begin and end the snapshots of tables, during one session of replication.

    prepare       resumes unfinished tables (resume.py) and discovers others (discovery)
    _control      checks the catalog, begins and ends tables with boundary transactions, takes
                  PostgreSQL snapshots for the judge, and switches recording on and off
    readers       tasks that read chunk after chunk (reader_tasks.py)
    at_commit     called by the replication loop where the transaction of a chunk, boundary or
                  command commits; it takes effect only there

The durable state is written in the Kafka transaction that has the rows (`take_states`). The stream
waits while `at_commit` publishes a chunk, or queries what a command names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.errors import Retry, RetrySlowly
from gateway.failpoints import failpoint
from gateway.kafka.transaction_delivery import Delivery
from gateway.observe.table_status import LISTED_TABLES, SnapshotStatus
from gateway.pgoutput.relation import Relation
from gateway.postgres.classify_errors import DRIVER_ERRORS, beside_stream, classify_exception
from gateway.postgres.connection import transaction
from gateway.postgres.credentials import Credentials
from gateway.postgres.publication import PublicationLoader
from gateway.snapshot.change_recorder import ChangeRecorder
from gateway.snapshot.chunk_reader import ReadChunk, connect_reader, new_id
from gateway.snapshot.commands import Command, accepted, choose
from gateway.snapshot.discovery.published_tables import Discovery
from gateway.snapshot.pending_chunks import PendingChunks, SnapshotBoundary
from gateway.snapshot.progress_log import ProgressLog, log_choice, log_locked, log_read_at_once, log_unsent_updates
from gateway.snapshot.publish_chunk import ChunkPublisher
from gateway.snapshot.read_plan import ReadPlan, ReadPlans, RegisterRelations
from gateway.snapshot.reader_tasks import ReaderTasks
from gateway.snapshot.resume import Resumption
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.sql import EMIT
from gateway.snapshot.stored_state import StoredStates
from gateway.snapshot.table_task import CHANGED, TableTask
from gateway.snapshot.table_tasks import SETTLED, TableTasks
from gateway.snapshot.toast_reselection import Reselection, has_its_keys
from gateway.snapshot.unreadable_tables import UnreadableTables
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.transaction import COMMAND_PREFIX

log = structlog.get_logger()

MOST_AT_ONCE: Final = 50
"""No further table begins while this many are being read. Tables that fail do not count
(`TableTask.is_busy`), nor do reselections; their changes are recorded all the same."""
TICK_S: Final = 0.5
CHECKS_APART_S: Final = 1.0
"""Minimum time between a check of the catalog and one that the stream causes. It is also at least
ten times as long as a check takes, but at most source.check_interval_s, after which each check is
followed by another in any case."""


class SnapshotCoordinator:
    """The snapshots of one session. `is_first`: nothing was delivered before this session, so all
    tables are new. Methods raise WalgateError."""

    def __init__(
        self,
        settings: Settings,
        sql: asyncpg.Connection,
        machine: TransactionMachine,
        delivery: Delivery,
        register: RegisterRelations,
        states: StoredStates,
        *,
        login: Credentials,
        position_key: bytes,
        frame: bytes,
        is_first: bool,
        text_only: bool,
        publications: PublicationLoader,
        is_after_gap: bool = False,
        reads_again: bool = False,
    ) -> None:
        """`login`: of the sessions that read. `is_after_gap`: changes were lost since the last
        transaction. `reads_again`: all tables are read again, since the gateway gave changes up."""
        self._settings = settings
        self._login = login
        self._check_interval_s = settings.source.check_interval_s
        self._sql = sql
        self._machine = machine
        self._states = states
        self._is_first = is_first
        self._is_after_gap = is_after_gap
        self._reads_again = reads_again
        reselects = settings.writes_debezium and settings.debezium.reselect_unavailable_values
        self._recorder = ChangeRecorder(sql, machine, self._on_message)
        self._tasks = TableTasks(
            states, self._recorder, machine.relations.quarantined, position_key=position_key, frame=frame,
            chunk_bytes=settings.snapshot.chunk_bytes, reselects=reselects,
        )  # fmt: skip
        self._pending = PendingChunks(self._tasks)
        self._plans = ReadPlans(settings, sql, machine, register, text_only=text_only)
        self._resumption = Resumption(self._tasks, self._plans, is_after_gap=is_after_gap)
        self._reselecting = Reselection(settings.snapshot, machine, self._tasks, self._pending.wake, is_on=reselects)
        self._discovery = Discovery(
            settings.snapshot, sql, settings.source.publications, publications, self._tasks,
            is_first=is_first, has_streamed_before=states.stream is None and not is_first, is_after_gap=is_after_gap,
        )  # fmt: skip
        self._readers = ReaderTasks(settings, login, self._tasks, self._plans, self._pending)
        self._publisher = ChunkPublisher(
            settings.snapshot, machine, delivery, self._pending, self._recorder, self._tasks, self._readers,
            self._reselecting,
        )  # fmt: skip
        self._unreadable = UnreadableTables(settings, login, self._tasks, self._pending)
        self._progress = ProgressLog()
        self._is_check_due = False
        """Whether a check is due before its interval has passed: a Relation message has arrived
        once more, or one of a partition that no check has seen."""
        self._least_wait_s = CHECKS_APART_S
        self._checked_at = self._begun_at = self._ended_at = self._observed_at = -1e9

    def status(self) -> SnapshotStatus:
        """Return the status of what is being read. This may be called in any thread."""
        tasks = self._tasks.whole_tables
        listed = tuple(task.snapshot_status() for task in tasks[:LISTED_TABLES])
        unreadable = sum(task.is_hopeless for task in tasks)
        return SnapshotStatus(self._tasks.snapshot.is_paused, len(tasks), listed, unreadable)

    # -- before the stream

    async def prepare(self) -> None:
        """Resume the tables that an earlier session has begun, and discover others to be read. Call
        this before the stream starts: tables that are resumed need every change from the first one
        on. For other tables, recording starts in `_control`; the floor (rules/stale_rows.py) covers
        the transactions that were received before."""
        self._recorder.listen()
        unfinished = [state for state in self._states.tables.values() if state.status not in SETTLED]
        unfinished = self._resumption.cancel_quarantined(unfinished)
        if unfinished:
            await self._record_changes()
            await self._resumption.resume(unfinished)
        await self._check_catalog()
        if self._reselecting.is_on:
            await self._record_changes()
            self._machine.on_left_out = self._reselecting.left_out
        if self._reads_again:
            # This is stored in the Kafka transaction that moves the position from the gap's end.
            log.warning("snapshot_queued", purpose="REPLACE", note="every published table will be read again")
            self._start(Command("start"), await self._discovery.published(None))

    async def _check_catalog(self) -> None:
        self._is_check_due = False
        begun = time.monotonic()
        await self._discovery.check()
        for oid in self._discovery.pop_passed(self._machine.resume_lsn):
            self._machine.relations.forget(oid)
        self._checked_at = time.monotonic()
        self._least_wait_s = max(CHECKS_APART_S, 10 * (self._checked_at - begun))

    async def _record_changes(self) -> None:
        if self._recorder.judge is None:
            self._tasks.recording_begins()
            # Tables begin again after a gap. A server that was restored may have lower ids.
            durable = None if self._is_after_gap else self._tasks.snapshot.stream_state
            await self._recorder.start(durable)

    # -- the stream's side

    def _on_message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        if prefix == COMMAND_PREFIX:
            is_second = self._machine.arrived is not None
            return accepted(content, self._settings, in_stream=in_stream, is_second=is_second)
        return self._pending.message_received(content, xid, in_stream)

    async def at_commit(self, arrived: object, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """Publish a chunk, apply a boundary, or carry out a command. `arrived` is the chunk,
        boundary or command whose message came in the transaction that the state machine is about to
        commit. The replication loop waits meanwhile."""
        if isinstance(arrived, SnapshotBoundary):
            self._publisher.apply_boundary(arrived, commit_lsn, end_lsn, commit_time)
        elif isinstance(arrived, ReadChunk):
            await self._publisher.publish(arrived, commit_lsn)
        elif isinstance(arrived, Command):
            if arrived.command == "cancel":
                self._publisher.end_cancelled(commit_lsn, end_lsn, commit_time)
            await self._carry_out(arrived)
        failpoint("chunk_handed_over")

    async def _carry_out(self, command: Command) -> None:
        log.info("command", command=command.command, tables=[f"{a}.{b}" for a, b in command.tables])
        if command.command == "start":
            self._start(command, await self._published())
        elif command.command == "cancel":
            self._reselecting.cancel_tables()
        elif command.command == "pause":
            self._tasks.snapshot.pause()
        else:
            self._tasks.snapshot.go_on()
        self._pending.call()

    async def _published(self) -> dict[tuple[str, str], int]:
        """Return the tables of the publications, which are queried, since a command may name a
        table that was published after the last check. The stream waits meanwhile, so that the
        tables are stored with the command. If the server accepts no further session, the tables of
        the last query count."""
        try:
            sql = await connect_reader(self._login)  # the other session is in use
        except (Retry, RetrySlowly) as error:
            log.warning("tables_of_last_check", reason=error.message, hint=error.hint)
            return await self._discovery.published(None)
        try:
            with beside_stream():
                return await self._discovery.published(sql)
        finally:
            sql.terminate()

    def _start(self, command: Command, published: Mapping[tuple[str, str], int]) -> None:
        """Queue the tables of a command to be read: their rows replace the rows that consumers
        have, or are compared with them."""
        purposes = {oid: task.state.purpose for oid, task in self._tasks.by_oid.items()}
        choice = choose(command, published, purposes, self._tasks.quarantined)
        log_choice(choice)
        if choice.tables:
            self._tasks.snapshot.begin(len(choice.tables))
        for oid, (namespace, name) in choice.tables.items():
            self._tasks.queue(oid, namespace, name, command.purpose)

    def relation_received(self, relation: Relation, *, is_again: bool, is_excluded: bool) -> None:
        """Report that a Relation message has arrived in the stream. `is_again`: it is not the first
        of this relation, so the relation or one of its publications may have been altered.
        `is_excluded`: source.excluded_tables leaves the relation out."""
        self._is_check_due |= is_again
        oid, namespace, name = relation.relation_oid, relation.namespace, relation.name
        self._discovery.relation_received(oid, namespace, name, is_excluded=is_excluded)

    def partition_received(self, relation_oid: int, root: int) -> None:
        """Report that a Relation message of a partition whose rows are sent as rows of its root has
        arrived."""
        self._is_check_due |= self._discovery.partition_received(relation_oid, root)

    def rows_in_doubt(self, relation_oid: int, namespace: str, name: str) -> None:
        """Read the rows of a relation again: consumers do not know what an ALTER TABLE has done to
        them."""
        self._discovery.rows_in_doubt(relation_oid, namespace, name)

    @property
    def has_unwritten(self) -> bool:
        """See gateway.runtime.kafka_transactions.SnapshotStates."""
        return self._tasks.has_unwritten

    def take_states(self) -> dict[bytes, bytes | None]:
        """Return the records for the Kafka transaction that is being closed."""
        # Without a stored stream state, a later session assumes that changes were delivered and no
        # snapshot was ever taken (`has_streamed_before`). This must remain so until the first check
        # has stored the tables.
        with_stream = self._is_first or self._checked_at > 0 or self._tasks.snapshot.stream_state is not None
        return self._tasks.take_states({xid for _, xid in self._machine.prepared}, with_stream=with_stream)

    # -- the control loop

    async def run(self) -> None:
        """Run all tasks of the snapshot until cancelled. An error from the server that a task
        raises ends the replication session, which is tried again, but never the gateway. An
        UnwritableTable may stop the gateway (gateway/runtime/quarantine.py)."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._control())
                group.create_task(self._unreadable.run())
                for _ in range(self._settings.snapshot.readers):
                    group.create_task(self._readers.run())
        except BaseExceptionGroup as errors:
            with beside_stream():
                raise errors.exceptions[0] from errors.exceptions[0].__cause__

    async def _control(self) -> None:
        tasks, wake = self._tasks, self._pending.wake
        while True:
            wake.clear()  # a wake-up during this round is for the next one
            now = time.monotonic()
            if now - self._checked_at >= self._wait_s:
                await self._check_catalog()
            self._unreadable.set_hopeless_aside()
            if tasks.has_work:
                await self._record_changes()
                await self._find_plans()
                await self._begin_tables()
                await self._end_tables()
                self._log_progress()
            if tasks.snapshot.id and not self._pending.is_ending and not tasks.has_tables:
                await self._record_changes()
                await self._emit_boundary(SnapshotBoundary("end", [], is_last=True))
            elif self._recorder.judge is not None and not (
                tasks.has_work or tasks.snapshot.id or self._reselecting.is_on
            ):
                self._recorder.listen()
            if self._recorder.judge is not None and (self._is_idle or now - self._observed_at >= TICK_S):
                # Otherwise the PostgreSQL snapshots of chunks suffice.
                self._observed_at = now
                await self._recorder.observe_snapshot()
                self._pending.more.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await wake.wait()

    @property
    def _wait_s(self) -> float:
        """Seconds from the last check of the catalog to the next one."""
        return min(self._least_wait_s, self._check_interval_s) if self._is_check_due else self._check_interval_s

    def _log_progress(self) -> None:
        tasks = self._tasks
        if self._progress.is_due and tasks.has_tables:
            keys = sum(
                len(task.progress.keys_to_read_again) for task in tasks.active.values() if task.progress is not None
            )
            self._progress.log(len(tasks.whole_tables), self._publisher.row_count, keys, tasks.snapshot.pause_fields)

    @property
    def _is_idle(self) -> bool:
        """Whether a reader has nothing to read and every emitted chunk is published."""
        return self._readers.finds_nothing and not self._pending.has_chunks

    def _is_due(self, count: int, last_at: float) -> bool:
        """Return whether to begin, or end, `count` tables now.

        Tables begin and end together, since each boundary costs queries of the catalog and a
        transaction. Tables are due if they are at least half of MOST_AT_ONCE, if `_is_idle`, or
        `TICK_S` seconds after `last_at`, when tables last began, or ended.
        """
        return count >= MOST_AT_ONCE // 2 or self._is_idle or time.monotonic() - last_at >= TICK_S

    async def _plans_of(self, tasks: list[TableTask], now: float) -> list[tuple[TableTask, ReadPlan]]:
        """Return the read plans of those tables that are published and not locked. The others are
        not read before the next check of the catalog."""
        surveyed = await self._plans.survey([task.oid for task in tasks]) if tasks else {}
        readable = [t for t in tasks if t.oid in surveyed and surveyed[t.oid].row_filter is not None]
        log_locked([t.full_name for t in tasks if t.oid in surveyed and t not in readable], self._check_interval_s)
        self._tasks.block([task for task in tasks if task not in readable], now + self._check_interval_s)
        return list(zip(readable, await self._plans.of(surveyed[task.oid] for task in readable), strict=True))

    async def _find_plans(self) -> None:
        """Find read plans for active tables without one: reselections, for which no boundary is
        emitted, and tables that were locked when the gateway started."""
        now = time.monotonic()
        active = self._tasks.active.values()
        tasks = [t for t in active if t.status is Status.READING and not t.is_readable and not t.is_blocked(now)]
        for task, plan in await self._plans_of(tasks, now):
            is_same = task.state.fingerprint == plan.surveyed.fingerprint and task.is_read_as(plan)
            if has_its_keys(task, plan) if task.is_reselect else is_same:
                self._tasks.plan_found(task, plan)
            elif self._tasks.is_current(task):
                self._begin_again(task)
            self._pending.more.set()

    async def _begin_tables(self) -> None:
        """Set up waiting tables, and emit one boundary transaction that begins them together. While
        reading is paused, no table begins again: its changes would be recorded in vain."""
        self._tasks.log_restarts()
        now, is_paused = time.monotonic(), self._tasks.snapshot.is_paused
        busy = sum(task.is_busy(now) for task in self._tasks.active.values())
        ready = (
            task
            for task in self._tasks.by_oid.values()
            if task.status is Status.WAITING and not task.awaits_boundary and not task.is_blocked(now)
            if not (is_paused and task.begins_again)
        )
        waiting = list(islice(ready, max(MOST_AT_ONCE - busy, 0)))
        if not (waiting and self._is_due(len(waiting), self._begun_at)):
            return
        self._begun_at = now
        for task in waiting:
            if task.is_reselect:  # too many keys, or keys of other columns
                self._tasks.read_whole(task)
        begun = []
        for task, plan in await self._plans_of(waiting, now):
            if self._tasks.is_current(task):  # otherwise cancelled
                self._tasks.set_up(task, plan)
                begun.append(task)
                log_read_at_once(task)
        if begun:
            log_unsent_updates(begun, self._settings.source.origin)
            await self._emit_boundary(SnapshotBoundary("begin", begun))

    async def _end_tables(self) -> None:
        """Emit one boundary transaction that ends the tables whose rows are all published."""
        complete = [
            task
            for task in self._tasks.active.values()
            if task.is_readable and not task.awaits_boundary and task.progress is not None and task.progress.is_complete
        ]
        for task in [task for task in complete if task.is_reselect]:
            complete.remove(task)
            self._tasks.finish_reselection(task)
        if not (complete and self._is_due(len(complete), self._ended_at)):
            return
        self._ended_at = time.monotonic()
        surveyed = await self._plans.survey([task.oid for task in complete])
        ended = []
        for task in complete:
            relation = surveyed.get(task.oid)
            assert task.progress is not None and task.plan is not None
            if relation is not None and relation.fingerprint != task.plan.surveyed.fingerprint:
                self._begin_again(task)
            elif relation is not None and task.progress.is_complete:
                self._tasks.nothing_left(task)
                ended.append(task)
        if ended:
            await self._emit_boundary(SnapshotBoundary("end", ended, is_last=self._tasks.are_all(ended)))

    def _begin_again(self, task: TableTask) -> None:
        self._tasks.begin_again(task, CHANGED)
        self._pending.wake.set()

    async def _emit_boundary(self, boundary: SnapshotBoundary) -> None:
        message_id = new_id()
        try:
            async with transaction(self._sql):
                self._pending.expect(message_id, boundary)
                boundary.emitted(int(await self._sql.fetchval(EMIT, message_id)) & 0xFFFFFFFF)
                failpoint("snapshot_mark_emitted")
        except DRIVER_ERRORS as error:
            self._pending.forget(message_id)
            raise classify_exception(error, "marking a snapshot in the stream") from error
