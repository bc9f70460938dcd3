"""Begin and end the reading of single rows by key, because events of UPDATEs lack their TOASTed
values (Debezium's format, debezium.reselect_unavailable_values).

Such a reselection is a snapshot of a table with the purpose RESELECT. It has no SNAPSHOT_BEGIN and
no SNAPSHOT_END, and reads no ranges of blocks. rules/table_progress.py decides which keys are read,
and chunk_reader.py queries their rows.
"""

from __future__ import annotations

import asyncio

from gateway.config.settings import SnapshotSettings
from gateway.snapshot.progress_log import log_missing_values
from gateway.snapshot.read_plan import ReadPlan
from gateway.snapshot.rules.keys_to_read_again import KeysToReadAgain
from gateway.snapshot.table_task import TableTask, identity_of
from gateway.snapshot.table_tasks import TableTasks
from gateway.transactions.machine import TransactionMachine
from schemas.relation import RelationDescription


class Reselection:
    """Begin and end reselections. `wake` wakes the coordinator when one begins."""

    def __init__(
        self,
        settings: SnapshotSettings,
        machine: TransactionMachine,
        tasks: TableTasks,
        wake: asyncio.Event,
        *,
        is_on: bool,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._tasks = tasks
        self._wake = wake
        self.is_on = is_on

    def left_out(self, relation_oid: int) -> bool:
        """Report that an UPDATE of the relation arrived without a value, and have its row read
        again.

        Return whether a reselection has begun, so that changes are recorded from this UPDATE on. If
        not, they were recorded already, the table will be read as a whole, or its rows cannot be
        read by key. (Earlier changes of the row need not be recorded: a PostgreSQL snapshot that
        sees this UPDATE also sees them.)
        """
        tasks = self._tasks
        task = tasks.by_oid.get(relation_oid)
        if task is not None:
            tasks.value_missed(task)
            return False
        if relation_oid not in tasks.settled and self._settings.mode == "initial":
            return False  # it was published only a moment ago, and will be read
        version = self._machine.in_force(relation_oid)
        assert version is not None
        identity = version.encoder.description.identity_columns
        if not identity or any(column.protection for column in identity):
            return False
        self.begin(version.encoder.description, KeysToReadAgain())
        return True

    def begin(self, description: RelationDescription, keys: KeysToReadAgain) -> None:
        """Begin a reselection of the rows with these keys, and of the rows whose UPDATEs leave
        values out from now on. Changes of the relation are recorded until it ends."""
        self._tasks.begin_reselection(description, keys)
        self._wake.set()

    def cancel_tables(self) -> None:
        """Cancel the snapshots of all whole tables; reselections go on. Rows whose UPDATEs left
        values out are still read if their keys are recorded; tables with other such rows are
        logged."""
        missing = []
        for task in self._tasks.whole_tables:
            if self.is_on and task.may_miss_values:
                missing.append(task.full_name)
            plan = task.plan or task.failed[1]
            keys = self._tasks.cancel_keeping_keys(task)
            if keys:
                assert plan is not None
                self.begin(plan.version.encoder.description, keys)
        self._tasks.snapshot.end()
        if missing:
            log_missing_values(missing)


def has_its_keys(task: TableTask, plan: ReadPlan) -> bool:
    return task.state.fingerprint == identity_of(plan.version.encoder.description)
