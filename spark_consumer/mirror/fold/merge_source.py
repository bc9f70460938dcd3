"""The source of a merge, made of last states, and the rows that result from merging it.

The rows of a source are `s`, those of the table are `t`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_consumer.mirror.sql_names import quoted
from spark_consumer.mirror.tables.table_schema import TableSchema, special_key

# Prefixes of the columns of a merge's source that have a state's key and row.
KEY, ROW = "key.", "row."


def merged_columns(
    source: DataFrame,
    shape: TableSchema,
    unsent: set[str],
    bounds: Mapping[str, tuple[int | str, int | str]] = MappingProxyType({}),
) -> tuple[Column, dict[str, Column], dict[str, Column], Column | None]:
    """Return how states are merged into a table (arguments of TableFormat.merge): the condition,
    the values of a changed and of a new row, and which states delete their row.

    `source`: as returned by `merge_input`. Columns named in a state's `unchanged` keep the table's
    value; `unsent`: all such names. `bounds`: least and greatest value of some key columns in
    `source`, so that files with other keys are not read.
    """
    same = same_key(shape, lambda name: f.col(f"s.{quoted(KEY + name)}"))
    for name, (least, greatest) in bounds.items():
        same = same & f.col(f"t.{quoted(name)}").between(f.lit(least), f.lit(greatest))
    deleted = f.col("s.deleted") if "deleted" in source.columns else None
    return same, new_values(source, shape, unsent), new_values(source, shape, set()), deleted


def new_values(source: DataFrame, shape: TableSchema, unsent: set[str]) -> dict[str, Column]:
    """Return for each quoted column name its value after the state `s` (columns as returned by
    `merge_input`) is applied to the row `t`."""
    own = own_special() if "special" in source.columns else f.lit(None).cast("map<string,string>")
    values = {quoted(name): f.col(f"s.{quoted(ROW + name)}") for name in shape.columns}
    for name in unsent:
        keep = f.array_contains("s.unchanged", name)
        values[quoted(name)] = f.when(keep, f.col(f"t.{quoted(name)}")).otherwise(values[quoted(name)])
    return {**values, quoted(shape.special_column): _filled_special(shape) if unsent else own}


def merged_rows(base: DataFrame, source: DataFrame, shape: TableSchema, unsent: set[str]) -> DataFrame:
    """Return the rows that result if TableFormat.merge is applied to the rows `base`. `source`,
    `shape`, `unsent`: as for `merged_columns`."""
    names = [*shape.columns, shape.special_column]
    same = same_key(shape, lambda name: f.col(f"s.{quoted(KEY + name)}"))
    stay = base.alias("t").join(source.alias("s"), same, "left_anti").select(*map(quoted, names))
    alive = (source.where(~f.col("deleted")) if "deleted" in source.columns else source).alias("s")
    if unsent:
        alive = alive.join(base.alias("t"), same, "left")
    values = new_values(source, shape, unsent)
    return stay.unionByName(alive.select(*(values[quoted(name)].alias(name) for name in names)))


def merge_input(states: DataFrame, shape: TableSchema, unsent: set[str]) -> DataFrame:
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
