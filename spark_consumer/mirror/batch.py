"""One micro-batch of all tables into the mirror: whole transactions, each table one Delta commit, then one picture of all.

Idempotent: a batch that is run again (Spark repeats the last one after a crash) skips what it has written, table by table. See
merge.py for how, and pictures.py for what readers see meanwhile.

A small batch is folded in this process (replay.py), a large one in Spark (fold.py): a Spark job costs 50-200 ms whatever it does,
and seconds where the JVM sees it for the first time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.errors import MirrorError
from spark_consumer.lsn import format_lsn
from spark_consumer.mirror import identity, pictures, target
from spark_consumer.mirror.layout import manifest_path, table_path
from spark_consumer.mirror.log import decode_rows, log_rows, log_table_schema, not_yet
from spark_consumer.mirror.merge import flat, merge, once, rows, write_once
from spark_consumer.mirror.parts import BatchContent, TablePart, batch_content, batch_size, split_records
from spark_consumer.mirror.shape import TableShape
from spark_consumer.mirror.states import (
    flat_states,
    living_rows,
    small_states,
    spark_states,
    table_schema,
    unsent_columns,
)
from spark_consumer.registry import SchemaCache
from spark_consumer.tables import TableName

TABLES_AT_ONCE = 2
SMALL_CHANGES = 250_000
SMALL_BYTES = 64 << 20
NEW = -1
# Of frames.RAW; what is not kept costs nothing.
_COLUMNS = ("table", "op", "commit_lsn", "commit_time", "ordinal", "schema_id", "value")


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
    """One table in one batch. `applied`: commit LSN that the table has taken in before; NEW: there is no table yet."""

    location: str
    part: TablePart
    shape: TableShape
    texts: dict[int, str]  # schema id -> JSON text
    applied: int

    @property
    def written_location(self) -> str | None:
        return None if self.applied == NEW else self.location

    @property
    def needs_merge(self) -> bool:
        """Something of what the table holds stays."""
        return self.applied != NEW and self.part.cut is None

    @property
    def mode(self) -> str:
        """Of a write that is no merge."""
        return "append" if self.part.cut is None else "overwrite"


@dataclass
class Mirror:
    """Applies batches; `apply` is the function for foreachBatch. One writer a mirror.

    `tables`: the same as the option of the reader; a mirror cannot be given more of them later.
    """

    path: str
    schemas: SchemaCache
    report: Callable[[BatchReport], None] = lambda _: None
    tables: Sequence[TableName] = ()
    last: pictures.Picture | None = field(default=None, init=False)
    _opened: bool = field(default=False, init=False)
    _shapes: dict[int, TableShape] = field(default_factory=dict, init=False)
    _applied: dict[TableName, int] = field(default_factory=dict, init=False)  # asking a table costs a job

    def apply(self, raw: DataFrame, batch: int) -> None:
        """`raw`: frames.RAW, whole transactions. Raises MirrorError."""
        if not self._opened:
            self._open(raw.sparkSession)
        raw = raw.where(f.col("table").isNotNull())
        if self.last is not None:  # a new checkpoint begins early: those transactions are in the mirror
            known = f.col("table").isin(list(self.last.tables))
            raw = raw.where(~known | (f.col("commit_lsn") > self.last.commit_lsn))
        raw = raw.select(*_COLUMNS).persist()
        try:
            self._apply(raw, batch)
        finally:
            raw.unpersist()

    def _open(self, spark: SparkSession) -> None:
        last = pictures.picture(spark, self.path)
        if last is not None:
            tables = {str(table) for table in self.tables}
            new = sorted(tables.difference(last.scope)) if tables else ["every other table"]
            if last.scope and new:
                raise MirrorError(
                    f"{new[0]} is new to the mirror at {self.path}, which was made for {', '.join(last.scope)} only: the changes "
                    "up to here are not in it",
                    hint="Choose another path and checkpoint for these tables, or give the same tables as before.",
                )
            if tables:
                last = replace(last, tables={name: at for name, at in last.tables.items() if name in tables})
        self.last, self._opened = last, True

    def _apply(self, raw: DataFrame, batch: int) -> None:
        """Whole, or where the key of a table changes, what is before and what is behind."""
        began = time.monotonic()
        spark = raw.sparkSession
        with ThreadPoolExecutor(1) as beside:  # 0.2 s of waiting less
            loaded = None if self.last is None else beside.submit(target.load_state, spark, manifest_path(self.path))
            found = look_at(raw)
            if loaded is not None:
                loaded.result()
        if found is None:
            return
        content, records = found
        cut = self._first_change_of_key(raw, records, content)
        if cut is not None:
            self._apply(raw.where(f.col("commit_lsn") < cut), batch)
            self._apply(raw.where(f.col("commit_lsn") >= cut), batch)
            return
        self._write_tables(spark, raw, records, content)
        self._record(spark, batch, content)
        tables = {str(part.table): part.changes for part in content.parts}
        seconds = time.monotonic() - began
        self.report(BatchReport(batch, content.commit_lsn, content.transactions, content.changes, tables, seconds))

    def _first_change_of_key(
        self, raw: DataFrame, records: dict[TableName, pa.Table] | None, content: BatchContent
    ) -> int | None:
        """Commit LSN of the first transaction that has one. Raises MirrorError also where a table comes too late."""
        found = []
        for part in content.parts:
            is_new = self.last is not None and str(part.table) not in self.last.tables
            if not is_new and len({self._key(schema_id) for schema_id in part.schema_ids}) == 1:
                continue
            first = identity.first_positions(_own(raw, records, part.table))
            if self.last is not None and min(first.values())[0] <= self.last.commit_lsn:
                raise MirrorError(
                    f"{part.table} is new to the mirror at {self.path}, which is at {format_lsn(self.last.commit_lsn)} already",
                    hint="Choose another path for it, or start behind the mirror's last picture "
                    f"(startingPosition lsn:{format_lsn(self.last.commit_lsn)}) to take only what follows.",
                )
            found.append(identity.change_of_key(part.table, first, self._key))
        return min((cut for cut in found if cut is not None), default=None)

    def _shape(self, schema_id: int) -> TableShape:
        if schema_id not in self._shapes:
            self._shapes[schema_id] = TableShape.of(self.schemas[schema_id])
        return self._shapes[schema_id]

    def _key(self, schema_id: int) -> tuple[str, ...]:
        return self._shape(schema_id).key

    def _write_tables(
        self, spark: SparkSession, raw: DataFrame, records: dict[TableName, pa.Table] | None, content: BatchContent
    ) -> None:
        """Tables are altered before `once`, which holds for every write of the session: Delta would take such a commit for the
        batch's own."""
        own = {part.table: _own(raw, records, part.table) for part in content.parts}
        work = [self._prepare(spark, part, own[part.table], content.commit_lsn) for part in content.parts]
        work = [item for item in work if item.applied < content.commit_lsn]
        with once(spark, content.commit_lsn), ThreadPoolExecutor(TABLES_AT_ONCE) as threads:
            for future in [
                threads.submit(_write, spark, item, own[item.part.table], content.commit_lsn) for item in work
            ]:
                future.result()

    def _prepare(self, spark: SparkSession, part: TablePart, own: pa.Table | DataFrame, commit_lsn: int) -> TableWork:
        """Raises MirrorError when a table is another writer's, or holds more than this batch."""
        shape = self._shape(part.newest)
        texts = {schema_id: json.dumps(self.schemas[schema_id]) for schema_id in part.schema_ids}
        location = table_path(self.path, part.table)
        columns = table_schema(shape) if shape.key else log_table_schema(shape)
        identity.check_log_names(part.table, shape)
        identity.check_names(part.table, columns.names)
        if not target.exists(spark, location):
            self._check_relation(spark, location, part, own)
            return TableWork(location, part, shape, texts, NEW)
        if part.table not in self._applied:
            self._applied[part.table] = target.applied_commit_lsn(spark, location)
        applied = self._applied[part.table]
        if applied > commit_lsn:
            raise MirrorError(
                f"{location} is at {format_lsn(applied)}, but this batch ends at {format_lsn(commit_lsn)}: the checkpoint of a "
                "mirror that was killed within a batch was lost, and the batches are cut differently since",
                hint="Remove the checkpoint and start again behind the last picture (walgate mirror does so by itself), "
                "with batches at least as large as before (--max-changes).",
            )
        if applied < commit_lsn:
            self._check_relation(spark, location, part, own)
            if part.cut is not None and part.cut[0] <= applied:
                part = replace(part, cut=None)
            identity.convert(spark, location, part.table, shape, applied)
            target.align(spark, location, columns)
            keys = {} if self.last is None else self.last.keys
            if shape.key and part.cut is None and tuple(keys.get(str(part.table), ())) != shape.key:
                identity.check_key(spark, location, part.table, shape)
        return TableWork(location, part, shape, texts, applied)

    def _check_relation(self, spark: SparkSession, location: str, part: TablePart, own: pa.Table | DataFrame) -> None:
        """Raises MirrorError where the table is of another relation than before, whose rows went without a word."""
        known = None if self.last is None else self.last.oids.get(str(part.table))
        oids = self._oids(part.schema_ids)
        if len(oids if known is None else oids | {known}) == 1:
            return
        behind = part.schema_ids if part.cut is None else identity.schema_ids_behind(own, part.cut)
        if len(self._oids(behind)) > 1 or (part.cut is None and not self._was_emptied(spark, location, part.table)):
            raise identity.made_anew(part.table, location)

    def _was_emptied(self, spark: SparkSession, location: str, table: TableName) -> bool:
        """Or filled anew by a person, who knows what is in the source."""
        assert self.last is not None
        return identity.is_empty(spark, location) or target.was_overwritten(
            spark, location, self.last.tables[str(table)]
        )

    def _oids(self, schema_ids: Sequence[int]) -> set[int]:
        return {self._shape(schema_id).oid for schema_id in schema_ids}

    def _record(self, spark: SparkSession, batch: int, content: BatchContent) -> None:
        versions = {} if self.last is None else dict(self.last.tables)
        keys = {} if self.last is None else dict(self.last.keys)
        oids = {} if self.last is None else dict(self.last.oids)
        for part in content.parts:
            self._applied[part.table] = content.commit_lsn
            versions[str(part.table)] = target.version(spark, table_path(self.path, part.table))
            keys[str(part.table)] = self._key(part.newest)
            oids[str(part.table)] = self._shape(part.newest).oid
        scope = [str(table) for table in self.tables]
        picture = pictures.Picture(batch, content.commit_lsn, content.commit_time, versions, keys, scope, oids)
        pictures.record(spark, self.path, picture)
        self.last = picture


