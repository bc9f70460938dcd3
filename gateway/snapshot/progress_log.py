"""Log messages about snapshots. They are infrequent, and have a hint if the operator can do
something."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from gateway.names import qualified
from gateway.snapshot.commands import Choice
from gateway.snapshot.table_task import TableTask
from gateway.startup.role_checks import KEY_OR_MEMORY, KEYLESS_BYTES
from schemas.topic_names import format_relation

log = structlog.get_logger()

PROGRESS_S: Final = 10.0
NAMED_TABLES: Final = 10
CHANGED_ATTEMPTS: Final = 3
"""The number of attempts to read a table as a whole, during which it changed, after which it is
named in the log and, if snapshot.may_lock is true, locked."""
WAITS_S: Final = 10.0
"""Seconds after which waiting for transactions to end is logged."""


def _listed(names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an event that name tables: their number, and the first ones."""
    return {"count": len(names), "tables": names[:NAMED_TABLES]}


def log_read_before(names: Sequence[str]) -> None:
    """Log the tables that are not read because changes were delivered before the first snapshot, by
    this gateway or by the connector that it replaced. This is called only once, since their state
    NOT_TO_BE_READ is stored."""
    log.warning(
        "tables_not_read",
        **_listed(names),
        reason="changes were delivered before the first snapshot, by this gateway or by the connector that it replaced: "
        "consumers may already have these rows",
        hint="to read them, run `walgate snapshot start schema.table`; tables that are published later are "
        "read automatically",
    )


def log_quarantined(names: Sequence[str]) -> None:
    log.warning(
        "tables_not_read",
        **_listed(names),
        reason="these tables are in quarantine",
        hint="correct the cause, run `walgate readmit schema.table`, then `walgate snapshot start schema.table`",
    )


def log_choice(choice: Choice) -> None:
    """Log the tables that a `start` command leaves out."""
    if choice.quarantined:
        log_quarantined(choice.quarantined)
    if choice.unknown:
        log.warning("tables_not_published", tables=choice.unknown)
    if choice.unfinished:
        log.warning(
            "tables_not_verified",
            tables=choice.unfinished,
            reason="a snapshot that delivers these tables' rows has not ended",
            hint="this verification leaves these tables out: wait until their snapshot has ended (walgate snapshot "
            "status), then run the command again",
        )


def log_read_at_once(task: TableTask) -> None:
    """Log a table that is read as a whole although it has a key, or although it is large. Its size
    is an estimate of the server."""
    assert task.plan is not None
    surveyed, hint = task.plan.surveyed, ""
    size_bytes = sum(leaf.blocks for leaf in surveyed.leaves) << 13
    if task.plan.has_array_key:
        reason = "its key contains an array: a mirror has it as an append-only table, which only a whole can replace"
    elif not task.plan.key_columns and size_bytes <= KEYLESS_BYTES and (surveyed.foreign_names or surveyed.is_heap):
        return
    elif surveyed.foreign_names:
        reason = f"it has foreign partitions, which have no ranges of blocks: {', '.join(surveyed.foreign_names)}"
    elif not surveyed.is_heap:
        reason = "its table access method is not heap, so it cannot be read in ranges of blocks"
    elif not surveyed.has_places:
        reason = "the role may read columns of the table, but not ctid, so it cannot be read in ranges of blocks"
        hint = (
            f"GRANT SELECT (ctid) ON {qualified(task.state.schema, task.state.name)} TO <role> (also on its partitions)"
        )
    elif not task.plan.key_columns:
        reason, hint = "it has no key: its rows are held in memory until all of them are read", KEY_OR_MEMORY
    else:
        return
    log.warning("table_read_in_one_transaction", table=task.full_name, size_bytes=size_bytes, reason=reason, hint=hint)


def log_unsent_updates(tasks: Sequence[TableTask], origin: str) -> None:
    """Log tables whose UPDATEs are not all sent, unless they are read in one chunk. `origin` is the
    setting source.origin."""
    plans = {task.full_name: task.plan for task in tasks if task.plan is not None and not task.plan.is_read_at_once}
    unsent = [name for name, plan in plans.items() if not plan.surveyed.sends_updates]
    reason, hint = "no publication publishes UPDATEs of these tables", "publish UPDATEs"
    if origin == "none":
        unsent, hint = [*plans], "set source.origin = any"
        reason = "source.origin is none: UPDATEs that a subscription of the source applies are not sent"
    if unsent:
        log.warning(
            "updates_not_sent",
            **_listed(unsent),
            reason=f"{reason}. A row that one of them moves while the table is read may be missing in copies",
            hint=f"{hint}, or take a snapshot while no row of the tables is updated in this way",
        )


