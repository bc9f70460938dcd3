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
from gateway.snapshot.progress_log import tell_owing
from gateway.snapshot.read_plan import ReadPlan
from gateway.snapshot.rules.key_segments import KeyList
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
        noting: ChangeRecorder,
        readings: TableTasks,
        wake: asyncio.Event,
        *,
        is_on: bool,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._noting = noting
        self._readings = readings
        self._wake = wake
        self.is_on = is_on

    def left_out(self, relation_oid: int) -> bool:
        """Note that an UPDATE of the relation came without a value, and have its row read again.

        Returns whether changes are recorded from this one on. Otherwise they were recorded already,
        or the table will be read as a whole. (Earlier changes of the row need not be known: a
        PostgreSQL snapshot that sees this one sees them, too.)
        """
        reading = self._readings.by_oid.get(relation_oid)
        if reading is not None:
            reading.misses_keys = reading.misses_keys or not reading.notes_keys
            return False
        if relation_oid not in self._readings.known and self._settings.mode == "initial":
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
        assert self._noting.judge is not None
        reading = reselection(description)
        self._readings.by_oid[description.oid] = self._readings.begun[description.oid] = reading
        table = reading.reselect(self._noting.judge, self._settings.chunk_bytes, keys)
        self._noting.begin(reading.oid, table, [])
        self._wake.set()

    def read_whole(self, reading: TableTask) -> None:
        """Read the whole table instead, because there are too many keys, or keys of other
        columns."""
        if reading.table is not None:
            reading.void_segments += reading.table.again.take_dirty()
            reading.table = None
        self._readings.begin_snapshot(1)
        reading.recipe, reading.misses_keys = None, True
        snapshot_id = self._readings.snapshot_id
        reading.state = replace(reading.state, snapshot_id=snapshot_id, purpose="REPLACE", fingerprint="")

    def cancel_tables(self) -> None:
        """Cancel all snapshots. Rows whose UPDATEs left values out are still read if their keys are
        recorded; tables with other such rows are logged."""
        owing = []
        for reading in self._readings.whole_tables:
            if self.is_on and reading.may_owe_more:
                owing.append(reading.full_name)
            keys = reading.take_owed()
            self._readings.cancel(reading.oid)
            recipe = reading.recipe or reading.failed_recipe
            if keys:
                assert recipe is not None
                self.begin(recipe.version.encoder.description, keys)
        self._readings.snapshot_id = ""
        if owing:
            tell_owing(owing)


def has_its_keys(reading: TableTask, made: ReadPlan) -> bool:
    return reading.state.fingerprint == identity_of(made.version.encoder.description)
