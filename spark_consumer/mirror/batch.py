"""One micro-batch of all tables into the mirror: whole transactions, each table one Delta commit, then one picture of all.

Idempotent: a batch that is run again (Spark repeats the last one after a crash) skips what it has written, table by table. See
merge.py for how, and pictures.py for what readers see meanwhile.

A small batch is folded in this process (replay.py), a large one in Spark (fold.py): a Spark job costs 50-200 ms whatever it does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.mirror import pictures, target
from spark_consumer.mirror.layout import table_path
from spark_consumer.mirror.log import decode_rows, log_rows, log_table_schema, not_yet
from spark_consumer.mirror.merge import merge, once, rows, write_once
from spark_consumer.mirror.parts import BatchContent, TablePart, batch_content
from spark_consumer.mirror.shape import TableShape
from spark_consumer.mirror.states import small_states, spark_states, table_schema
from spark_consumer.registry import SchemaCache

TABLES_AT_ONCE = 2
SMALL_CHANGES = 20_000
SMALL_BYTES = 32 << 20


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
class TableWork:
    """One table in one batch. `applied`: commit LSN that the table has taken in before; -1: it is new, and empty."""

    location: str
    part: TablePart
    shape: TableShape
    texts: dict[int, str]  # schema id -> JSON text
    applied: int


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
            content = batch_content(raw)
            if content is None:
                return
            self._write_tables(spark, raw, content)
        finally:
            raw.unpersist()
        self._record(spark, batch, content)
        tables = {str(part.table): part.changes for part in content.parts}
        seconds = time.monotonic() - began
        self.report(BatchReport(batch, content.commit_lsn, content.transactions, content.changes, tables, seconds))

    def _write_tables(self, spark: SparkSession, raw: DataFrame, content: BatchContent) -> None:
        """Tables are made and altered before `once`, which holds for every write of the session: Delta would take such a commit
        for the batch's own."""
        work = [self._prepare(spark, part) for part in content.parts]
        work = [item for item in work if item.applied < content.commit_lsn]
        small = content.changes <= SMALL_CHANGES and content.value_bytes <= SMALL_BYTES
        records = raw.toArrow() if small and work else None
        with once(spark, content.commit_lsn), ThreadPoolExecutor(TABLES_AT_ONCE) as threads:
            for future in [threads.submit(write_table, spark, item, raw, records, content.commit_lsn) for item in work]:
                future.result()

    def _prepare(self, spark: SparkSession, part: TablePart) -> TableWork:
        shape = TableShape.of(self.schemas[part.newest])
        texts = {schema_id: json.dumps(self.schemas[schema_id]) for schema_id in part.schema_ids}
        location = table_path(self.path, part.table)
        wanted = table_schema(shape) if shape.key else log_table_schema(shape)
        if not target.exists(spark, location):
            target.create(spark, location, wanted, f"mirror of {part.table}")
            return TableWork(location, part, shape, texts, -1)
        target.align(spark, location, wanted)
        return TableWork(location, part, shape, texts, target.applied_commit_lsn(spark, location))

    def _record(self, spark: SparkSession, batch: int, content: BatchContent) -> None:
        versions = {} if self._last is None else dict(self._last.tables)
        for part in content.parts:
            versions[str(part.table)] = target.version(spark, table_path(self.path, part.table))
        picture = pictures.Picture(batch, content.commit_lsn, content.commit_time, versions)
        pictures.record(spark, self.path, picture)
        self._last = picture


def write_table(
    spark: SparkSession, work: TableWork, raw: DataFrame, records: pa.Table | None, commit_lsn: int
) -> None:
    """One table's part of a batch. `records`: the whole batch, where it is small."""
    name = str(work.part.table)
    mine = raw.where(f.col("table") == name)
    own = None if records is None else records.filter(pa.compute.equal(records["table"], name))
    if not work.shape.key:
        _append_log(spark, work, mine, own, commit_lsn)
        return
    events: Any = None
    try:
        if own is None:
            states, unsent, events = spark_states(spark, work.location, mine, work.part, work.shape, work.texts)
        else:
            states, unsent = small_states(spark, work.location, own, work.part, work.shape, work.texts)
        if work.part.cut is not None:
            write_once(rows(states, work.shape), work.location, "overwrite", commit_lsn)
        elif work.applied < 0:  # a new table is empty
            write_once(rows(states, work.shape), work.location, "append", commit_lsn)
        else:
            merge(spark, work.location, states, work.shape, unsent)
    finally:
        if events is not None:
            events.unpersist()


def _append_log(spark: SparkSession, work: TableWork, mine: DataFrame, own: pa.Table | None, commit_lsn: int) -> None:
    if own is None:
        log = log_rows(mine, work.shape, work.texts)
    else:
        batches = list(decode_rows(iter(own.combine_chunks().to_batches()), work.shape, work.texts))
        log = spark.createDataFrame(pa.Table.from_batches(batches), log_table_schema(work.shape))
    write_once(not_yet(log, work.applied), work.location, "append", commit_lsn)
