"""The errors of the gateway, classified by what happens next.

    WalgateError
    +-- Retry             transient: start again from the durable position, with backoff
        +-- NeedsText     and request text, not binary
        +-- SlotInUse     when another process no longer reads the slot, as a standby gateway does
    +-- RetrySlowly       needs a change elsewhere, which others may make (no free slot, password):
                          start again with a backoff of up to a minute
    +-- StopForOperator   needs the operator: configuration, incompatible schema, anything unknown
        +-- UnwritableRelation    concerns one relation, which may be put into quarantine
        +-- DataGap       continuing would silently lose rows
        +-- InternalError a defect that was met while a message was processed

Any other exception is a defect elsewhere, and ends the process with exit code 1. An error after
which the next session must act differently has a method `change`. Messages name the place (message
type, relation, column, LSN), but never a row value or a secret. The constants are hints that
several errors share: the operator's choices after data was lost (docs/gap.md).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

_BEHIND_A_GAP: Final = (
    "either {} and records the gap (the slot's name and the topic prefix stay the same), or use a new "
    "source.slot and a new kafka.prefix, in which case the old slot, if it still exists, must be dropped. Then, in either "
    "case, start the gateway and take a new snapshot of the tables (docs/gap.md)"
)
_RUN_UNTIL_NOW: Final = (
    "run walgate accept-gap --until-now, which drops and recreates the slot, discards all committed changes that have not been "
    "delivered,"
)
ACCEPT_GAP: Final = _BEHIND_A_GAP.format("run walgate accept-gap, which accepts the loss")
UNTIL_NOW: Final = _BEHIND_A_GAP.format(_RUN_UNTIL_NOW)
UNTIL_NOW_BEHIND_RESUME_LSN: Final = _BEHIND_A_GAP.format(
    f"wait until the server's WAL has passed the resume LSN and then {_RUN_UNTIL_NOW}"
)
NEW_PREFIX: Final = (
    "use a new source.slot and a new kafka.prefix, drop the old slot (SELECT pg_drop_replication_slot('...')), start the gateway "
    "and take a new snapshot of the tables"
)
REPORT: Final = "report the error with the versions of PostgreSQL and of the gateway, and do not drop the slot"


class NextSession(Protocol):
    """The part of the next session that errors may change (gateway/runtime/session_memory.py)."""

    def read_as_text(self) -> None:
        """Request values in text format."""
        ...

    def read_whole(self, *, for_messages: bool = False) -> None:
        """Read once without streaming of in-progress transactions. `for_messages`: some of their
        messages were rolled back."""
        ...

    def deliver_one_by_one(self, until_lsn: Any) -> None:
        """Deliver transactions up to this LSN one by one."""
        ...

    def make_optional(self, relation_oid: int, column: str) -> None:
        """Make the field of a column optional."""
        ...

    def give_topics_to_partitions(self) -> None:
        """Give each table partition a topic of its own, even if its root is published."""
        ...

    def quarantine_relation(self, relation: Any) -> None:
        """Put a relation (transactions.Quarantined) into quarantine."""
        ...

    def remember_report(self, reported: Any) -> None:
        """Remember the report from the server (startup.Reported), so that the next start can judge
        it."""
        ...

    def avoid_server(self) -> None:
        """Try the other hosts of the DSN first."""
        ...

    def wait_for_answers(self, silence_limit_s: float) -> None:
        """Take the server's silence for a failure only after this time, if the stream resumes at
        the same LSN."""
        ...


class WalgateError(Exception):
    """The base class of all errors. `hint` says what the operator can do: a sentence, an SQL
    statement or a setting."""

    relation_oid: int | None = None
    """The oid of the relation whose row or Relation message was being read, or None for any other
    message."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def change(self, next_session: NextSession) -> None:
        """Change the next session, so that it does not fail in the same way. Most errors change
        nothing."""


class Retry(WalgateError):
    """A transient error: everything starts again from the durable position."""


class NeedsText(Retry):
    """A value has no binary form, or its binary form is not known."""

    def change(self, next_session: NextSession) -> None:
        next_session.read_as_text()


class SlotInUse(Retry):
    """Another process reads the slot. While that is so, this gateway is a standby gateway."""


class RetrySlowly(WalgateError):
    """An error whose cause the gateway cannot repair, but which others may repair while the gateway
    waits."""


class StopForOperator(WalgateError):
    """An operator must make a decision; nothing is lost while the slot waits."""


class UnwritableRelation(StopForOperator):
    """A row or the description of one relation cannot be written; all other relations could
    continue."""


class DataGap(StopForOperator):
    """The stream cannot be continued without losing changes."""


class InternalError(StopForOperator):
    """An exception that was not raised on purpose. That exception is only chained, not quoted,
    because its text may contain a row's value."""
