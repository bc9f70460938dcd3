"""What one session leaves to the next ones of the process."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.postgres.asyncpg_internals import Address
from gateway.postgres.server import Recovery
from gateway.startup.findings import OperatorWarning
from gateway.startup.server_notices import Reported
from gateway.startup.wal_budget import ReleasedWal
from gateway.transactions.position import Position
from gateway.transactions.transaction import Quarantined
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Where and how the stream of a session ended. `recovery`: what tells one crash recovery of the
    server from another; `has_passed`: all WAL had been received that was there when the session
    began; `received_until`: all transactions that commit before it were."""

    message: str
    resume_lsn: Lsn
    recovery: Recovery
    has_passed: bool
    received_until: Lsn


@dataclass(slots=True)
class RestartState:
    seen_topics: set[str] = field(default_factory=set)
    logged: set[OperatorWarning] = field(default_factory=set)
    text_only: bool = False
    """A value has no binary form, or one that has no decoder."""
    careful_until: Lsn = Lsn(0)  # noqa: RUF009  # an int
    """Up to there transactions are delivered one by one: after it something needs an operator."""
    optional_fields: set[tuple[int, str]] = field(default_factory=set)
    """(relation oid, column) of columns that are NOT NULL now and were not when a row was
    written."""
    timed_out_behind: Lsn | None = None
    """The transaction that begins there outlived its Kafka transaction."""
    whole_once: bool = False
    """The next session reads without streaming: in a stream, it is unknown which messages were
rolled back."""
    partitions_have_topics: bool = False
    """Also where their roots are published: rows of one came as its own."""
    quarantine: dict[int, Quarantined] = field(default_factory=dict)
    """Relations that the position does not name yet."""
    reported: Reported | None = None
    """What the server said of changes or WAL that are missing, or of a place in the WAL that it
cannot send."""
    cut: StreamEnd | None = None
    """The stream of the session before ended without a word of the server, and it is not known yet
whether that had crashed."""
    moment: int = 0
    position: Position | None = None
    """With which the last session began."""
    released: ReleasedWal | None = None
    """WAL that was given up, and Kafka does not know yet."""
    release_again_at: float = 0.0
    """Monotonic time before which the slot is not moved on again."""
    left_behind: list[Address] = field(default_factory=list)
    """Hosts of the DSN that a failover left behind, the latest last: the others are tried first."""

    def avoid(self, address: Address) -> None:
        self.left_behind = [*(each for each in self.left_behind if each != address), address]

    def next_moment(self) -> int:
        self.moment += 1
        return self.moment
