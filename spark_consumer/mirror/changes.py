"""Committed changes of all tables, appended once and stored as they are in Kafka: those that are
not merged yet, and merged ones for the time of the retention.

`<path>/changes` has the columns COLUMNS and contains table marks too. Its files are sorted by
table. Each batch is one commit, whose transaction version is the commit LSN up to which all changes
have been appended. `<path>/schemas` has the JSON text of the changes' value schemas, so that
neither merging nor reading needs Kafka or the registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from spark_consumer.arrow import to_frame
from spark_consumer.mirror.batch_contents import BatchSize, total
from spark_consumer.mirror.delta import delta_log
from spark_consumer.mirror.delta.delta_append import NOTHING
from spark_consumer.mirror.delta.delta_table import (
    APPLICATION,
    DELETION_VECTORS,
    at_version,
    exists,
    transaction_version,
    version,
)
from spark_consumer.mirror.delta.merge import despite_conflicts, write_once
from spark_consumer.mirror.paths import changes_path, schemas_path
from spark_consumer.mirror.spark_settings import settings
from spark_consumer.reader.registry import Schema
from spark_consumer.source.frames import RAW

COLUMNS = ("table", "op", "commit_lsn", "commit_time", "ordinal", "schema_id", "value")
_SCHEMA = pa.schema([RAW.field(name) for name in COLUMNS])
_SCHEMAS = pa.schema([("schema_id", pa.int32()), ("text", pa.string())])
# There is about one commit a second. Maintenance writes checkpoints, since batches would wait for
# Delta's own; the interval below is for mirrors that are not merged.
_PROPERTIES = {
    "delta.columnMapping.mode": "none",  # the files are also read directly, without Delta
    "delta.dataSkippingStatsColumns": "table,commit_lsn,commit_time",
    "delta.checkpointInterval": "1000",
    **DELETION_VECTORS,
}
_CHANGES_A_FILE = 250_000
# If there are more commits than this since the last merge, the log is not read entry by entry.
_COMMITS = 1000
_LISTS_BY_A_JOB = "spark.sql.sources.parallelPartitionDiscovery.threshold"
# Application whose version in `changes` is the commit LSN up to which changes were removed.
_PRUNED = "walgate-pruned"
# Prefix of a commit's userMetadata, before the BatchSize of what the commit has appended.
_SIZE = "walgate.size "
_GLOB = re.compile(r"[\[\]{}*?\\]")


def nothing(spark: SparkSession) -> DataFrame:
    """Return a DataFrame of no changes."""
    return to_frame(spark, _SCHEMA.empty_table(), from_arrow_schema(_SCHEMA))


def create(spark: SparkSession, path: str) -> None:
    """Create an empty table, unless it exists."""
    if not exists(spark, changes_path(path)):
        nothing(spark).write.format("delta").mode("ignore").options(**_PROPERTIES).save(changes_path(path))


def append(rows: DataFrame, path: str, size: BatchSize, expected: Mapping[str, int] = NOTHING) -> None:
    """Append a batch once. `rows`: the columns COLUMNS; `size`: its size; `expected`: as for
    delta_append.append."""
    files = -(-(size.changes + size.signs) // _CHANGES_A_FILE)
    parted = rows.coalesce(1) if files <= 1 else rows.repartitionByRange(files, "table", "commit_lsn")
    note = _SIZE + json.dumps(asdict(size))
    write_once(
        parted.sortWithinPartitions("table"), changes_path(path), "append", size.last_lsn, expected=expected, note=note
    )


def appended_lsn(spark: SparkSession, path: str) -> int:
    """Return the commit LSN up to which changes were appended, or -1 if there are none."""
    location = changes_path(path)
    found = transaction_version(spark, location, APPLICATION) if exists(spark, location) else None
    return -1 if found is None else found


def pinned(spark: SparkSession, path: str) -> DataFrame | None:
    """Return all changes kept now, unaffected by later appends and removals; None if the mirror has
    no `changes`."""
    location = changes_path(path)
    return at_version(spark, location, version(spark, location)) if exists(spark, location) else None


def waiting(
    spark: SparkSession, path: str, behind_lsn: int, last_lsn: int
) -> tuple[DataFrame | None, BatchSize | None]:
    """Return what was appended after `behind_lsn` and up to `last_lsn`, which is not after
    `appended_lsn`, and its size.

    It is read from the files that the last entries of the log name, if these entries still exist:
    to read a version of `changes`, Delta would read its whole log, which takes three jobs. The rows
    are None if this mirror has no `changes`, the size is None if it is not known.
    """
    location = changes_path(path)
    newest = _commits_behind(spark, location, behind_lsn) if exists(spark, location) else None
    files = _files(location, newest or [])
    if newest is None or not files:
        rows, size = pinned(spark, path), None
    else:
        size = _noted_size(newest, behind_lsn, last_lsn)
        with settings(spark, {_LISTS_BY_A_JOB: str(len(files) + 1)}):
            rows = spark.read.schema(from_arrow_schema(_SCHEMA)).parquet(*files)
    return (None if rows is None else between(rows, behind_lsn, last_lsn)), size


def _commits_behind(spark: SparkSession, location: str, behind_lsn: int) -> list[list[dict[str, Any]]] | None:
    """Return the actions of the commits that contain every change after `behind_lsn`, newest first.
    Return None if the log does not show them and the table has to be read as a whole."""
    if _GLOB.search(location):
        return None
    newest: list[list[dict[str, Any]]] = []
    for number, actions in delta_log.commits(spark, location):
        marks = [found["txn"] for found in actions if "txn" in found]
        if any(mark["appId"] == APPLICATION and mark["version"] <= behind_lsn for mark in marks):
            break
        newest.append(actions)
        if number == 0:
            break
        if len(newest) == _COMMITS:
            return None
    else:
        return None
    return newest


def _files(location: str, newest: list[list[dict[str, Any]]]) -> list[str]:
    """Return the files that these commits, newest first, have added and not removed."""
    names: dict[str, None] = {}
    for actions in reversed(newest):
        for found in actions:
            if "remove" in found:
                names.pop(found["remove"]["path"], None)
        names |= {found["add"]["path"]: None for found in actions if "add" in found}
    return [f"{location}/{unquote(name)}" for name in names]


def _noted_size(newest: list[list[dict[str, Any]]], behind_lsn: int, last_lsn: int) -> BatchSize | None:
    """Return the size of what these commits, newest first, have appended after `behind_lsn` and up
    to `last_lsn`. Return None if it was not noted, or if a merge ended in the middle of a
    commit."""
    sizes = []
    for actions in newest:
        marks = [found["txn"]["version"] for found in actions if found.get("txn", {}).get("appId") == APPLICATION]
        if not marks or marks[0] > last_lsn:
            continue
        note = next((found["commitInfo"].get("userMetadata") for found in actions if "commitInfo" in found), None)
        if note is None or not note.startswith(_SIZE):  # of an older release, or the user's own metadata
            return None
        sizes.append(BatchSize(**json.loads(note.removeprefix(_SIZE))))
    size = total(sizes) if sizes else None
    return size if size is not None and size.first_lsn > behind_lsn else None


def between(rows: DataFrame, behind_lsn: int, last_lsn: int) -> DataFrame:
    return rows.where((f.col("commit_lsn") > behind_lsn) & (f.col("commit_lsn") <= last_lsn))


def last_before(rows: DataFrame, time: datetime | None) -> int:
    """Return the commit LSN of the last change committed at or before `time` (None: of all
    changes), or -1 if there is none."""
    chosen = rows if time is None else rows.where(f.col("commit_time") <= f.lit(time))
    found = chosen.agg(f.max("commit_lsn")).head()
    return -1 if found is None or found[0] is None else int(found[0])


def table_names(rows: DataFrame) -> set[str]:
    named = rows.where(f.col("table").isNotNull()).select("table").distinct().collect()
    return {row["table"] for row in named}


def last_time(spark: SparkSession, path: str, behind_lsn: int) -> datetime | None:
    """Return the time of the last commit after `behind_lsn`, or None if there is none or it is not
    known."""
    rows = pinned(spark, path)
    found = None if rows is None else rows.where(f.col("commit_lsn") > behind_lsn).agg(f.max("commit_time")).head()
    return None if found is None else found[0]


def prune(spark: SparkSession, path: str, commit_lsn: int) -> None:
    """Remove the changes up to `commit_lsn`, which must be that of a version of the mirror.

    The LSN is noted first: the remaining changes no longer reach back to the mirror's beginning,
    and readers must know this before older versions are removed.
    """
    if exists(spark, changes_path(path)):
        write_once(nothing(spark), changes_path(path), "append", commit_lsn, application=_PRUNED, merge_schema=True)
        table = DeltaTable.forPath(spark, changes_path(path))
        despite_conflicts(lambda: table.delete(f.col("commit_lsn") <= commit_lsn))


def begin_with_mirror(spark: SparkSession, path: str) -> bool:
    """Return whether nothing was ever removed from `changes`, which exists."""
    return transaction_version(spark, changes_path(path), _PRUNED) is None


def keep_schemas(spark: SparkSession, path: str, schemas: Mapping[int, Schema], wanted: Iterable[int]) -> None:
    """Append these schemas; after a crash, a schema may be stored twice."""
    rows = [{"schema_id": schema_id, "text": json.dumps(schemas[schema_id])} for schema_id in wanted]
    frame = to_frame(spark, pa.Table.from_pylist(rows, schema=_SCHEMAS))
    frame.write.format("delta").mode("append").save(schemas_path(path))


def kept_schemas(spark: SparkSession, path: str) -> dict[int, Schema]:
    if not exists(spark, schemas_path(path)):
        return {}
    rows = spark.read.format("delta").load(schemas_path(path)).collect()
    return {row["schema_id"]: json.loads(row["text"]) for row in rows}
