"""Contents of a set of changes, such as a slice of a merge: its tables, their schemas, the last
TRUNCATE of each, and the table marks (table_states.py). Nothing is decoded for this.

A small set is collected into this process and analyzed here, a large one by Spark. The changes of
one table of a large set are collected when that table is written, if they are few enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.mirror.fold.fold_spark import position
from spark_consumer.mirror.table_states import FILL, FirstRows, SnapshotWindow, StoredMark, parse_marks, verified_chunks
from spark_consumer.reader.table_marks import KINDS, SNAPSHOT_END
from spark_consumer.tables import TableName

# A set of changes, or one table's part of it, within these limits is collected into this process.
# A Spark job costs 50-200 ms whatever it does, and one sort and one fold in Arrow cost a third of
# what Spark's shuffles do. Left in files, each table's changes would be read separately.
SMALL_CHANGES = 1_000_000
SMALL_BYTES = 64 << 20
# Rows times columns, nulls included, since each decoded value takes some bytes.
_SMALL_CELLS = 16 << 20


@dataclass(frozen=True, slots=True)
class TablePart:
    """Part of a set of changes that belongs to one table. `newest`: schema id of its last record;
    `last_truncate`: (commit_lsn, ordinal) of its last TRUNCATE, before which nothing counts in a
    table with a key; `first_lsn`, `last_lsn`: commit LSNs of its first and last change."""

    table: TableName
    changes: int
    value_bytes: int
    schema_ids: list[int]
    newest: int
    last_truncate: tuple[int, int] | None
    first_lsn: int
    last_lsn: int

    def is_small(self, columns: int) -> bool:
        """Return whether the part's records, decoded into this many columns, fit into this
        process."""
        few = self.changes <= SMALL_CHANGES and self.changes * columns <= _SMALL_CELLS
        return few and self.value_bytes <= SMALL_BYTES


@dataclass(frozen=True, slots=True)
class BatchContent:
    """Contents of a set of changes. `commit_lsn`: that of the last change or, in a slice, of its
    end, which may be a mark. `commit_time`: the latest one, which may be that of an earlier change.
    `parts`: one for each table, largest first."""

    commit_lsn: int
    commit_time: datetime | None
    transactions: int
    changes: int
    parts: list[TablePart]

    def first_rows(self, known: Collection[str], oid_of: Callable[[int], int]) -> dict[str, FirstRows]:
        """Return the first rows of each table that is not in `known`. `oid_of`: returns the oid of
        a schema id."""
        new = [part for part in self.parts if str(part.table) not in known]
        return {str(part.table): FirstRows(part.first_lsn, oid_of(part.newest)) for part in new}


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Size of a set of changes. `marks`: number of table marks; `value_bytes`: total size of all
    values, also those of the marks; `first_lsn`, `last_lsn`: first and last commit LSN, -1 if it is
    empty."""

    changes: int
    marks: int
    value_bytes: int
    first_lsn: int
    last_lsn: int


def total(sizes: Sequence[BatchSize]) -> BatchSize:
    """Return the total size of sets of changes, none of them empty, in any order."""
    return BatchSize(
        sum(size.changes for size in sizes),
        sum(size.marks for size in sizes),
        sum(size.value_bytes for size in sizes),
        min(size.first_lsn for size in sizes),
        max(size.last_lsn for size in sizes),
    )


def batch_size(raw: DataFrame) -> BatchSize:
    """Return the size of a set of changes (columns of frames.RAW, with or without the rows of table
    marks)."""
    found = raw.agg(
        f.count_if(~is_mark()).alias("changes"),
        f.count_if(is_mark()).alias("marks"),
        f.sum(f.length("value")).alias("value_bytes"),
        f.min("commit_lsn").alias("first_lsn"),
        f.max("commit_lsn").alias("last_lsn"),
    ).head()
    assert found is not None
    lsns = (-1, -1) if found["first_lsn"] is None else (found["first_lsn"], found["last_lsn"])
    return BatchSize(found["changes"], found["marks"], found["value_bytes"] or 0, *lsns)


def is_mark() -> Column:
    """Return the condition that a row (columns of frames.RAW) is a table mark, not a change."""
    return f.col("op").isin(list(KINDS))


def marks_in(raw: DataFrame) -> list[StoredMark]:
    """Return the table marks among these changes, in the order of their markers."""
    columns = ("op", "table", "commit_lsn", "ordinal", "value", "commit_time")
    return parse_marks(raw.where(is_mark()).select(*columns).toArrow().to_pylist())


def without_marks(raw: DataFrame) -> DataFrame:
    return raw.where(~is_mark())


def split_by_chunks(changes: DataFrame, chunks: Sequence[StoredMark]) -> tuple[DataFrame, DataFrame]:
    """Split `changes` into those in the transactions of these chunks, and the rest. This is done
    with a join, because a plan with hundreds of conditions would be too large."""
    lsns = changes.sparkSession.createDataFrame([(mark.commit_lsn,) for mark in chunks], "commit_lsn long")
    within, without = (changes.join(f.broadcast(lsns), "commit_lsn", how) for how in ("left_semi", "left_anti"))
    return within.select(*changes.columns), without.select(*changes.columns)


