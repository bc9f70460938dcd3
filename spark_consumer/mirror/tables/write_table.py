"""Write of one table's part of a slice, in one commit. This is a merge into a table with a key, or
an append to the log of a table without one, where a TRUNCATE is a row. A table is overwritten if
its columns are rewritten, or if it has a key and the part has a TRUNCATE.

A small part is folded in this process (fold/fold_arrow.py), a large one in Spark
(fold/fold_spark.py). A Spark job costs 50-200 ms whatever it does, and seconds when the JVM runs it
for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_consumer.arrow import to_frame
from spark_consumer.mirror.fold import replica_identity
from spark_consumer.mirror.fold.keyless_log import large_log, log_table_schema, not_applied, small_log
from spark_consumer.mirror.fold.merge_source import merge_input, merged_columns, merged_rows, rows
from spark_consumer.mirror.fold.start_fold import (
    NoteLost,
    arrow_merge_input,
    ignore_lost,
    key_bounds,
    living_rows,
    small_states,
    spark_states,
    table_schema,
    unsent_columns,
)
from spark_consumer.mirror.slice_contents import TablePart
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import APPLICATION, Superseded
from spark_consumer.mirror.tables.columns import ColumnChange
from spark_consumer.mirror.tables.rewrite_columns import rewritten
from spark_consumer.mirror.tables.table_schema import TableSchema

NEW = -1
# For tables up to this size, no files are skipped by key bounds: finding the files with keys
# between two bounds is a job of half a second, as is reading a million keys.
_SKIPPED_IN_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ColumnRewrite:
    """A change to a table's columns. `before`: version of the relation whose columns the table has;
    `wanted`: the columns that it gets."""

    before: TableSchema
    change: ColumnChange
    wanted: StructType


@dataclass(frozen=True, slots=True)
class TableWork:
    """Part of a slice to be written to one table. `applied`: commit LSN that the table has reached,
    or NEW if the table does not exist yet; `version`: version of the table in which it has reached
    that LSN, and has the columns and the key of the slice unless `rewrite` is given."""

    location: str
    part: TablePart
    shape: TableSchema
    texts: dict[int, str]  # schema id -> JSON text
    applied: int
    # Position of the TRUNCATE that the mirror inserts before a recreated relation's first record.
    emptied: tuple[int, int] | None = None
    deletion_vectors: bool = True  # for a new table
    rewrite: ColumnRewrite | None = None  # if existing rows get other columns: the table is then rewritten as a whole
    version: int = NEW
    note_lost: NoteLost = ignore_lost

    def base(self, spark: SparkSession) -> DataFrame | None:
        """Return the existing rows, or None if they are not needed: if `part` has a TRUNCATE, a
        table with a key loses them all.

        These are the rows of `version`. A writer that has been superseded meanwhile may find later
        ones in the table, to which changes of the slice are applied already.
        """
        if self.applied == NEW or (self.shape.key and not self.needs_merge):
            return None
        there = TABLE_FORMAT.at_version(spark, self.location, self.version)
        if self.rewrite is None:
            return there
        as_now = replica_identity.converted(there, self.part.table, self.location, self.shape, self.applied)
        return rewritten(spark, as_now, self.rewrite.change, self.rewrite.before, self.shape, self.rewrite.wanted)

    @property
    def needs_merge(self) -> bool:
        """Whether existing rows stay, so that the states have to be merged into them."""
        return self.applied != NEW and self.part.last_truncate is None

    @property
    def mode(self) -> str:
        """Mode of a write that is not a merge."""
        return "append" if self.part.last_truncate is None else "overwrite"

    def properties(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the properties for a new table. A log gets no deletion vectors, since nothing is
        ever deleted from it."""
        return TABLE_FORMAT.properties(columns, deletion_vectors=self.deletion_vectors and bool(self.shape.key))


def write(spark: SparkSession, work: TableWork, own: pa.Table | DataFrame, commit_lsn: int) -> None:
    if isinstance(own, DataFrame):
        write_large(spark, work, own, commit_lsn)
    else:
        write_small(spark, work, own, commit_lsn)


