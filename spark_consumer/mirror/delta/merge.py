"""Writes of a batch's last states to a Delta table: one commit, which a replay of the batch does
not repeat.

`txnVersion` is the commit LSN of the batch's last transaction: Delta skips a write whose version a
table already has. Unlike batch ids, commit LSNs increase even if a checkpoint is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
)
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.arrow import out_of_plan
from spark_consumer.mirror.delta import delta_append
from spark_consumer.mirror.delta.delta_table import APPLICATION, quoted
from spark_consumer.mirror.spark_settings import settings
from spark_consumer.mirror.table_schema import TableSchema, special_key

_CONF = "spark.databricks.delta.write."
_COPIES_SOURCE = "spark.databricks.delta.merge.materializeSource"
# Sources of merges with at most this many rows in all stay in the plan, so that Spark needs no job
# to broadcast them.
FEW_ROWS = 1000
# Prefixes of the columns of a merge's source that have a state's key and row.
KEY, ROW = "key.", "row."


# Errors when OPTIMIZE, VACUUM or another writer of files was at the same table: the write is
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

    Raise what Delta raises in the last attempt, and immediately if two writers use one mirror
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
    if rows_here is not None:
        wanted |= {_COPIES_SOURCE: "none", **(out_of_plan(spark, rows_here) if rows_here > FEW_ROWS else {})}
    with settings(spark, wanted):
        yield


def write_once(
    frame: DataFrame,
    location: str,
    mode: str,
    commit_lsn: int,
    *,
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    application: str = APPLICATION,
    properties: Mapping[str, str] = MappingProxyType({}),
    expected: Mapping[str, int] = delta_append.NOTHING,
    note: str | None = None,
) -> None:
    """Append to, overwrite or create (`mode` errorifexists) a Delta table, once for this commit
    LSN. `properties`: those of the table, if this write creates it.

    `expected`: as for delta_append.append, if that makes the commit. `note`: userMetadata of the
    commit. Raise Superseded also if a table that is to be created exists.
    """
    if (
        mode == "append"
        and not properties
        and delta_append.append(frame, location, application, commit_lsn, expected, note)
    ):
        return
    writer = frame.write.format("delta").mode(mode).option("mergeSchema", merge_schema).options(**properties)
    if overwrite_schema:
        writer = writer.option("overwriteSchema", True)
    if note is not None:
        writer = writer.option("userMetadata", note)
    try:
        writer.option("txnAppId", application).option("txnVersion", commit_lsn).save(location)
    except AnalysisException as problem:
        if problem.getCondition() != "DELTA_PATH_EXISTS":
            raise
        raise delta_append.Superseded(location) from problem


def merge(
    spark: SparkSession,
    location: str,
    source: DataFrame,
    shape: TableSchema,
    unsent: set[str],
    bounds: Mapping[str, tuple[int | str, int | str]] = MappingProxyType({}),
) -> None:
    """Merge states into a table. `source`: as made by `flat`. Columns named in a state's
    `unchanged` keep the table's value; `unsent`: all such names.

    `bounds`: least and greatest value of some key columns in `source`, so that files with other
    keys are not read.
    """
    own = own_special() if "special" in source.columns else f.lit(None).cast("map<string,string>")
    values = {quoted(name): f.col(f"s.{quoted(ROW + name)}") for name in shape.columns}
    same = same_key(shape, lambda name: f.col(f"s.{quoted(KEY + name)}"))
    for name, (least, greatest) in bounds.items():
        same = same & f.col(f"t.{quoted(name)}").between(f.lit(least), f.lit(greatest))
    merged = DeltaTable.forPath(spark, location).alias("t").merge(source.alias("s"), same)
    alive = f.lit(True)
    if "deleted" in source.columns:
        merged = merged.whenMatchedDelete("s.deleted")
        alive = ~f.col("s.deleted")
    updates: dict[str, str | Column] = dict(new_values(source, shape, unsent))
    inserts: dict[str, str | Column] = {**values, quoted(shape.special_column): own}
    merged.whenMatchedUpdate(set=updates).whenNotMatchedInsert(alive, inserts).execute()


def new_values(source: DataFrame, shape: TableSchema, unsent: set[str]) -> dict[str, Column]:
    """Return for each quoted column name its value after the state `s` (columns as made by `flat`)
    is applied to the row `t`."""
    own = own_special() if "special" in source.columns else f.lit(None).cast("map<string,string>")
    values = {quoted(name): f.col(f"s.{quoted(ROW + name)}") for name in shape.columns}
    for name in unsent:
        keep = f.array_contains("s.unchanged", name)
        values[quoted(name)] = f.when(keep, f.col(f"t.{quoted(name)}")).otherwise(values[quoted(name)])
    return {**values, quoted(shape.special_column): _filled_special(shape) if unsent else own}


def laid_over(base: DataFrame, source: DataFrame, shape: TableSchema, unsent: set[str]) -> DataFrame:
    """Return the rows that `merge` would make of the rows `base`; the other arguments are the
    same."""
    names = [*shape.columns, shape.special_column]
    same = same_key(shape, lambda name: f.col(f"s.{quoted(KEY + name)}"))
    stay = base.alias("t").join(source.alias("s"), same, "left_anti").select(*map(quoted, names))
    alive = (source.where(~f.col("deleted")) if "deleted" in source.columns else source).alias("s")
    if unsent:
        alive = alive.join(base.alias("t"), same, "left")
    values = new_values(source, shape, unsent)
    return stay.unionByName(alive.select(*(values[quoted(name)].alias(name) for name in names)))


def flat(states: DataFrame, shape: TableSchema, unsent: set[str]) -> DataFrame:
    """Convert states (columns fold_spark.STATE) to the source of a merge. It has no structs, which
    cost a tenth of a merge's CPU time."""
    key = [f.col(f"key.{quoted(field.name)}").alias(KEY + field.name) for field in shape.key_struct]
    row = [f.col(f"row.{quoted(name)}").alias(ROW + name) for name in shape.columns]
    return states.select(*key, *row, "deleted", "special", *(["unchanged"] if unsent else []))


