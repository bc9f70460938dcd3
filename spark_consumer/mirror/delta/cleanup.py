"""Compaction of Delta tables, and removal of log entries and files that no version needs.

Log entries are removed up to a version, as Delta's protocol describes it (log_entries.py), and
files by VACUUM. Files are kept for a grace period after their retention has ended. So are log
entries of tables of which only the newest version is needed (`tidy_log`, `keep_newest`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from spark_consumer.mirror.delta import delta_table, log_entries
from spark_consumer.mirror.delta.delta_write import despite_conflicts
from spark_consumer.mirror.delta.session_settings import COMPACT

# Longest time of a write, or of reading a version: files stay for that time after the end of their
# retention.
GRACE_S = 3600.0
# The same for reading a log. Every batch lists the log of `changes`: with 7,000 entries this would
# take 0.1 s or more.
LOG_GRACE_S = 900.0
# (bytes, count): files smaller than this are compacted if there are so many of them.
_SMALL_FILES = ((1 << 20, 32), (64 << 20, 96))
# Number of commits of a table between checkpoints that `tidy_log` writes.
_CHECKPOINT_EVERY = 100
_DELTA = "spark.databricks.delta."
_SETTINGS = MappingProxyType(
    {
        f"{_DELTA}retentionDurationCheck.enabled": "false",
        f"{_DELTA}vacuum.retentionWindowIgnore.enabled": "false",  # otherwise the table's property applies, a week
        f"{_DELTA}vacuum.logging.enabled": "false",  # otherwise each VACUUM makes two versions
        COMPACT: "false",
        f"{_DELTA}optimize.maxFileSize": str(128 << 20),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",  # VACUUM's listing takes 10,000 tasks by default
    }
)


def maintenance_settings() -> Mapping[str, str]:
    """Return the settings of the session for the functions of this module."""
    return _SETTINGS


def compact_files(spark: SparkSession, location: str) -> None:
    """Compact small files, if there are many, in two sizes, so that a row is rewritten about
    twice."""
    table = DeltaTable.forPath(spark, location)
    for size, count in _SMALL_FILES:
        if delta_table.files_below(spark, location, size, count) >= count:
            spark.conf.set(f"{_DELTA}optimize.minFileSize", str(size))
            despite_conflicts(lambda: table.optimize().executeCompaction())


def tidy_log(spark: SparkSession, location: str) -> None:
    """Keep the log short although the table gets a commit every second: write a checkpoint if one
    is due, and remove entries that the newest version does not need."""
    log_entries.checkpoint(spark, location, _CHECKPOINT_EVERY)
    log_entries.remove(spark, location, _old_log(spark, location))


def has_old_entries(spark: SparkSession, location: str) -> bool:
    """Return whether the log has entries that are not needed to read the newest version."""
    return bool(_old_log(spark, location))


def keep_replaced_files(spark: SparkSession, location: str, retention_s: float) -> None:
    """Make the log of a table list replaced files for the retention and GRACE_S from now on. VACUUM
    also removes files that were replaced more recently, if the log has forgotten them."""
    seconds = retention_s + GRACE_S
    if delta_table.tombstones_s(spark, location, delta_table.version(spark, location)) < seconds:
        delta_table.keep_tombstones(spark, location, math.ceil(seconds / 3600))


def remove_before(spark: SparkSession, location: str, needed: int, retention_s: float) -> None:
    """Remove log entries and files that are needed neither by the version `needed`, nor by the
    version at the beginning of the retention, nor by any later one. A longer retention of the
    table's own applies.

    Files stay unless the log still lists all that were replaced after the oldest of these versions,
    or has listed them for `retention_s` and GRACE_S.
    """
    now = datetime.now(UTC)
    retention = timedelta(seconds=max(retention_s, delta_table.own_retention_s(spark, location)))
    oldest, old = _log_before(spark, location, now - retention, needed)
    if not old:  # few commits since the last removal
        return
    listed_s = retention_s
    if delta_table.version(spark, location) != oldest:
        retention = max(retention, now - log_entries.committed_at(spark, location, oldest))
        listed_s = max(listed_s, (now - log_entries.committed_at(spark, location, oldest + 1)).total_seconds())
    if delta_table.tombstones_s(spark, location, oldest) >= listed_s + GRACE_S:
        _vacuum(spark, location, retention)
    log_entries.remove(spark, location, old)


def keep_newest(spark: SparkSession, location: str) -> None:
    """Remove log entries and files that the newest version does not need."""
    _vacuum(spark, location, timedelta())
    log_entries.remove(spark, location, _old_log(spark, location))


def _log_before(spark: SparkSession, location: str, time: datetime, needed: int) -> tuple[int, list[str]]:
    """Return the oldest version that has to stay readable, as of `time` or `needed`, and the log
    entries that are not needed for it."""
    names = log_entries.entries(spark, location)
    oldest = min(needed, log_entries.version_at(spark, location, names, time))
    return oldest, log_entries.needless(names, oldest)


def _old_log(spark: SparkSession, location: str) -> list[str]:
    """Return the log entries that are not needed to read the newest version."""
    before = datetime.now(UTC) - timedelta(seconds=LOG_GRACE_S)
    return _log_before(spark, location, before, delta_table.version(spark, location))[1]


def _vacuum(spark: SparkSession, location: str, age: timedelta) -> None:
    """Remove files that were replaced longer ago than `age`, rounded up to hours, since Delta
    rounds it."""
    hours = math.ceil((age.total_seconds() + GRACE_S) / 3600)
    DeltaTable.forPath(spark, location).vacuum(hours)
