"""Errors of one table: the gateway continues without the table, or stops and names the operator's
choices."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from gateway.config.settings import ErrorSettings
from gateway.errors import InternalError, NextSession, Retry, StopForOperator, UnwritableRelation
from gateway.events.errors import KeyNotSent, UnreadableValue
from gateway.kafka.batches import RecordTooLarge
from gateway.kafka.topics import Name
from gateway.pgoutput.errors import PgOutputError
from gateway.snapshot.table_errors import UnwritableTable
from gateway.transactions.transaction import Quarantined
from schemas.lsn import Lsn

_OF_TABLE: Final = (UnwritableRelation, PgOutputError, InternalError)
_REASONS: Final[dict[type, str]] = {
    UnwritableRelation: "its schema was rejected",
    RecordTooLarge: "a row is larger than kafka.max_record_bytes",
    UnreadableValue: "a value cannot be read",
    KeyNotSent: "a row was received without its key",
    PgOutputError: "a row message cannot be read",
    InternalError: "a bug in the gateway",
}
"""Reasons shown to readers of the manifest and to the operator: without names and values."""


class QuarantineRelation(Retry):
    """Begin again without the table `relation`."""

    def __init__(self, error: StopForOperator, relation: Quarantined) -> None:
        since = "this transaction on" if relation.since_lsn else "now on"
        super().__init__(
            f"{error.message}; {relation.full_name} is in quarantine from {since}",
            hint="streaming continues without the table. To remove the cause: "
            f"{error.hint.rstrip('.') or relation.reason}. Then run walgate readmit {shlex.quote(relation.full_name)}, and "
            "take a new snapshot of the table",
        )
        self.relation = relation

    def change(self, next_session: NextSession) -> None:
        next_session.quarantine_relation(self.relation)


class QuarantinePolicy:
    """Decide by `rules` how an error in a table is handled. `topic_of` returns the topic of a
    table. `records_exclusions` means that readers can see what was left out."""

    def __init__(self, rules: ErrorSettings, topic_of: Callable[[Name], str], *, records_exclusions: bool) -> None:
        self._rules = rules
        self._topic_of = topic_of
        self._records_exclusions = records_exclusions

    def of_change(self, error: StopForOperator, name: Name, commit_lsn: Lsn, resume_lsn: Lsn) -> None:
        """Judge `error`, which was raised in the transaction that commits (or was prepared) at
        `commit_lsn`. Everything up to `resume_lsn` has been delivered. Raises QuarantineRelation,
        or adds the operator's choices to the hint of `error`."""
        if error.relation_oid is None or not isinstance(error, _OF_TABLE):
            return
        self._quarantine(error, error.relation_oid, name, commit_lsn)
        skip = (
            "to continue without this transaction (its changes, including those of other tables, are then not written to Kafka), "
            f"run walgate skip --lsn {commit_lsn} (docs/quarantine.md)"
        )
        # walgate skip refuses an LSN before the resume LSN. A transaction that was prepared before
        # two_phase was enabled has one: it is sent at its COMMIT PREPARED, with its prepare LSN.
        self._name_ways(error, name, *([skip] if commit_lsn >= resume_lsn else []))

    @contextmanager
    def of_snapshot(self) -> Iterator[None]:
        """Judge errors of the code in the context, which reads tables. Raises QuarantineRelation,
        which takes effect with the first transaction of the next session, or the error itself, with
        the operator's choices in its hint."""
        try:
            yield
        except UnwritableTable as found:
            error = found.error
            error.message = found.message
            error.args = (error.message,)
            self._quarantine(error, found.oid, found.name, Lsn(0))
            self._name_ways(error, found.name)
            raise error from found

    def _quarantine(self, error: StopForOperator, relation_oid: int, name: Name, since_lsn: Lsn) -> None:
        if self._rules.on_error_of(".".join(name)) == "quarantine":
            reason = _REASONS.get(type(error), type(error).__name__)
            relation = Quarantined(relation_oid, *name, self._topic_of(name), reason, since_lsn)
            raise QuarantineRelation(error, relation) from error

    def _name_ways(self, error: StopForOperator, name: Name, *more: str) -> None:
        ways = [error.hint.rstrip(".")] if error.hint else []
        if self._records_exclusions:
            ways.append(
                "to continue without the table, quarantine it (its changes are then not written to Kafka): under "
                f'[[errors.tables]], set a pattern that matches {".".join(name)}, and on_error = "quarantine"'
            )
        error.hint = ". Or, ".join((*ways, *more))
