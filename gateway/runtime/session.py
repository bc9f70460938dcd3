"""A replication session, from the start through the stream until something ends it. Every failure
is raised as an exception.

gateway/startup/start.py has the steps of the start and their order.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack

import asyncpg
import structlog

from gateway.config.settings import Settings
from gateway.errors import Retry, RetrySlowly, StopForOperator, WalgateError
from gateway.failpoints import failpoint
from gateway.kafka.producer import Producer
from gateway.kafka.transaction_delivery import TransactionTimedOut
from gateway.observe.status_board import StatusBoard
from gateway.pgoutput.relation import Relation
from gateway.postgres.asyncpg_internals import Address, address_of
from gateway.postgres.classify_errors import StreamCut, beside_stream
from gateway.postgres.connection import leave_with, sql_session
from gateway.postgres.credentials import login_of
from gateway.postgres.publication import filters_that_can_fail
from gateway.postgres.replication_stream import ReplicationStream
from gateway.postgres.server import Recovery, ended_transactions, recovery_of
from gateway.postgres.server_message import ServerMessage
from gateway.postgres.standby_status import StandbyStatus, wal_sender_timeout_of
from gateway.postgres.start_replication import pgoutput_options, protocol_version
from gateway.runtime.assign_column_rules import unused_rules
from gateway.runtime.bootstrap import Bootstrap, StartResult
from gateway.runtime.dialect import dialect_of
from gateway.runtime.kafka_transactions import KafkaTransactions
from gateway.runtime.quarantine import QuarantinePolicy
from gateway.runtime.replication_loop import ReplicationLoop
from gateway.runtime.session_memory import SessionEnd, SessionMemory, StreamEnd
from gateway.runtime.source_catalog import SourceCatalog
from gateway.runtime.stream_status import StreamStatus, show_position
from gateway.runtime.tasks import run_together
from gateway.runtime.wal_budget import WalBudget
from gateway.snapshot.chunk_reader import connect_reader
from gateway.snapshot.coordinator import SnapshotCoordinator
from gateway.startup.listener_checks import check_cleartext_login
from gateway.startup.periodic_check import check_held
from gateway.startup.repeated_failure import ServerCrashed, from_record, wait_s
from gateway.startup.server_notices import LeftOut
from gateway.startup.wal_release import is_released
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.position import Position
from gateway.transactions.record_writer import RecordWriter, RelationVersion
from schemas.lsn import Lsn

log = structlog.get_logger()


DRAIN_TIMEOUT_S = 10.0
_NAMED_TABLES = 10


class CrashedHere(RetrySlowly):
    """The server has crashed at this place before: the next attempt is delayed."""


class Session:
    """Run one session, which reads and changes `memory`."""

    def __init__(self, settings: Settings, board: StatusBoard, memory: SessionMemory) -> None:
        self.is_streaming = False
        self._settings = settings
        self._dialect = dialect_of(settings)
        self._board = board
        self._memory = memory
        self._notices: set[str] = set()
        self._resume_lsn = 0
        self._server: Address | None = None
        self._reads_whole = False
        self._streams_without_messages = False
        self._recovery = Recovery()
        self._stream: ReplicationStream | None = None
        self._kafka: KafkaTransactions | None = None
        self._feedback: StandbyStatus | None = None
        self._end_at_start = Lsn(0)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set and everything received is durable. Raises WalgateError."""
        memory = self._memory
        memory.repeated_failure = None
        async with AsyncExitStack() as stack:
            stack.callback(self._leave)
            try:
                await self._run(stack, stop)
            except WalgateError as error:
                place, received_until = self._place()
                memory.ended = SessionEnd(self._resume_lsn, place, self._has_passed, self._reads_whole, self._server)
                if self._was_cut:
                    memory.cut = StreamEnd(error.message, place, self._recovery, self._has_passed, received_until)
                error.change(memory)
                raise

    @property
    def _was_cut(self) -> bool:
        """Whether the stream ended without a message from the server. The next session finds out
        whether the server has crashed."""
        return self._stream is not None and isinstance(self._stream.failure, StreamCut | None)

    def _place(self) -> tuple[Lsn, Lsn]:
        """Return the LSN with which the next session resumes, and the LSN before which every
        transaction was received. A Kafka transaction that was closed but is not durable is
        lost."""
        if self._kafka is None:
            return Lsn(self._resume_lsn), Lsn(0)
        return self._kafka.durable_lsn, self._kafka.received_until

    @property
    def _has_passed(self) -> bool:
        """Whether all WAL that existed when the session began was received. An earlier session may
        have failed in that WAL."""
        return self._feedback is not None and self._feedback.received_lsn >= self._end_at_start

    async def _note_crash(self, sql: asyncpg.Connection) -> None:
        """Find out whether the server crashed during the previous stream, and count it. Raises
        CrashedHere if it has crashed repeatedly while it read the WAL from the same LSN."""
        self._recovery = await recovery_of(sql)
        if not self._recovery.timeline:
            return  # a standby, while the former server may still be starting
        cut, self._memory.cut = self._memory.cut, None
        if cut is None or not self._recovery.follows_crash_since(cut.recovery):
            return
        crash = self._memory.count(ServerCrashed(cut.message), cut.resume_lsn, has_passed=cut.has_passed)
        self._memory.reported = crash
        # Deliver what can be delivered before the server reads that place again.
        self._memory.careful_until = max(self._memory.careful_until, cut.received_until)
        # Once the count is reached, the start stops without an attempt; if it did not, wait again.
        if crash.times > 1 and crash.times != crash.certain_times:
            self._memory.repeated_failure = crash
            raise CrashedHere(
                f"the server has crashed {crash.times} times since {crash.since} while it read the WAL after {cut.resume_lsn}",
                hint=f"each crash ends all sessions of the server, so the next attempt is made in {wait_s(crash):.0f} s. See the "
                "server's log. If the server crashes there again, the gateway stops and names the ways on",
            )

    def _leave(self) -> None:
        self._board.leave()
        self._board.wait_for("the restart of replication")

    async def _run(self, stack: AsyncExitStack, stop: asyncio.Event) -> None:
        settings, memory = self._settings, self._memory
        self._board.wait_for("PostgreSQL")
        failpoint("before_preflight")
        sql = await stack.enter_async_context(sql_session(login_of(settings.source), avoid=memory.left_behind))
        self._server = self._board.server = address_of(sql)
        await self._note_crash(sql)
        reads_new_tables = settings.snapshot.mode == "initial"
        catalog = SourceCatalog(sql, settings, memory.next_moment, memory.logged, reads_new_tables=reads_new_tables)
        budget = WalBudget(settings, memory, self._board)
        await budget.keep(catalog)
        await budget.record(catalog)
        start = await Bootstrap(settings, self._dialect, memory, stack, self._board).run(catalog)
        position = memory.position = start.position
        memory.reported = from_record(position) or memory.reported
        self._resume_lsn = position.resume_lsn
        self._end_at_start = catalog.server.flush_lsn
        catalog.warn(check_cleartext_login(settings.kafka.sent_in_cleartext, settings.kafka.sasl_mechanism))
        catalog.warn(unused_rules(settings.columns, catalog.facts.publications.values()))
        catalog.warn(tuple(await filters_that_can_fail(sql, catalog.facts.publications)))
        self._log_quarantined(position)

        # A connection apart from that of the periodic check: asyncpg runs one query at a time.
        writer = start.record_writer()
        registrar = start.registrar(await stack.enter_async_context(sql_session(catalog.login)), writer)
        await registrar.prepare(catalog.relations)
        machine = start.machine(writer)
        if position.gap is not None and position.prepared:
            before_gap = [each.xid for each in position.prepared if each.prepare_lsn < position.gap.first_lsn]
            machine.note_ended(*await ended_transactions(sql, before_gap))
        table_errors = QuarantinePolicy(
            settings.errors, registrar.topic_of, records_exclusions=self._dialect.records_exclusions
        )
        with table_errors.of_snapshot():
            snapshot = await self._snapshot(stack, start, machine, writer)
        feedback = self._feedback = await self._start_stream(start, machine)
        leave_with(sql, start.stream)
        status = StreamStatus(self._board, feedback, machine, start.delivery, position)
        kafka = self._kafka = KafkaTransactions(
            machine, start.writer, start.delivery, feedback, position, status, memory.careful_until,
            states=snapshot,
        )  # fmt: skip
        replication_loop = ReplicationLoop(
            start.stream, feedback, machine, registrar, kafka, protocol_version(catalog.server.version_num),
            status=status, snapshot=snapshot, table_errors=table_errors,
        )  # fmt: skip
        show_position(self._board, position)
        if snapshot is not None:
            self._board.snapshot_status = snapshot.status
        self._board.wait_for("")
        self.is_streaming = True
        log.info("streaming", slot=position.slot, epoch=position.epoch, resume_lsn=str(position.resume_lsn))
        tasks = [
            replication_loop.run(),
            kafka.deliver(),
            kafka.confirm(),
            feedback.run(),
            catalog.watch(position, start.stream.backend_pid, budget.check),
            self._rest(start.producer),
            *([] if snapshot is None else [snapshot.run()]),
        ]
        try:
            with table_errors.of_snapshot():
                await run_together(*tasks, until=self._drain(stop, kafka))
        except TransactionTimedOut as error:
            self._stop_if_again(kafka.durable_lsn, error)
            raise

    def _log_quarantined(self, position: Position) -> None:
        """Log new tables in quarantine, which the position now contains, and forget them: a table
        that the operator readmits later must not come back from memory."""
        for relation in position.quarantined:
            if relation.relation_oid not in self._memory.quarantine:
                continue
            log.error(
                "table_quarantined",
                table=relation.full_name,
                reason=relation.reason,
                since_commit_lsn=str(Lsn(relation.since_lsn)),
                hint="its changes are counted, but not written to Kafka. To end the quarantine, correct the cause, run walgate "
                f"readmit {shlex.quote(relation.full_name)}, and take a new snapshot of the table (walgate snapshot start)",
            )
        self._memory.quarantine.clear()
        if position.quarantined:
            names = [relation.full_name for relation in position.quarantined]
            log.warning("tables_in_quarantine", count=len(names), tables=names[:_NAMED_TABLES])

    def _stop_if_again(self, resume_lsn: Lsn, error: TransactionTimedOut) -> None:
        """Raise StopForOperator if the same transaction has timed out before. The first timeout may
        be chance; after a second one, a third attempt would fail too."""
        if self._memory.timed_out_lsn == resume_lsn:
            smaller = self._way_to_smaller_parts()
            raise StopForOperator(
                f"receiving and delivering the transaction that follows LSN {resume_lsn} has twice taken longer than "
                f"kafka.transaction_timeout_s = {self._settings.kafka.transaction_timeout_s}",
                hint=f"raise kafka.transaction_timeout_s (and the broker's transaction.max.timeout.ms){smaller}",
            ) from error
        self._memory.timed_out_lsn = resume_lsn

    def _way_to_smaller_parts(self) -> str:
        source = self._settings.source
        if self._settings.streams_open_transactions:
            # It was streamed before, until one of its savepoints with messages was rolled back.
            if self._streams_without_messages and source.messages:
                return (
                    "; or set source.messages = false: the transaction is then sent in parts, even if some of its savepoints "
                    "are rolled back"
                )
            return ""
        if not self._dialect.writes_before_commit:
            return ""
        return "; or set source.large_transactions = stream: the transaction is then sent in parts"

    async def _snapshot(
        self,
        stack: AsyncExitStack,
        start: StartResult,
        machine: TransactionMachine,
        writer: RecordWriter,
    ) -> SnapshotCoordinator | None:
        settings, position = self._settings, start.position
        self._board.wait_for("the stored snapshot state")
        if not settings.takes_snapshots:
            await start.go_without_snapshots()
            return None
        states, frame = await start.snapshot_states()
        login = start.catalog.login
        registrar = start.registrar(await stack.enter_async_context(sql_session(login)), writer)

        async def announce(
            relations: Sequence[tuple[Relation, RelationVersion | None]],
        ) -> list[tuple[RelationVersion, str]]:
            versions = await registrar.announce_all(relations)
            topics = [start.topics.of_relation((relation.namespace, relation.name)) for relation, _ in relations]
            return list(zip(versions, topics, strict=True))

        sql = await connect_reader(login)
        stack.callback(sql.terminate)
        snapshot = SnapshotCoordinator(
            settings,
            sql,
            machine,
            start.delivery,
            announce,
            states,
            login=login,
            position_key=position.key,
            frame=frame,
            is_first=states.stream is None and position.last_commit_lsn == 0,
            text_only=not start.catalog.may_be_binary(text_only=self._memory.text_only),
            publications=start.catalog.publications,
            is_after_gap=position.gap is not None and position.gap.end_lsn == position.resume_lsn,
            reads_again=is_released(position),
        )
        with beside_stream():
            await snapshot.prepare()
        return snapshot

    async def _start_stream(self, start: StartResult, machine: TransactionMachine) -> StandbyStatus:
        source, memory, position = self._settings.source, self._memory, start.position
        failpoint("before_start_replication")
        self._choose_streaming(position)
        server = start.catalog.server
        options = pgoutput_options(
            server.version_num,
            source.publications,
            binary=await start.catalog.use_binary(text_only=memory.text_only),
            streaming=self._settings.streams_open_transactions and not self._reads_whole,
            two_phase=source.two_phase,
            messages=source.messages or source.heartbeat_interval_s > 0 or self._settings.takes_snapshots,
            origin=source.origin,
        )
        feedback = StandbyStatus(
            start.stream,
            position.resume_lsn,
            wal_sender_timeout_of(server.wal_sender_timeout_s),
            silence_limit_s=memory.silence_limit_s(position.resume_lsn),
        )
        # The start found that what was left out before is harmless: the slot is older
        # than its publication.
        is_harmless = isinstance(memory.reported, LeftOut) and not memory.reported.whole_until
        if is_harmless:
            memory.reported = None
        self._stream = start.stream
        await start.stream.start(
            source.slot,
            position.resume_lsn,
            options,
            on_notice=self._note,
            tolerates_left_out=lambda: is_harmless and machine.transaction_count == 0 and machine.at_boundary,
        )
        failpoint("after_start_replication")
        check_held(await start.catalog.slot(), position.resume_lsn)
        return feedback

    def _choose_streaming(self, position: Position) -> None:
        """Choose whether in-progress transactions are streamed: what an error has asked for is for
        this session only."""
        memory = self._memory
        # position.skip_lsn is a commit LSN, which is unknown while a transaction is streamed.
        is_skipping = position.skip_lsn > 0
        self._reads_whole = memory.whole_once or is_skipping
        self._streams_without_messages = memory.whole_for_messages and not is_skipping
        memory.whole_once = memory.whole_for_messages = False

    def _note(self, said: ServerMessage) -> None:
        """Log a warning from the server that does not affect what is sent, but only once, since the
        server repeats it."""
        text = str(said)
        if text not in self._notices:
            self._notices.add(text)
            log.warning("server_warning", message=text, hint=said.hint)

    async def _rest(self, producer: Producer) -> None:
        """Raise Retry when the producer has almost used up its sequence numbers, so that it is
        replaced like a producer that failed."""
        while not producer.is_worn:
            await asyncio.sleep(10)
        raise Retry("the producer's sequence numbers are nearly exhausted: a new producer takes over")

    async def _drain(self, stop: asyncio.Event, kafka: KafkaTransactions) -> None:
        """Wait for `stop`; then read no more, wait until everything up to the last complete
        transaction is durable, and acknowledge it to PostgreSQL."""
        await stop.wait()
        failpoint("shutdown_requested")
        log.info("stopping")
        self._board.stopping()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await kafka.drain()
                failpoint("shutdown_drained")
        except TimeoutError:
            log.warning("drain_timed_out", note="unacknowledged changes will be sent again")
