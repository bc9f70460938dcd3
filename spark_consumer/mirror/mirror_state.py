"""The state of a mirror: how far changes were appended to it, and how far they were merged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from spark_consumer.mirror import changes, version_manifest, writer_epoch
from spark_consumer.mirror.paths import manifest_path
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_states import TableStates


@dataclass(frozen=True, slots=True)
class MirrorState:
    """State of a mirror. It has all changes up to `commit_lsn`; those up to `merged_lsn` (0: none)
    are merged into the tables. `stale`, `filling`: the numbers of stale and of filling tables."""

    commit_lsn: int
    merged_lsn: int
    commit_time: datetime | None
    stale: int
    filling: int


def state_of(spark: SparkSession, path: str) -> MirrorState | None:
    """Return the state of a mirror, or None if it has no changes. Raises MirrorError."""
    writer_epoch.check_format_version(spark, path)
    last = version_manifest.recorded_version(spark, path) if TABLE_FORMAT.exists(spark, manifest_path(path)) else None
    appended_lsn = changes.appended_lsn(spark, path)
    merged_lsn = -1 if last is None else last.commit_lsn
    commit_lsn = max(appended_lsn, merged_lsn)
    if commit_lsn == -1:
        return None
    commit_time = None if last is None else last.commit_time
    if appended_lsn > merged_lsn:
        commit_time = changes.last_time(spark, path, merged_lsn) or commit_time
    states = TableStates.of(None if last is None else last.table_states)
    stale = 0 if last is None else len(states.stale(last.complete))
    time_utc = None if commit_time is None else commit_time.astimezone(UTC)  # a Row has local times
    return MirrorState(commit_lsn, max(merged_lsn, 0), time_utc, stale, len(states.filling))
