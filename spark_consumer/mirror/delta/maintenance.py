"""What a mirror compacts and removes, so that its files, Delta logs and manifest do not grow with
its age.

manifest   versions of the mirror older than the retention are removed, except the newest of them: what is read as of the
           beginning of the retention starts from it
changes    what that version contains is removed; small files are compacted after merges, in two sizes, so that a change is
           rewritten about twice, and a checkpoint of the log is written
tables     log entries and files that no remaining version needs are removed; small files are compacted as those of `changes`,
           looked at whenever a table has so many more versions. Delta's auto compaction, which the rest has, would rewrite a
           table behind the first write of each process, and again and again while it is below 128 MB.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from spark_consumer.jvm import cloned
from spark_consumer.mirror import changes, manifest
from spark_consumer.mirror.delta import delta_log, delta_table
from spark_consumer.mirror.delta.merge import despite_conflicts
from spark_consumer.mirror.merge_thread import RETENTION_S
from spark_consumer.mirror.paths import changes_path, manifest_path, table_path
from spark_consumer.tables import TableName

_EVERY_S = 3600.0
_FOREVER_S = 1e9
# How long a write, or a reader of a version, may take: its files stay for that time, whatever the
# retention.
GRACE_S = 3600.0
# The same of who reads a log. Each batch lists that of `changes`: 7,000 entries would cost it 0.1 s
# or more.
LOG_GRACE_S = 900.0
# Files below this size are compacted where there are so many.
_SMALL_FILES = ((1 << 20, 32), (64 << 20, 96))
# Commits of `changes` from one checkpoint to the next.
_CHECKPOINT_EVERY = 100
# Versions of a table from one look at its files to the next.
_LOOK_EVERY = 16
_DELTA = "spark.databricks.delta."
_SETTINGS = {
    f"{_DELTA}retentionDurationCheck.enabled": "false",
    f"{_DELTA}vacuum.retentionWindowIgnore.enabled": "false",  # it would be the table's property, a week
    f"{_DELTA}vacuum.logging.enabled": "false",  # each VACUUM would be two versions
    f"{_DELTA}autoCompact.enabled": "false",
    f"{_DELTA}optimize.maxFileSize": str(128 << 20),
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # of VACUUM's listing: 10,000 tasks by default
}


@dataclass
class Maintenance:
    """Of the mirror at `path`, by who merges it."""

    path: str
    retention_s: float = RETENTION_S
    _grown: set[str] = field(default_factory=set, init=False)  # tables with more files than when they were looked at
    _due: float = field(default=-math.inf, init=False)
    _failed: bool = field(default=False, init=False)  # since the last removal
    _session: SparkSession | None = field(default=None, init=False)

    def run_if_due(self, spark: SparkSession, *, compacts: bool) -> tuple[str, ...]:
        """Removes about once an hour; `compacts`: and compacts at each call. What failed, and why:
        a mirror goes on without it, and tries it again when it removes the next time."""
        is_due = time.monotonic() >= self._due
        is_well = is_due or not self._failed
        steps = {
            "compact changes": self.compact if compacts and is_well else None,
            "compact tables": self.compact_tables if self._grown and is_well else None,
            "remove versions older than the retention time": self.remove if is_due else None,
        }
        failed = []
        for name, step in steps.items():
            try:
                if step is not None:
                    step(spark)
            except Exception as problem:  # of any kind: it is told
                failed.append(f"could not {name} in {self.path}: {_told(problem)}")
        if is_due:
            self._due = time.monotonic() + min(self.retention_s, _EVERY_S)
        self._failed = bool(failed) or (self._failed and not is_due)
        return tuple(failed)

    def remove(self, spark: SparkSession) -> None:
        """What no version of the mirror in the retention needs."""
        remove(self._own_session(spark), self.path, timedelta(seconds=min(self.retention_s, _FOREVER_S)))

    def compact(self, spark: SparkSession) -> None:
        """The files of `changes`."""
        compact(self._own_session(spark), self.path)

    def note_version(self, location: str, before: int, version: int) -> None:
        """Of a table that was written."""
        if version // _LOOK_EVERY > before // _LOOK_EVERY:
            self._grown.add(location)

    def compact_tables(self, spark: SparkSession) -> None:
        """The files of those that have many more versions than before."""
        while self._grown:
            compact_files(self._own_session(spark), self._grown.pop())

    def _own_session(self, spark: SparkSession) -> SparkSession:
        if self._session is None:
            self._session = cloned(spark)
            for name, value in _SETTINGS.items():
                self._session.conf.set(name, value)
        return self._session


def _told(problem: Exception) -> str:
    """Without Java's stack; py4j says in the second line what happened."""
    return " ".join([type(problem).__name__, *str(problem).splitlines()[:2]])


