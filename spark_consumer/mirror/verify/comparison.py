"""Comparison of the rows that a VERIFY has read with the mirror's rows as of the same commit.

A chunk contains the rows that the source had at the chunk's commit, so every difference is an error
somewhere. The rows are not stored. `<path>/differences` gets one row for each difference, with the
key and the names of the columns, never the value of any other column. The keys that were read are
in `<path>/seen` until the snapshot ends, which then shows the surplus rows (snapshot_keys.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.mirror.fold.event_decoder import decode_events
from spark_consumer.mirror.fold.keyless_log import decode_rows, log_rows, log_schema, log_table_schema
from spark_consumer.mirror.fold.merge_source import same_key
from spark_consumer.mirror.fold.replica_identity import after_truncate, weight
from spark_consumer.mirror.fold.start_fold import table_schema
from spark_consumer.mirror.paths import differences_path
from spark_consumer.mirror.slice_contents import split_by_chunks
from spark_consumer.mirror.sql_names import quoted
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import APPLICATION
from spark_consumer.mirror.table_states import StoredMark
from spark_consumer.mirror.tables.table_schema import OUT, TableSchema, is_log, special_key
from spark_consumer.source.frames import STRINGS

CHANGED, MISSING, SURPLUS = "CHANGED", "MISSING", "SURPLUS"
# Columns added to those of a table. PostgreSQL does not allow this character in a name.
_THERE, _HELD = "\0there", "\0held"
MOST_AT_ONCE = 10_000  # differences of a table that are collected into this process
_DIFFERENCES = pa.schema(
    [
        ("snapshot_id", pa.string()),
        ("table", pa.string()),
        ("commit_lsn", pa.int64()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("columns", STRINGS),
    ]
)


def row_differences(
    spark: SparkSession,
    rows: DataFrame | None,
    records: pa.Table | DataFrame,
    shape: TableSchema,
    texts: Mapping[int, str],
) -> DataFrame:
    """Return the differences between the READ records of one table and its rows in the mirror, with
    the columns of `shape` (None: there are none). Columns: `kind`, `key` (JSON text) and
    `columns`."""
    schema = spark_schema(shape.events)
    decode = partial(decode_events, shape=shape, schemas=texts)
    if isinstance(records, DataFrame):
        chosen = records.where(f.col("op") == "READ").select("op", "commit_lsn", "ordinal", "schema_id", "value")
        events = chosen.mapInArrow(decode, schema)
    else:
        batches = list(decode(iter(records.combine_chunks().to_batches())))
        events = to_frame(spark, pa.Table.from_batches(batches, shape.events), schema)
    source = events.select("key", "row", "special").alias("s")
    if rows is None or not set(shape.key) <= set(rows.columns):
        return source.select(f.lit(MISSING).alias("kind"), _key_text(shape, _of_source), _no_names())
    target = rows.withColumn(_THERE, f.lit(True)).alias("t")
    same = same_key(shape, lambda name: f.col(f"s.key.{quoted(name)}"))
    different = f.filter(f.array(*_differing(shape, rows.columns)), lambda name: name.isNotNull())
    is_there = f.col(f"t.{quoted(_THERE)}").isNotNull()
    joined = source.join(target, same, "left").select(
        f.when(is_there, CHANGED).otherwise(MISSING).alias("kind"),
        _key_text(shape, _of_source),
        f.when(is_there, different).otherwise(f.array().cast("array<string>")).alias("columns"),
    )
    return joined.where((f.col("kind") == MISSING) | (f.size("columns") > 0))


def log_differences(
    spark: SparkSession,
    rows: DataFrame | None,
    records: pa.Table | DataFrame,
    shape: TableSchema,
    texts: Mapping[int, str],
) -> DataFrame:
    """Return the differences, as `row_differences` does, for a table without a key. The rows that
    its log adds up to are compared with the READ records of all its rows, as multisets. `key` is
    null."""
    names = [*shape.columns, shape.special_column]
    if isinstance(records, DataFrame):
        read = log_rows(records, shape, texts)
    else:
        batches = list(decode_rows(iter(records.combine_chunks().to_batches()), shape, texts))
        read = to_frame(spark, pa.Table.from_batches(batches, log_schema(shape)), log_table_schema(shape))
    both = read.select(*map(quoted, names), f.lit(-1).alias(_HELD))
    if rows is not None:
        both = both.unionByName(_added_up(rows, shape))
    return _unmatched_rows(both, shape)


def surplus_log_rows(rows: DataFrame, shape: TableSchema, begin_lsn: int) -> DataFrame:
    """Return the surplus rows of a table without a key in which a snapshot that began at
    `begin_lsn` found no row: the rows from before that were not removed. The columns are those of
    `log_differences`."""
    if is_log(rows.columns):
        is_later_row = (f.col("_commit_lsn") > begin_lsn) & ~f.col("_op").isin(*OUT)
        rows = rows.where(~is_later_row | (f.col("_op") == "TRUNCATE"))
    return _unmatched_rows(_added_up(rows, shape), shape).where(f.col("kind") == SURPLUS)


def _unmatched_rows(rows: DataFrame, shape: TableSchema) -> DataFrame:
    """Return as differences the rows that the target has more often, or less often, than the
    source. `rows`: columns of the table, and _HELD: how many more times the target has the row than
    the source."""
    special = f.col(quoted(shape.special_column))
    entries = f.when(f.size(special) > 0, f.array_sort(f.map_entries(special)))
    equal = [f.col(quoted(name)).alias(f"column {place}") for place, name in enumerate(shape.columns)]
    sums = rows.groupBy(*equal, entries.alias("texts")).agg(f.sum(_HELD).alias(_HELD))
    kind = f.when(f.col(_HELD) > 0, SURPLUS).otherwise(MISSING)
    each = f.explode(f.array_repeat(kind, f.abs(_HELD).cast("int"))).alias("kind")
    return sums.where(f.col(_HELD) != 0).select(each, f.lit(None).cast("string").alias("key"), _no_names())


def _added_up(rows: DataFrame, shape: TableSchema) -> DataFrame:
    """Return every row of the table, or every entry of its log, and in _HELD the number of rows
    that it adds."""
    is_entry = is_log(rows.columns)
    log = after_truncate(rows) if is_entry else rows
    columns = [
        f.col(quoted(field.name)) if field.name in rows.columns else f.lit(None).cast(field.dataType).alias(field.name)
        for field in table_schema(shape)
    ]
    return log.select(*columns, (weight() if is_entry else f.lit(1)).alias(_HELD))


def surplus_rows(rows: DataFrame, shape: TableSchema) -> DataFrame:
    """Return these rows, which the source does not have, as differences."""
    special = f.col(quoted(shape.special_column))

    def of_target(name: str) -> Column:
        owner = next((key for key in shape.key if special_key(key) == name), None)
        return f.col(quoted(name)) if owner is None else special[owner]

    return rows.select(f.lit(SURPLUS).alias("kind"), _key_text(shape, of_target), _no_names())


def _no_names() -> Column:
    return f.array().cast("array<string>").alias("columns")


def _of_source(name: str) -> Column:
    return f.col(f"s.key.{quoted(name)}")


def _key_text(shape: TableSchema, column_of: Callable[[str], Column]) -> Column:
    fields = [column_of(field.name).alias(field.name) for field in shape.key_struct]
    return f.to_json(f.struct(*fields)).alias("key")


def _differing(shape: TableSchema, there: list[str]) -> list[Column]:
    """Return for each column an expression: its name if the values or their special texts differ,
    otherwise null."""
    found = []
    held = f.coalesce(f.col(f"t.{quoted(shape.special_column)}"), f.create_map().cast("map<string,string>"))
    for name in shape.columns:
        value = f.col(f"t.{quoted(name)}") if name in there else f.lit(None)
        same = f.col(f"s.row.{quoted(name)}").eqNullSafe(value) & f.col("s.special")[name].eqNullSafe(held[name])
        found.append(f.when(~same, f.lit(name)))
    return found or [f.lit(None).cast("string")]


def first_later_change(changes: DataFrame, chunks: Sequence[StoredMark]) -> int | None:
    """Return the commit LSN of the first change of a table after a chunk of the same table, or
    None. A slice has to be cut there, since a chunk is compared with the table as it was before
    that change.

    `changes`: without table marks; `chunks`: those among the changes, in order.
    """
    first: dict[str, int] = {}
    for mark in chunks:
        first.setdefault(str(mark.table), mark.commit_lsn)
    _, others = split_by_chunks(changes, chunks)
    bounds = changes.sparkSession.createDataFrame([*first.items()], "table string, chunk_lsn long")
    later = others.join(f.broadcast(bounds), "table").where("commit_lsn > chunk_lsn")
    found = later.agg(f.min("commit_lsn")).head()
    return None if found is None else found[0]


def record(spark: SparkSession, path: str, found: list[tuple[str, DataFrame, str]], commit_lsn: int) -> int:
    """Append the differences of tables at one commit, once, and return how many there are. `found`:
    table, differences, snapshot id.

    Each table's differences are computed by a separate query and written together: Spark's planner
    cannot handle a union of hundreds.
    """
    count, few = 0, []
    for place, (table, rows, snapshot_id) in enumerate(found):
        facts = {"snapshot_id": f.lit(snapshot_id), "table": f.lit(table), "commit_lsn": f.lit(commit_lsn).cast("long")}
        named = rows.withColumns(facts).select(*_DIFFERENCES.names).persist()
        try:
            number = named.count()
            if number > MOST_AT_ONCE:
                application = f"{APPLICATION} {place}"
                TABLE_FORMAT.write_once(named, differences_path(path), "append", commit_lsn, application=application)
            elif number:
                few.append(named.toArrow().cast(_DIFFERENCES))
            count += number
        finally:
            named.unpersist()
    frame = to_frame(spark, pa.concat_tables(few) if few else _DIFFERENCES.empty_table())
    TABLE_FORMAT.write_once(frame, differences_path(path), "append", commit_lsn)
    return count
