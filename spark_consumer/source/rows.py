"""Turn changes into rows: flat columns, versions of a row, the last state of each key. These are
functions of DataFrames, for `transform`.

The functions take the typed frame of one table (`format("walgate")` with `table`, or `decode`) and
its key columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DateType, StructType, TimestampNTZType, TimestampType

from spark_consumer.errors import UnsupportedSchema
from spark_consumer.source.decode import typed
from spark_consumer.source.options import parse_options
from spark_consumer.source.table_columns import frame_and_schemas
from spark_consumer.tables import TableName

POSITION = ("commit_lsn", "ordinal")
_ARRAY_IN_KEY = "the key column {!r} is an array, and a change has no old row: the table needs REPLICA IDENTITY FULL"


class KnownSchemas(dict[int, str]):
    """The schemas that a table had when `decode` was called, schema id -> JSON text."""

    def __missing__(self, schema_id: int) -> str:
        raise UnsupportedSchema(
            f"a record was written with schema {schema_id}, which the registry did not have for the table "
            "when decode was called",
            hint="The table was altered after that: call decode again.",
        )


def decode(raw: DataFrame, table: str, options: Mapping[str, str]) -> DataFrame:
    """Return the typed frame of one table from the raw frame of all tables. `options`: the options
    with which `raw` was read.

    Uses the schemas that the registry has for the table now; a record with a later schema raises
    UnsupportedSchema.
    """
    parsed = parse_options(options, streaming=None)
    name = TableName.parse(table)
    frame, schemas = frame_and_schemas(parsed, name)
    texts = KnownSchemas({schema_id: json.dumps(schema) for schema_id, schema in schemas.items()})
    records = raw.where((f.col("table") == str(name)) & f.col("schema_id").isNotNull())  # without markers
    return typed(records, frame, texts)


def flat(changes: DataFrame) -> DataFrame:
    """Return _op, _commit_lsn, _commit_time, _ordinal, _unchanged, then the columns of the new row.
    A DELETE has the columns of the old row that were sent for its replica identity. A column that
    was not sent with the new row has its value in the old row. If the old value was not sent
    either, the column is null, and `_unchanged` names it."""
    columns = [_value(changes, name).alias(name) for name in _struct(changes, "after").names]
    return changes.select(
        f.col("op").alias("_op"),
        f.col("commit_lsn").alias("_commit_lsn"),
        f.col("commit_time").alias("_commit_time"),
        f.col("ordinal").alias("_ordinal"),
        _unsent(changes).alias("_unchanged"),
        *columns,
    )


def _unsent(changes: DataFrame) -> Column:
    """Return the names of the columns whose value was sent neither with the new row nor with the
    old row."""
    in_key = f.array(*(f.when(f.col("old_key")[name].isNotNull(), f.lit(name)) for name in _key_columns(changes)))
    unsent = f.array_except("unchanged", in_key.cast("array<string>"))
    is_whole = (f.col("op") == "DELETE") | f.col("before").isNotNull()
    return f.when(is_whole, f.array().cast("array<string>")).otherwise(unsent)


def _value(changes: DataFrame, name: str) -> Column:
    return f.when(f.col("op") == "DELETE", _old_value(changes, name)).otherwise(_new_value(changes, name))


def _old_value(changes: DataFrame, name: str) -> Column:
    """Return the column's value in the old row: from `before`, which REPLICA IDENTITY FULL sends,
    or from `old_key`."""
    before = f.col("before")[name]
    return f.coalesce(before, _key_value(changes, name)) if name in _key_columns(changes) else before


def _key_columns(changes: DataFrame) -> list[str]:
    """Return the columns of `old_key` whose values can be converted to those of a row. Arrays
    cannot, since `old_key` has them as PostgreSQL's text."""
    row = _struct(changes, "after")
    return [name for name in _struct(changes, "old_key").names if not isinstance(row[name].dataType, ArrayType)]


def _struct(changes: DataFrame, name: str) -> StructType:
    kind = changes.schema[name].dataType
    assert isinstance(kind, StructType)
    return kind


def _key_value(changes: DataFrame, name: str) -> Column:
    """Return the column's value in `old_key`, in which values of some types are PostgreSQL's text.
    A value that Spark's type cannot hold is null, as in a row: infinity, NaN, and dates before
    Christ or after the year 9999."""
    value, kind = f.col("old_key")[name], _struct(changes, "after")[name].dataType
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        text = value.cast("string")
        value = f.when(text.rlike(r"^\d{4}-") & ~text.endswith(" BC"), value)
    return value.try_cast(kind)


