"""Every error that the gateway raises on purpose, classed by what happens next.

    WalgateError
    +-- Retry             transient: start again from the durable position, with backoff
        +-- NeedsText     and ask for text, not for binary
    +-- RetrySlowly       needs a change elsewhere that may come by itself (slots full, password): back off up to a minute
    +-- StopForOperator   needs a person: configuration, incompatible schema, anything that is not known
        +-- UnwritableRelation    of one relation only, which may be put into quarantine
        +-- DataGap       going on would silently lose rows
        +-- Defect        what is not raised on purpose

An exception that is none of these is a defect of ours too. Messages name the place
(message type, relation, column, LSN) and never a row value or a secret.
"""

from __future__ import annotations

from typing import Final

_BEHIND_A_GAP: Final = (
    "either {} and writes a GAP marker for consumers (the slot's name and the topic prefix stay the same), or use a new "
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


class WalgateError(Exception):
    """`hint` is what the operator can do: one sentence, an SQL statement or a setting."""

    relation_oid: int | None = None
    """Of the row or Relation message that was being read, where there was one."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class Retry(WalgateError):
    """Transient: everything starts again from the durable position."""


class NeedsText(Retry):
    """A value has no binary form, or one that is not known."""


class RetrySlowly(WalgateError):
    """Not ours to repair, but may be repaired while we wait."""


class StopForOperator(WalgateError):
    """An operator must decide; nothing is lost while the slot waits."""


class UnwritableRelation(StopForOperator):
    """A row or a description of one relation cannot be written; every other relation could go
    on."""


class DataGap(StopForOperator):
    """The stream cannot be continued without losing changes."""


class InternalError(StopForOperator):
    """What the gateway does not raise on purpose. It is only chained, for its own text may quote a
    row's value."""
