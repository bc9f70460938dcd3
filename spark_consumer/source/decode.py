"""Decode raw records of one table to the table's typed frame, in Spark's workers or in this
process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from spark_consumer.arrow import spark_schema
from spark_consumer.columnar.arrays import booleans
from spark_consumer.errors import MalformedRecord, UnsupportedSchema
from spark_consumer.source.frames import TableFrame

PLACE = ("topic", "partition", "offset")


def typed(records: DataFrame, frame: TableFrame, texts: Mapping[int, str]) -> DataFrame:
    """Return the typed frame of raw records of one table. `texts`: schema id -> JSON text, for
    every schema that the records have."""
    columns = records.select(*head_columns(frame), "schema_id", *PLACE, "value")
    return columns.mapInArrow(partial(decode_changes, frame=frame, schemas=texts), spark_schema(frame.schema))


def head_columns(frame: TableFrame) -> list[str]:
    """Return the names of the columns from op to change_lsn, which raw and typed frames share."""
    names: list[str] = frame.schema.names
    return names[: names.index("old_key")]


def decode_changes(
    batches: Iterator[pa.RecordBatch], frame: TableFrame, schemas: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    """Decode raw records of one table. This is a function for mapInArrow."""
    for batch in batches:
        ids = batch.column("schema_id").to_numpy()
        for schema_id in np.unique(ids).tolist():
            part = batch.filter(booleans(ids == schema_id))
            head = [part.column(name).cast(frame.schema.field(name).type) for name in head_columns(frame)]
            columns = [*head, *decode_values(part, frame, schemas[schema_id])]
            yield pa.RecordBatch.from_arrays(columns, schema=frame.schema)


def decode_values(records: pa.RecordBatch, frame: TableFrame, schema_text: str) -> list[pa.Array]:
    """Decode raw records, which have the columns `value` and PLACE, by `frame.decode`. An error
    names the record by PLACE or, if it is not known, the first record with the schema."""

    def place(record: int) -> str:
        topic, partition, offset = (records.column(name)[record].as_py() for name in PLACE)
        return f"{topic}[{partition}] offset {offset}"

    try:
        return frame.decode(records.column("value").cast(pa.binary()), schema_text)
    except MalformedRecord as problem:
        raise MalformedRecord(f"{place(problem.record or 0)}: {problem}") from problem
    except UnsupportedSchema as problem:
        raise UnsupportedSchema(f"from {place(0)}: {problem}") from problem