def split_records(records: pa.Table) -> tuple[BatchContent, dict[TableName, pa.Table]]:
    """Return the contents of `records` (columns of frames.RAW, not empty), and those of each table,
    ordered by (commit_lsn, ordinal)."""
    names = records["table"].combine_chunks().dictionary_encode()
    ordered = _in_order(records.append_column("number", names.indices), "number").drop_columns("number")
    counts = {found["values"]: found["counts"] for found in pc.value_counts(names.indices).to_pylist()}
    tables: dict[TableName, pa.Table] = {}
    start = 0
    for number, name in enumerate(names.dictionary.to_pylist()):
        tables[TableName.parse(name)] = ordered.slice(start, counts[number])
        start += counts[number]
    parts = sorted((_part_of(table, own) for table, own in tables.items()), key=lambda part: -part.changes)
    last: Any = pc.max(records["commit_lsn"]).as_py()
    time: Any = pc.max(records["commit_time"]).as_py()
    transactions = pc.count_distinct(records["commit_lsn"]).as_py()
    return BatchContent(last, time, transactions, len(records), parts), tables


def _in_order(records: pa.Table, *by: str) -> pa.Table:
    """Sort by the columns `by`, then by (commit_lsn, ordinal)."""
    return records.sort_by([(name, "ascending") for name in (*by, "commit_lsn", "ordinal")])


def _part_of(table: TableName, own: pa.Table) -> TablePart:
    truncates = own.filter(pc.equal(own["op"], "TRUNCATE"))
    cut = None
    if len(truncates):
        cut = (truncates["commit_lsn"][-1].as_py(), truncates["ordinal"][-1].as_py())
    ids = sorted(pc.unique(own["schema_id"]).to_pylist())
    value_bytes = pc.sum(pc.binary_length(own["value"])).as_py() or 0
    first_lsn, last_lsn = own["commit_lsn"][0].as_py(), own["commit_lsn"][-1].as_py()
    return TablePart(table, len(own), value_bytes, ids, own["schema_id"][-1].as_py(), cut, first_lsn, last_lsn)


def batch_content(raw: DataFrame) -> BatchContent | None:
    """Return the contents of a set of changes (columns of frames.RAW, without table marks), or None
    if it is empty."""
    found = (
        raw.groupBy("table", "schema_id")  # numbers and strings only: Spark aggregates them without sorting
        .agg(
            f.count("*").alias("changes"),
            f.sum(f.length("value")).alias("value_bytes"),
            f.min("commit_lsn").alias("first_lsn"),
            f.max("commit_lsn").alias("commit_lsn"),
            f.max("commit_time").alias("commit_time"),
            f.count_if(f.col("op") == "TRUNCATE").alias("truncates"),
        )
        .collect()
    )
    if not found:
        return None
    versions: dict[str, list[Row]] = {}
    for row in found:
        versions.setdefault(row["table"], []).append(row)
    newest = _newest(raw, [table for table, rows in versions.items() if len(rows) > 1])
    cuts = _cuts(raw) if any(row["truncates"] for row in found) else {}
    parts = [
        TablePart(
            TableName.parse(table),
            sum(row["changes"] for row in rows),
            sum(row["value_bytes"] or 0 for row in rows),
            sorted(row["schema_id"] for row in rows),
            newest.get(table, rows[0]["schema_id"]),
            cuts.get(table),
            min(row["first_lsn"] for row in rows),
            max(row["commit_lsn"] for row in rows),
        )
        for table, rows in versions.items()
    ]
    times = [
        row["commit_time"].astimezone(UTC) for row in found if row["commit_time"] is not None
    ]  # a Row has local times
    return BatchContent(
        max(row["commit_lsn"] for row in found),
        max(times, default=None),
        raw.select("commit_lsn").distinct().count(),
        sum(part.changes for part in parts),
        sorted(parts, key=lambda part: -part.changes),
    )


def _newest(raw: DataFrame, tables: list[str]) -> dict[str, int]:
    """Return the schema id of the last record of each of these tables."""
    if not tables:
        return {}
    last = (
        raw.where(f.col("table").isin(tables)).groupBy("table").agg(f.max_by("schema_id", position()).alias("newest"))
    )
    return {row["table"]: row["newest"] for row in last.collect()}


def _cuts(raw: DataFrame) -> dict[str, tuple[int, int]]:
    """Return the position of the last TRUNCATE of each table that has one."""
    last = raw.where(f.col("op") == "TRUNCATE").groupBy("table").agg(f.max(position()).alias("cut"))
    return {row["table"]: (row["cut"]["commit_lsn"], row["cut"]["ordinal"]) for row in last.collect()}


