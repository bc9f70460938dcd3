"""State that one session leaves to the next ones of the process."""

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
    """End of a session's stream. `recovery` distinguishes one crash recovery of the server from
    another. `has_passed` means that all WAL was received that existed when the session began. Every
    transaction that commits before `received_until` was received."""

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
    """Values are requested in text format: one has no binary form, or a binary form without a
    decoder."""
    careful_until: Lsn = Lsn(0)  # noqa: RUF009  # an int
    """Up to this LSN, transactions are delivered one by one: a transaction after it needs the
    operator."""
    optional_fields: set[tuple[int, str]] = field(default_factory=set)
    """(relation oid, column) of columns that are NOT NULL now, but were not when a row was
    written."""
    timed_out_lsn: Lsn | None = None
    """Resume LSN after which a transaction took longer than kafka.transaction_timeout_s."""
    whole_once: bool = False
    """The next session reads without streaming of in-progress transactions: while they are
    streamed, it is unknown which messages are rolled back, and at which LSN a transaction
    commits."""
    partitions_have_topics: bool = False
    """Partitions get topics even if their roots are published: rows of one were sent as its own."""
    quarantine: dict[int, Quarantined] = field(default_factory=dict)
    """Relations in quarantine that the position does not contain yet, by oid."""
    reported: Reported | None = None
    """The server's report of missing changes or WAL, or of a place in the WAL that it cannot
    send."""
    cut: StreamEnd | None = None
    """End of the previous session's stream, if it ended without a message from the server and it is
    not known yet whether the server had crashed."""
    moment: int = 0
    position: Position | None = None
    """The position with which the last session began."""
    released: ReleasedWal | None = None
    """WAL that was given up and is not recorded in Kafka yet."""
    release_again_at: float = 0.0
    """Monotonic time before which the slot is not advanced again."""
    left_behind: list[Address] = field(default_factory=list)
    """Hosts of the DSN that are old primaries or standbys, the latest last: the others are tried
    first."""

    def avoid(self, address: Address) -> None:
        self.left_behind = [*(each for each in self.left_behind if each != address), address]

    def next_moment(self) -> int:
        self.moment += 1
        return self.moment
