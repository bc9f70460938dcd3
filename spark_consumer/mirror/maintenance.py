"""Compaction and removal, so that the files, logs and manifest of a mirror do not grow with its
age.

manifest   versions of the mirror that were recorded before the retention began are removed, except
           the newest of them: reads as of the beginning of the retention start from it
changes    changes that this version contains are removed; small files are compacted after merges,
           in two sizes, so that a change is rewritten about twice; checkpoints of the log are
           written
tables     log entries and files that no remaining version needs are removed; small files are
           compacted as those of `changes`, after every _LOOK_EVERY versions of a table, unless the
           user has turned Delta's auto compaction off

The auto compaction of Delta is only used for the mirror's other tables. It would rewrite a table
after the first write of each process, and again and again while it is smaller than 128 MB.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession

from spark_consumer.jvm import cloned
from spark_consumer.mirror import changes, version_manifest
from spark_consumer.mirror.paths import changes_path, manifest_path, table_path
from spark_consumer.mirror.retention import RETENTION_S
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.tables import TableName

_EVERY_S = 3600.0
_FOREVER_S = 1e9
# Number of versions of a table between checks of its files.
_LOOK_EVERY = 16


@dataclass
class Maintenance:
    """Maintenance of the mirror at `path`, done by the process that merges it. `run_if_due` only
    reports errors; the other methods raise them."""

    path: str
    retention_s: float = RETENTION_S
    _grown: set[str] = field(default_factory=set, init=False)  # locations of tables whose files have to be checked
    _due: float = field(default=-math.inf, init=False)
    _failed: set[str] = field(default_factory=set, init=False)  # steps that failed since a removal was last due
    _session: SparkSession | None = field(default=None, init=False)

    def run_if_due(self, spark: SparkSession, tables: Iterable[str], *, compacts: bool) -> tuple[str, ...]:
        """Remove what is older than the retention, about once an hour, or once in `retention_s` if
        that is less, unless there were few merges since (see `remove`). Compact tables that have
        enough new versions and, if `compacts`, `changes`. `tables`: those of the newest version.
        Return a message for each step that failed: the mirror continues without that step, and
        tries it again at the next removal."""
        is_due = time.monotonic() >= self._due
        if is_due:
            self._failed.clear()
        steps = {
            "compact changes": self.compact if compacts else None,
            "compact tables": self.compact_tables if self._grown else None,
            "remove versions older than the retention time": partial(self.remove, tables=tables) if is_due else None,
        }
        told = []
        for name, step in steps.items():
            try:
                if step is not None and name not in self._failed:
                    step(spark)
            except Exception as problem:  # of any kind: it is reported
                self._failed.add(name)
                told.append(f"could not {name} in {self.path}: {_told(problem)}")
        if is_due:
            self._due = time.monotonic() + min(self.retention_s, _EVERY_S)
        return tuple(told)

    def remove(self, spark: SparkSession, tables: Iterable[str]) -> None:
        """Remove what no version of the mirror within the retention needs. `tables`: those of the
        newest version."""
        remove(self._own_session(spark), self.path, timedelta(seconds=min(self.retention_s, _FOREVER_S)), tables)

    def compact(self, spark: SparkSession) -> None:
        """Compact the files of `changes`."""
        compact(self._own_session(spark), self.path)

    def note_version(self, location: str, before: int, version: int) -> None:
        """Record that a table has a new version, and mark the table for compaction if it has enough
        of them."""
        if version // _LOOK_EVERY > before // _LOOK_EVERY:
            self._grown.add(location)

    def compact_tables(self, spark: SparkSession) -> None:
        """Compact the files of the tables that have enough new versions."""
        while self._grown:
            TABLE_FORMAT.compact_files(self._own_session(spark), self._grown.pop())

    def _own_session(self, spark: SparkSession) -> SparkSession:
        if self._session is None:
            self._session = cloned(spark)
            for name, value in TABLE_FORMAT.maintenance_settings().items():
                self._session.conf.set(name, value)
        return self._session


def _told(problem: Exception) -> str:
    """Return the text of an error without Java's stack; py4j has the cause in the second line."""
    return " ".join([type(problem).__name__, *str(problem).splitlines()[:2]])


def compact(spark: SparkSession, path: str) -> None:
    location = changes_path(path)
    if TABLE_FORMAT.exists(spark, location):
        TABLE_FORMAT.compact_files(spark, location)
        TABLE_FORMAT.tidy_log(spark, location)


def remove(spark: SparkSession, path: str, retention: timedelta, tables: Iterable[str]) -> None:
    """Remove what is older than the retention. `tables`: as for Maintenance.remove."""
    retention_s = retention.total_seconds()
    if retention_s < _FOREVER_S:
        for name in tables:
            TABLE_FORMAT.keep_replaced_files(spark, table_path(path, TableName.parse(name)), retention_s)
    # The manifest's log has no entries before its last checkpoint: there were too few merges since
    # the last removal for another one to be worthwhile.
    if not TABLE_FORMAT.has_old_entries(spark, manifest_path(path)):
        return
    oldest_lsn = version_manifest.merged_before(spark, path, datetime.now(UTC) - retention)
    if oldest_lsn is not None:
        changes.prune(spark, path, oldest_lsn)
        version_manifest.prune(spark, path, oldest_lsn)
        for name, version in version_manifest.oldest_versions(spark, path).items():
            location = table_path(path, TableName.parse(name))
            if TABLE_FORMAT.exists(spark, location):  # a table that is left out may have been removed
                TABLE_FORMAT.remove_before(spark, location, version, retention_s)
    for location in (manifest_path(path), changes_path(path)):
        if TABLE_FORMAT.exists(spark, location):
            TABLE_FORMAT.keep_newest(spark, location)
