"""One micro-batch of all tables into the mirror: whole transactions, each table one Delta commit, then one picture of all.

Idempotent: a batch that is run again (Spark repeats the last one after a crash) skips what it has written, table by table. See
merge.py for how, and pictures.py for what readers see meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import MapType, StringType, StructField, StructType

from spark_consumer.mirror import pictures, target
from spark_consumer.mirror.chain import Event, State, replay
from spark_consumer.mirror.events import decode_events
from spark_consumer.mirror.fold import STATE, last_states, moved_keys, position
from spark_consumer.mirror.layout import table_path
from spark_consumer.mirror.log import log_rows, log_table_schema, not_yet
from spark_consumer.mirror.merge import merge, once, rows, same_key, write_once
from spark_consumer.mirror.shape import TableShape
from spark_consumer.registry import SchemaCache
from spark_consumer.tables import TableName

TABLES_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did. `tables`: changes of each."""

    batch: int
    commit_lsn: int
    transactions: int
    changes: int
    tables: dict[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class TablePart:
    """What a batch holds of one table. `newest`: schema id of its last record; `cut`: position of its last TRUNCATE."""

    table: TableName
    changes: int
    schema_ids: list[int]
    newest: int
    cut: tuple[int, int] | None


@dataclass
class Mirror:
    """Applies batches; `apply` is the function for foreachBatch. One writer a mirror."""

    path: str
    schemas: SchemaCache
    report: Callable[[BatchReport], None] = lambda _: None
    _last: pictures.Picture | None = field(default=None, init=False)
    _opened: bool = field(default=False, init=False)

    def apply(self, raw: DataFrame, batch: int) -> None:
        """`raw`: frames.RAW, whole transactions."""
        began = time.monotonic()
        spark = raw.sparkSession
        if not self._opened:
            self._last, self._opened = pictures.picture(spark, self.path), True
        if self._last is not None:  # a new checkpoint begins early: those transactions are in the mirror
            raw = raw.where(f.col("commit_lsn") > self._last.commit_lsn)
        raw = raw.where(f.col("table").isNotNull()).persist()
        try:
            totals = raw.agg(
                f.max("commit_lsn"), f.count_distinct("commit_lsn"), f.max("commit_time"), f.count("*")
            ).head()
            if totals is None or totals[0] is None:
                return
            parts = table_parts(raw)
            versions = self._write_tables(spark, raw, parts, totals[0])
            self._record(spark, batch, totals, versions)
        finally:
            raw.unpersist()
        changes = {str(part.table): part.changes for part in parts}
        self.report(BatchReport(batch, totals[0], totals[1], totals[3], changes, time.monotonic() - began))

    def _write_tables(
        self, spark: SparkSession, raw: DataFrame, parts: list[TablePart], commit_lsn: int
    ) -> dict[str, int]:
        """The version of each table behind this batch. Tables are made and altered before `once`, which holds for every
        write of the session: Delta would take such a commit for the batch's own."""
        waiting = []
        for part in parts:
            shape = TableShape.of(self.schemas[part.newest])
            location = table_path(self.path, part.table)
            applied = prepare(spark, location, part, shape)
            if applied < commit_lsn:
                waiting.append((location, part, shape, applied))
        with once(spark, commit_lsn), ThreadPoolExecutor(TABLES_AT_ONCE) as threads:
            for future in [threads.submit(self._write, spark, raw, *item, commit_lsn) for item in waiting]:
                future.result()
        return {str(part.table): target.version(spark, table_path(self.path, part.table)) for part in parts}

    def _write(
        self,
        spark: SparkSession,
        raw: DataFrame,
        location: str,
        part: TablePart,
        shape: TableShape,
        applied: int,
        commit_lsn: int,
    ) -> None:
        texts = {schema_id: json.dumps(self.schemas[schema_id]) for schema_id in part.schema_ids}
        records = raw.where(f.col("table") == str(part.table))
        if shape.key:
            self._write_states(spark, location, records, part, shape, texts, commit_lsn)
        else:
            log = not_yet(log_rows(records, shape, texts), applied)
            write_once(log, location, "append", commit_lsn)

    def _write_states(
        self,
        spark: SparkSession,
        location: str,
        records: DataFrame,
        part: TablePart,
        shape: TableShape,
        texts: dict[int, str],
        commit_lsn: int,
    ) -> None:
        kept = records.where(f.col("op") != "TRUNCATE")
        if part.cut is not None:
            cut_lsn, cut_ordinal = part.cut
            later = (f.col("commit_lsn") == cut_lsn) & (f.col("ordinal") > cut_ordinal)
            kept = kept.where((f.col("commit_lsn") > cut_lsn) | later)
        events = keyed(kept, shape, texts).persist()
        try:
            unsent, chained = unsent_columns(events)
            base = None if part.cut is not None else spark.read.format("delta").load(location)
            states = chained_states(spark, events, base, shape, unsent) if chained else last_states(events, unsent)
            if part.cut is not None:
                write_once(rows(states, shape), location, "overwrite", commit_lsn)
            else:
                merge(spark, location, states, shape, unsent)
        finally:
            events.unpersist()

    def _record(self, spark: SparkSession, batch: int, totals: Row, versions: dict[str, int]) -> None:
        before = {} if self._last is None else dict(self._last.tables)
        picture = pictures.Picture(batch, totals[0], totals[2], before | versions)
        pictures.record(spark, self.path, picture)
        self._last = picture


def prepare(spark: SparkSession, location: str, part: TablePart, shape: TableShape) -> int:
    """Makes or alters the table: the commit LSN it has taken in; -1: none yet."""
    wanted = table_schema(shape) if shape.key else log_table_schema(shape)
    if not target.exists(spark, location):
        target.create(spark, location, wanted, f"mirror of {part.table}")
        return -1
    target.align(spark, location, wanted)
    return target.applied_commit_lsn(spark, location)


def table_schema(shape: TableShape) -> StructType:
    """Columns of the Delta table."""
    columns = from_arrow_schema(pa.schema(list(shape.row)))
    special = StructField(shape.special_column, MapType(StringType(), StringType()))
    return StructType([*columns.fields, special])


def table_parts(raw: DataFrame) -> list[TablePart]:
    """What the batch holds, largest table first. One job over the columns beside the value."""
    truncate = f.when(f.col("op") == "TRUNCATE", position())
    found = (
        raw.groupBy("table")
        .agg(
            f.count("*").alias("changes"),
            f.collect_set("schema_id").alias("schema_ids"),
            f.max_by("schema_id", position()).alias("newest"),
            f.max(truncate).alias("cut"),
        )
        .orderBy(f.col("changes").desc())
        .collect()
    )
    return [
        TablePart(
            TableName.parse(row["table"]),
            row["changes"],
            sorted(row["schema_ids"]),
            row["newest"],
            None if row["cut"] is None else (row["cut"]["commit_lsn"], row["cut"]["ordinal"]),
        )
        for row in found
    ]


def keyed(records: DataFrame, shape: TableShape, texts: dict[int, str]) -> DataFrame:
    """Keyed events (events.py) of raw records of one table."""
    columns = records.select("op", "commit_lsn", "ordinal", "schema_id", "value")
    decode = partial(decode_events, shape=shape, schemas=texts)
    return columns.mapInArrow(decode, from_arrow_schema(shape.events))


def unsent_columns(events: DataFrame) -> tuple[set[str], bool]:
    """Every name in `unchanged`, and whether a change of key has one."""
    unsent = f.size("unchanged") > 0
    found = events.agg(
        f.array_distinct(f.flatten(f.collect_set("unchanged"))).alias("names"),
        f.max(f.when(f.col("origin").isNotNull(), unsent).otherwise(False)).alias("chained"),
    ).head()
    assert found is not None
    return set(found["names"] or ()), bool(found["chained"])


def chained_states(
    spark: SparkSession, events: DataFrame, base: DataFrame | None, shape: TableShape, unsent: set[str]
) -> DataFrame:
    """As last_states; the keys that changed are replayed one event after the other, in this process."""
    keys = moved_keys(events, shape).persist()
    try:
        aside = last_states(events.join(keys, "key", "left_anti"), unsent)
        moving = events.join(f.broadcast(keys), "key", "left_semi")
        ordered = moving.orderBy("commit_lsn", "ordinal", "deleted").collect()
        held = {} if base is None else _held(base, keys, shape)
    finally:
        keys.unpersist()
    states = replay(map(_event, ordered), held)
    kind = aside.schema
    replayed = spark.createDataFrame([_state_row(key, state) for key, state in states.items()], kind)
    return aside.select(*STATE).unionByName(replayed)


def _held(base: DataFrame, keys: DataFrame, shape: TableShape) -> dict[Any, State]:
    """Rows of the target under the keys."""
    found = base.alias("t").join(f.broadcast(keys).alias("s"), same_key(shape)).select("t.*", "s.key").collect()
    special = shape.special_column
    return {
        row["key"]: State({name: row[name] for name in shape.columns}, dict(row[special] or {}), frozenset())
        for row in found
    }


def _event(row: Row) -> Event:
    content = None if row["row"] is None else row["row"].asDict()
    return Event(row["key"], row["origin"], row["deleted"], content, frozenset(row["unchanged"]), row["special"])


def _state_row(key: object, state: State | None) -> tuple[object, ...]:
    if state is None:
        return (key, True, None, [], {})
    return (key, False, state.row, sorted(state.unknown), state.special)
