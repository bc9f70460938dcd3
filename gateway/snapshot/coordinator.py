"""Begins, resumes and ends the snapshots of tables, during one session of replication.

    discovery     finds published tables that were never read, and rows changed without an event
    _conduct      begins and ends tables with marks, looks at the catalog, logs progress
    readers       read chunk after chunk: take, read, commit
    hand_over     called by the replication loop where the transaction of a chunk, mark or command
                  commits; it takes effect only there

The durable state is written in the Kafka transaction that has the rows (`take_states`). A table
that cannot be read is logged and tried again later, while the stream and the others go on. The
stream waits while `hand_over` publishes a chunk. A failed query of the catalog ends the session,
and so does a table that cannot be written (gateway/runtime/quarantine.py decides what follows).
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.failpoints import failpoint
from gateway.kafka.transaction_delivery import Delivery
from gateway.observe.table_status import LISTED_TABLES, SnapshotStatus
from gateway.pgoutput import Relation
from gateway.postgres.classify_errors import DRIVER_ERRORS, beside_stream, classify_exception
from gateway.postgres.connection import transaction
from gateway.postgres.publication import PublicationLoader
from gateway.snapshot.change_recorder import ChangeRecorder
from gateway.snapshot.chunk_reader import ReadChunk, new_id
from gateway.snapshot.commands import Command, accepted, choose
from gateway.snapshot.discovery.published_tables import Discovery
from gateway.snapshot.pending_chunks import ChunkMark, PendingChunks
from gateway.snapshot.progress_log import ProgressLog, log_quarantined, log_read_at_once
from gateway.snapshot.publish_chunk import ChunkPublisher
from gateway.snapshot.read_plan import ReadPlan, ReadPlans, RegisterRelations, Surveyed
from gateway.snapshot.reader_tasks import ReaderTasks
from gateway.snapshot.rules.table_progress import Status
from gateway.snapshot.sql import EMIT
from gateway.snapshot.stored_state import KNOWN, StoredStates, TableState
from gateway.snapshot.table_task import TableTask
from gateway.snapshot.table_tasks import TableTasks
from gateway.snapshot.toast_reselection import Reselection, has_its_keys
from gateway.snapshot.unreadable_tables import UnreadableTables
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.transaction import COMMAND_PREFIX

log = structlog.get_logger()

MOST_AT_ONCE: Final = 50
"""Maximum number of relations that are read at a time; the changes of each are recorded."""
TICK_S: Final = 0.5
LOOK_APART_S: Final = 1.0
"""Minimum time between two looks at the catalog. It is also at least ten times as long as a look
takes."""


class SnapshotCoordinator:
    """The snapshots of one session. `is_first`: nothing was delivered before this session, so all
    tables are new. Raises WalgateError."""

    def __init__(
        self,
        settings: Settings,
        sql: asyncpg.Connection,
        machine: TransactionMachine,
        delivery: Delivery,
        announce: RegisterRelations,
        states: StoredStates,
        *,
        position_key: bytes,
        frame: bytes,
        is_first: bool,
        text_only: bool,
        publications: PublicationLoader,
        is_after_gap: bool = False,
    ) -> None:
        """`is_after_gap`: changes were lost since the last transaction."""
        self._settings = settings
        self._chunk_bytes = settings.snapshot.chunk_bytes
        self._sql = sql
        self._machine = machine
        self._states = states
        self._is_first = is_first
        self._is_after_gap = is_after_gap
        reselects = settings.writes_debezium and settings.debezium.reselect_unavailable_values
        self._pending = PendingChunks()
        self._recorder = ChangeRecorder(sql, machine, self._on_message)
        self._tasks = TableTasks(states, self._recorder, machine.quarantined, position_key=position_key, frame=frame)
        self._plans = ReadPlans(settings, sql, machine, announce, text_only=text_only)
        self._reselecting = Reselection(
            settings.snapshot, machine, self._recorder, self._tasks, self._pending.wake, is_on=reselects
        )
        self._discovery = Discovery(
            settings.snapshot, sql, settings.source.publications, publications, self._tasks,
            is_first=is_first, is_late=states.stream is None and not is_first,
        )  # fmt: skip
        self._readers = ReaderTasks(settings, self._tasks, self._plans, self._pending)
        self._publisher = ChunkPublisher(
            settings.snapshot, machine, delivery, self._pending, self._recorder, self._tasks, self._readers,
            self._reselecting,
        )  # fmt: skip
        self._unreadable = UnreadableTables(settings, self._tasks, self._pending)
        self._progress = ProgressLog()
        self._is_look_due = False
        self._least_wait_s = LOOK_APART_S
        self._discovered_at = self._begun_at = self._ended_at = self._looked_at = -1e9

    def status(self) -> SnapshotStatus:
        """Return the status of what is being read. May be called in any thread."""
        tasks = self._tasks.whole_tables
        return SnapshotStatus(
            self._tasks.is_paused, len(tasks), tuple(each.snapshot_status() for each in tasks[:LISTED_TABLES])
        )

    # -- before the stream

    async def prepare(self) -> None:
        """Resume what an earlier session has begun. Call this before the stream starts, so that
        changes are recorded from the first one on."""
        self._recorder.listen()
        unfinished = [state for state in self._states.tables.values() if state.status not in (KNOWN, Status.DONE.value)]
        quarantined = [state for state in unfinished if state.relation_oid in self._tasks.quarantined]
        for state in quarantined:
            self._tasks.by_oid[state.relation_oid] = self._restored_task(state)
            self._tasks.cancel(state.relation_oid)
        if quarantined:
            log_quarantined([f"{state.schema}.{state.name}" for state in quarantined])
        unfinished = [state for state in unfinished if state not in quarantined]
        if unfinished:
            await self._resume(unfinished)
        if self._reselecting.is_on:
            await self._note()
            self._machine.on_left_out = self._reselecting.left_out
        await self._discover()

    async def _discover(self) -> None:
        self._is_look_due = False
        begun = time.monotonic()
        await self._discovery.look()
        self._discovered_at = time.monotonic()
        self._least_wait_s = max(LOOK_APART_S, 10 * (self._discovered_at - begun))

    async def _note(self) -> None:
        await self._recorder.start(self._tasks.stream_state)

    async def _resume(self, unfinished: list[TableState]) -> None:
        await self._note()
        found = await self._plans.survey([state.relation_oid for state in unfinished])
        resumed = []
        for state in unfinished:
            if state.relation_oid not in found:
                self._tasks.left.add(state.relation_oid)
            elif self._resume_table(state, found[state.relation_oid]):
                resumed.append(found[state.relation_oid])
        for plan in await self._plans.of(resumed):
            self._go_on(self._tasks.by_oid[plan.surveyed.relation.relation_oid], plan)
        log.info("snapshot_resumed", tables=len(self._tasks.by_oid), snapshot_id=self._tasks.snapshot_id)

    def _restored_task(self, state: TableState) -> TableTask:
        segments = self._states.keys.get(state.relation_oid, {})
        return TableTask(state, encoded=state, void_segments=list(segments), misses_keys=True)

    def _resume_table(self, state: TableState, surveyed: Surveyed) -> bool:
        """Add the task, and return whether it can go on where it was. After a gap, only a
        reselection can: rows that were read may have changed, or gone, without an event."""
        task = self._tasks.by_oid[state.relation_oid] = self._restored_task(state)
        under_way = state.status in (Status.READING.value, Status.ENDING.value)
        if task.is_reselect:
            return under_way
        if self._is_after_gap and state.purpose == "FILL":
            task.state = replace(state, purpose="REPLACE")
        return under_way and not self._is_after_gap and state.fingerprint == surveyed.fingerprint

    def _go_on(self, task: TableTask, plan: ReadPlan) -> None:
        judge = self._recorder.judge
        assert judge is not None
        segments = self._states.keys.get(task.oid, {})
        if task.is_reselect and not has_its_keys(task, plan):
            return
        if task.is_reselect or not plan.is_read_at_once:
            table = task.resume(plan, judge, self._chunk_bytes, segments, reselects=self._reselecting.is_on)
            self._tasks.begun[task.oid] = task
            task.void_segments.clear()
            self._recorder.begin(task.oid, table, [plan.version.schema_id])

    # -- the stream's side

    def _on_message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        if prefix == COMMAND_PREFIX:
            is_second = self._machine.arrived is not None
            return accepted(content, self._settings, in_stream=in_stream, is_second=is_second)
        return self._pending.take(content, xid, in_stream)

    async def hand_over(self, arrived: object, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """Publish a chunk, or carry out a mark or a command, whose transaction the state machine is
        about to commit. The replication loop waits meanwhile."""
        if isinstance(arrived, ChunkMark):
            self._publisher.apply_mark(arrived, commit_lsn, end_lsn, commit_time)
        elif isinstance(arrived, ReadChunk):
            await self._publisher.publish(arrived, commit_lsn)
        elif isinstance(arrived, Command):
            if arrived.command == "cancel":
                self._publisher.end_cancelled(commit_lsn, end_lsn, commit_time)
            self._obey(arrived)
        failpoint("chunk_handed_over")

    def _obey(self, command: Command) -> None:
        log.info("command", command=command.command, tables=[f"{a}.{b}" for a, b in command.tables])
        if command.command == "start":
            self._start(command)
        elif command.command == "cancel":
            self._reselecting.cancel_tables()
        else:
            self._tasks.is_paused = command.command == "pause"
        self._pending.call()

    def _start(self, command: Command) -> None:
        """Queue the tables to be read again: their rows replace those that consumers have, or are
        compared with them."""
        purposes = {oid: each.state.purpose for oid, each in self._tasks.by_oid.items()}
        chosen = choose(command, self._discovery.published, purposes, self._tasks.quarantined)
        if chosen.quarantined:
            log_quarantined(chosen.quarantined)
        if chosen.unknown:
            log.warning("tables_not_published", tables=chosen.unknown)
        if chosen.unfinished:
            log.warning(
                "tables_not_verified",
                tables=chosen.unfinished,
                reason="a snapshot that delivers these tables' rows has not ended",
                hint="this verification leaves these tables out: wait until their snapshot has ended (walgate snapshot "
                "status), then run the command again",
            )
        if chosen.tables:
            self._tasks.begin_snapshot(len(chosen.tables))
        for oid, (namespace, name) in chosen.tables.items():
            self._tasks.queue(oid, namespace, name, command.purpose)

    def announced(self, relation: Relation, *, is_again: bool) -> None:
        """Note that the stream has announced a relation. `is_again`: it was announced before, so it
        or one of its publications may have been altered."""
        self._is_look_due |= is_again
        self._discovery.announced(relation.relation_oid, relation.namespace, relation.name)

    def announced_leaf(self, relation_oid: int, root: int) -> None:
        """Note that the stream has announced a partition whose rows come as rows of its root."""
        self._is_look_due |= self._discovery.announced_leaf(relation_oid, root)

    def take_states(self) -> dict[bytes, bytes]:
        """Return the records for the Kafka transaction that is being closed."""
        is_known = self._is_first or self._discovered_at > 0 or self._tasks.stream_state is not None
        return self._tasks.take_states({xid for _, xid in self._machine.prepared}, with_stream=is_known)

    # -- the conductor

    async def run(self) -> None:
        """Run all tasks of the snapshot until cancelled. An error from the server that they raise
        ends the replication session, which is tried again, but never the gateway. An
        UnwritableTable may stop it (gateway/runtime/quarantine.py)."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._conduct())
                group.create_task(self._unreadable.run())
                for _ in range(self._settings.snapshot.readers):
                    group.create_task(self._readers.run())
        except BaseExceptionGroup as errors:
            with beside_stream():
                raise errors.exceptions[0] from errors.exceptions[0].__cause__

    async def _conduct(self) -> None:
        tasks, wake = self._tasks, self._pending.wake
        while True:
            wake.clear()  # a wake-up during this round is for the next one
            now = time.monotonic()
            if now - self._discovered_at >= self._wait_s:
                await self._discover()
            self._unreadable.look()
            if tasks.has_work:
                await self._note()
                await self._set_up_begun()
                await self._begin_some()
                await self._end_some()
                self._log_progress()
            if tasks.snapshot_id and not self._pending.is_ending and not tasks.has_tables:
                self._pending.is_ending = True
                await self._note()
                await self._mark(ChunkMark("end", [], is_last=True))
            elif self._recorder.judge is not None and not (
                tasks.has_work or tasks.snapshot_id or self._reselecting.is_on
            ):
                self._recorder.listen()
            if self._recorder.judge is not None and (self._is_idle or now - self._looked_at >= TICK_S):
                # Otherwise the PostgreSQL snapshots of chunks suffice.
                self._looked_at = now
                await self._recorder.look()
                self._pending.more.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await wake.wait()

    @property
    def _wait_s(self) -> float:
        """Seconds from the last look at the catalog to the next one."""
        interval_s = self._settings.source.check_interval_s
        return min(self._least_wait_s, interval_s) if self._is_look_due else interval_s

    def _log_progress(self) -> None:
        tasks = self._tasks
        if self._progress.is_due and tasks.has_tables:
            keys = sum(len(task.table.again) for task in tasks.begun.values() if task.table is not None)
            self._progress.log(len(tasks.whole_tables), self._publisher.row_count, keys)

    @property
    def _is_idle(self) -> bool:
        """Return whether a reader has nothing to read and every chunk is handed over."""
        return self._readers.finds_nothing and not self._pending.has_chunks

    def _is_time(self, count: int, last_at: float) -> bool:
        """Return whether to begin, or end, `count` tables now.

        Tables begin and end together, since each time costs queries of the catalog and a
        transaction. It is time if there are half as many as may be read at once, if a reader has
        nothing else to do, or `TICK_S` seconds after the last time.
        """
        return count >= MOST_AT_ONCE // 2 or self._is_idle or time.monotonic() - last_at >= TICK_S

    async def _set_up_begun(self) -> None:
        """Set up tables without a read plan: reselections, which have no mark, and tables that were
        locked when the gateway started."""
        now = time.monotonic()
        new = [
            task
            for task in self._tasks.begun.values()
            if task.status is Status.READING and not task.is_readable and task.blocked_until <= now
        ]
        for task, plan in await self._plans.of_tasks(new, now):
            is_same = task.state.fingerprint == plan.surveyed.fingerprint and task.is_read_as(plan)
            if has_its_keys(task, plan) if task.is_reselect else is_same:
                task.plan = plan
            elif self._tasks.by_oid.get(task.oid) is task:
                self._begin_again(task)
            self._pending.more.set()

    async def _begin_some(self) -> None:
        """Begin the waiting tables together, in one transaction."""
        now = time.monotonic()
        busy = sum(task.is_busy(now) for task in self._tasks.begun.values())
        ready = (
            task
            for task in self._tasks.by_oid.values()
            if task.status is Status.WAITING and not task.is_marked and task.blocked_until <= now
        )
        waiting = list(islice(ready, max(MOST_AT_ONCE - busy, 0)))
        if not (waiting and self._is_time(len(waiting), self._begun_at)):
            return
        self._begun_at = now
        for task in waiting:
            if task.is_reselect:
                self._reselecting.read_whole(task)
        begun = []
        for task, plan in await self._plans.of_tasks(waiting, now):
            judge = self._recorder.judge
            assert judge is not None
            if self._tasks.by_oid.get(task.oid) is not task:  # cancelled
                continue
            self._tasks.join_snapshot(task)
            task.set_up(plan, judge, self._chunk_bytes, reselects=self._reselecting.is_on)
            self._tasks.begun[task.oid] = task
            begun.append(task)
            log_read_at_once(task)
        if begun:
            await self._mark(ChunkMark("begin", begun))

    async def _end_some(self) -> None:
        complete = [
            task
            for task in self._tasks.begun.values()
            if task.is_readable and not task.is_marked and task.table is not None and task.table.is_complete
        ]
        for task in [task for task in complete if task.is_reselect]:
            complete.remove(task)
            self._tasks.finish_reselection(task)
        if not (complete and self._is_time(len(complete), self._ended_at)):
            return
        self._ended_at = time.monotonic()
        found = await self._plans.survey([task.oid for task in complete])
        ended = []
        for task in complete:
            table, now = task.table, found.get(task.oid)
            assert table is not None and task.plan is not None
            if now is not None and now.fingerprint != task.plan.surveyed.fingerprint:
                self._begin_again(task)
            elif now is not None and table.is_complete:
                table.status = Status.ENDING
                ended.append(task)
        if ended:
            await self._mark(ChunkMark("end", ended, is_last=self._tasks.are_all(ended)))

    def _begin_again(self, task: TableTask) -> None:
        task.begin_again()
        self._pending.wake.set()

    async def _mark(self, mark: ChunkMark) -> None:
        message_id = new_id()
        mark.begin()
        try:
            async with transaction(self._sql):
                self._pending.expect(message_id, mark)
                mark.xid = int(await self._sql.fetchval(EMIT, message_id)) & 0xFFFFFFFF
                failpoint("snapshot_mark_emitted")
        except DRIVER_ERRORS as error:
            self._pending.forget(message_id)
            raise classify_exception(error, "marking a snapshot in the stream") from error