def look_at(raw: DataFrame) -> tuple[BatchContent, dict[TableName, pa.Table] | None] | None:
    """What a batch holds, and where it is small, its records by table. None: nothing."""
    changes, value_bytes = batch_size(raw)
    if changes and changes <= SMALL_CHANGES and value_bytes <= SMALL_BYTES:
        return split_records(raw.toArrow())
    content = batch_content(raw) if changes else None
    return None if content is None else (content, None)


def _own(raw: DataFrame, records: dict[TableName, pa.Table] | None, table: TableName) -> pa.Table | DataFrame:
    """The records of one table."""
    return raw.where(f.col("table") == str(table)) if records is None else records[table]


def _write(spark: SparkSession, work: TableWork, own: pa.Table | DataFrame, commit_lsn: int) -> None:
    if isinstance(own, DataFrame):
        write_large(spark, work, own, commit_lsn)
    else:
        write_small(spark, work, own, commit_lsn)


def write_small(spark: SparkSession, work: TableWork, records: pa.Table, commit_lsn: int) -> None:
    """One table's part of a small batch, folded here: what goes to Spark is what is to be written."""
    shape = work.shape
    if not shape.key:
        batches = list(decode_rows(iter(records.combine_chunks().to_batches()), shape, work.texts))
        log = pa.Table.from_batches(batches)
        log = log.filter(pc.greater(log["_commit_lsn"], work.applied))
        _write_rows(spark.createDataFrame(log, log_table_schema(shape)), work, "append", commit_lsn)
        return
    # What the table has is not folded again: a column that was not sent may have been taken from a row that is gone.
    records = records.filter(pc.greater(records["commit_lsn"], work.applied))
    states = small_states(spark, work.written_location, records, work.part, shape, work.texts)
    if not work.needs_merge:
        _write_rows(spark.createDataFrame(living_rows(states, shape), table_schema(shape)), work, work.mode, commit_lsn)
    else:
        unsent = unsent_columns(states)
        merge(spark, work.location, flat_states(spark, states, unsent), shape, unsent)


def write_large(spark: SparkSession, work: TableWork, records: DataFrame, commit_lsn: int) -> None:
    """One table's part of a large batch, decoded and folded by Spark's workers."""
    shape = work.shape
    if not shape.key:
        _write_rows(not_yet(log_rows(records, shape, work.texts), work.applied), work, "append", commit_lsn)
        return
    records = not_yet(records, work.applied, "commit_lsn")
    states, unsent, events = spark_states(spark, work.written_location, records, work.part, shape, work.texts)
    try:
        if not work.needs_merge:
            _write_rows(rows(states, shape), work, work.mode, commit_lsn)
        else:
            merge(spark, work.location, flat(states, shape, unsent), shape, unsent)
    finally:
        events.unpersist()


def _write_rows(frame: DataFrame, work: TableWork, mode: str, commit_lsn: int) -> None:
    write_once(frame, work.location, mode, commit_lsn, properties=target.PROPERTIES if work.applied == NEW else {})
