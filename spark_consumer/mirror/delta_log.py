"""The entries of a Delta table's log, and which of them no version from a given one on needs.

Removed as Delta's protocol says (section "Metadata Cleanup"): everything below the last checkpoint up to that version. Delta's
own clean-up goes by time alone, and keeps up to a day more.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from spark_consumer.jvm import file_names, hadoop_path

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
# Checkpoints of other kinds are Delta's own matter: a log that has one is not touched.
_ENTRY = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\.parquet|\d{20}\.compacted\.json)")


def entries(spark: SparkSession, location: str) -> list[str]:
    return sorted(file_names(spark, _folder(location)))


def committed_at(spark: SparkSession, location: str, version: int) -> datetime:
    path, files = hadoop_path(spark, f"{_folder(location)}/{version:020}.json")
    return datetime.fromtimestamp(files.getFileStatus(path).getModificationTime() / 1000, UTC)


def version_at(spark: SparkSession, location: str, names: Sequence[str], time: datetime) -> int:
    """The newest version that was committed before `time`, or the oldest that is there."""
    versions = [int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))]
    later = bisect_right(versions, time, key=lambda version: committed_at(spark, location, version))
    return versions[max(later - 1, 0)]


def needless(names: Sequence[str], version: int) -> list[str]:
    """Those of `names` without which all versions from `version` on can still be read."""
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    last = max((found for found in checkpoints if found <= version), default=0)
    if any(".checkpoint." in name and not _CHECKPOINT.fullmatch(name) for name in names):
        return []
    return [name for name in names if (match := _ENTRY.fullmatch(name)) and int(match[1]) < last]


def remove(spark: SparkSession, location: str, names: Sequence[str]) -> None:
    """Oldest first: a log that is cut off on the way has no gap."""
    for name in names:
        path, files = hadoop_path(spark, f"{_folder(location)}/{name}")
        files.delete(path, False)


def _folder(location: str) -> str:
    return f"{location}/_delta_log"
