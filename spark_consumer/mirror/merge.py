"""The last states of a batch into a Delta table: one commit, which a replay of the batch does not repeat.

`txnVersion` is the commit LSN of the batch's last transaction: Delta skips a write whose version a table already has. Commit LSNs
rise whatever happens to a checkpoint, which batch ids do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.mirror.shape import TableShape, special_key
from spark_consumer.mirror.target import APPLICATION, quoted

_CONF = "spark.databricks.delta.write."


@contextmanager
def once(spark: SparkSession, commit_lsn: int) -> Iterator[None]:
    """Every Delta write of this session within is done once for this commit LSN."""
    spark.conf.set(f"{_CONF}txnAppId", APPLICATION)
    spark.conf.set(f"{_CONF}txnVersion", str(commit_lsn))
    try:
        yield
    finally:
        spark.conf.unset(f"{_CONF}txnAppId")
        spark.conf.unset(f"{_CONF}txnVersion")


def write_once(
    frame: DataFrame,
    location: str,
    mode: str,
    commit_lsn: int,
    *,
    merge_schema: bool = False,
    application: str = APPLICATION,
    properties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Append to, or overwrite, a Delta table, once for this commit LSN. `properties`: of the table, if this write makes it."""
    writer = frame.write.format("delta").mode(mode).option("mergeSchema", merge_schema).options(**properties)
    writer.option("txnAppId", application).option("txnVersion", commit_lsn).save(location)


def merge(spark: SparkSession, location: str, states: DataFrame, shape: TableShape, unsent: set[str]) -> None:
    """`states`: columns fold.STATE. Columns in a state's `unchanged` keep what the table has; `unsent` are all such names."""
    special = quoted(shape.special_column)
    values = {quoted(name): f.col(f"s.row.{quoted(name)}") for name in shape.columns}
    updates: dict[str, str | Column] = {**values, special: _filled_special(shape, unsent)}
    for name in sorted(unsent):
        keep = f.array_contains("s.unchanged", name)
        updates[quoted(name)] = f.when(keep, f.col(f"t.{quoted(name)}")).otherwise(values[quoted(name)])
    table = DeltaTable.forPath(spark, location).alias("t")
    (
        table.merge(states.alias("s"), same_key(shape))
        .whenMatchedDelete("s.deleted")
        .whenMatchedUpdate(set=updates)
        .whenNotMatchedInsert(~f.col("s.deleted"), {**values, special: own_special()})
        .execute()
    )


def rows(states: DataFrame, shape: TableShape) -> DataFrame:
    """The living rows, in the columns of the table."""
    columns = [f.col(f"row.{quoted(name)}").alias(name) for name in shape.columns]
    return states.where(~f.col("deleted")).select(*columns, own_special("").alias(shape.special_column))


def same_key(shape: TableShape) -> Column:
    special = quoted(shape.special_column)
    condition: Column | None = None
    for name in shape.key:
        here, there = f.col(f"t.{quoted(name)}"), f.col(f"s.key.{quoted(name)}")
        if name in shape.uncertain_key:
            text, other = f.col(f"t.{special}")[name], f.col(f"s.key.{quoted(special_key(name))}")
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


def _filled_special(shape: TableShape, unsent: set[str]) -> Column:
    """With the table's entries of the columns that were not sent."""
    if not unsent:
        return own_special()
    there = f.col(f"t.{quoted(shape.special_column)}")
    kept = f.map_filter(there, lambda name, _: f.array_contains("s.unchanged", name))
    both = f.when(there.isNull(), f.col("s.special")).otherwise(f.map_concat(kept, f.col("s.special")))
    return f.when(f.size(both) > 0, both)
