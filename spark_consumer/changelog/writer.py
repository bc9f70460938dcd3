"""A changelog: every committed change of every table, appended once.

    <path>/tables/<schema>/<table>    Delta: one table
                                      Parquet: one folder per batch, `batch=<its last commit LSN>`

Changes are never appended twice, even if the checkpoint is lost: a table takes only what is after
its last commit LSN.

The columns are those of `format("walgate")` with `table`; a relation without replica identity has
no `old_key`, and one without columns no `before` and `after` either. A column that is added to the
source table is added to the changelog from then on (mergeSchema). A type that is widened is widened
there, too (Delta's type widening; existing Parquet folders keep their type).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from schemas.lsn import format_lsn
from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.errors import MirrorError
from spark_consumer.jvm import hadoop_path, path_class
from spark_consumer.mirror.fold.keyless_log import not_applied
from spark_consumer.mirror.fold.replica_identity import check_names
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.slice_contents import TablePart, batch_size, summarize, without_marks
from spark_consumer.mirror.spark_settings import tune
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import CHANGELOG, NO_PROPERTIES
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.source.decode import decode_changes, typed
from spark_consumer.source.frames import TableFrame
from spark_consumer.tables import TableName


@dataclass
class Changelog:
    """Appends batches; `apply` is the function for foreachBatch."""

    path: str
    format: str  # delta or parquet
    schemas: SchemaCache
    report: Callable[[BatchReport], None] = lambda _: None
    _applied: dict[str, int] = field(default_factory=dict, init=False)  # by location; -1: there is no table

    def apply(self, raw: DataFrame, batch: int) -> None:
        """Append a batch of whole transactions. `raw`: a frame of frames.RAW. Raises
        MirrorError."""
        began = time.monotonic()
        tune(raw.sparkSession, TABLE_FORMAT.session_defaults(compacts=True))
        raw = without_marks(raw.where(f.col("table").isNotNull())).drop("topic", "partition", "offset").persist()
        try:
            found = summarize(raw, batch_size(raw))
            if found is None:
                return
            content, records = found
            for part in content.parts:
                own = raw.where(f.col("table") == str(part.table)) if records is None else records[part.table]
                self._append(raw.sparkSession, own, part, content.commit_lsn)
        finally:
            raw.unpersist()
        tables = {str(part.table): part.changes for part in content.parts}
        seconds = time.monotonic() - began
        self.report(BatchReport(batch, content.commit_lsn, content.transactions, content.changes, tables, seconds))

    def _append(self, spark: SparkSession, records: DataFrame | pa.Table, part: TablePart, commit_lsn: int) -> None:
        """Append the records of one table. Few records are decoded in this process, which saves a
        Spark job."""
        location = table_path(self.path, part.table)
        if location not in self._applied:
            self._applied[location] = self._find_applied(spark, location, commit_lsn)
        applied = self._applied[location]
        if applied >= commit_lsn:
            return
        frame = TableFrame.of(self.schemas[part.newest])
        for row in frame.schema:
            if pa.types.is_struct(row.type):
                check_names(part.table, (column.name for column in row.type))
        texts = {schema_id: json.dumps(self.schemas[schema_id]) for schema_id in part.schema_ids}
        if isinstance(records, DataFrame):
            changes = typed(records, frame, texts)
        else:
            batches = decode_changes(iter(records.combine_chunks().to_batches()), frame, texts)
            changes = to_frame(spark, pa.Table.from_batches(batches, frame.schema), spark_schema(frame.schema))
        rows = [frame.schema.field(name) for name in ("old_key", "before", "after")]
        changes = changes.drop(
            *(row.name for row in rows if not row.type.num_fields)
        )  # no format can write such a struct
        changes = not_applied(changes, applied, "commit_lsn")
        if self.format == "parquet":
            changes.write.mode("overwrite").parquet(f"{location}/batch={commit_lsn}")
        else:
            _append_to_delta(changes, location, part.table, commit_lsn, is_new=applied < 0)
        self._applied[location] = commit_lsn

    def _find_applied(self, spark: SparkSession, location: str, commit_lsn: int) -> int:
        """Return the commit LSN up to which a table is complete; -1: there is no table."""
        if self.format == "parquet":
            return last_folder(spark, location, commit_lsn)
        return (
            TABLE_FORMAT.applied_commit_lsn(spark, location, CHANGELOG) if TABLE_FORMAT.exists(spark, location) else -1
        )


def last_folder(spark: SparkSession, location: str, commit_lsn: int) -> int:
    """Return the highest commit LSN of a finished folder; -1: none. Raises MirrorError if there is
    a folder left by a crash while it was written, unless the batch up to `commit_lsn` overwrites
    it."""
    found, files = hadoop_path(spark, f"{location}/batch=*")
    last = -1
    for status in files.globStatus(found) or ():
        folder = status.getPath()
        lsn = int(folder.getName().removeprefix("batch="))
        if files.exists(path_class(spark)(folder, "_SUCCESS")):
            last = max(last, lsn)
        elif lsn != commit_lsn:
            raise MirrorError(
                f"{folder} has no _SUCCESS file: the micro-batch in it was not written completely. The current micro-batch "
                f"ends at {format_lsn(commit_lsn)}, and cannot replace it",
                hint="Remove only the directory named in this message, then restart the query: changes that the changelog "
                "already has are not written twice.",
            )
    return last


def _append_to_delta(changes: DataFrame, location: str, table: TableName, commit_lsn: int, *, is_new: bool) -> None:
    properties = TABLE_FORMAT.CHANGELOG_PROPERTIES if is_new else NO_PROPERTIES
    try:
        TABLE_FORMAT.write_once(
            changes, location, "append", commit_lsn, merge_schema=True, application=CHANGELOG, properties=properties
        )
    except AnalysisException as problem:
        raise MirrorError(
            f"the changelog of {table} at {location} cannot store a column in its current type: "
            f"{str(problem).splitlines()[0]}",
            hint="Delta can only widen a type. Move the existing table to another path, then restart the query: it creates "
            "a new table, which begins with this micro-batch.",
        ) from problem
