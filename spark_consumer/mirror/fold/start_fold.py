"""Start of the fold of one table's raw records into the last state of each key. The fold itself is
done by fold_spark or, in this process, by fold_arrow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import MapType, StringType, StructField, StructType

from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.mirror.fold.event_decoder import decode_events
from spark_consumer.mirror.fold.fold_arrow import borrowed_keys, lost_columns, replay_events, whole_states
from spark_consumer.mirror.fold.fold_arrow import states as replayed_states
from spark_consumer.mirror.fold.fold_spark import STATE, last_states, moved_keys
from spark_consumer.mirror.fold.merge_source import KEY, ROW, same_key
from spark_consumer.mirror.slice_contents import TablePart
from spark_consumer.mirror.sql_names import quoted
from spark_consumer.mirror.tables.table_schema import TableSchema
from spark_consumer.source.frames import TEXTS

Cut = tuple[int, int] | None
# Returns the rows of the table before the changes, or None if it is new or was emptied.
Base = Callable[[], DataFrame | None]
# Is called with the columns whose values are lost: see fold_arrow.lost_columns.
NoteLost = Callable[[set[str]], None]
# A merge source of at most this many bytes is joined without a shuffle of the table's rows. Spark
# itself estimates its size several times too large.
_BROADCAST_BYTES = 16 << 20


def table_schema(shape: TableSchema) -> StructType:
    """Return the columns of the table."""
    columns = spark_schema(pa.schema(list(shape.row)))
    special = StructField(shape.special_column, MapType(StringType(), StringType()))
    return StructType([*columns.fields, special])


def ignore_lost(_: set[str]) -> None:
    pass


def small_states(
    spark: SparkSession,
    base: Base,
    records: pa.Table,
    part: TablePart,
    shape: TableSchema,
    texts: dict[int, str],
    note_lost: NoteLost = ignore_lost,
) -> pa.Table:
    """Return the last states (columns fold_spark.STATE) of few records."""
    kept = records.filter(_after_truncate(records, part.last_truncate)).combine_chunks()
    batches = list(decode_events(iter(kept.to_batches()), shape, texts))
    return arrow_fold(spark, base, pa.Table.from_batches(batches, shape.events), shape, note_lost)


def unsent_columns(events: pa.Table) -> set[str]:
    """Return the columns that some event did not send. If `events` are states, these are the
    columns whose value only the target has."""
    return set(pc.unique(pc.list_flatten(events["unchanged"])).to_pylist())


def living_rows(states: pa.Table, shape: TableSchema) -> pa.Table:
    """Return the rows that exist after the changes, in the columns of the table. For a DataFrame,
    merge_source.rows does this."""
    living = states.filter(pc.invert(states["deleted"]))
    columns = living["row"].combine_chunks().flatten()
    specials = living["special"].to_pylist()
    special = (
        pa.array([entries or None for entries in specials], TEXTS) if any(specials) else pa.nulls(len(living), TEXTS)
    )
    return pa.table([*columns, special], names=[*shape.columns, shape.special_column])


def key_bounds(states: pa.Table, shape: TableSchema) -> dict[str, tuple[int | str, int | str]]:
    """Return the least and greatest value of each key column that is a number or text, and whose
    Avro type holds every value."""
    found = {}
    for name in shape.key:
        kind = shape.row.field(name).type
        if len(states) and name not in shape.uncertain_key and (pa.types.is_integer(kind) or pa.types.is_string(kind)):
            bounds = pc.min_max(pc.struct_field(states["key"], [name])).as_py()
            found[name] = (bounds["min"], bounds["max"])
    return found


def arrow_merge_input(spark: SparkSession, states: pa.Table, unsent: set[str]) -> DataFrame:
    """Convert states (columns fold_spark.STATE) to the source of a merge, with `deleted` and
    `special` only if some row needs them. For a DataFrame, merge_source.merge_input does this."""
    key, row = (states[name].combine_chunks() for name in ("key", "row"))
    columns: dict[str, Any] = {KEY + field.name: column for field, column in zip(key.type, key.flatten(), strict=True)}
    columns |= {ROW + field.name: column for field, column in zip(row.type, row.flatten(), strict=True)}
    if pc.any(states["deleted"]).as_py():
        columns["deleted"] = states["deleted"]
    if unsent:
        columns["unchanged"] = states["unchanged"]
    if unsent or any(len(chunk.keys) for chunk in states["special"].chunks):
        columns["special"] = states["special"]
    table = pa.table(columns)
    frame = to_frame(spark, table, spark_schema(table.schema))
    return f.broadcast(frame) if table.nbytes <= _BROADCAST_BYTES else frame


def arrow_fold(
    spark: SparkSession, base: Base, events: pa.Table, shape: TableSchema, note_lost: NoteLost = ignore_lost
) -> pa.Table:
    """Return the last state of each key (columns fold_spark.STATE) after these events."""
    if not unsent_columns(events):
        return whole_states(events)
    ordered, outcomes = replay_events(events)
    held = None
    if borrowed_keys(outcomes):
        rows = base()
        held = None if rows is None else _held(spark, rows, ordered, shape)
        if lost := lost_columns(outcomes, held):
            note_lost(lost)
    return replayed_states(ordered, outcomes, held, shape)


def _after_truncate(records: pa.Table, cut: Cut) -> pa.ChunkedArray:
    """Select the changes of rows after the last TRUNCATE."""
    mask = pc.not_equal(records["op"], "TRUNCATE")
    if cut is None:
        return mask
    same = pc.and_(pc.equal(records["commit_lsn"], cut[0]), pc.greater(records["ordinal"], cut[1]))
    return pc.and_(mask, pc.or_(pc.greater(records["commit_lsn"], cut[0]), same))


def _held(spark: SparkSession, base: DataFrame, ordered: pa.Table, shape: TableSchema) -> pa.Table:
    """Return key, row and special of the table's rows with any of the old keys."""
    origins = ordered.filter(ordered["origin"].is_valid()).select(["origin"]).rename_columns(["key"])
    schema = spark_schema(pa.schema([shape.events.field("key")]))
    keys = to_frame(spark, origins, schema).distinct()
    row = f.struct(*(f.col(f"t.{quoted(name)}").alias(name) for name in shape.columns)).alias("row")
    special = f.coalesce(f.col(f"t.{quoted(shape.special_column)}"), f.create_map().cast("map<string,string>"))
    same = same_key(shape, lambda name: f.col(f"s.key.{quoted(name)}"))
    found = base.alias("t").join(f.broadcast(keys).alias("s"), same).select("s.key", row, special.alias("special"))
    wanted = pa.schema([shape.events.field(name) for name in ("key", "row", "special")])
    return found.toArrow().cast(wanted)


