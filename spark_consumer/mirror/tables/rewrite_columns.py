"""Conversion of a table's rows to the columns of a newer version of its relation: see
columns.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, MapType, StructType

from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.mirror.sql_names import quoted
from spark_consumer.mirror.tables.columns import (
    FILL,
    ColumnChange,
    change_of_columns,
    fill_value,
    is_rewritten,
    missing_values,
)
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, TableSchema, is_log


def rewritten(
    spark: SparkSession,
    rows: DataFrame,
    change: ColumnChange,
    before: TableSchema,
    after: TableSchema,
    wanted: StructType,
) -> DataFrame:
    """Return the rows of a table, or the entries of a log, in the columns `wanted`. An old column
    may be gone already."""
    fills = _one_row(spark, change, after)
    made = rows if fills is None else rows.crossJoin(f.broadcast(fills))
    of_log = LOG_COLUMNS if is_log(wanted.names) else ()
    has_row = _has_row(before, rows) if of_log else f.lit(True)
    columns = []
    for item in wanted:
        name = item.name
        if name in of_log:
            column = f.col(name)
        elif name == after.special_column:
            column = f.when(has_row, _special(change, before))
        elif name in change.fills:
            column = f.when(has_row, f.col(quoted(_fill_column(name))))
        else:
            source = change.sources[name]
            column = cast_or_null(rows, source, item.dataType) if source in rows.columns else f.lit(None)
        columns.append(column.cast(item.dataType).alias(name))
    return made.select(*columns)


def cast_or_null(rows: DataFrame, name: str, kind: DataType) -> Column:
    """Return a column of `rows` in another type: null where Spark cannot cast a value, and in every
    row if it has no cast between the types."""
    if rows.schema[name].dataType == kind:
        return f.col(quoted(name))
    cast = f.col(quoted(name)).try_cast(kind)
    try:
        rows.select(cast)
    except AnalysisException:
        return f.lit(None).cast(kind)
    return cast


def _has_row(before: TableSchema, log: DataFrame) -> Column:
    """Select log entries that have a row: a TRUNCATE has none, nor has a DELETE without the old
    row."""
    values = [f.col(quoted(name)) for name in before.columns if name in log.columns]
    return (f.col("_op") != "TRUNCATE") & (
        (f.col("_op") != "DELETE") | f.coalesce(*map(_is_there, values), f.lit(False))
    )


def _is_there(column: Column) -> Column:
    return f.when(column.isNotNull(), f.lit(True))


def _fill_column(name: str) -> str:
    return f"{FILL} {name}"


def _one_row(spark: SparkSession, change: ColumnChange, after: TableSchema) -> DataFrame | None:
    if not change.fills:
        return None
    values = {_fill_column(name): fill_value(value, after.row.field(name).type) for name, value in change.fills.items()}
    table = pa.table(values)
    return to_frame(spark, table, spark_schema(table.schema))


def _special(change: ColumnChange, before: TableSchema) -> Column:
    there = f.col(quoted(before.special_column))
    names = {source: name for name, source in change.sources.items() if source is not None}
    pairs = [f.lit(text) for pair in names.items() for text in pair]
    texts = {name: value.special for name, value in change.fills.items() if value.special is not None}
    empty = f.create_map().cast("map<string,string>")
    kept = empty
    if pairs:
        renamed = f.create_map(*pairs)
        own = f.map_filter(there, lambda name, _: renamed[name].isNotNull())
        kept = f.coalesce(f.transform_keys(own, lambda name, _: renamed[name]), empty)
    if texts:
        added = f.create_map(*(f.lit(text) for pair in texts.items() for text in pair))
        kept = f.map_concat(kept, added)
    return f.when(f.size(kept) > 0, kept)


def special_texts(there: Mapping[str, DataType], wants: Mapping[str, DataType]) -> str | None:
    """Return the name of the column with special texts if columns are added or dropped. Return None
    if none are, or if that column had another name before."""
    maps = (name for name, kind in wants.items() if isinstance(kind, MapType) and isinstance(there.get(name), MapType))
    return next(maps, None) if there.keys() != wants.keys() else None


def kept_texts(special: str, names: Iterable[str]) -> Column:
    """Return the special texts that belong to these columns, or null if there are none."""
    kept = f.map_filter(quoted(special), lambda name, _: name.isin(sorted(names)))
    return f.when(f.size(kept) > 0, kept)


def in_columns(
    spark: SparkSession,
    rows: DataFrame,
    before: TableSchema | None,
    after: TableSchema,
    wanted: StructType,
    shapes: Iterable[TableSchema],
    *,
    casts: bool,
) -> DataFrame:
    """Return the rows in the columns that a merge would give them by `rewritten` or
    `TableFormat.align`. `before`: version of the relation whose columns they have, if known;
    `shapes`: versions that may name the values of columns that were added with a default."""
    if before is not None and before.oid == after.oid:
        change = change_of_columns(before, after, missing_values(shapes))
        if is_rewritten(before, after, change):
            return rewritten(spark, rows, change, before, after, wanted)
    return _conform(rows, wanted, casts=casts)


def _conform(frame: DataFrame, wanted: StructType, *, casts: bool) -> DataFrame:
    """Return the rows with exactly these columns, as `TableFormat.align` does: a value of another
    type is cast if `casts` and it can be, and otherwise null."""
    there = {field.name: field.dataType for field in frame.schema}
    wants = {field.name: field.dataType for field in wanted}
    special = special_texts(there, wants)
    columns = []
    for field in wanted:
        column = f.col(quoted(field.name)) if field.name in there else f.lit(None)
        if field.name == special:
            column = kept_texts(special, there.keys() & wants.keys())
        if there.get(field.name) != field.dataType:
            is_cast = casts and field.name in there
            column = cast_or_null(frame, field.name, field.dataType) if is_cast else f.lit(None).cast(field.dataType)
        columns.append(column.alias(field.name))
    return frame.select(*columns)