def log_locked(names: Sequence[str], again_in_s: float) -> None:
    """Log tables that are not read yet because another session has locked them."""
    if names:
        log.info(
            "tables_locked",
            **_listed(names),
            again_in_s=again_in_s,
            note="another session has locked these tables (pg_locks shows it), so their row filters cannot be read; "
            "other tables are read meanwhile",
        )


def log_unreadable(tasks: Sequence[TableTask]) -> None:
    """Log the tables without which the snapshot of the others ends. Those with the purpose VERIFY
    are not tried again."""
    unread = [task.full_name for task in tasks if task.state.purpose != "VERIFY"]
    unverified = [task.full_name for task in tasks if task.state.purpose == "VERIFY"]
    reason = "PostgreSQL cannot read these tables (table_unreadable says why)"
    if unread:
        log.warning(
            "tables_not_read",
            **_listed(unread),
            reason=f"{reason}: the snapshot of the others ends without them",
            hint="correct the cause: the tables are then read without a command",
        )
    if unverified:
        log.warning(
            "tables_not_verified",
            **_listed(unverified),
            reason=f"{reason}: their verification is canceled",
            hint="correct the cause, then run the command again",
        )


def log_unreachable(table: str, partitions: Sequence[str]) -> None:
    log.warning(
        "partitions_not_read",
        table=table,
        count=len(partitions),
        partitions=[name.replace('"', "") for name in partitions[:NAMED_TABLES]],
        reason="PostgreSQL cannot read these foreign tables: the table is read without their rows",
        hint=f"when they can be read, `walgate snapshot start {shlex.quote(table)}` reads the table with their rows",
    )


def log_unsent(schema: str, table: str, reason: str, *, reads: bool) -> None:
    name = format_relation(schema, table)
    if reads:
        log.warning("table_read_again", table=name, reason=f"{reason}: PostgreSQL sends no changes for its rows")
    else:
        hint = f"`walgate snapshot start {shlex.quote(name)}` reads the table again"
        log.warning(
            "rows_not_sent", table=name, reason=f"{reason}: PostgreSQL sends no changes for its rows", hint=hint
        )


def log_unsent_at_all(schema: str, table: str, reason: str) -> None:
    name = format_relation(schema, table)
    log.warning(
        "rows_not_sent",
        table=name,
        reason=f"{reason}: PostgreSQL sends no changes for its rows",
        hint="to read the table again, set snapshot.mode = on_command, restart the gateway, and run "
        f"`walgate snapshot start {shlex.quote(name)}`",
    )


def log_missing_values(names: Sequence[str]) -> None:
    log.warning(
        "values_not_sent",
        **_listed(names),
        reason="the snapshots of these tables were canceled: values that earlier UPDATE events left out might never be sent",
        hint="`walgate snapshot start schema.table` reads a table with all its values",
    )


def log_changed(task: TableTask, *, may_lock: bool) -> None:
    """Log that the table changed while it was read as a whole, after the third such attempt, then
    after the 6th, 12th, 24th, ..."""
    count = task.changed_count
    if count % CHANGED_ATTEMPTS or (count // CHANGED_ATTEMPTS) & (count // CHANGED_ATTEMPTS - 1):
        return
    lock = "set snapshot.may_lock = true, which makes writers wait and requires the UPDATE privilege on the table"
    has_key = task.plan is not None and task.plan.key_columns
    hint = "" if may_lock else lock if has_key else f"add a primary key, or {lock}"
    log.warning("table_changes_while_read", table=task.full_name, attempts=count, hint=hint)


class WaitReasons:
    """Log, at most every `WAITS_S` seconds, that readers wait for transactions that the snapshot
    must see."""

    def __init__(self) -> None:
        self._since: float | None = None

    def log(self) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since >= WAITS_S:
            self._since = now
            log.info(
                "snapshot_waits",
                note="waiting for transactions that were in progress when the snapshot began, or that are waiting "
                "for a synchronous standby",
            )

    def end(self) -> None:
        self._since = None


class ProgressLog:
    """Log the progress of all tables that are being read, at most every `PROGRESS_S` seconds."""

    def __init__(self) -> None:
        self._logged_at = 0.0
        self._logged_rows = 0

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._logged_at >= PROGRESS_S

    def log(self, tables_left: int, rows: int, keys_to_read_again: int, pause_fields: Mapping[str, object]) -> None:
        now = time.monotonic()
        log.info(
            "snapshot_progress",
            tables_left=tables_left,
            rows=rows,
            rows_per_s=round((rows - self._logged_rows) / (now - self._logged_at)) if self._logged_at else 0,
            keys_to_read_again=keys_to_read_again,
            **pause_fields,
        )
        self._logged_at, self._logged_rows = now, rows
