"""Writes to a Delta table: one commit each, which is not repeated when the same slice of a merge or
the same batch is written again.

`txnVersion` is a number that the application notes, mostly the commit LSN of the last transaction
of the slice or batch. Delta skips a write if the table already has its number or a higher one.
Unlike batch ids, commit LSNs increase even if a checkpoint is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
)
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.arrow import out_of_plan
from spark_consumer.mirror.delta import delta_append
from spark_consumer.mirror.delta.delta_table import DELETION_VECTORS, READS_OLD_VERSIONS, exists
from spark_consumer.mirror.spark_settings import settings
from spark_consumer.mirror.table_format import APPLICATION, NO_NUMBERS, NO_PROPERTIES, Superseded

_CONF = "spark.databricks.delta.write."
_COPIES_SOURCE = "spark.databricks.delta.merge.materializeSource"
# Sources of merges with at most this many rows in all stay in the plan, so that Spark needs no job
# to broadcast them.
FEW_ROWS = 1000
# There is about one commit a second. Maintenance writes checkpoints, since batches would wait for
# Delta's own; this interval is for mirrors that are not merged.
_CHECKPOINT_INTERVAL = "1000"
TAKEN_OVER = (ConcurrentTransactionException, Superseded)
CONCURRENT = (DeltaConcurrentModificationException,)
# Errors when OPTIMIZE, VACUUM or another writer of files used the same table: the write is
# repeated from the table's present state.
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
)
_PAUSES_S = (0.1, 0.5, 1, 2, 5, 10, 20)


def despite_conflicts(write: Callable[[], object], pause: Callable[[float], None] = time.sleep) -> None:
    """Make a write that takes effect once, and repeat it if others change files of the same table
    meanwhile.

    Raises what Delta raises in the last attempt, and immediately if two writers use one mirror
    (ConcurrentTransactionException).
    """
    for pause_s in _PAUSES_S:
        try:
            write()
            return
        except _CONFLICTS:
            pause(pause_s)
    write()


@contextmanager
def once(spark: SparkSession, commit_lsn: int, rows_here: int | None = None) -> Iterator[None]:
    """Make every Delta write of this session within the context take effect once for this commit
    LSN.

    `rows_here`: total number of rows of the merge sources, if these are in this process. Then Delta
    need not copy a source first, which is a job, to protect it from changes. A source of many rows
    is kept out of the plan, since each step of Spark's planning would carry it.
    """
    wanted = {f"{_CONF}txnAppId": APPLICATION, f"{_CONF}txnVersion": str(commit_lsn)}
    wanted |= READS_OLD_VERSIONS  # here, since threads that set it themselves would restore it for each other
    if rows_here is not None:
        wanted |= {_COPIES_SOURCE: "none", **(out_of_plan(spark, rows_here) if rows_here > FEW_ROWS else {})}
    with settings(spark, wanted):
        yield


def write_once(
    frame: DataFrame,
    location: str,
    mode: str,
    number: int,
    *,
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    application: str = APPLICATION,
    properties: Mapping[str, str] = NO_PROPERTIES,
    expected: Mapping[str, int] = NO_NUMBERS,
    note: str | None = None,
    left: int | None = None,
) -> None:
    """Append to, overwrite or create (`mode` errorifexists) a Delta table, once for this `number`
    of the application. `properties`: those of the table, if this write creates it.

    `expected`, `left`: as for delta_append.append; only checked beforehand if Delta's writer makes
    the commit. `note`: userMetadata of the commit. Raises Superseded also if a table to be created
    exists.
    """
    if (
        mode == "append"
        and not properties
        and delta_append.append(frame, location, application, number, expected, note, left)
    ):
        return
    writer = frame.write.format("delta").mode(mode).option("mergeSchema", merge_schema).options(**properties)
    if overwrite_schema:
        writer = writer.option("overwriteSchema", True)
    if note is not None:
        writer = writer.option("userMetadata", note)
    try:
        writer.option("txnAppId", application).option("txnVersion", number).save(location)
    except AnalysisException as problem:
        if problem.getCondition() != "DELTA_PATH_EXISTS":
            raise
        raise Superseded(location) from problem


def create_appended(no_rows: DataFrame, location: str, bounded: Sequence[str]) -> None:
    """Create a table to which every batch is appended, unless it exists. `no_rows`: no rows in its
    columns; `bounded`: columns by whose values files are skipped."""
    if exists(no_rows.sparkSession, location):
        return
    properties = {
        "delta.columnMapping.mode": "none",  # the files are also read directly, without Delta
        "delta.dataSkippingStatsColumns": ",".join(bounded),
        "delta.checkpointInterval": _CHECKPOINT_INTERVAL,
        **DELETION_VECTORS,
    }
    no_rows.write.format("delta").mode("ignore").options(**properties).save(location)


def append(frame: DataFrame, location: str) -> None:
    """Append without noting a number; a table that does not exist is created."""
    frame.write.format("delta").mode("append").save(location)


def merge(
    spark: SparkSession,
    location: str,
    source: DataFrame,
    same: Column,
    updates: Mapping[str, Column],
    inserts: Mapping[str, Column],
    deleted: Column | None,
) -> None:
    """Merge the rows `s` of a source into the rows `t` of a table. `updates`, `inserts`: quoted
    column name -> value; `deleted`: whether a row of the source deletes its match (None: no row
    does)."""
    merged = DeltaTable.forPath(spark, location).alias("t").merge(source.alias("s"), same)
    alive = f.lit(True)
    if deleted is not None:
        merged, alive = merged.whenMatchedDelete(deleted), ~deleted
    merged = merged.whenMatchedUpdate(set={**updates})
    merged.whenNotMatchedInsert(alive, {**inserts}).execute()


def delete(spark: SparkSession, location: str, condition: Column | None = None) -> None:
    """Delete rows; without `condition`, all."""
    DeltaTable.forPath(spark, location).delete(condition)


def delete_unmatched(spark: SparkSession, location: str, keys: DataFrame, same: Column) -> None:
    """Delete the rows `t` of a table that match no row `s` of `keys`; one commit, or none if there
    are no such rows."""
    table = DeltaTable.forPath(spark, location).alias("t")
    table.merge(keys.alias("s"), same).whenNotMatchedBySourceDelete().execute()
