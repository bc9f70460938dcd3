"""Reads single rows by key, because UPDATEs left TOASTed values out of their events (Debezium's
format, debezium.reselect_unavailable_values).

Such a reading is a snapshot of a table with the purpose RESELECT. It has no SNAPSHOT_BEGIN and no
SNAPSHOT_END, and reads no ranges of blocks. rules/table_progress.py decides which keys are read,
and chunk_reader.py queries their rows.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.config.settings import SnapshotSettings
from gateway.snapshot.change_recorder import ChangeRecorder
from gateway.snapshot.progress_log import log_owing
from gateway.snapshot.read_plan import ReadPlan
from gateway.snapshot.rules.keys_to_read_again import KeyList
from gateway.snapshot.table_task import TableTask, identity_of, reselection
from gateway.snapshot.table_tasks import TableTasks
from gateway.transactions.machine import TransactionMachine
from schemas.relation import RelationDescription


class Reselection:
    """Begins and ends reselections. `wake` wakes the coordinator when one begins."""

    def __init__(
        self,
        settings: SnapshotSettings,
        machine: TransactionMachine,
        recorder: ChangeRecorder,
        tasks: TableTasks,
        wake: asyncio.Event,
        *,
        is_on: bool,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._recorder = recorder
        self._tasks = tasks
        self._wake = wake
        self.is_on = is_on

    def left_out(self, relation_oid: int) -> bool:
        """Note that an UPDATE of the relation came without a value, and have its row read again.

        Returns whether changes are recorded from this one on. Otherwise they were recorded already,
        or the table will be read as a whole. (Earlier changes of the row need not be known: a
        PostgreSQL snapshot that sees this one sees them, too.)
        """
        task = self._tasks.by_oid.get(relation_oid)
        if task is not None:
            task.misses_keys = task.misses_keys or not task.notes_keys
            return False
        if relation_oid not in self._tasks.known and self._settings.mode == "initial":
            return False  # it was published only a moment ago, and will be read
        version = self._machine.in_force(relation_oid)
        assert version is not None
        identity = version.encoder.description.identity_columns
        if not identity or any(column.protection for column in identity):
            return False
        self.begin(version.encoder.description, KeyList())
        return True

    def begin(self, description: RelationDescription, keys: KeyList) -> None:
        """Begin a reselection of these keys, and of those that UPDATEs leave values out of from now
        on. Changes of the relation are recorded until it ends."""
        assert self._recorder.judge is not None
        task = reselection(description)
        self._tasks.by_oid[description.oid] = self._tasks.begun[description.oid] = task
        table = task.reselect(self._recorder.judge, self._settings.chunk_bytes, keys)
        self._recorder.begin(task.oid, table, [])
        self._wake.set()

    def read_whole(self, task: TableTask) -> None:
        """Read the whole table instead, because there are too many keys, or keys of other
        columns."""
        if task.table is not None:
            task.void_segments += task.table.again.take_dirty()
            task.table = None
        self._tasks.begin_snapshot(1)
        task.plan, task.misses_keys = None, True
        snapshot_id = self._tasks.snapshot_id
        task.state = replace(task.state, snapshot_id=snapshot_id, purpose="REPLACE", fingerprint="")

    def cancel_tables(self) -> None:
        """Cancel all snapshots. Rows whose UPDATEs left values out are still read if their keys are
        recorded; tables with other such rows are logged."""
        owing = []
        for task in self._tasks.whole_tables:
            if self.is_on and task.may_owe_more:
                owing.append(task.full_name)
            keys = task.take_owed()
            self._tasks.cancel(task.oid)
            plan = task.plan or task.failed_plan
            if keys:
                assert plan is not None
                self.begin(plan.version.encoder.description, keys)
        self._tasks.snapshot_id = ""
        if owing:
            log_owing(owing)


def has_its_keys(task: TableTask, plan: ReadPlan) -> bool:
    return task.state.fingerprint == identity_of(plan.version.encoder.description)
