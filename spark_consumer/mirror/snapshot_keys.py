"""The keys that had a change since a snapshot of their table began (a row that the snapshot reads
counts as one), and the rows whose keys had none.

Those rows are not in the source any more (docs/decisions/0020): REPLACE deletes them, VERIFY
reports them. The keys are stored in a separate table whose columns are numbered rather than
named: `k0`, `k1`, ... are the fields of TableSchema.key_struct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.jvm import folder_names, remove_folder
from spark_consumer.mirror.fold.event_decoder import decode_events
from spark_consumer.mirror.fold.merge_source import same_key
from spark_consumer.mirror.paths import seen_path, seen_root
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import APPLICATION
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, TableSchema
from spark_consumer.tables import TableName

_COLUMNS = ("op", "commit_lsn", "ordinal", "schema_id", "value")


def store_keys(
    spark: SparkSession,
    location: str,
    records: pa.Table | DataFrame,
    shape: TableSchema,
    texts: Mapping[int, str],
    begin_lsn: int,
    commit_lsn: int,
    application: str = APPLICATION,
) -> None:
    """Append the keys of one table's records after `begin_lsn`, once for the slice that ends at
    `commit_lsn`, and for each `application`."""
    schema = _schema(shape)
    decode = partial(_keys, shape=shape, schemas=texts)
    if isinstance(records, DataFrame):
        chosen = records.where((f.col("op") != "TRUNCATE") & (f.col("commit_lsn") > begin_lsn)).select(*_COLUMNS)
        keys = chosen.mapInArrow(decode, spark_schema(schema))
    else:
        mask = pc.and_(pc.not_equal(records["op"], "TRUNCATE"), pc.greater(records["commit_lsn"], begin_lsn))
        kept = records.filter(mask).select(_COLUMNS).combine_chunks()
        keys = to_frame(spark, pa.Table.from_batches(decode(iter(kept.to_batches())), schema))
    TABLE_FORMAT.write_once(keys, location, "append", commit_lsn, application=application)


def remove_ended(spark: SparkSession, path: str, in_progress: Mapping[str, int]) -> None:
    """Remove the keys of snapshots that have ended or were restarted, which a crash may have left.
    `in_progress`: table -> LSN at which its snapshot began."""
    kept = {seen_path(path, TableName.parse(name), begin_lsn) for name, begin_lsn in in_progress.items()}
    found = [seen_root(path)]
    for _ in range(3):  # schema, table, begin LSN
        found = [f"{folder}/{name}" for folder in found for name in folder_names(spark, folder)]
    for location in found:
        if location not in kept:
            remove_folder(spark, location)


def _schema(shape: TableSchema) -> pa.Schema:
    return pa.schema([field.with_name(f"k{place}") for place, field in enumerate(shape.key_struct)])


def _keys(
    batches: Iterator[pa.RecordBatch], shape: TableSchema, schemas: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    for events in decode_events(batches, shape, schemas):
        yield pa.RecordBatch.from_arrays(events.column("key").flatten(), schema=_schema(shape))


def matches_key(shape: TableSchema) -> Column:
    """Match rows `t` of the table with their key `s`."""
    places = {field.name: place for place, field in enumerate(shape.key_struct)}
    return same_key(shape, lambda name: f.col(f"s.k{places[name]}"))


def have_other_types(spark: SparkSession, seen: str, shape: TableSchema) -> bool:
    """Return whether the stored keys, if any, have other types than this key."""
    if not TABLE_FORMAT.exists(spark, seen):
        return False
    return TABLE_FORMAT.rows(spark, seen).schema.simpleString() != spark_schema(_schema(shape)).simpleString()


def surplus(spark: SparkSession, rows: DataFrame, seen: str, shape: TableSchema) -> DataFrame:
    """Return those of the rows whose keys had no change."""
    if not TABLE_FORMAT.exists(spark, seen):
        return rows
    keys = TABLE_FORMAT.rows(spark, seen)
    return rows.alias("t").join(keys.alias("s"), matches_key(shape), "left_anti")


def delete_surplus(spark: SparkSession, location: str, seen: str, shape: TableSchema) -> None:
    """Delete the rows whose keys had no change: one commit, or none if there are no such rows."""
    # A key that had several changes was noted several times, but a merge refuses two source rows
    # for one row of the target.
    TABLE_FORMAT.delete_unmatched(spark, location, TABLE_FORMAT.rows(spark, seen).distinct(), matches_key(shape))


def truncate_log(spark: SparkSession, location: str, begin_lsn: int) -> None:
    """Append a TRUNCATE to the log of a table without a key that a snapshot found empty, at the LSN
    at which the snapshot began."""
    schema = TABLE_FORMAT.rows(spark, location).schema
    facts: dict[str, Any] = dict(zip(LOG_COLUMNS, ("TRUNCATE", begin_lsn, None, -1), strict=True))
    row = tuple(facts.get(name) for name in schema.names)
    TABLE_FORMAT.append(spark.createDataFrame([row], schema), location)