def summarize(raw: DataFrame, size: BatchSize) -> tuple[BatchContent, dict[TableName, pa.Table] | None] | None:
    """Return the contents of a set of changes without table marks and, if it is small, its records
    by table. Return None if it is empty."""
    if size.changes and size.changes <= SMALL_CHANGES and size.value_bytes <= SMALL_BYTES:
        return split_records(raw.toArrow())
    content = batch_content(raw) if size.changes else None
    return None if content is None else (content, None)


def own_records(raw: DataFrame, records: dict[TableName, pa.Table] | None, table: TableName) -> pa.Table | DataFrame:
    """Return the records of one table."""
    return raw.where(f.col("table") == str(table)) if records is None else records[table]


def as_arrow_if_small(
    spark: SparkSession, own: pa.Table | DataFrame, part: TablePart, columns: int
) -> pa.Table | DataFrame:
    """Return the records of a table with this many columns: as an Arrow table if they fit into this
    process when decoded, otherwise as a DataFrame."""
    if isinstance(own, DataFrame):
        return _in_order(own.toArrow()) if part.is_small(columns) else own
    return own if part.is_small(columns) else to_frame(spark, own, spark_schema(own.schema))


def earliest(cuts: Iterable[int | None]) -> int | None:
    """Return the first of these commit LSNs, or None if there is none."""
    return min((cut for cut in cuts if cut is not None), default=None)


def split_at_lsn(own: pa.Table | DataFrame, commit_lsn: int) -> tuple[Any, Any]:
    """Split the records of a table into those before `commit_lsn` and those from it on."""
    if isinstance(own, DataFrame):
        return own.where(f.col("commit_lsn") < commit_lsn), own.where(f.col("commit_lsn") >= commit_lsn)
    below = pc.less(own["commit_lsn"], commit_lsn)
    return own.filter(below), own.filter(pc.invert(below))


def part_of(own: pa.Table | DataFrame, table: TableName) -> TablePart:
    """Return the TablePart of one table's records, of which there is at least one."""
    if isinstance(own, DataFrame):
        content = batch_content(own)
        assert content is not None, table
        return content.parts[0]
    return _part_of(table, own)


def empty_relations(
    marks: Iterable[StoredMark],
    ended: Mapping[str, SnapshotWindow],
    parts: Iterable[TablePart],
    oids: Mapping[str, int],
    oid_of: Callable[[int], int],
) -> dict[str, int]:
    """Return, by table, the oid of a relation that a FILL has found empty although the table has
    rows of another relation: no change reports that these are gone.

    `marks`, `parts`: those of a slice; `ended`: the snapshots that ended in it; `oids`: relations
    of the tables before it; `oid_of`: returns the oid of a schema id.
    """
    found = {}
    changed = {str(part.table): part for part in parts}
    for mark in marks:
        name = str(mark.table)
        if mark.kind != SNAPSHOT_END or name not in ended or mark.facts["purpose"] != FILL or mark.facts["row_count"]:
            continue
        part, oid, window = changed.get(name), int(mark.facts["relation_oid"]), ended[name]
        # Changes after its beginning, in earlier slices too, tell whose rows the table has.
        if window.key is not None or (part is not None and part.last_lsn > window.begin_lsn):
            continue
        if (oids.get(name, oid) if part is None else oid_of(part.newest)) != oid:
            found[name] = oid
    return found


@dataclass(frozen=True, slots=True)
class Verified:
    """Rows of a slice that a VERIFY snapshot has read. `records`: the rows of each table, if there
    are few in all; None: they are only in `changes`."""

    changes: DataFrame
    records: dict[TableName, pa.Table] | None
    content: BatchContent


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Part of the appended changes that is applied in one step. `records`: the changes of each
    table, if there are few in all; None: they are only in `changes`.

    `verified`: rows that are only compared with the tables, after the slice is applied.
    """

    batch: int
    changes: DataFrame
    records: dict[TableName, pa.Table] | None
    content: BatchContent
    marks: list[StoredMark]
    verified: Verified | None = None

    @property
    def parts(self) -> list[TablePart]:
        """The parts that are merged and those that are compared; a table may have one of each."""
        return [*self.content.parts, *(self.verified.content.parts if self.verified else ())]

    @property
    def transactions(self) -> int:
        return self.content.transactions + (self.verified.content.transactions if self.verified else 0)

    def snapshot_id(self, part: TablePart) -> str:
        """Return the id of the VERIFY snapshot that has read the rows of this part."""
        chunks = verified_chunks(self.marks)
        return str(next(mark.facts["snapshot_id"] for mark in chunks if mark.table == str(part.table)))

    def row_count(self, name: str) -> int:
        """Return the number of rows of a table's snapshot that ended in this slice."""
        ends = [mark.facts for mark in self.marks if mark.kind == SNAPSHOT_END and mark.table == name]
        return int(ends[-1]["row_count"])