def write_small(spark: SparkSession, work: TableWork, records: pa.Table, commit_lsn: int) -> None:
    """Write a small part, which is folded here: Spark gets only the rows to be written."""
    shape = work.shape
    if not shape.key:
        log = small_log(records, shape, work.texts, work.emptied)
        log = log.filter(pc.greater(log["_commit_lsn"], work.applied))
        _write_log(spark, work, to_frame(spark, log, log_table_schema(shape)), commit_lsn)
        return
    # Changes that the table has already are not folded again: the values of unsent columns may have
    # come from a row that no longer exists.
    records = records.filter(pc.greater(records["commit_lsn"], work.applied))
    states = small_states(spark, partial(work.base, spark), records, work.part, shape, work.texts, work.note_lost)
    if not work.needs_merge:
        _write_rows(to_frame(spark, living_rows(states, shape), table_schema(shape)), work, work.mode, commit_lsn)
        return
    unsent = unsent_columns(states)
    if work.rewrite is not None:
        _write_rewritten(spark, arrow_merge_input(spark, states, unsent), work, commit_lsn, unsent)
    else:
        bounds = key_bounds(states, shape) if _is_large(spark, work.location) else {}
        source = arrow_merge_input(spark, states, unsent)
        TABLE_FORMAT.merge(spark, work.location, source, *merged_columns(source, shape, unsent, bounds))


def _is_large(spark: SparkSession, location: str) -> bool:
    """Return whether reading all keys of the table costs more than finding the files that may
    contain some."""
    size = TABLE_FORMAT.byte_count(spark, location)
    return size is None or size > _SKIPPED_IN_BYTES


def write_large(spark: SparkSession, work: TableWork, records: DataFrame, commit_lsn: int) -> None:
    """Write a large part, decoded and folded by Spark's workers."""
    shape = work.shape
    if not shape.key:
        log = large_log(spark, records, shape, work.texts, work.emptied)
        _write_log(spark, work, not_applied(log, work.applied), commit_lsn)
        return
    records = not_applied(records, work.applied, "commit_lsn")
    base = partial(work.base, spark)
    states, unsent, events = spark_states(spark, base, records, work.part, shape, work.texts, work.note_lost)
    try:
        if not work.needs_merge:
            _write_rows(rows(states, shape), work, work.mode, commit_lsn)
        elif work.rewrite is not None:
            _write_rewritten(spark, merge_input(states, shape, unsent), work, commit_lsn, unsent)
        else:
            source = merge_input(states, shape, unsent)
            TABLE_FORMAT.merge(spark, work.location, source, *merged_columns(source, shape, unsent))
    finally:
        events.unpersist()


def _write_rows(frame: DataFrame, work: TableWork, mode: str, commit_lsn: int) -> None:
    """Write rows that are not merged. An append fails if another number was noted in the table
    since it was prepared: its rows could then exist twice. An overwrite needs no such check, since
    it has all rows."""
    if work.applied == NEW:
        properties = work.properties(frame.columns)
        TABLE_FORMAT.write_once(frame, work.location, "errorifexists", commit_lsn, properties=properties)
    else:
        expected = {APPLICATION: work.applied}
        TABLE_FORMAT.write_once(
            frame, work.location, mode, commit_lsn, overwrite_schema=mode == "overwrite", expected=expected
        )


def _write_log(spark: SparkSession, work: TableWork, log: DataFrame, commit_lsn: int) -> None:
    base = work.base(spark) if work.rewrite is not None else None
    if base is None:
        _write_rows(log, work, "append", commit_lsn)
    else:
        _rewrite(spark, base.unionByName(log), work, commit_lsn)


def _write_rewritten(
    spark: SparkSession, source: DataFrame, work: TableWork, commit_lsn: int, unsent: set[str]
) -> None:
    """Write the existing rows in their new columns together with the states `source` (as returned
    by `merge_input`), in one commit, so that columns are never changed twice."""
    base = work.base(spark)
    assert base is not None
    _rewrite(spark, merged_rows(base, source, work.shape, unsent), work, commit_lsn)


def _rewrite(spark: SparkSession, rows: DataFrame, work: TableWork, commit_lsn: int) -> None:
    """Overwrite a table with rows that were computed from its own. Raises Superseded if another
    version was committed since it was prepared: some of these rows may have been deleted
    meanwhile."""
    if TABLE_FORMAT.version(spark, work.location) != work.version:
        raise Superseded(work.location)
    TABLE_FORMAT.write_once(rows, work.location, "overwrite", commit_lsn, overwrite_schema=True)
