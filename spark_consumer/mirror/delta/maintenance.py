"""Compaction and removal, so that the files, Delta logs and manifest of a mirror do not grow with
its age.

manifest   versions of the mirror older than the retention are removed, except the newest of them:
           reads as of the beginning of the retention start from it
changes    changes that this version contains are removed; small files are compacted after merges,
           in two sizes, so that a change is rewritten about twice; checkpoints of the log are
           written
tables     log entries and files that no remaining version needs are removed; small files are
           compacted as those of `changes`, after every _LOOK_EVERY versions of a table

Delta's auto compaction is only used for the mirror's other Delta tables: it would rewrite a table
after the first write of each process, and again and again while it is smaller than 128 MB.
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
# Longest time of a write, or of reading a version: files stay for that time after the end of their
# retention.
GRACE_S = 3600.0
# The same for reading a log. Every batch lists the log of `changes`: with 7,000 entries this would
# take 0.1 s or more.
LOG_GRACE_S = 900.0
# (bytes, count): files smaller than this are compacted if there are so many of them.
_SMALL_FILES = ((1 << 20, 32), (64 << 20, 96))
# Number of commits of `changes` between checkpoints.
_CHECKPOINT_EVERY = 100
# Number of versions of a table between checks of its files.
_LOOK_EVERY = 16
_DELTA = "spark.databricks.delta."
_SETTINGS = {
    f"{_DELTA}retentionDurationCheck.enabled": "false",
    f"{_DELTA}vacuum.retentionWindowIgnore.enabled": "false",  # otherwise the table's property applies, a week
    f"{_DELTA}vacuum.logging.enabled": "false",  # otherwise each VACUUM makes two versions
    f"{_DELTA}autoCompact.enabled": "false",
    f"{_DELTA}optimize.maxFileSize": str(128 << 20),
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # VACUUM's listing takes 10,000 tasks by default
}


@dataclass
class Maintenance:
    """Maintenance of the mirror at `path`, done by the process that merges it."""

    path: str
    retention_s: float = RETENTION_S
    _grown: set[str] = field(default_factory=set, init=False)  # locations of tables whose files have to be checked
    _due: float = field(default=-math.inf, init=False)
    _failed: bool = field(default=False, init=False)  # since the last removal
    _session: SparkSession | None = field(default=None, init=False)

    def run_if_due(self, spark: SparkSession, *, compacts: bool) -> tuple[str, ...]:
        """Remove what is too old, about once an hour; if `compacts`, also compact `changes` at each
        call. Return a message for each step that failed: the mirror continues without it, and tries
        again at the next removal."""
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
            except Exception as problem:  # of any kind: it is reported
                failed.append(f"could not {name} in {self.path}: {_told(problem)}")
        if is_due:
            self._due = time.monotonic() + min(self.retention_s, _EVERY_S)
        self._failed = bool(failed) or (self._failed and not is_due)
        return tuple(failed)

    def remove(self, spark: SparkSession) -> None:
        """Remove what no version of the mirror within the retention needs."""
        remove(self._own_session(spark), self.path, timedelta(seconds=min(self.retention_s, _FOREVER_S)))

    def compact(self, spark: SparkSession) -> None:
        """Compact the files of `changes`."""
        compact(self._own_session(spark), self.path)

    def note_version(self, location: str, before: int, version: int) -> None:
        """Note the new version of a table that was written."""
        if version // _LOOK_EVERY > before // _LOOK_EVERY:
            self._grown.add(location)

    def compact_tables(self, spark: SparkSession) -> None:
        """Compact the files of the tables that have enough new versions."""
        while self._grown:
            compact_files(self._own_session(spark), self._grown.pop())

    def _own_session(self, spark: SparkSession) -> SparkSession:
        if self._session is None:
            self._session = cloned(spark)
            for name, value in _SETTINGS.items():
                self._session.conf.set(name, value)
        return self._session


def _told(problem: Exception) -> str:
    """Return the text of an error without Java's stack; py4j has the cause in the second line."""
    return " ".join([type(problem).__name__, *str(problem).splitlines()[:2]])


def compact(spark: SparkSession, path: str) -> None:
    location = changes_path(path)
    if not delta_table.exists(spark, location):
        return
    compact_files(spark, location)
    delta_log.checkpoint(spark, location, _CHECKPOINT_EVERY)
    delta_log.remove(spark, location, _old_log(spark, location, datetime.now(UTC)))


def compact_files(spark: SparkSession, location: str) -> None:
    """Compact small files in two sizes, so that a row is rewritten about twice."""
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
    if not _old_log(spark, manifest_path(path), now):  # few merges since the last removal
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
    """Make the log of every table list replaced files for at least `remembered`: VACUUM also
    removes files that were replaced more recently, if the log has forgotten them."""
    last = manifest.picture(spark, path)
    for name in () if last is None else last.tables:
        location = table_path(path, TableName.parse(name))
        if delta_table.tombstones_s(spark, location, delta_table.version(spark, location)) < remembered.total_seconds():
            delta_table.keep_tombstones(spark, location, math.ceil(remembered.total_seconds() / 3600))


def _remove_before(
    spark: SparkSession, location: str, now: datetime, retention: timedelta, needed: int, remembered: timedelta
) -> None:
    """Remove from a table what is needed neither by the version `needed`, nor by the version at the
    beginning of the retention, nor by any later one.

    Files stay unless the log has listed replaced files for `remembered` ever since the oldest of
    these versions.
    """
    oldest, old = _log_before(spark, location, now - retention, needed)
    if not old:  # few commits since the last removal
        return
    if delta_table.version(spark, location) != oldest:
        retention = max(retention, now - delta_log.committed_at(spark, location, oldest))
    if delta_table.tombstones_s(spark, location, oldest) >= remembered.total_seconds():
        _vacuum(spark, location, retention)
    delta_log.remove(spark, location, old)


def _log_before(spark: SparkSession, location: str, time: datetime, needed: int) -> tuple[int, list[str]]:
    """Return the oldest version that has to stay readable, which is that of `time` or `needed`, and
    the log entries that are not needed for it."""
    names = delta_log.entries(spark, location)
    oldest = min(needed, delta_log.version_at(spark, location, names, time))
    return oldest, delta_log.needless(names, oldest)


def _old_log(spark: SparkSession, location: str, now: datetime) -> list[str]:
    """Return the log entries that are not needed to read the newest version."""
    return _log_before(spark, location, now - timedelta(seconds=LOG_GRACE_S), delta_table.version(spark, location))[1]


def _vacuum(spark: SparkSession, location: str, age: timedelta) -> None:
    """Remove files that were replaced longer ago than `age`, rounded up to hours, since Delta
    rounds it."""
    hours = math.ceil((age.total_seconds() + GRACE_S) / 3600)
    DeltaTable.forPath(spark, location).vacuum(hours)