def spark_states(
    spark: SparkSession,
    base: Base,
    records: DataFrame,
    part: TablePart,
    shape: TableSchema,
    texts: dict[int, str],
    note_lost: NoteLost = ignore_lost,
    *,
    persist: bool = True,
) -> tuple[DataFrame, set[str], DataFrame]:
    """Return the last states of many records, the columns that some event did not send, and the
    events, which the caller unpersists."""
    kept = records.where(f.col("op") != "TRUNCATE")
    if part.last_truncate is not None:
        cut_lsn, cut_ordinal = part.last_truncate
        later = (f.col("commit_lsn") == cut_lsn) & (f.col("ordinal") > cut_ordinal)
        kept = kept.where((f.col("commit_lsn") > cut_lsn) | later)
    columns = kept.select("op", "commit_lsn", "ordinal", "schema_id", "value")
    decode = partial(decode_events, shape=shape, schemas=texts)
    events = columns.mapInArrow(decode, spark_schema(shape.events))
    events = events.persist() if persist else events
    return *spark_fold(spark, base, events, shape, note_lost), events


def spark_fold(
    spark: SparkSession, base: Base, events: DataFrame, shape: TableSchema, note_lost: NoteLost = ignore_lost
) -> tuple[DataFrame, set[str]]:
    """Return what arrow_fold returns, for events in Spark, and the columns that some event did not
    send. If any change of key has unsent columns, the events of all keys that take part in a change
    of key are folded in this process."""
    unsent, moved_unsent = _unsent_columns(events)
    if not moved_unsent:
        return last_states(events, unsent), unsent
    keys = moved_keys(events, shape)
    aside = last_states(events.join(keys, "key", "left_anti"), unsent).select(*STATE)
    moving = events.join(keys, "key", "left_semi").toArrow().select(shape.events.names).cast(shape.events)
    replayed = arrow_fold(spark, base, moving, shape, note_lost)
    state_schema = spark_schema(pa.schema([shape.events.field(name) for name in STATE]))
    return aside.unionByName(to_frame(spark, replayed, state_schema)), unsent


def _unsent_columns(events: DataFrame) -> tuple[set[str], bool]:
    """Return every name in `unchanged`, and whether a change of key has one."""
    found = events.agg(
        f.array_distinct(f.flatten(f.collect_set("unchanged"))).alias("names"),
        f.max(f.col("origin").isNotNull() & (f.size("unchanged") > 0)).alias("moved"),
    ).head()
    assert found is not None
    return set(found["names"] or ()), bool(found["moved"])
