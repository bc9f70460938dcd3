"""Rows that a VERIFY has read, compared with what the mirror holds behind the same commit.

A chunk's rows are what the source had where it commits, so that every difference is an error somewhere. Written nowhere but into
`<path>/differences`: one row a difference, with the key and the names of the columns, never a value of any other column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from spark_consumer.mirror.events import decode_events
from spark_consumer.mirror.layout import differences_path
from spark_consumer.mirror.merge import same_key, write_once
from spark_consumer.mirror.shape import TableShape, special_key
from spark_consumer.mirror.target import exists, quoted

CHANGED, MISSING, SURPLUS = "CHANGED", "MISSING", "SURPLUS"


def compared(
    spark: SparkSession, location: str, records: pa.Table | DataFrame, shape: TableShape, texts: Mapping[int, str]
) -> DataFrame:
    """Differences between the READ records of one table and its rows: columns `kind`, `key` (JSON text) and `columns`."""
    schema = from_arrow_schema(shape.events)
    decode = partial(decode_events, shape=shape, schemas=texts)
    if isinstance(records, DataFrame):
        chosen = records.where(f.col("op") == "READ").select("op", "commit_lsn", "ordinal", "schema_id", "value")
        events = chosen.mapInArrow(decode, schema)
    else:
        batches = list(decode(iter(records.combine_chunks().to_batches())))
        events = spark.createDataFrame(pa.Table.from_batches(batches, shape.events), schema)
    source = events.select("key", "row", "special").alias("s")
    if not exists(spark, location):
        return source.select(f.lit(MISSING).alias("kind"), _key_text(shape, _of_source), _no_names())
    rows = spark.read.format("delta").load(location)
    target = rows.withColumn("there", f.lit(True)).alias("t")
    same = same_key(shape, lambda name: f.col(f"s.key.{quoted(name)}"))
    different = f.filter(f.array(*_differing(shape, rows.columns)), lambda name: name.isNotNull())
    joined = source.join(target, same, "left").select(
        f.when(f.col("t.there").isNull(), MISSING).otherwise(CHANGED).alias("kind"),
        _key_text(shape, _of_source),
        f.when(f.col("t.there").isNotNull(), different).otherwise(f.array().cast("array<string>")).alias("columns"),
    )
    return joined.where((f.col("kind") == MISSING) | (f.size("columns") > 0))


def too_many(rows: DataFrame, shape: TableShape) -> DataFrame:
    """Rows of the table that the source does not have, as differences."""
    special = f.col(quoted(shape.special_column))

    def of_target(name: str) -> Column:
        owner = next((key for key in shape.key if special_key(key) == name), None)
        return f.col(quoted(name)) if owner is None else special[owner]

    return rows.select(f.lit(SURPLUS).alias("kind"), _key_text(shape, of_target), _no_names())


def _no_names() -> Column:
    return f.array().cast("array<string>").alias("columns")


def _of_source(name: str) -> Column:
    return f.col(f"s.key.{quoted(name)}")


def _key_text(shape: TableShape, column_of: Callable[[str], Column]) -> Column:
    fields = [column_of(field.name).alias(field.name) for field in shape.key_struct]
    return f.to_json(f.struct(*fields)).alias("key")


def _differing(shape: TableShape, there: list[str]) -> list[Column]:
    """Of each column, its name where the values or their texts differ."""
    found = []
    held = f.coalesce(f.col(f"t.{quoted(shape.special_column)}"), f.create_map().cast("map<string,string>"))
    for name in shape.columns:
        value = f.col(f"t.{quoted(name)}") if name in there else f.lit(None)
        same = f.col(f"s.row.{quoted(name)}").eqNullSafe(value) & f.col("s.special")[name].eqNullSafe(held[name])
        found.append(f.when(~same, f.lit(name)))
    return found or [f.lit(None).cast("string")]


def record(spark: SparkSession, path: str, found: list[tuple[str, DataFrame, str]], commit_lsn: int) -> int:
    """Appends the differences of tables at one commit, once; how many there are. `found`: table, differences, snapshot id."""
    frames = [
        rows.select(
            f.lit(snapshot_id).alias("snapshot_id"),
            f.lit(table).alias("table"),
            f.lit(commit_lsn).cast("long").alias("commit_lsn"),
            "kind",
            "key",
            "columns",
        )
        for table, rows, snapshot_id in found
    ]
    write_once(reduce(DataFrame.unionByName, frames), differences_path(path), "append", commit_lsn)
    written = spark.read.format("delta").load(differences_path(path))
    return written.where(f.col("commit_lsn") == commit_lsn).count()
