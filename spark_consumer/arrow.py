"""Arrow tables as frames of Spark."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def to_frame(spark: SparkSession, table: pa.Table, schema: StructType | None = None) -> DataFrame:
    """`table` as a frame. Nothing else gives Arrow to createDataFrame, which silently leaves out all rows behind an empty chunk
    (PySpark 4.2: ArrowConverters takes it for the end of its partition)."""
    filled = [batch for batch in table.to_batches() if batch.num_rows]
    whole = pa.Table.from_batches(filled, table.schema) if filled else table.schema.empty_table()
    return spark.createDataFrame(whole) if schema is None else spark.createDataFrame(whole, schema)
