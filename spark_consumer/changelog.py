"""A changelog: every committed change of every table, appended once.

    <path>/tables/<schema>/<table>    Delta: one table; what it has by its commit LSN is not appended again
                                      Parquet: one folder a batch, `batch=<commit LSN of its last transaction>`,
                                      overwritten by a repetition

The columns are those of `format("walgate")` with `table`; a relation without replica identity has no `old_key`, one without
columns no `before` and `after` either. A table that gets a column has it from then on (mergeSchema).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from spark_consumer.columnar.arrays import booleans
from spark_consumer.frames import TableFrame
from spark_consumer.mirror.batch import BatchReport, look_at
from spark_consumer.mirror.layout import table_path
from spark_consumer.mirror.log import not_yet
from spark_consumer.mirror.merge import write_once
from spark_consumer.mirror.parts import TablePart
from spark_consumer.mirror.target import CHANGELOG, applied_commit_lsn, exists
from spark_consumer.registry import SchemaCache


@dataclass
class Changelog:
    """Appends batches; `apply` is the function for foreachBatch."""

    path: str
    format: str  # delta or parquet
    schemas: SchemaCache
    report: Callable[[BatchReport], None] = lambda _: None
    _applied: dict[str, int] = field(default_factory=dict, init=False)  # of Delta tables, by location

    def apply(self, raw: DataFrame, batch: int) -> None:
        """`raw`: frames.RAW, whole transactions."""
        began = time.monotonic()
        raw = raw.where(f.col("table").isNotNull()).drop("topic", "partition", "offset").persist()
        try:
            found = look_at(raw)
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
        """Few records are decoded here: that spares Spark's workers a job."""
        frame = TableFrame.of(self.schemas[part.newest])
        texts = {schema_id: json.dumps(self.schemas[schema_id]) for schema_id in part.schema_ids}
        if isinstance(records, DataFrame):
            changes = typed(records, frame, texts)
        else:
            batches = decode_changes(iter(records.combine_chunks().to_batches()), frame, texts)
            changes = spark.createDataFrame(
                pa.Table.from_batches(batches, frame.schema), from_arrow_schema(frame.schema)
            )
        rows = [frame.schema.field(name) for name in ("old_key", "before", "after")]
        changes = changes.drop(
            *(row.name for row in rows if not row.type.num_fields)
        )  # no format can write such a struct
        location = table_path(self.path, part.table)
        if self.format == "delta":
            if location not in self._applied and exists(spark, location):
                self._applied[location] = applied_commit_lsn(spark, location, CHANGELOG)
            changes = not_yet(changes, self._applied.get(location, -1), "commit_lsn")
            write_once(changes, location, "append", commit_lsn, merge_schema=True, application=CHANGELOG)
            self._applied[location] = max(commit_lsn, self._applied.get(location, -1))
        else:
            changes.write.mode("overwrite").parquet(f"{location}/batch={commit_lsn}")


def typed(records: DataFrame, frame: TableFrame, texts: Mapping[int, str]) -> DataFrame:
    """The typed frame of raw records of one table; `texts`: schema id -> JSON text of every schema they have."""
    columns = records.select(*head_columns(frame), "schema_id", "value")
    return columns.mapInArrow(partial(decode_changes, frame=frame, schemas=texts), from_arrow_schema(frame.schema))


def head_columns(frame: TableFrame) -> list[str]:
    """op to change_lsn: raw and typed frames have them alike."""
    names: list[str] = frame.schema.names
    return names[: names.index("old_key")]


def decode_changes(
    batches: Iterator[pa.RecordBatch], frame: TableFrame, schemas: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    """For mapInArrow over raw records of one table."""
    for batch in batches:
        ids = batch.column("schema_id").to_numpy()
        for schema_id in np.unique(ids).tolist():
            part = batch.filter(booleans(ids == schema_id))
            values = part.column("value").cast(pa.binary())
            head = [part.column(name).cast(frame.schema.field(name).type) for name in head_columns(frame)]
            columns = [*head, *frame.decode(values, schemas[schema_id])]
            yield pa.RecordBatch.from_arrays(columns, schema=frame.schema)
