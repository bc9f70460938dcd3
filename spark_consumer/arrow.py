"""Conversion of Arrow schemas and tables to Spark's."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

_IN_PLAN_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
_ROWS_A_PARTITION = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LEAST_ROWS = 10_000


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's schema for an Arrow schema. A timestamp without a time zone remains without
    one: by default, PySpark 4.0 and 4.1 give it the time zone of the session."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def to_frame(spark: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return `table` as a frame. All calls of createDataFrame with Arrow data go through this
    function, because createDataFrame silently drops all rows after an empty chunk. (In PySpark 4.2,
    ArrowConverters takes the chunk for the end of its partition.)"""
    filled = [batch for batch in table.to_batches() if batch.num_rows]
    whole = pa.Table.from_batches(filled, table.schema) if filled else table.schema.empty_table()
    return spark.createDataFrame(whole, spark_schema(table.schema) if schema is None else schema)


def out_of_plan(spark: SparkSession, rows: int) -> dict[str, str]:
    """Return settings for frames of Arrow data that have `rows` rows in total. With these settings,
    the frames are read in up to one task per core, instead of being part of the plan."""
    cores = spark.sparkContext.defaultParallelism
    return {_IN_PLAN_BYTES: "0", _ROWS_A_PARTITION: str(max(_LEAST_ROWS, -(-rows // cores)))}