def rows(states: DataFrame, shape: TableSchema) -> DataFrame:
    """Return the rows that are not deleted, in the columns of the table."""
    columns = [f.col(f"row.{quoted(name)}").alias(name) for name in shape.columns]
    return states.where(~f.col("deleted")).select(*columns, own_special("").alias(shape.special_column))


def same_key(shape: TableSchema, state_key: Callable[[str], Column]) -> Column:
    """Return the condition that row `t` has the key of a state. `state_key`: returns the state's
    column for a field of shape.key_struct."""
    special = quoted(shape.special_column)
    condition: Column | None = None
    for name in shape.key:
        here, there = f.col(f"t.{quoted(name)}"), state_key(name)
        if name in shape.uncertain_key:
            text, other = f.col(f"t.{special}")[name], state_key(special_key(name))
            same = here.eqNullSafe(there) & text.eqNullSafe(other)
        else:
            same = here == there
        condition = same if condition is None else condition & same
    assert condition is not None, "a table without key is never merged"
    return condition


def own_special(prefix: str = "s.") -> Column:
    """Return the state's special texts, null instead of an empty map: nearly every row has none."""
    special = f.col(f"{prefix}special")
    return f.when(f.size(special) > 0, special)


def _filled_special(shape: TableSchema) -> Column:
    """Return the state's special texts and, for columns that were not sent, those of the table."""
    there = f.col(f"t.{quoted(shape.special_column)}")
    kept = f.map_filter(there, lambda name, _: f.array_contains("s.unchanged", name))
    both = f.when(there.isNull(), f.col("s.special")).otherwise(f.map_concat(kept, f.col("s.special")))
    return f.when(f.size(both) > 0, both)
