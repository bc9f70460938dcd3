"""State that one session of the process leaves to the next ones.

An error that changes what the next session does declares this itself: its method `change` (see
WalgateError) calls methods of `SessionMemory`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from gateway.postgres.asyncpg_internals import Address
from gateway.postgres.server import Recovery
from gateway.startup.findings import OperatorWarning
from gateway.startup.repeated_failure import DecodingFailed, RepeatedFailure, counted_again
from gateway.startup.server_notices import Reported, WalRemoved
from gateway.startup.wal_release import ReleasedWal
from gateway.transactions.position import Position
from gateway.transactions.transaction import Quarantined
from schemas.lsn import Lsn


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a session's stream. `recovery` distinguishes one crash recovery of the server from
    another. `has_passed` means that the session received all WAL that existed when it began. Every
    transaction that commits before `received_until` was received."""

    message: str
    resume_lsn: Lsn
    recovery: Recovery
    has_passed: bool
    received_until: Lsn


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The end of a session that an error has ended. The session began after `begun_lsn`, and the
    next session resumes at `resume_lsn`. `has_passed` means the same as in StreamEnd. `reads_whole`
    means that in-progress transactions were not streamed."""

    begun_lsn: int = 0
    resume_lsn: Lsn = Lsn(0)  # noqa: RUF009  # an int
    has_passed: bool = False
    reads_whole: bool = False
    server: Address | None = None


@dataclass(slots=True)
class SessionMemory:
    seen_topics: set[str] = field(default_factory=set)
    logged: set[OperatorWarning] = field(default_factory=set)
    text_only: bool = False
    """Whether values are requested in text format, because a value has no binary form, or its
    binary form has no decoder."""
    careful_until: Lsn = Lsn(0)  # noqa: RUF009  # an int
    """The LSN up to which transactions are delivered one by one, because a transaction after it
    needs the operator, or crashes the server."""
    optional_fields: set[tuple[int, str]] = field(default_factory=set)
    """The pairs (relation oid, column) of columns that are NOT NULL now, but were not when a row
    was written."""
    timed_out_lsn: Lsn | None = None
    """The resume LSN after which a transaction took longer than kafka.transaction_timeout_s."""
    whole_once: bool = False
    """Whether the next session reads without streaming of in-progress transactions. While a
    transaction is streamed, it is unknown which of its messages are rolled back, and at which LSN
    it commits."""
    whole_for_messages: bool = False
    """Whether the reason for `whole_once` is that messages were rolled back."""
    partitions_have_topics: bool = False
    """Whether partitions get topics even if their roots are published, because a partition has sent
    rows as its own."""
    quarantine: dict[int, Quarantined] = field(default_factory=dict)
    """Relations in quarantine that the position does not contain yet, by oid."""
    reported: Reported | None = None
    """The server's report of missing changes or WAL, or of a place in the WAL that it cannot
    send."""
    cut: StreamEnd | None = None
    """The end of the previous session's stream, if it ended without a message from the server and
    it is not known yet whether the server had crashed."""
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
    ended: SessionEnd = field(default_factory=SessionEnd)
    """The end of the last session, for the methods that errors call."""
    silence_limits_s: dict[Lsn, float] = field(default_factory=dict)
    """The resume LSN of the last session that has met silence, with the limit for the next one that
    begins there."""
    repeated_failure: RepeatedFailure | None = None
    """The failure that kept the last session from getting past a place in the WAL."""

    def silence_limit_s(self, resume_lsn: Lsn) -> float | None:
        """Return the limit for a stream that resumes at this LSN, or None for the usual one
        (StandbyStatus)."""
        return self.silence_limits_s.get(resume_lsn)

    def wait_for_answers(self, silence_limit_s: float) -> None:
        if not self.ended.has_passed:  # otherwise, the server was not decoding WAL that is old
            self.silence_limits_s = {self.ended.resume_lsn: silence_limit_s}

    def read_as_text(self) -> None:
        self.text_only = True

    def read_whole(self, *, for_messages: bool = False) -> None:
        self.whole_once, self.whole_for_messages = True, for_messages

    def deliver_one_by_one(self, until_lsn: Lsn) -> None:
        self.careful_until = until_lsn
        self.whole_once = self.ended.reads_whole

    def make_optional(self, relation_oid: int, column: str) -> None:
        self.optional_fields.add((relation_oid, column))

    def give_topics_to_partitions(self) -> None:
        self.partitions_have_topics = True

    def quarantine_relation(self, relation: Quarantined) -> None:
        self.quarantine[relation.relation_oid] = relation

    def avoid_server(self) -> None:
        server = self.ended.server
        if server is not None:
            self.left_behind = [*(address for address in self.left_behind if address != server), server]

    def remember_report(self, reported: Reported) -> None:
        """Store a report. Reports of removed WAL and of failed decoding are counted while the
        resume LSN stays the same."""
        before, ended = self.reported, self.ended
        if isinstance(reported, WalRemoved):
            earlier = before.times if isinstance(before, WalRemoved) and before.resume_lsn == ended.begun_lsn else 0
            reported = replace(reported, resume_lsn=ended.begun_lsn, times=earlier + 1)
        elif isinstance(reported, DecodingFailed):
            reported = self.count(reported, ended.resume_lsn, has_passed=ended.has_passed)
            self.repeated_failure = reported
        self.reported = reported

    def count(self, failure: RepeatedFailure, resume_lsn: Lsn, *, has_passed: bool) -> RepeatedFailure:
        """Return the failure with the number of times that it has occurred at this resume LSN."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return counted_again(self.reported, failure, resume_lsn, now, has_passed=has_passed)

    def next_moment(self) -> int:
        self.moment += 1
        return self.moment
