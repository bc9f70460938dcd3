"""The tasks that read tables, and the hand-over of what they read where its commit stands in the stream.

    conduct    finds tables that are published and not read, begins and ends them by messages of their own, looks, tells progress
    readers    chunk after chunk: take, read, commit; wait until it was handed over, but for a few small ones
    hand_over  called by the replication loop where such a transaction commits: only there anything counts

What is durable goes with the Kafka transaction that holds the rows (`take_states`). Nothing here stops the stream: a table that
cannot be read is named and tried again later, the others go on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import asyncpg
import structlog

from gateway.events.manifest import Manifest, SnapshotChunk
from gateway.events.marker import Marker, readable_time
from gateway.kafka.delivery import Delivery
from gateway.operate import metrics
from gateway.operate.errors import NeedsText
from gateway.operate.failpoints import failpoint
from gateway.operate.settings import Settings
from gateway.operate.table_status import LISTED_TABLES, SnapshotStatus
from gateway.replication.errors import DRIVER_ERRORS, classify_exception
from gateway.replication.password import login_of
from gateway.replication.publication import PublicationLook
from gateway.replication.repeated import Repeated
from gateway.snapshot.announcing import Announce
from gateway.snapshot.commands import Command, NotACommand, choose, parse_command
from gateway.snapshot.content import Content, read_contents, unsent
from gateway.snapshot.judge import Judge
from gateway.snapshot.keys import KeyList
from gateway.snapshot.reader import NotYet, Outdated, TooMuch, Waiting, connect_reader, new_id, read_chunk
from gateway.snapshot.reading import Reading, identity_of, reselection
from gateway.snapshot.state import (
    KNOWN,
    RESELECT,
    States,
    StreamState,
    TableState,
    content_key,
    encode_content,
    encode_stream,
)
from gateway.snapshot.statements import CONTENT, EMIT, LOOK, NEW_XID
from gateway.snapshot.survey import Recipe, Surveyed, as_message, recipe, survey
from gateway.snapshot.table import Chunk, Status
from gateway.snapshot.telling import (
    CHANGED_ATTEMPTS,
    Progress,
    Waits,
    count_change,
    tell_late,
    tell_owing,
    tell_unsent,
)
from gateway.snapshot.tracking import Listening, Tracking
from gateway.snapshot.visibility import parse_visibility
from gateway.transactions.debezium import DebeziumMachine
from gateway.transactions.machine import TransactionMachine
from gateway.transactions.transaction import COMMAND_PREFIX
from schemas.description import RelationDescription
from schemas.framing import FRAME_BYTES

log = structlog.get_logger()

MOST_AT_ONCE: Final = 50
"""So many relations are read at a time, at most: the changes of each are noted."""
SLICE_ROWS: Final = 2000
"""Handed over in one step: 1 to 2 ms."""
SHARED_BYTES: Final = 1 << 20
"""A chunk has no more where other transactions come in the stream: they wait until its rows are handed over (docs/performance.md,
SL). Not for a VERIFY: a mirror compares each chunk by itself, in seconds whatever its size."""
AHEAD_BYTES: Final = 1 << 16
AHEAD_CHUNKS: Final = 8
"""A reader goes on before its chunks are handed over while they are so small and few: small tables would wait for the stream
longer than it takes to read them."""
TICK_S: Final = 0.5
NOT_YET_S: Final = 0.1
BLOCKED_S: Final = 10.0
"""A table that cannot be read is tried again after so long."""

_BLOCKS: Final = {
    "42501": "GRANT SELECT ON the table TO the gateway's role; or, under row security, ALTER ROLE ... BYPASSRLS",
    "55P03": "",
}


def is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_far_ahead(chunks: Collection[Waiting]) -> bool:
    """They are as much as one reader may have read and not handed over."""
    return len(chunks) > AHEAD_CHUNKS or sum(each.byte_count for each in chunks) > AHEAD_BYTES


@dataclass(slots=True, eq=False)
class Mark:
    """A transaction that begins or ends relations, or the snapshot as a whole (no reading)."""

    kind: str
    readings: list[Reading]
    xid: int = 0
    is_last: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Snapshot:
    """One session's. `is_first`: nothing was delivered before this session, so that all tables are new. Raises WalgateError."""

    def __init__(
        self,
        settings: Settings,
        sql: asyncpg.Connection,
        machine: TransactionMachine,
        delivery: Delivery,
        announce: Announce,
        states: States,
        *,
        position_key: bytes,
        frame: bytes,
        is_first: bool,
        text_only: bool,
        publications: PublicationLook,
    ) -> None:
        self._settings = settings.snapshot
        self._reselects = settings.writes_debezium and settings.debezium.reselect_unavailable_values
        self._source = settings.source
        self._prefix = settings.kafka.prefix
        self._in_debezium = settings.writes_debezium
        self._login = login_of(settings.source)
        self._sql = sql
        self._machine = machine
        self._delivery = delivery
        self._announce = announce
        self._states = states
        self._position_key = position_key
        self._frame = frame
        self._is_first = is_first
        self._text_only = text_only
        self._publications = publications
        self._stream_state = states.stream
        self._snapshot_id = states.stream.snapshot_id if states.stream is not None else ""
        self._readings: dict[int, Reading] = {}
        """Those that are not done."""
        self._begun: dict[int, Reading] = {}
        """Of these, the few that were set up: looked at again and again, where ten thousand may wait."""
        self._queued: list[Reading] = []
        """They wait, and that is not written yet."""
        self._finished: list[Reading] = []
        """Done, and not written yet."""
        self._known = {oid for oid, state in states.tables.items() if state.status in (KNOWN, Status.DONE.value)}
        self._contents: dict[int, Content] = dict(states.contents)
        """Of the relations that are known: what their rows stood on."""
        self._content_rows = Repeated()
        self._found: dict[int, Content] = {}
        """Of the last look at what is known."""
        self._unwritten: set[int] = set()
        """Those whose content is not written yet."""
        self._begun_ids = {state.snapshot_id for state in states.tables.values()}
        self._left: set[int] = set()
        """Relations that are not published any more: should they come again, they are read, and replace what was there."""
        self._is_late = states.stream is None and not is_first
        self._ends = False
        self._paused = states.stream is not None and states.stream.paused
        self._published: dict[tuple[str, str], int] = {}
        self._judge: Judge | None = None
        self._tracking: Tracking | None = None
        self._arriving: dict[bytes, Waiting | Mark] = {}
        self._wake = asyncio.Event()
        self._more = asyncio.Event()
        self._discovered_at = self._begun_at = self._ended_at = self._looked_at = -1e9
        self._finds_nothing = True
        """A reader, when it last looked for something to read."""
        self._progress = Progress()
        self._waits = Waits()
        self._rows = 0
        self._free_at = 0.0
        self._is_shared = False
        """Other transactions came in the stream between the last two chunks."""
        self._next_transaction = 0
        self._turn = asyncio.Lock()

    def status(self) -> SnapshotStatus:
        """Of what is under way. For any thread."""
        readings = self._whole_tables
        return SnapshotStatus(self._paused, len(readings), tuple(each.told() for each in readings[:LISTED_TABLES]))

    @property
    def _whole_tables(self) -> list[Reading]:
        """Without those of which only rows are read that UPDATEs left values out of."""
        return [reading for reading in list(self._readings.values()) if not reading.is_reselect]

    @property
    def _reads_tables(self) -> bool:
        return any(not reading.is_reselect for reading in self._readings.values())

    # -- before the stream ------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Go on with what an earlier session had begun: its changes are noted from the first one on."""
        self._machine.set_watch(Listening(self._on_message))
        unfinished = [state for state in self._states.tables.values() if state.status not in (KNOWN, Status.DONE.value)]
        if unfinished:
            await self._resume(unfinished)
        if self._reselects and isinstance(self._machine, DebeziumMachine):
            await self._activate()
            self._machine.on_left_out = self._left_out
        await self._discover()
        self._discovered_at = time.monotonic()

    async def _resume(self, unfinished: list[TableState]) -> None:
        await self._activate()
        found = await self._survey([state.relation_oid for state in unfinished])
        taken_up = []
        for state in unfinished:
            if state.relation_oid not in found:
                self._left.add(state.relation_oid)
            elif self._take_up(state, found[state.relation_oid]):
                taken_up.append(found[state.relation_oid])
        for made in await self._recipes(taken_up):
            self._go_on(self._readings[made.surveyed.relation.relation_oid], made)
        log.info("snapshot_resumed", tables=len(self._readings), snapshot_id=self._snapshot_id)

    def _take_up(self, state: TableState, surveyed: Surveyed) -> bool:
        """Whether it may go on where it was."""
        segments = self._states.keys.get(state.relation_oid, {})
        reading = self._readings[state.relation_oid] = Reading(
            state, encoded=state, void_segments=list(segments), misses_keys=True
        )
        under_way = state.status in (Status.READING.value, Status.ENDING.value)
        return under_way and (state.fingerprint == surveyed.fingerprint or reading.is_reselect)

    def _go_on(self, reading: Reading, made: Recipe) -> None:
        assert self._judge is not None and self._tracking is not None
        segments = self._states.keys.get(reading.oid, {})
        if reading.is_reselect and not self._has_its_keys(reading, made):
            return
        if reading.is_reselect or not made.is_read_at_once:
            table = reading.resume(made, self._judge, self._settings.chunk_bytes, segments, reselects=self._reselects)
            self._begun[reading.oid] = reading
            reading.void_segments.clear()
            self._tracking.begin(reading.oid, table, [made.version.schema_id])

    async def _activate(self) -> None:
        """Note the transactions of the stream from now on."""
        if self._judge is not None:
            return
        visibility = parse_visibility(await self._fetch(LOOK))
        durable = self._stream_state
        if durable is not None and durable.is_active and self._machine.transaction_count == 0:
            self._judge = Judge(visibility, durable.floor, durable.unseen)
        else:
            self._judge = Judge(visibility, 1 << 62)
        self._tracking = Tracking(self._machine, self._judge, self._on_message)
        self._machine.set_watch(self._tracking)
        if self._judge.floor == 1 << 62:
            # Whoever was received before has a lower id than one that is new now.
            async with self._sql.transaction():
                self._judge.floor = int(await self._fetch(NEW_XID))

    def _deactivate(self) -> None:
        self._machine.set_watch(Listening(self._on_message))
        self._judge = self._tracking = None

    async def _fetch(self, query: str) -> str:
        try:
            found: str = await self._sql.fetchval(query)
        except DRIVER_ERRORS as error:
            raise classify_exception(error, "snapshot") from error
        return found

    async def _survey(self, relation_oids: list[int]) -> dict[int, Surveyed]:
        """Of those that are published; without their row filters where somebody has locked one of them."""
        try:
            with suppress(asyncpg.LockNotAvailableError):
                return await survey(self._sql, self._source.publications, relation_oids)
            return await survey(self._sql, self._source.publications, relation_oids, prints_filters=False)
        except DRIVER_ERRORS as error:
            raise classify_exception(error, "querying the tables of the snapshot") from error

    async def _recipes(self, surveyed: Iterable[Surveyed]) -> list[Recipe]:
        tables = list(surveyed)
        relations = [as_message(each.relation) for each in tables]
        if not relations:
            return []
        announced = await self._announce([(each, self._machine.in_force(each.relation_oid)) for each in relations])
        text_only, keeps_tuples = self._text_only, self._in_debezium
        return [
            recipe(each, version, topic, self._prefix, text_only=text_only, keeps_tuples=keeps_tuples)
            for each, (version, topic) in zip(tables, announced, strict=True)
        ]

    async def _with_recipes(self, readings: list[Reading], now: float) -> list[tuple[Reading, Recipe]]:
        """Those whose tables are there and not locked; the others wait for the next check."""
        found = await self._survey([reading.oid for reading in readings]) if readings else {}
        found = {oid: surveyed for oid, surveyed in found.items() if surveyed.row_filter is not None}
        for reading in readings:
            if reading.oid not in found:
                reading.blocked_until = now + self._source.check_interval_s
        there = [reading for reading in readings if reading.oid in found]
        return list(zip(there, await self._recipes(found[reading.oid] for reading in there), strict=True))

    # -- the stream's side ------------------------------------------------------------------------------------------------

    def _on_message(self, prefix: str, content: bytes, xid: int, in_stream: bool) -> object | None:
        """Everybody may emit messages: what is ours is known by its id and its xid."""
        if prefix == COMMAND_PREFIX:
            return self._command(content, in_stream)
        arrived = self._arriving.get(content)
        # A stream may bring it before the server's answer with its xid. It only leads to one more attempt, whoever emitted it.
        if arrived is None or (arrived.xid != xid and not (in_stream and not arrived.xid)):
            return None
        del self._arriving[content]
        if in_stream:  # seen as part of a stream, where the server had little memory left: once more
            self._return(arrived)
            return None
        return arrived

    def _command(self, content: bytes, in_stream: bool) -> Command | None:
        """It counts where its transaction commits."""
        try:
            command = parse_command(content)
        except NotACommand as error:
            log.warning("command_not_understood", reason=str(error))
            return None
        if command.slot not in ("", self._source.slot):
            return None
        if not self._settings.commands or in_stream:
            reason = (
                "snapshot.commands is false"
                if not in_stream
                else "it was sent in a large transaction: send it in a transaction of its own"
            )
            log.warning("command_refused", command=command.command, reason=reason)
            return None
        if command.purpose == "VERIFY" and self._in_debezium:
            reason = "kafka.dialect is debezium: consumers of Debezium's format cannot compare rows with their copies"
            log.warning("command_refused", command=command.command, reason=reason)
            return None
        return command

    def _obey(self, command: Command) -> None:
        log.info("command", command=command.command, tables=[f"{a}.{b}" for a, b in command.tables])
        if command.command == "start":
            self._start(command)
        elif command.command == "cancel":
            self._cancel_all()
        else:
            self._paused = command.command == "pause"
        self._wake.set()
        self._more.set()

    def _start(self, command: Command) -> None:
        """Its tables are read once more: they take the place of what readers have, or are compared with it."""
        chosen = choose(command, self._published, {oid: each.state.purpose for oid, each in self._readings.items()})
        if chosen.unknown:
            log.warning("tables_not_published", tables=chosen.unknown)
        if chosen.unfinished:
            log.warning(
                "tables_not_verified",
                tables=chosen.unfinished,
                reason="a snapshot that delivers these tables' rows has not ended",
                hint="wait until it ends: walgate snapshot status",
            )
        if chosen.tables:
            self._begin_snapshot(len(chosen.tables))
        for oid, (namespace, name) in chosen.tables.items():
            self._queue(oid, namespace, name, command.purpose)

    def _queue(self, oid: int, namespace: str, name: str, purpose: str) -> None:
        """In place of what is under way of it."""
        state, is_under_way = TableState(oid, namespace, name, self._snapshot_id, purpose), oid in self._readings
        if is_under_way:
            self._cancel(oid)
        self._known.discard(oid)
        self._wait(Reading(state, misses_keys=is_under_way))

    def _wait(self, reading: Reading) -> None:
        self._readings[reading.oid] = reading
        self._queued.append(reading)

    def _begin_snapshot(self, count: int) -> None:
        if not self._snapshot_id:
            self._snapshot_id = new_id()
            log.info("snapshot_begins", snapshot_id=self._snapshot_id, tables=count)

    def _cancel_all(self) -> None:
        """Rows that UPDATEs left values out of are still read where their keys are noted; where they are not, that is told."""
        owing = []
        for reading in self._whole_tables:
            if self._reselects and reading.may_owe_more:
                owing.append(reading.full_name)
            keys = reading.take_owed()
            self._cancel(reading.oid)
            if keys:
                assert reading.recipe is not None
                self._begin_reselect(reading.recipe.version.encoder.description, keys)
        self._snapshot_id = ""
        if owing:
            tell_owing(owing)

    def _cancel(self, oid: int) -> None:
        reading = self._readings.pop(oid)
        self._begun.pop(oid, None)
        void = reading.void_segments
        if reading.table is not None:
            reading.table.begin_again()
            void += reading.table.again.take_dirty()
        if self._tracking is not None:
            self._tracking.end(oid)
        self._known.add(oid)
        if reading.state.purpose not in ("VERIFY", RESELECT):
            self._contents.pop(oid, None)  # what it is when it is looked at next, counts
            self._unwritten.discard(oid)
        state = TableState(oid, reading.state.schema, reading.state.name, "", status=KNOWN)
        self._finished.append(Reading(state, void_segments=void))

    def _return(self, arrived: Waiting | Mark) -> None:
        if isinstance(arrived, Waiting):
            arrived.chunk.table.give_back(arrived.chunk)
        else:
            self._unmark(arrived)
        self._tell_done(arrived)

    def _tell_done(self, arrived: Waiting | Mark) -> None:
        if isinstance(arrived, Waiting):
            arrived.rows = []  # its reader keeps the last one for as long as there is nothing more to read
        arrived.done.set()
        self._wake.set()
        self._more.set()

    async def hand_over(self, arrived: object, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        """The transaction of a chunk, or of a mark, is about to be committed in the state machine."""
        if isinstance(arrived, Mark):
            self._hand_over_mark(arrived, commit_lsn, end_lsn, commit_time)
        elif isinstance(arrived, Waiting):
            await self._hand_over_chunk(arrived, commit_lsn)
        elif isinstance(arrived, Command):
            self._obey(arrived)
        failpoint("chunk_handed_over")

    async def _hand_over_chunk(self, waiting: Waiting, commit_lsn: int) -> None:
        chunk, table = waiting.chunk, waiting.chunk.table
        reading = self._readings.get(waiting.recipe.surveyed.relation.relation_oid)
        # Rows in Debezium's dialect are encoded only now, with the version that was announced last.
        is_same = reading is not None and reading.recipe is waiting.recipe and reading.table is table
        if reading is None or not is_same or not table.admits(chunk):
            table.give_back(chunk)
            self._tell_done(waiting)
            if reading is not None and chunk.whole:
                count_change(reading, may_lock=self._settings.may_lock)
            return
        count = self._machine.transaction_count
        self._is_shared, self._next_transaction = count > self._next_transaction, count + 1
        rows = self._fresh(waiting)
        stale_count = len(waiting.rows) - len(rows)
        table.handed_over(chunk, len(rows), stale_count)
        self._rows += len(rows)
        metrics.SNAPSHOT_ROWS.inc(len(rows))
        metrics.SNAPSHOT_STALE_ROWS.inc(stale_count)
        self._tell_done(waiting)
        if not rows:
            return
        transaction = self._machine.current
        assert transaction is not None
        transaction.manifest.snapshot = reading.chunk(table.chunk_count - 1, len(rows), stale_count)
        for start in range(0, len(rows), SLICE_ROWS):
            self._machine.read(waiting.recipe.version, rows[start : start + SLICE_ROWS], commit_lsn)
            self._delivery.offer()
            await asyncio.sleep(0)  # feedback and keepalives
            await self._delivery.room()

    def _fresh(self, waiting: Waiting) -> list[tuple[bytes | None, bytes]]:
        """Rows that are not stale."""
        chunk, table = waiting.chunk, waiting.chunk.table
        if table.track is None or table.is_read_at_once or not (table.track.keys or table.again):
            return waiting.rows
        is_stale = table.is_stale
        return [row for row in waiting.rows if row[0] is not None and not is_stale(chunk, row[0][FRAME_BYTES:])]

    def _hand_over_mark(self, mark: Mark, commit_lsn: int, end_lsn: int, commit_time: int) -> None:
        machine, tracking = self._machine, self._tracking
        if mark.is_last:
            self._ends = False
        if tracking is None or not self._snapshot_id:  # all of it was cancelled
            self._unmark(mark)
            self._tell_done(mark)
            return

        def owe(kind: str, reading: Reading | None) -> None:
            found = readable_time(commit_time) or 0
            if reading is not None:
                machine.owe(reading.marker(kind, machine.epoch, mark.xid, commit_lsn, end_lsn, found))
                return
            manifest = Manifest(machine.epoch, snapshot=SnapshotChunk(self._snapshot_id, "FILL"))
            machine.owe(Marker(kind, mark.xid, commit_lsn, -1, end_lsn, found, manifest=manifest))

        if mark.kind == "begin" and self._snapshot_id not in self._begun_ids:
            self._begun_ids.add(self._snapshot_id)
            owe("SNAPSHOT_BEGIN", None)
        for reading in mark.readings:
            reading.is_marked = False
            if self._readings.get(reading.oid) is not reading:  # cancelled
                continue
            table = reading.table
            assert table is not None and reading.recipe is not None
            if mark.kind == "begin" and table.status is Status.WAITING:
                table.begin(machine.unfinished_xids)
                tracking.begin(reading.oid, table, [reading.recipe.version.schema_id])
                owe("SNAPSHOT_BEGIN", reading)
            elif mark.kind == "end" and table.status is Status.ENDING:
                keys = reading.take_owed()
                table.end()
                tracking.end(reading.oid)
                owe("SNAPSHOT_END", reading)
                self._known.add(reading.oid)
                if reading.state.purpose != "VERIFY":
                    self._note_content(reading.oid, reading.recipe.surveyed.content)
                self._finished.append(self._readings.pop(reading.oid))
                del self._begun[reading.oid]
                log.info("table_read", table=reading.full_name, rows=table.row_count, stale=table.stale_count)
                if keys:
                    self._begin_reselect(reading.recipe.version.encoder.description, keys)
        if mark.is_last and not self._reads_tables:
            owe("SNAPSHOT_END", None)
            log.info("snapshot_done", snapshot_id=self._snapshot_id, rows=self._rows)
            self._snapshot_id = ""
        if mark.kind == "begin":
            log.info("tables_begun", count=len(mark.readings))
        self._tell_done(mark)

    def take_states(self) -> dict[bytes, bytes]:
        """What goes with the Kafka transaction that is closed now."""
        states: dict[bytes, bytes] = {}
        prepared = {xid for _, xid in self._machine.prepared}
        queued = [reading for reading in self._queued if self._readings.get(reading.oid) is reading]
        for reading in (*self._finished, *queued, *self._begun.values()):
            if reading.table is not None or reading.encoded is None:
                states |= reading.take_states(self._frame, self._position_key, prepared)
        self._states.tables |= {reading.oid: reading.state for reading in self._finished}
        self._finished.clear()
        self._queued.clear()
        for oid in self._unwritten:
            states[content_key(self._position_key, oid)] = encode_content(self._frame, oid, self._contents[oid])
        self._unwritten.clear()
        if self._is_first or self._discovered_at > 0 or self._stream_state is not None:
            judge = self._judge
            state = StreamState(snapshot_id=self._snapshot_id, paused=self._paused)
            if judge is not None and self._readings:
                state = replace(state, floor=judge.floor, unseen=tuple(sorted(judge.unseen)), is_active=True)
            if state != self._stream_state:
                self._stream_state = state
                states[self._position_key] = encode_stream(self._frame, state)
        return states

    # -- the conductor ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._conduct())
                for _ in range(self._settings.readers):
                    group.create_task(self._read_on())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _conduct(self) -> None:
        while True:
            self._wake.clear()  # whoever wakes it during the round means the next one
            now = time.monotonic()
            if now - self._discovered_at >= self._source.check_interval_s:
                await self._discover()
                self._discovered_at = now
            if self._readings:
                await self._activate()
                await self._set_up_begun()
                await self._begin_some()
                await self._end_some()
                self._tell_progress()
            if self._snapshot_id and not self._ends and not self._reads_tables:
                self._ends = True
                await self._activate()
                await self._mark(Mark("end", [], is_last=True))
            elif self._judge is not None and not (self._readings or self._snapshot_id or self._reselects):
                self._deactivate()
            if self._judge is not None and (self._is_idle or now - self._looked_at >= TICK_S):
                # Else the chunks have looked.
                self._looked_at = now
                self._judge.observe(parse_visibility(await self._fetch(LOOK)))
                self._more.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()

    def _tell_progress(self) -> None:
        if self._progress.is_due and self._reads_tables:
            keys = sum(len(reading.table.again) for reading in self._begun.values() if reading.table is not None)
            self._progress.tell(len(self._whole_tables), self._rows, keys)

    async def _discover(self) -> None:
        """Tables that are published and were never read."""
        publications = await self._publications.facts(self._sql)
        relations = {r.relation_oid: r for facts in publications.values() for r in facts.relations}
        for oid in [oid for oid in {*self._readings, *self._known} if oid not in relations]:
            self._leave(oid)
        self._published = {(r.namespace, r.name): oid for oid, r in relations.items()}
        new = [relation for oid, relation in relations.items() if oid not in self._known and oid not in self._readings]
        is_late = self._is_late or self._settings.mode != "initial"
        if self._is_late and new and self._settings.mode == "initial":
            tell_late([f"{relation.namespace}.{relation.name}" for relation in new])
        elif new and not is_late:
            self._begin_snapshot(len(new))
        self._is_late = False
        for relation in new:
            oid = relation.relation_oid
            state = TableState(oid, relation.namespace, relation.name, "" if is_late else self._snapshot_id)
            if is_late:
                self._known.add(oid)
                self._finished.append(Reading(replace(state, status=KNOWN)))
            elif oid in self._left:
                self._left.discard(oid)
                self._wait(Reading(replace(state, purpose="REPLACE"), misses_keys=True))
            else:  # waiting needs no record: what is published and not known, is read
                is_first = self._is_first and self._discovered_at < 0
                self._readings[oid] = Reading(state, encoded=state, misses_keys=not is_first)
        await self._compare()

    async def _compare(self) -> None:
        """Whether rows of what is known have come, gone or changed without an event."""
        try:
            async with self._sql.transaction(isolation="repeatable_read", readonly=True):
                rows = await self._content_rows.fetch(self._sql, CONTENT, sorted(self._known))
        except DRIVER_ERRORS as error:
            raise classify_exception(error, "querying files and partitions") from error
        if rows is not None:
            self._found = read_contents(rows)
        found, known = self._found, self._contents
        changed = [
            (oid, now, known.get(oid))
            for oid, now in found.items()
            if now is not known.get(oid) and now != known.get(oid)
        ]
        reads = self._settings.mode == "initial" and self._settings.read_again
        for oid, now, before in changed:
            reason = "" if before is None else unsent(before, now)
            if reason:
                tell_unsent(now, reason, reads=reads)
            if reason and reads:
                self._begin_snapshot(1)
                self._queue(oid, now.schema, now.name, "REPLACE")
            else:
                self._note_content(oid, now)

    def _note_content(self, oid: int, now: Content) -> None:
        self._contents[oid] = now
        self._unwritten.add(oid)

    def _leave(self, oid: int) -> None:
        """It is not published any more: its changes do not come, and what is known of it is void."""
        reading = self._readings.pop(oid, None)
        self._begun.pop(oid, None)
        self._known.discard(oid)
        self._contents.pop(oid, None)
        self._unwritten.discard(oid)
        self._left.add(oid)
        name = oid if reading is None else reading.full_name
        log.info("table_left", table=name, reason="it is no longer published")
        if reading is not None and reading.table is not None:
            reading.table.begin_again()
        if self._tracking is not None:
            self._tracking.end(oid)
        self._finished.append(Reading(TableState(oid, "", "", "", purpose="REPLACE")))

    @property
    def _is_idle(self) -> bool:
        """A reader has nothing to read, and what was read is handed over."""
        return self._finds_nothing and not any(isinstance(each, Waiting) for each in self._arriving.values())

    def _is_time(self, count: int, last_at: float) -> bool:
        """Tables begin and end together, as each time costs looks at the catalog and a transaction: half of those that may be
        under way, or fewer where a reader has nothing else to do, or some time has passed."""
        return count >= MOST_AT_ONCE // 2 or self._is_idle or time.monotonic() - last_at >= TICK_S

    async def _begin_some(self) -> None:
        """All that were found together, in one transaction."""
        now = time.monotonic()
        busy = sum(reading.is_busy(now) for reading in self._begun.values())
        ready = (
            reading
            for reading in self._readings.values()
            if reading.status is Status.WAITING and not reading.is_marked and reading.blocked_until <= now
        )
        waiting = list(islice(ready, max(MOST_AT_ONCE - busy, 0)))
        if not (waiting and self._is_time(len(waiting), self._begun_at)):
            return
        self._begun_at = now
        for reading in waiting:
            if reading.is_reselect:
                self._read_whole(reading)
        begun = []
        for reading, made in await self._with_recipes(waiting, now):
            assert self._judge is not None
            if self._readings.get(reading.oid) is not reading:  # cancelled
                continue
            reading.set_up(made, self._judge, self._settings.chunk_bytes, reselects=self._reselects)
            self._begun[reading.oid] = reading
            begun.append(reading)
            if not made.surveyed.is_heap:
                reason = "its table access method is not heap, so it cannot be read in ranges of blocks"
                log.warning("table_read_in_one_transaction", table=reading.full_name, reason=reason)
        if begun:
            await self._mark(Mark("begin", begun))

    async def _end_some(self) -> None:
        complete = [
            reading
            for reading in self._begun.values()
            if reading.is_readable and not reading.is_marked and reading.table is not None and reading.table.is_complete
        ]
        for reading in [reading for reading in complete if reading.is_reselect]:
            complete.remove(reading)
            self._end_reselect(reading)
        if not (complete and self._is_time(len(complete), self._ended_at)):
            return
        self._ended_at = time.monotonic()
        found = await self._survey([reading.oid for reading in complete])
        ended = []
        for reading in complete:
            table, now = reading.table, found.get(reading.oid)
            assert table is not None and reading.recipe is not None
            if now is not None and now.fingerprint != reading.recipe.surveyed.fingerprint:
                self._begin_again(reading)
            elif now is not None and table.is_complete:
                table.status = Status.ENDING
                ended.append(reading)
        if ended:
            await self._mark(Mark("end", ended, is_last=self._are_all(ended)))

    def _are_all(self, readings: list[Reading]) -> bool:
        """No other table is read, or waits for it."""
        oids = {reading.oid for reading in readings}
        return all(reading.is_reselect or oid in oids for oid, reading in self._readings.items())

    def _begin_again(self, reading: Reading) -> None:
        log.info("table_restarted", table=reading.full_name, reason="its columns, files or publication have changed")
        if reading.table is not None:
            if reading.state.purpose == "FILL" and reading.table.row_count:
                # Rows may be gone without an event that were sent.
                reading.state = replace(reading.state, purpose="REPLACE")
            reading.table.begin_again()
        self._wake.set()

    # -- values that UPDATEs left out -------------------------------------------------------------------------------------

    def _left_out(self, relation_oid: int) -> bool:
        """An UPDATE of the relation came without a value: its row is read again. Whether changes are noted from this one on; else
        they were before, or the table will be read as a whole. (Earlier changes of the row need not be known: where this one
        is seen, they are.)"""
        reading = self._readings.get(relation_oid)
        if reading is not None:
            reading.misses_keys = reading.misses_keys or not reading.notes_keys
            return False
        if relation_oid not in self._known and self._settings.mode == "initial":
            return False  # it was published a moment ago
        version = self._machine.in_force(relation_oid)
        assert version is not None
        identity = version.encoder.description.identity_columns
        if not identity or any(column.protection for column in identity):
            return False
        self._begin_reselect(version.encoder.description, KeyList())
        return True

    def _begin_reselect(self, description: RelationDescription, keys: KeyList) -> None:
        assert self._judge is not None and self._tracking is not None
        reading = self._readings[description.oid] = self._begun[description.oid] = reselection(description)
        table = reading.reselect(self._judge, self._settings.chunk_bytes, keys)
        self._tracking.begin(reading.oid, table, [])
        self._wake.set()

    def _has_its_keys(self, reading: Reading, made: Recipe) -> bool:
        return reading.state.fingerprint == identity_of(made.version.encoder.description)

    async def _set_up_begun(self) -> None:
        """What is read without a mark of its own, and tables that were locked when the gateway started."""
        now = time.monotonic()
        new = [
            reading
            for reading in self._begun.values()
            if reading.status is Status.READING and not reading.is_readable and reading.blocked_until <= now
        ]
        for reading, made in await self._with_recipes(new, now):
            is_same = reading.state.fingerprint == made.surveyed.fingerprint
            if self._has_its_keys(reading, made) if reading.is_reselect else is_same:
                reading.recipe = made
            elif self._readings.get(reading.oid) is reading:
                self._begin_again(reading)
            self._more.set()

    def _read_whole(self, reading: Reading) -> None:
        """There are too many keys, or they are those of other columns."""
        if reading.table is not None:
            reading.void_segments += reading.table.again.take_dirty()
            reading.table = None
        self._begin_snapshot(1)
        reading.recipe, reading.misses_keys = None, True
        reading.state = replace(reading.state, snapshot_id=self._snapshot_id, purpose="REPLACE", fingerprint="")

    def _end_reselect(self, reading: Reading) -> None:
        """All of them were read; what was known of the table before counts again."""
        assert reading.table is not None and self._tracking is not None
        del self._readings[reading.oid], self._begun[reading.oid]
        self._known.add(reading.oid)
        reading.table.end()
        self._tracking.end(reading.oid)
        before = self._states.tables.get(reading.oid)
        if before is None or before.status not in (KNOWN, Status.DONE.value):
            before = replace(reading.state, purpose="FILL", status=KNOWN, fingerprint="")
        self._finished.append(Reading(before, void_segments=list(reading.table.again.take_dirty())))

    async def _mark(self, mark: Mark) -> None:
        number = new_id()
        for reading in mark.readings:
            reading.is_marked = True
        try:
            async with self._sql.transaction():
                self._arriving[number.encode()] = mark
                mark.xid = int(await self._sql.fetchval(EMIT, number)) & 0xFFFFFFFF
                failpoint("snapshot_mark_emitted")
        except DRIVER_ERRORS as error:
            self._arriving.pop(number.encode(), None)
            raise classify_exception(error, "marking a snapshot in the stream") from error

    def _unmark(self, mark: Mark) -> None:
        if mark.is_last:
            self._ends = False
        for reading in mark.readings:
            reading.is_marked = False
            if reading.table is not None and reading.table.status is Status.ENDING:
                reading.table.status = Status.READING

    # -- the readers ------------------------------------------------------------------------------------------------------

    async def _read_on(self) -> None:
        sql: asyncpg.Connection | None = None
        ahead: deque[Waiting] = deque()
        try:
            while True:
                while ahead and (ahead[0].done.is_set() or is_far_ahead(ahead)):
                    await ahead.popleft().done.wait()
                reading, chunk = await self._next()
                try:
                    if sql is None or sql.is_closed():
                        sql = await connect_reader(self._login)
                    waiting = await self._read(sql, reading, chunk)
                    if waiting is not None:
                        ahead.append(waiting)
                except DRIVER_ERRORS as error:
                    chunk.table.give_back(chunk)
                    if is_cancelled():  # asyncpg fails at the ROLLBACK of a COPY that was cancelled
                        raise asyncio.CancelledError from error
                    self._block(reading, error)
                except BaseException:
                    chunk.table.give_back(chunk)
                    raise
        finally:
            if sql is not None:
                sql.terminate()

    async def _next(self) -> tuple[Reading, Chunk]:
        while True:
            delay = self._free_at - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            now = time.monotonic()
            for reading in () if self._paused else self._begun.values():
                table = reading.table
                is_ready = reading.is_readable and reading.blocked_until <= now
                if table is not None and table.status is Status.READING and is_ready:
                    chunk = table.take()
                    if chunk is not None:
                        self._finds_nothing = False
                        return reading, chunk
            if not self._finds_nothing:
                self._finds_nothing = True
                self._wake.set()
            self._more.clear()
            await self._more.wait()

    async def _read(self, sql: asyncpg.Connection, reading: Reading, chunk: Chunk) -> Waiting | None:
        """None: it is to be read once more."""
        if reading.recipe is None or reading.table is not chunk.table:  # it has changed while the session was opened
            chunk.table.give_back(chunk)
            return None
        chunk.is_locked = bool(chunk.whole) and self._settings.may_lock and reading.changed_count >= CHANGED_ATTEMPTS
        sizer, yields = chunk.table.sizer, self._is_shared and reading.state.purpose != "VERIFY"
        sizer.chunk_bytes = min(SHARED_BYTES, sizer.most_bytes) if yields else sizer.most_bytes
        waiting: list[tuple[bytes, Waiting]] = []

        def waits(number: str, found: Waiting) -> None:
            waiting.append((number.encode(), found))
            self._arriving[number.encode()] = found

        try:
            turn = self._turn if self._is_shared else None
            found = await read_chunk(sql, chunk, reading.recipe, list(self._source.publications), waits, turn)
        except Outdated:
            chunk.table.give_back(chunk)
            if reading.is_reselect:
                self._set_up_again(reading)
            elif reading.table is chunk.table and chunk.generation == chunk.table.generation:
                self._begin_again(reading)
        except NotYet:
            chunk.table.give_back(chunk)
            self._waits.tell()
            await asyncio.sleep(NOT_YET_S)
        except TooMuch:
            chunk.table.give_back(chunk)
        except NeedsText:
            chunk.table.give_back(chunk)
            self._text_only = True
            if reading.is_reselect:
                self._set_up_again(reading)
            else:
                self._begin_again(reading)
        except BaseException:
            for number, _ in waiting:
                self._arriving.pop(number, None)
            raise
        else:
            self._waits.end()
            reading.attempts = 0
            self._more.set()
            if self._settings.rows_per_s is not None:
                begin = max(self._free_at, time.monotonic())
                self._free_at = begin + len(found.rows) / self._settings.rows_per_s
            return found
        return None

    def _set_up_again(self, reading: Reading) -> None:
        reading.recipe = None
        self._wake.set()

    def _block(self, reading: Reading, error: BaseException) -> None:
        """What the server says of one table does not concern the others; nor the stream, where a session ends."""
        found = classify_exception(error, f"reading {reading.full_name}")
        sqlstate = getattr(error, "sqlstate", None) or ""
        passes = not sqlstate or sqlstate in ("55P03", "57P01", "40001", "57014")
        pause = min(2.0**reading.attempts, BLOCKED_S) if passes else BLOCKED_S
        reading.attempts = min(reading.attempts + 1, 16)
        reading.blocked_until = time.monotonic() + pause
        hint = _BLOCKS.get(sqlstate, found.hint)
        log.warning("table_unreadable", table=reading.full_name, reason=found.message, hint=hint, again_in_s=pause)
