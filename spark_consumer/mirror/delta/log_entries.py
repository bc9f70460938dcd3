"""Entries of a Delta table's log, and which of them are not needed from a given version on. This
needs a Spark session; log_replay.py reads a log without Spark.

Entries are removed as Delta's protocol describes it (section "Metadata Cleanup"): all before the
last checkpoint up to that version. Delta's own clean-up goes by time alone, and keeps up to a day
more.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession

from spark_consumer.jvm import file_names, hadoop_path, java_session, path_class
from spark_consumer.mirror.delta.java_delta import java_log
from spark_consumer.mirror.table_format import Commit

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
# Checkpoints of other kinds are left to Delta: nothing is removed from a log that has one.
_ENTRY = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\.parquet|\d{20}\.compacted\.json)")


def entries(spark: SparkSession, location: str) -> list[str]:
    return sorted(file_names(spark, _folder(location)))


def committed_at(spark: SparkSession, location: str, version: int) -> datetime:
    path, files = hadoop_path(spark, f"{_folder(location)}/{version:020}.json")
    return datetime.fromtimestamp(files.getFileStatus(path).getModificationTime() / 1000, UTC)


def _checkpoints(names: Sequence[str]) -> list[int]:
    """Return the versions of the checkpoints among these names."""
    return [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]


def _versions(names: Sequence[str]) -> list[int]:
    """Return the versions of the commits among these names, in the order of the names."""
    return [int(match[1]) for name in names if (match := _COMMIT.fullmatch(name))]


def commits(spark: SparkSession, location: str) -> Iterator[tuple[int, Commit]]:
    """Yield the version and the content of each commit, newest first, as far back as commits are
    kept."""
    versions = set(_versions(entries(spark, location)))
    version = max(versions, default=-1)
    store, make_path = java_log(spark, location).store(), path_class(spark)
    settings = java_session(spark).sessionState().newHadoopConf()
    while version in versions:
        lines = store.read(make_path(f"{_folder(location)}/{version:020}.json"), settings).mkString("\n").split("\n")
        yield version, _commit(location, [json.loads(line) for line in lines if line])
        version -= 1


def _commit(location: str, actions: Sequence[dict[str, Any]]) -> Commit:
    def files(kind: str) -> list[str]:
        return [f"{location}/{unquote(action[kind]['path'])}" for action in actions if kind in action]

    numbers = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    operation, parameters = info.get("operation", ""), info.get("operationParameters", {})
    overwrites = parameters.get("mode") == "Overwrite" or "REPLACE TABLE" in operation
    version = parameters.get("version") if operation == "RESTORE" else None
    restored = (-1 if version is None else int(version)) if operation == "RESTORE" else None
    return Commit(numbers, info.get("userMetadata"), files("add"), files("remove"), overwrites, restored)


def version_at(spark: SparkSession, location: str, names: Sequence[str], time: datetime) -> int:
    """Return the newest version that was committed at or before `time`, or the oldest that
    exists."""
    versions = _versions(names)
    later = bisect_right(versions, time, key=lambda version: committed_at(spark, location, version))
    return versions[max(later - 1, 0)]


def checkpoint(spark: SparkSession, location: str, every: int) -> None:
    """Write a checkpoint if there are at least `every` commits after the last one."""
    names = entries(spark, location)
    if max(_versions(names), default=0) - max(_checkpoints(names), default=0) >= every:
        java_log(spark, location).checkpoint()


def needless(names: Sequence[str], version: int) -> list[str]:
    """Return those of `names` that are not needed to read `version` or any later version."""
    last = max((found for found in _checkpoints(names) if found <= version), default=0)
    if any(".checkpoint." in name and not _CHECKPOINT.fullmatch(name) for name in names):
        return []
    return [name for name in names if (match := _ENTRY.fullmatch(name)) and int(match[1]) < last]


def remove(spark: SparkSession, location: str, names: Sequence[str]) -> None:
    """Remove log entries, oldest first: if this is interrupted, the log has no gap."""
    for name in names:
        path, files = hadoop_path(spark, f"{_folder(location)}/{name}")
        files.delete(path, False)


def _folder(location: str) -> str:
    return f"{location}/_delta_log"