def _new_value(changes: DataFrame, name: str) -> Column:
    """Return the column's value in the new row. For a TOASTed value that was not sent, return the
    value in the old row."""
    return f.when(f.array_contains("unchanged", name), _old_value(changes, name)).otherwise(f.col("after")[name])


def keyed(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return rows as `flat` does, without TRUNCATEs. A change of key gives two rows: one with the
    `_op` DELETE under the old key, and one with UPDATE under the new key.

    A key with an array needs REPLICA IDENTITY FULL: otherwise, a DELETE and a change of key have no
    `before`, and end the query."""
    rows = changes.where(f.col("op") != "TRUNCATE")
    # PostgreSQL also sends an old key that has not changed, under REPLICA IDENTITY FULL or if a
    # part of the key is TOASTed.
    old = f.struct(*(_old_value(changes, name).alias(name) for name in key))
    new = f.struct(*(_new_value(changes, name).alias(name) for name in key))
    has_key = reduce(and_, (f.col("old_key")[name].isNotNull() for name in key))
    has_old = f.col("before").isNotNull() | has_key
    moved = (f.col("op") == "UPDATE") & has_old & ~old.eqNullSafe(new)
    words = f.when(moved, f.array(f.lit("DELETE"), f.col("op"))).otherwise(f.array("op"))
    arrays = [name for name in key if name not in _key_columns(changes)]
    if arrays:
        unknown = f.col("before").isNull() & ((f.col("op") == "DELETE") | has_key)
        words = f.when(unknown, f.raise_error(_ARRAY_IN_KEY.format(arrays[0]))).otherwise(words)
    return flat(rows.withColumn("op", f.explode(words)))


def feed(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return rows for AUTO CDC and other MERGEs. They are those of `keyed`, with the column
    `_sequence`, a string that rises with every change of a row. A column that was not sent is null;
    with REPLICA IDENTITY FULL, all columns are sent."""
    sequence = f.format_string("%016X/%016X", "_commit_lsn", "_ordinal")
    return keyed(changes, key).withColumn("_sequence", sequence)


def last_states(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows that result from applying the changes to an empty table: key columns, then
    the others. Deleted keys are left out.

    A TRUNCATE ends all earlier rows. A column that was not sent with any of the changes is null. So
    is a TOASTed column that was not sent with a change of key, until a later change sends it: its
    value was sent under the old key.
    """
    cut = changes.where(f.col("op") == "TRUNCATE").agg(f.max(f.struct(*POSITION)).alias("cut"))
    rows = keyed(changes, key).crossJoin(f.broadcast(cut))
    position = f.struct(f.col("_commit_lsn").alias("commit_lsn"), f.col("_ordinal").alias("ordinal"))
    rows = rows.where(f.col("cut").isNull() | (position > f.col("cut"))).drop("cut")
    others = [name for name in rows.columns if not name.startswith("_") and name not in key]
    told = [f.max_by(_sent(name), f.when(_sent(name).isNotNull(), position)).alias(name) for name in others]
    folded = rows.groupBy(*key).agg(f.max_by("_op", position).alias("_op"), *told)
    return folded.where(f.col("_op") != "DELETE").select(*key, *(f.col(name)["value"].alias(name) for name in others))


def _sent(name: str) -> Column:
    """Return the value in a struct, which distinguishes a null that was sent from a column that was
    not sent."""
    return f.when(~f.array_contains("_unchanged", name), f.struct(f.col(name).alias("value")))


def versions(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return a slowly changing dimension, type 2: every version of every row, with `valid_from` and
    `valid_to` (null: the current version).

    A change of key ends the last version under the old key, and begins the first version under the
    new key. A TOASTed column that was not sent with it is null under the new key until a later
    change sends it.
    """
    moment = f.struct("commit_lsn", "ordinal", "commit_time")
    cuts = changes.where(f.col("op") == "TRUNCATE").agg(f.collect_list(moment).alias("_cuts"))
    rows = keyed(changes, key).crossJoin(f.broadcast(cuts))
    order = Window.partitionBy(*key).orderBy("_commit_lsn", "_ordinal")
    others = [name for name in rows.columns if not name.startswith("_") and name not in key]
    filled = [f.last(_sent(name), ignorenulls=True).over(order)["value"].alias(name) for name in others]
    here = f.struct(*(f.col(f"_{name}").alias(name) for name in (*POSITION, "commit_time")))
    cut = f.array_min(f.filter("_cuts", lambda cut: cut > here))
    ended = f.least(f.lead(here).over(order), cut)["commit_time"]
    found = rows.select(*key, *filled, "_op", f.col("_commit_time").alias("valid_from"), ended.alias("valid_to"))
    return found.where(f.col("_op") != "DELETE").drop("_op")
