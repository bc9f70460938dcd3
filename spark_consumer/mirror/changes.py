"""Committed changes of all tables, appended once and stored as they are in Kafka: those that are
not merged yet, and merged ones for the time of the retention.

`<path>/changes` has the columns COLUMNS. It contains table marks too: rows whose `value` is what a
marker says about a table, as JSON (reader/table_marks.py). The rows that a batch writes to a file
are sorted by table; those of a compacted file are not. Each batch with new rows is one commit,
which notes the commit LSN up to which all changes have been appended. `<path>/schemas` has the JSON
text of the changes' value schemas, so that neither merging nor reading needs Kafka or the registry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.mirror.paths import changes_path, schemas_path
from spark_consumer.mirror.slice_contents import BatchSize, total
from spark_consumer.mirror.spark_settings import settings
from spark_consumer.mirror.storage import TABLE_FORMAT, number_if_any
from spark_consumer.mirror.table_format import APPLICATION, NO_NUMBERS, Commit
from spark_consumer.reader.registry import Schema
from spark_consumer.source.frames import RAW

COLUMNS = ("table", "op", "commit_lsn", "commit_time", "ordinal", "schema_id", "value")
_SCHEMA = pa.schema([RAW.field(name) for name in COLUMNS])
_SCHEMAS = pa.schema([("schema_id", pa.int32()), ("text", pa.string())])
_BOUNDED = ("table", "commit_lsn", "commit_time")
_CHANGES_A_FILE = 250_000
# If there are so many commits since the last merge, or more, they are not read one by one.
_COMMITS = 1000
_LISTS_BY_A_JOB = "spark.sql.sources.parallelPartitionDiscovery.threshold"
# Application whose version in `changes` is the commit LSN up to which changes were removed.
_PRUNED = "walgate-pruned"
# Prefix of the text of a commit (`note`), before the BatchSize of what the commit has appended.
_SIZE = "walgate.size "
_STORED_NAMES = {"marks": "signs"}  # fields of BatchSize whose names in the note differ
_GLOB = re.compile(r"[\[\]{}*?\\]")


def no_rows(spark: SparkSession) -> DataFrame:
    """Return a DataFrame of no changes."""
    return to_frame(spark, _SCHEMA.empty_table(), spark_schema(_SCHEMA))


def create(spark: SparkSession, path: str) -> None:
    """Create an empty table, unless it exists."""
    TABLE_FORMAT.create_appended(no_rows(spark), changes_path(path), _BOUNDED)


def append(rows: DataFrame, path: str, size: BatchSize, expected: Mapping[str, int] = NO_NUMBERS) -> None:
    """Append a batch once. `rows`: its changes, with the columns COLUMNS; `size`: the size of the
    batch; `expected`: as for TableFormat.write_once."""
    files = -(-(size.changes + size.marks) // _CHANGES_A_FILE)
    parted = rows.coalesce(1) if files <= 1 else rows.repartitionByRange(files, "table", "commit_lsn")
    note = _SIZE + json.dumps({_STORED_NAMES.get(name, name): value for name, value in asdict(size).items()})
    TABLE_FORMAT.write_once(
        parted.sortWithinPartitions("table"), changes_path(path), "append", size.last_lsn, expected=expected, note=note
    )


def appended_lsn(spark: SparkSession, path: str) -> int:
    """Return the commit LSN up to which changes were appended, or -1 if there are none."""
    found = number_if_any(spark, changes_path(path), APPLICATION)
    return -1 if found is None else found


def pinned(spark: SparkSession, path: str) -> DataFrame | None:
    """Return all changes that are kept now, whatever is appended or removed later; None if the
    mirror has no `changes`."""
    location = changes_path(path)
    if not TABLE_FORMAT.exists(spark, location):
        return None
    return TABLE_FORMAT.at_version(spark, location, TABLE_FORMAT.version(spark, location))


def unmerged(
    spark: SparkSession, path: str, after_lsn: int, last_lsn: int
) -> tuple[DataFrame | None, BatchSize | None]:
    """Return what was appended after `after_lsn` and up to `last_lsn`, and its size. `last_lsn`
    must not be after the result of `appended_lsn`.

    The changes are read from the files that the last commits name, if these commits are still kept.
    To read a version of `changes`, Spark would read its whole log, which takes three jobs. The rows
    are None if the mirror has no `changes`. The size is None if it is not known.
    """
    location = changes_path(path)
    newest = _commits_after(spark, location, after_lsn) if TABLE_FORMAT.exists(spark, location) else None
    files = _files(newest or [])
    if newest is None or not files:
        rows, size = pinned(spark, path), None
    else:
        size = _noted_size(newest, after_lsn, last_lsn)
        with settings(spark, {_LISTS_BY_A_JOB: str(len(files) + 1)}):
            rows = spark.read.schema(spark_schema(_SCHEMA)).parquet(*files)
    return (None if rows is None else between(rows, after_lsn, last_lsn)), size


def _commits_after(spark: SparkSession, location: str, after_lsn: int) -> list[Commit] | None:
    """Return the commits that contain every change after `after_lsn`, newest first. Return None if
    the table has to be read in full: commits are no longer kept, they are too many, or Spark would
    interpret the location as a glob pattern."""
    if _GLOB.search(location):
        return None
    newest: list[Commit] = []
    for number, commit in TABLE_FORMAT.commits(spark, location):
        if commit.numbers.get(APPLICATION, after_lsn + 1) <= after_lsn:
            break
        newest.append(commit)
        if number == 0:
            break
        if len(newest) == _COMMITS:
            return None
    else:
        return None
    return newest


def _files(newest: list[Commit]) -> list[str]:
    """Return the files that these commits, newest first, have added and not removed."""
    names: dict[str, None] = {}
    for commit in reversed(newest):
        for name in commit.removed:
            names.pop(name, None)
        names |= dict.fromkeys(commit.added)
    return list(names)


def _noted_size(newest: list[Commit], after_lsn: int, last_lsn: int) -> BatchSize | None:
    """Return the size of what these commits, newest first, have appended after `after_lsn` and up
    to `last_lsn`. Return None if it was not noted, or if a merge ended in the middle of a
    commit."""
    sizes = []
    for commit in newest:
        if commit.numbers.get(APPLICATION, last_lsn + 1) > last_lsn:
            continue
        if commit.note is None or not commit.note.startswith(_SIZE):  # of an older release, or the user's own metadata
            return None
        facts = json.loads(commit.note.removeprefix(_SIZE))
        sizes.append(BatchSize(marks=facts.pop("signs"), **facts))
    size = total(sizes) if sizes else None
    return size if size is not None and size.first_lsn > after_lsn else None


def between(rows: DataFrame, after_lsn: int, last_lsn: int) -> DataFrame:
    return rows.where((f.col("commit_lsn") > after_lsn) & (f.col("commit_lsn") <= last_lsn))


def last_before(rows: DataFrame, time: datetime | None) -> int:
    """Return the commit LSN of the last change committed at or before `time` (None: of all
    changes), or -1 if there is none."""
    chosen = rows if time is None else rows.where(f.col("commit_time") <= f.lit(time))
    found = chosen.agg(f.max("commit_lsn")).head()
    return -1 if found is None or found[0] is None else int(found[0])


def table_names(rows: DataFrame) -> set[str]:
    named = rows.where(f.col("table").isNotNull()).select("table").distinct().collect()
    return {row["table"] for row in named}


def last_time(spark: SparkSession, path: str, after_lsn: int) -> datetime | None:
    """Return the time of the last commit after `after_lsn`, or None if there is no such commit or
    its time is not known."""
    rows = pinned(spark, path)
    found = None if rows is None else rows.where(f.col("commit_lsn") > after_lsn).agg(f.max("commit_time")).head()
    return None if found is None else found[0]


def prune(spark: SparkSession, path: str, commit_lsn: int) -> None:
    """Remove the changes up to `commit_lsn`, which must be the commit LSN of a version of the
    mirror.

    The LSN is noted first: the remaining changes no longer reach back to the mirror's beginning,
    and readers must know this before older versions are removed.
    """
    location = changes_path(path)
    if TABLE_FORMAT.exists(spark, location):
        TABLE_FORMAT.write_once(no_rows(spark), location, "append", commit_lsn, application=_PRUNED, merge_schema=True)
        TABLE_FORMAT.despite_conflicts(lambda: TABLE_FORMAT.delete(spark, location, f.col("commit_lsn") <= commit_lsn))


def begin_with_mirror(spark: SparkSession, path: str) -> bool:
    """Return whether nothing was ever removed from `changes`, which must exist."""
    return TABLE_FORMAT.noted_number(spark, changes_path(path), _PRUNED) is None


def keep_schemas(spark: SparkSession, path: str, schemas: Mapping[int, Schema], wanted: Iterable[int]) -> None:
    """Append these schemas; after a crash, a schema may be stored twice."""
    rows = [{"schema_id": schema_id, "text": json.dumps(schemas[schema_id])} for schema_id in wanted]
    TABLE_FORMAT.append(to_frame(spark, pa.Table.from_pylist(rows, schema=_SCHEMAS)), schemas_path(path))


def kept_schemas(spark: SparkSession, path: str) -> dict[int, Schema]:
    if not TABLE_FORMAT.exists(spark, schemas_path(path)):
        return {}
    rows = TABLE_FORMAT.rows(spark, schemas_path(path)).collect()
    return {row["schema_id"]: json.loads(row["text"]) for row in rows}
