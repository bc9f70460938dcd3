"""Logs of tables without a key: every change is appended, and no row is searched for. A table has
no key if its relation has no replica identity, or FULL without a primary key, or if its key has a
column that is an array.

The columns are those of the relation, then `_op`, `_commit_lsn`, `_commit_time`, `_ordinal` and
`_special`. `_op` is INSERT, DELETE (the old row; all columns null if the stream does not have it),
UPDATE (the new row), UPDATE_BEFORE (the old row of an UPDATE, if the stream has it), TRUNCATE (all
columns null) or READ (a row of a snapshot, or from before the table lost its key). A value that was
not sent (an unchanged TOAST value), and is not in the old row, is null. Added up, they give the
current rows, if the stream has all old rows. A snapshot reads a relation without a key in one
transaction, whose rows replace all others: a TRUNCATE with the ordinal -1 precedes the READ rows of
each transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.columnar.arrays import booleans, numbers, strings
from spark_consumer.mirror.fold.event_decoder import fill_from_before, special_of_row
from spark_consumer.mirror.tables.columns import OLD_ROW, decode_records
from spark_consumer.mirror.tables.table_schema import LOG_COLUMNS, TableSchema
from spark_consumer.source.frames import INSTANT, RAW, TEXTS

_POSITION = list(zip(LOG_COLUMNS, (pa.string(), pa.int64(), INSTANT, pa.int64()), strict=True))


def log_schema(shape: TableSchema) -> pa.Schema:
    return pa.schema([*shape.row, *(pa.field(*column) for column in _POSITION), pa.field(shape.special_column, TEXTS)])


def log_table_schema(shape: TableSchema) -> StructType:
    """Return the columns of the table."""
    return spark_schema(log_schema(shape))


def log_rows(records: DataFrame, shape: TableSchema, texts: Mapping[int, str]) -> DataFrame:
    """Return raw records of one table as rows of its log. `texts`: schema id -> JSON text, for
    every schema of the records."""
    columns = records.select("op", "commit_lsn", "commit_time", "ordinal", "schema_id", "value")
    decode = partial(decode_rows, shape=shape, schemas=texts)
    return columns.mapInArrow(decode, log_table_schema(shape)).coalesce(2)


def decode_rows(
    batches: Iterator[pa.RecordBatch], shape: TableSchema, schemas: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    """Convert raw records to rows of the log, for mapInArrow."""
    for batch in batches:
        ids = batch.column("schema_id").to_numpy()
        for schema_id in np.unique(ids).tolist():
            part = batch.filter(booleans(ids == schema_id))
            _, before, after, unchanged, special = decode_records(
                shape, part.column("value").cast(pa.binary()), schemas[schema_id]
            )
            old_special = _special_of_before(special)
            row, _, special = fill_from_before(before, after, unchanged, special)
            operation = part.column("op").cast(pa.string())
            old_words = strings([word if word == "DELETE" else "UPDATE_BEFORE" for word in operation.to_pylist()])
            yield _rows(part, before, old_words, old_special, np.flatnonzero(before.is_valid()), shape)
            new = row.is_valid().to_numpy(zero_copy_only=False)
            new |= np.isin(operation.to_pylist(), ["DELETE", "TRUNCATE"]) & before.is_null().to_numpy(
                zero_copy_only=False
            )
            yield _rows(part, row, operation, special_of_row(special), np.flatnonzero(new), shape)


def log_truncates(records: DataFrame, shape: TableSchema) -> DataFrame:
    """Return, as rows of the log, a TRUNCATE to precede the READ rows of each transaction in raw
    records."""
    reads = records.where(f.col("op") == "READ").groupBy("commit_lsn").agg(f.max("commit_time").alias("commit_time"))
    values = (f.lit("TRUNCATE"), f.col("commit_lsn"), f.col("commit_time"), f.lit(-1).cast("long"))
    log_values = dict(zip(LOG_COLUMNS, values, strict=True))
    nothing = f.lit(None)
    fields = log_table_schema(shape).fields
    return reads.select(*(log_values.get(item.name, nothing).cast(item.dataType).alias(item.name) for item in fields))


def small_log(
    records: pa.Table, shape: TableSchema, texts: Mapping[int, str], emptied: tuple[int, int] | None
) -> pa.Table:
    """Return few records of one table as rows of its log. `emptied`: position of one more
    TRUNCATE."""
    batches = list(decode_rows(iter(records.combine_chunks().to_batches()), shape, texts))
    return pa.concat_tables(
        [pa.Table.from_batches(batches, log_schema(shape)), small_truncates(records, shape, emptied)]
    )


def large_log(
    spark: SparkSession,
    records: DataFrame,
    shape: TableSchema,
    texts: Mapping[int, str],
    emptied: tuple[int, int] | None,
) -> DataFrame:
    """Return many records of one table as rows of its log. `emptied`: as for small_log."""
    log = log_rows(records, shape, texts).unionByName(log_truncates(records, shape))
    if emptied is None:
        return log
    cut = small_truncates(RAW.empty_table(), shape, emptied)
    return log.unionByName(to_frame(spark, cut, log_table_schema(shape)))


def small_truncates(records: pa.Table, shape: TableSchema, emptied: tuple[int, int] | None = None) -> pa.Table:
    """Return what log_truncates returns, for few records. `emptied`: position of one more
    TRUNCATE."""
    reads = records.filter(pc.equal(records["op"], "READ")).select(["commit_lsn", "commit_time"])
    found = reads.group_by("commit_lsn").aggregate([("commit_time", "max")]).to_pylist()
    places = [(row["commit_lsn"], row["commit_time_max"], -1) for row in found]
    if emptied is not None:
        places.append((emptied[0], None, emptied[1]))
    lsns, times, ordinals = zip(*places, strict=True) if places else ((), (), ())
    log_values = {
        "_op": pa.array(["TRUNCATE"] * len(places), pa.string()),
        "_commit_lsn": pa.array(lsns, pa.int64()),
        "_commit_time": pa.array(times, INSTANT),
        "_ordinal": pa.array(ordinals, pa.int64()),
    }
    schema = log_schema(shape)
    columns = [log_values.get(item.name, pa.nulls(len(places), item.type)) for item in schema]
    return pa.table(columns, schema=schema)


def _rows(
    part: pa.RecordBatch, row: pa.Array, words: pa.Array, special: pa.Array, chosen: np.ndarray, shape: TableSchema
) -> pa.RecordBatch:
    columns = [
        *row.flatten(),
        words,
        *(part.column(name) for name in ("commit_lsn", "commit_time", "ordinal")),
        special,
    ]
    schema = log_schema(shape)
    fitted = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(fitted, schema=schema).take(numbers(chosen))


def _special_of_before(special: pa.Array) -> pa.Array:
    if not len(special.keys):
        return special
    return pa.array(
        [
            [(name.removeprefix(OLD_ROW), text) for name, text in entries if name.startswith(OLD_ROW)]
            for entries in special.to_pylist()
        ],
        TEXTS,
    )


def not_applied(frame: DataFrame, applied_commit_lsn: int, column: str = "_commit_lsn") -> DataFrame:
    """Return the rows that the table does not have yet: a new checkpoint may divide batches
    differently."""
    return frame.where(f.col(column) > applied_commit_lsn)