def compact(spark: SparkSession, path: str) -> None:
    location = changes_path(path)
    if not delta_table.exists(spark, location):
        return
    compact_files(spark, location)
    delta_log.checkpoint(spark, location, _CHECKPOINT_EVERY)
    delta_log.remove(spark, location, _old_log(spark, location, datetime.now(UTC)))


def compact_files(spark: SparkSession, location: str) -> None:
    """In two sizes, so that a row is rewritten about twice."""
    table = DeltaTable.forPath(spark, location)
    for size, count in _SMALL_FILES:
        if delta_table.files_below(spark, location, size, count) >= count:
            spark.conf.set(f"{_DELTA}optimize.minFileSize", str(size))
            despite_conflicts(lambda: table.optimize().executeCompaction())


def remove(spark: SparkSession, path: str, retention: timedelta) -> None:
    now = datetime.now(UTC)
    remembered = retention + timedelta(seconds=GRACE_S)
    if retention.total_seconds() < _FOREVER_S:
        _keep_tombstones(spark, path, remembered)
    if not _old_log(spark, manifest_path(path), now):  # few merges since the last time
        return
    oldest_lsn = manifest.merged_before(spark, path, now - retention)
    if oldest_lsn is not None:
        changes.prune(spark, path, oldest_lsn)
        manifest.prune(spark, path, oldest_lsn)
        for name, version in manifest.oldest_versions(spark, path).items():
            location = table_path(path, TableName.parse(name))
            own = timedelta(seconds=delta_table.own_retention_s(spark, location))
            _remove_before(spark, location, now, max(retention, own), version, remembered)
    for location in (manifest_path(path), changes_path(path)):
        if delta_table.exists(spark, location):
            _vacuum(spark, location, timedelta())
            delta_log.remove(spark, location, _old_log(spark, location, now))


def _keep_tombstones(spark: SparkSession, path: str, remembered: timedelta) -> None:
    """Of every table for at least that long: VACUUM removes also what was replaced later, where the
    log has forgotten it."""
    last = manifest.picture(spark, path)
    for name in () if last is None else last.tables:
        location = table_path(path, TableName.parse(name))
        if delta_table.tombstones_s(spark, location, delta_table.version(spark, location)) < remembered.total_seconds():
            delta_table.keep_tombstones(spark, location, math.ceil(remembered.total_seconds() / 3600))


def _remove_before(
    spark: SparkSession, location: str, now: datetime, retention: timedelta, needed: int, remembered: timedelta
) -> None:
    """Of a table: what neither the version `needed` nor that of the retention's beginning, nor any
    later one, has.

        Files stay until the log has remembered for as long as `remembered` what was replaced, ever
        since the oldest of them.
    """
    oldest, old = _log_before(spark, location, now - retention, needed)
    if not old:  # few commits since the last time
        return
    if delta_table.version(spark, location) != oldest:
        retention = max(retention, now - delta_log.committed_at(spark, location, oldest))
    if delta_table.tombstones_s(spark, location, oldest) >= remembered.total_seconds():
        _vacuum(spark, location, retention)
    delta_log.remove(spark, location, old)


def _log_before(spark: SparkSession, location: str, time: datetime, needed: int) -> tuple[int, list[str]]:
    """The oldest version that has to stay readable, that of `time` or `needed`, and the log entries
    that it does not need."""
    names = delta_log.entries(spark, location)
    oldest = min(needed, delta_log.version_at(spark, location, names, time))
    return oldest, delta_log.needless(names, oldest)


def _old_log(spark: SparkSession, location: str, now: datetime) -> list[str]:
    """Log entries that only readers of the newest version needed."""
    return _log_before(spark, location, now - timedelta(seconds=LOG_GRACE_S), delta_table.version(spark, location))[1]


def _vacuum(spark: SparkSession, location: str, age: timedelta) -> None:
    """Removes what was replaced that long ago; in whole hours, since Delta rounds them."""
    hours = math.ceil((age.total_seconds() + GRACE_S) / 3600)
    DeltaTable.forPath(spark, location).vacuum(hours)
