"""The status board, to which the parts of the gateway report (session, replication loop, monitor).
The thread of the HTTP server reads it, even while the event loop does not respond. Times are in
Unix seconds."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from heapq import nlargest
from operator import itemgetter
from typing import Final

from gateway.errors import SlotInUse, WalgateError
from gateway.observe.lag import Progress, ReadProgress, WalClock, lag
from gateway.observe.mirror_status import CommitTimes, MirrorStatus
from gateway.observe.status_types import (
    PARTS,
    TITLES,
    Counts,
    GapSeen,
    GatewayStatus,
    LastError,
    PartName,
    PartStatus,
    RetainedWal,
    SchemaSeen,
    SlotStatus,
    State,
    TopicCount,
    WalRetentionCause,
)
from gateway.observe.table_status import QuarantinedTable, Rates, SnapshotStatus

LISTED_TOPICS: Final = 500
ALL_TOPICS: Final = ""
RECENT_ERRORS: Final = 20
RECENT_SCHEMAS: Final = 100
STALLED_S: Final = 10.0
"""The number of seconds without an acknowledgement from Kafka after which the gateway is not ready,
if something is in flight."""
_NEEDED: Final[tuple[PartName, ...]] = ("postgresql", "kafka")
"""The services without which the gateway is not ready. Without the registry, a stream continues
until the next new schema."""


class StatusBoard:
    """The status board of the process. There is only one. `clock` and `monotonic` are parameters
    for tests."""

    def __init__(
        self,
        *,
        slot_name: str = "",
        prefix: str = "",
        version: str = "",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._slot_name, self._prefix, self._version = slot_name, prefix, version
        self._state: tuple[State, float] = ("starting", clock())
        self._awaits = "the first start"
        self._waiting_since: float | None = clock()
        self._is_standby = False
        self.blocked_by: tuple[WalRetentionCause, ...] = ()
        """The causes for which the creation of the slot waits."""
        self._progress: ReadProgress | None = None
        self._last_progress = Progress()
        self._counts: Callable[[], Counts] = Counts
        self.parts: dict[PartName, PartStatus] = {name: PartStatus(name, since=clock()) for name in PARTS}
        self._mirrors: dict[str, MirrorStatus] = {}
        self._commits = CommitTimes()
        self.server: tuple[str, int] | str | None = None
        """Host and port, or the socket, of the server of the current session, or of the last
        one."""
        self.wal = WalClock()
        self.slot: SlotStatus | None = None
        self.held: RetainedWal | None = None
        self.blockers: tuple[WalRetentionCause, ...] = ()
        self.last_error: LastError | None = None
        self.error_count = 0
        self._recent_errors: deque[LastError] = deque(maxlen=RECENT_ERRORS)
        self._schemas: deque[SchemaSeen] = deque(maxlen=RECENT_SCHEMAS)
        self.epoch = 0
        self.gap: GapSeen | None = None
        self.quarantined: tuple[QuarantinedTable, ...] = ()
        self.snapshot_status: Callable[[], SnapshotStatus | None] = lambda: None
        """A function that returns the current status of snapshots."""
        self._rates = Rates()
        self.topic_records: Counter[str] = Counter()
        self.topic_bytes: Counter[str] = Counter()

    # -- written by the session

    def wait_for(self, what: str) -> None:
        """Set `what` the session waits for. It is "" while the stream is being read."""
        now = self._clock()
        if what and self._waiting_since is None:
            self._waiting_since = now
        elif not what:
            self._waiting_since = None
        self._awaits = what
        if not what:
            self._is_standby = False
            self.blocked_by = ()
            self._errors_are_over(now)
        self._enter("waiting" if what else "streaming", now)

    def is_down(self) -> None:
        """Record that no gateway is running, and that the contents of the board were queried from
        the servers."""
        self._state = ("down", self._clock())

    def stopping(self) -> None:
        self._enter("stopping", self._clock())

    def _enter(self, state: State, now: float) -> None:
        if self._state[0] not in (state, "stopping", "down"):
            self._state = (state, now)

    def failed(self, error: WalgateError, *, times: int = 0, since: str = "", resume_lsn: int = 0) -> None:
        """Record the error that ended a session. If the stream cannot get past a place in the WAL,
        `times` is how often the error occurred in a row at `resume_lsn`."""
        self._is_standby = isinstance(error, SlotInUse)
        kind = type(error).__name__
        self.last_error = LastError(kind, error.message, error.hint, self._clock(), times, since, resume_lsn)
        former = self._recent_errors[-1] if self._recent_errors else None
        if former is not None and (former.kind, former.message) == (self.last_error.kind, self.last_error.message):
            self._recent_errors.pop()
        self._recent_errors.append(self.last_error)
        self.error_count += 1

    def _errors_are_over(self, now: float) -> None:
        if self.last_error is not None and self.last_error.over_since is None:
            self.last_error = replace(self.last_error, over_since=now)
            listed = [
                error if error.over_since is not None else replace(error, over_since=now)
                for error in self._recent_errors
            ]
            self._recent_errors = deque(listed, maxlen=RECENT_ERRORS)

    def announced(self, relation: str, schema_id: int, columns: int, *, known_since: bool = True) -> None:
        """Record that rows of a relation are written with this schema from now on. Every session
        announces its relations again, but a schema that is already recorded is not recorded
        again."""
        known = next((seen for seen in reversed(self._schemas) if seen.relation == relation), None)
        if known is None or known.schema_id != schema_id:
            moment = self._clock() if known_since else 0.0
            self._schemas.append(SchemaSeen(moment, relation, schema_id, columns))

    def watch(self, progress: ReadProgress, counts: Callable[[], Counts]) -> None:
        """Query this stream from now on."""
        self._progress, self._counts = progress, counts

    def leave(self) -> None:
        """Record that the stream has ended. Keep its last values, and drop the references to it."""
        if self._progress is not None:
            self._last_progress = self._newer(self._progress())
        self._progress, self._counts = None, Counts
        snapshot = self.snapshot_status()
        self.snapshot_status = lambda: snapshot

    def count(self, topic: str, records: int, size: int) -> None:
        """Count a batch that is durable."""
        self.topic_records[topic] += records
        self.topic_bytes[topic] += size

    # -- written by the monitor

    def part_is_up(self, name: PartName, address: str = "") -> None:
        self._set_part(PartStatus(name, address or self.parts[name].address, up=True))

    def part_is_down(self, name: PartName, error: WalgateError, address: str = "") -> None:
        self._set_part(
            PartStatus(name, address or self.parts[name].address, up=False, error=error.message, hint=error.hint)
        )

    def _set_part(self, status: PartStatus) -> None:
        before = self.parts[status.name]
        since = before.since if before.up is status.up else self._clock()
        self.parts[status.name] = replace(status, since=since)

    def mirror(self, found: MirrorStatus) -> None:
        """Set the status of a mirror. If the mirror does not answer, its last answer is kept."""
        before = self._mirrors.get(found.url)
        since = before.since if before is not None and before.up is found.up else self._clock()
        if not found.up and before is not None:
            found = replace(before, up=found.up, error=found.error)
        elif before is not None and not found.knows_itself:  # or it would never lag if it keeps restarting
            facts = ("commit_lsn", "commit_time", "merged_lsn", "lag_seconds", "oldest_waiting_time")
            found = replace(found, **{name: getattr(before, name) for name in facts})
        self._mirrors[found.url] = replace(found, since=since)

    def sample_rates(self) -> None:
        """Sample the counts. Any thread may call this, every few seconds."""
        now = self._monotonic()
        if self._rates.is_due(now):
            records = dict(self.topic_records)  # a copy: the gateway's loop adds to it
            records[ALL_TOPICS] = sum(records.values())
            self._rates.sample(now, records)

    # -- read by everybody

    def progress(self) -> Progress:
        """Return the progress of the current stream, or of the last one. That of a standby gateway
        is what the slot's reader has confirmed. The delivered LSN never decreases."""
        read = self._progress
        if read is not None:
            self._last_progress = self._newer(read())
        elif self._is_standby and self.slot is not None:
            confirmed = replace(self._last_progress, delivered_lsn=self.slot.confirmed_flush_lsn)
            self._last_progress = self._newer(replace(confirmed, undelivered_since=None, undelivered_transactions=0))
        if self._mirrors:
            self._commits.note(self._last_progress.marked_lsn, self._last_progress.marked_time)
        return self._last_progress

    def _newer(self, progress: Progress) -> Progress:
        before = self._last_progress
        return replace(
            progress,
            delivered_lsn=max(before.delivered_lsn, progress.delivered_lsn),
            last_commit_lsn=max(before.last_commit_lsn, progress.last_commit_lsn),
            last_commit_time=progress.last_commit_time or before.last_commit_time,
            marked_lsn=max(before.marked_lsn, progress.marked_lsn),
            marked_time=progress.marked_time or before.marked_time,
            heartbeat_time=progress.heartbeat_time or before.heartbeat_time,
        )

    def lag_seconds(self) -> float | None:
        return lag(self.wal, self.progress(), self._monotonic()).seconds

    def waiting_for(self) -> str:
        """Return what the stream waits for, in words for the operator, or "" while it is read and
        delivered."""
        for name in _NEEDED:
            part = self.parts[name]
            if part.up is False:
                place = f" ({part.address})" if part.address else ""
                return f"{TITLES[name]}{place}, which has not answered for {self._clock() - part.since:.0f} s: {part.error}"
        if self._state[0] == "streaming":
            stalled_s = self._counts().stalled_s
            if stalled_s > STALLED_S:
                return f"Kafka, which has acknowledged nothing for {stalled_s:.0f} s"
            return ""
        return self._awaits or "shutdown to finish"

    def state(self) -> State:
        return self._state[0]

    def records_per_s(self) -> float:
        """Return the number of records per second of all topics together."""
        return self._rates.per_s(self._monotonic(), ALL_TOPICS, sum(list(self.topic_records.values())))

    def snapshot(self, listed_topics: int = LISTED_TOPICS) -> GatewayStatus:
        """Return the whole status, with the `listed_topics` topics that have the most records.
        Listing 10,000 topics would take most of the time."""
        clock = self._monotonic()
        progress, counts = self.progress(), self._counts()
        found = lag(self.wal, progress, clock)
        server_lsn = self.wal.lsn
        state, since = self._state
        waiting_for = self.waiting_for()
        if waiting_for and state == "streaming":
            state = "waiting"
        elif self._is_standby and state == "waiting":
            state = "standby"
        known = {(one.kind, one.title) for one in self.blocked_by}
        blockers = self.blocked_by + tuple(one for one in self.blockers if (one.kind, one.title) not in known)
        return GatewayStatus(
            time=self._clock(),
            version=self._version,
            slot_name=self._slot_name,
            prefix=self._prefix,
            state=state,
            since=since,
            waiting_for=waiting_for,
            waiting_since=self._waits_since(waiting_for),
            last_error=self.last_error,
            error_count=self.error_count,
            parts=tuple(self.parts.values()),
            lag_seconds=found.seconds,
            lag_is_at_least=found.at_least,
            lag_bytes=max(server_lsn - progress.delivered_lsn, 0) if server_lsn and progress.delivered_lsn else None,
            undelivered_transactions=progress.undelivered_transactions,
            server_lsn=server_lsn,
            server_time=self.wal.now(clock),
            server_lsn_age_s=self.wal.age_s(clock) if server_lsn else None,
            received_lsn=progress.received_lsn,
            delivered_lsn=progress.delivered_lsn,
            last_commit_lsn=progress.last_commit_lsn,
            last_commit_time=progress.last_commit_time,
            epoch=self.epoch,
            in_flight_bytes=counts.in_flight_bytes,
            streamed_transactions=counts.open_streams,
            prepared_transactions=counts.prepared,
            wal=self.held,
            slot=self.slot,
            blockers=blockers,
            topics=self._topics(listed_topics),
            records_per_s=self.records_per_s(),
            heartbeat_time=progress.heartbeat_time,
            recent_errors=tuple(self._recent_errors),
            schemas=tuple(self._schemas),
            gap=self.gap,
            quarantined=self.quarantined,
            snapshot=self.snapshot_status(),
            mirrors=self._mirrors_at(self.wal.now(clock)),
        )

    def _mirrors_at(self, server_time: float | None) -> tuple[MirrorStatus, ...]:
        now = self._clock() if server_time is None else server_time
        return tuple(replace(one, lag_seconds=self._commits.lag_s(one, now)) for one in self._mirrors.values())

    def _waits_since(self, waiting_for: str) -> float | None:
        """Return the earliest moment since which nothing has been read or acknowledged, or a
        required service has not answered. Return None if `waiting_for` is empty or no such moment
        is known."""
        if not waiting_for:
            return None
        moments = [part.since for part in self.parts.values() if part.name in _NEEDED and part.up is False]
        if self._waiting_since is not None:
            moments.append(self._waiting_since)
        stalled_s = self._counts().stalled_s
        if stalled_s > STALLED_S:
            moments.append(self._clock() - stalled_s)
        return min(moments, default=None)

    def _topics(self, listed: int) -> tuple[TopicCount, ...]:
        if not listed:
            return ()
        records, sizes = dict(self.topic_records), dict(self.topic_bytes)
        most = nlargest(listed, records.items(), key=itemgetter(1))
        now = self._monotonic()
        return tuple(
            TopicCount(topic, count, sizes.get(topic, 0), self._rates.per_s(now, topic, count)) for topic, count in most
        )
