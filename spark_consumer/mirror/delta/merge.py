"""The last states of a batch into a Delta table: one commit, which a replay of the batch does not
repeat.

`txnVersion` is the commit LSN of the batch's last transaction: Delta skips a write whose version a
table already has. Commit LSNs rise whatever happens to a checkpoint, which batch ids do not.
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
# Sources of merges with no more rows in all stay in the plan: Spark then needs no job to broadcast
# them.
FEW_ROWS = 1000
# Of a merge's source: prefixes of the columns that have a state's key and row.
KEY, ROW = "key.", "row."


# OPTIMIZE, VACUUM or another writer of files was at the same table: the write is made again from
# what the table is now.
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
)
_PAUSES_S = (0.1, 0.5, 1, 2, 5, 10, 20)


def despite_conflicts(write: Callable[[], object], pause: Callable[[float], None] = time.sleep) -> None:
    """Makes a write that is done once, again and again where others change files of the same table
    meanwhile.

        Raises what Delta raises in the end, and at once where two writers are at one mirror
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
    """Every Delta write of this session within is done once for this commit LSN.

    `rows_here`: the sources of merges are in this process, with so many rows in all. Delta would
    copy them first, which is a job, lest they change meanwhile. Many are no part of the plan: each
    step of Spark's planning would carry them.
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
    """Append to, overwrite or create (`mode`: errorifexists) a Delta table, once for this commit
    LSN. `properties`: of the table, if this write makes it.

    `expected`: as for direct.append, where that makes the commit. `note`: userMetadata of the
    commit. Raises Superseded also where a table that is to be created is there.
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
    """`source`: as `flat` makes it. Columns in a row's `unchanged` keep what the table has;
    `unsent` are all such names.

        `bounds`: least and greatest value that some columns of the key have in `source`: files beyond
        them are not read.
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
    """Of every column, quoted, what it has behind a state `s` (columns as `flat` makes them) of the
    row `t`."""
    own = own_special() if "special" in source.columns else f.lit(None).cast("map<string,string>")
    values = {quoted(name): f.col(f"s.{quoted(ROW + name)}") for name in shape.columns}
    for name in unsent:
        keep = f.array_contains("s.unchanged", name)
        values[quoted(name)] = f.when(keep, f.col(f"t.{quoted(name)}")).otherwise(values[quoted(name)])
    return {**values, quoted(shape.special_column): _filled_special(shape) if unsent else own}


def laid_over(base: DataFrame, source: DataFrame, shape: TableSchema, unsent: set[str]) -> DataFrame:
    """What `merge` would make of the rows `base`; the other arguments are as there."""
    names = [*shape.columns, shape.special_column]
    same = same_key(shape, lambda name: f.col(f"s.{quoted(KEY + name)}"))
    stay = base.alias("t").join(source.alias("s"), same, "left_anti").select(*map(quoted, names))
    alive = (source.where(~f.col("deleted")) if "deleted" in source.columns else source).alias("s")
    if unsent:
        alive = alive.join(base.alias("t"), same, "left")
    values = new_values(source, shape, unsent)
    return stay.unionByName(alive.select(*(values[quoted(name)].alias(name) for name in names)))


def flat(states: DataFrame, shape: TableSchema, unsent: set[str]) -> DataFrame:
    """Columns fold.STATE -> the source of a merge. Without structs, which cost a tenth of its CPU
    time."""
    key = [f.col(f"key.{quoted(field.name)}").alias(KEY + field.name) for field in shape.key_struct]
    row = [f.col(f"row.{quoted(name)}").alias(ROW + name) for name in shape.columns]
    return states.select(*key, *row, "deleted", "special", *(["unchanged"] if unsent else []))


def rows(states: DataFrame, shape: TableSchema) -> DataFrame:
    """The living rows, in the columns of the table."""
    columns = [f.col(f"row.{quoted(name)}").alias(name) for name in shape.columns]
    return states.where(~f.col("deleted")).select(*columns, own_special("").alias(shape.special_column))


def same_key(shape: TableSchema, state_key: Callable[[str], Column]) -> Column:
    """`state_key`: the column that has a field of shape.key_struct."""
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
    """null rather than an empty map: nearly every row has none."""
    special = f.col(f"{prefix}special")
    return f.when(f.size(special) > 0, special)


def _filled_special(shape: TableSchema) -> Column:
    """With the table's entries of the columns that were not sent."""
    there = f.col(f"t.{quoted(shape.special_column)}")
    kept = f.map_filter(there, lambda name, _: f.array_contains("s.unchanged", name))
    both = f.when(there.isNull(), f.col("s.special")).otherwise(f.map_concat(kept, f.col("s.special")))
    return f.when(f.size(both) > 0, both)
