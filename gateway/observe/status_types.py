"""The status of the gateway at one moment. Metrics, /readyz, /status, the live page and `walgate
status` share it.

`gateway/observe/status_board.py` creates a `GatewayStatus`. Times are in Unix seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal

from gateway.observe.mirror_status import MirrorStatus
from gateway.observe.table_status import QuarantinedTable, SnapshotStatus

PartName = Literal["postgresql", "kafka", "registry"]
PARTS: Final[tuple[PartName, ...]] = ("postgresql", "kafka", "registry")
State = Literal["starting", "waiting", "standby", "streaming", "stopping", "down"]
STATES: Final[tuple[State, ...]] = ("starting", "waiting", "standby", "streaming", "stopping")
TITLES: Final[Mapping[PartName, str]] = {
    "postgresql": "PostgreSQL",
    "kafka": "Kafka",
    "registry": "the schema registry",
}


@dataclass(frozen=True, slots=True)
class PartStatus:
    """State of one of the three servers, as a separate probe sees it. `up` is None before the first
    probe. `since` is the time of the last change."""

    name: PartName
    address: str = ""
    up: bool | None = None
    since: float = 0.0
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class LastError:
    """The error that ended the last session. `kind` is its class (gateway/errors.py). The error has
    occurred `times` times in a row at `resume_lsn` since `since`; `times` is 0 if the error does
    not concern a place in the WAL. `over_since` is the time at which the stream was read again, or
    None until then."""

    kind: str
    message: str
    hint: str
    time: float
    times: int = 0
    since: str = ""
    resume_lsn: int = 0
    over_since: float | None = None


@dataclass(frozen=True, slots=True)
class SchemaSeen:
    """A table that was received for the first time, or with different columns from those last seen.
    `time` is 0 if unknown."""

    time: float
    relation: str
    schema_id: int
    columns: int


@dataclass(frozen=True, slots=True)
class GapSeen:
    """A gap: changes that committed between the two LSNs are lost, and a marker in Kafka records
    this."""

    first_lsn: int
    end_lsn: int
    reason: str


@dataclass(frozen=True, slots=True)
class WalRetentionCause:
    """A transaction, session or slot that prevents WAL or old rows from being removed, or makes the
    gateway wait. `kind` is transaction, prepared or slot; `pid` is 0 if there is no process.
    `retained_bytes` is the amount of WAL that a slot retains, or None if unknown. `blocks` means
    that the creation of the gateway's slot waits for this cause. `age_is_at_least` means that the
    role may not see when the transaction began: `since` is when the gateway first saw it."""

    kind: str
    name: str
    pid: int = 0
    user: str = ""
    application: str = ""
    state: str = ""
    since: float | None = None
    age_is_at_least: bool = False
    query_since: float | None = None
    xid: int | None = None
    xmin_age: int | None = None
    retained_bytes: int | None = None
    remedy: str = ""
    blocks: bool = False

    @property
    def title(self) -> str:
        """A name that distinguishes this cause from others of the same kind."""
        if not self.pid:
            return f"{'prepared transaction' if self.kind == 'prepared' else self.kind} {self.name}"
        return f"process {self.pid} ({self.application})" if self.application else f"process {self.pid}"


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The state of the slot in the server. None means unknown or unlimited."""

    name: str
    active_pid: int | None
    restart_lsn: int
    confirmed_flush_lsn: int
    wal_status: str
    safe_wal_bytes: int | None
    inactive_since: str | None = None
    sync_state: str = ""
    """The sync_state of the process that reads the slot: async; sync, quorum or potential for a
    synchronous standby. The value is "by name" if the role may not see the sync_state, but
    synchronous_standby_names matches."""


@dataclass(frozen=True, slots=True)
class RetainedWal:
    """WAL that the server retains for the slot. `limit_by` is the setting from which the limit
    comes. `seconds_to_full` is the time until the limit is reached, at the rate of the last minute.
    None means that the WAL does not grow or has no limit."""

    retained_bytes: int
    bytes_per_s: float
    limit_bytes: int | None = None
    limit_by: str = ""
    seconds_to_full: float | None = None
    wal_status: str = ""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A transaction in progress from which rows have been received."""

    xid: int
    since: float
    event_count: int


@dataclass(frozen=True, slots=True)
class TopicCount:
    """Records of a topic that have become durable in Kafka since the process began."""

    topic: str
    records: int
    bytes: int
    records_per_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Work that the current session has in progress."""

    in_flight_bytes: int = 0
    stalled_s: float = 0.0
    """The number of seconds for which Kafka has acknowledged nothing although an answer is
    awaited."""
    open_streams: tuple[OpenStream, ...] = ()
    prepared: int = 0


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """The whole status at one moment. LSNs are integers; 0 means unknown. `waiting_for` is "" while
    the stream is read and delivered."""

    time: float
    version: str
    slot_name: str
    prefix: str
    state: State
    since: float
    waiting_for: str
    waiting_since: float | None
    last_error: LastError | None
    error_count: int
    parts: tuple[PartStatus, ...]
    lag_seconds: float | None
    lag_is_at_least: bool
    lag_bytes: int | None
    undelivered_transactions: int
    server_lsn: int
    server_time: float | None
    server_lsn_age_s: float | None
    received_lsn: int
    delivered_lsn: int
    last_commit_lsn: int
    last_commit_time: float | None
    epoch: int
    in_flight_bytes: int
    streamed_transactions: tuple[OpenStream, ...]
    prepared_transactions: int
    wal: RetainedWal | None
    slot: SlotStatus | None
    blockers: tuple[WalRetentionCause, ...]
    topics: tuple[TopicCount, ...]
    """The topics with the most records, in descending order."""
    records_per_s: float
    """Records per second of all topics together."""
    heartbeat_time: float | None
    """Commit time of the newest heartbeat that the resume LSN in Kafka has passed."""

    recent_errors: tuple[LastError, ...]
    """The latest errors, oldest first. A repeated error is listed once, with the time of its last
    occurrence."""
    schemas: tuple[SchemaSeen, ...]
    """The latest changes to tables' columns, oldest first."""
    gap: GapSeen | None
    """The newest gap, as stored in the position."""
    quarantined: tuple[QuarantinedTable, ...]
    snapshot: SnapshotStatus | None
    """The state of the snapshots, or None if snapshot.mode is never or the state is not known
    yet."""
    mirrors: tuple[MirrorStatus, ...]
    """The status of each of http.mirrors."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name, in types that json.dumps accepts."""
        found: dict[str, Any] = _plain(self)
        return found


def _plain(value: Any) -> Any:
    """Convert a value as dataclasses.asdict does, but in a sixth of the time, because immutable
    values are not copied."""
    kind: Any = type(value)
    names = _field_names(kind)
    if names:
        return {name: _plain(getattr(value, name)) for name in names}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
