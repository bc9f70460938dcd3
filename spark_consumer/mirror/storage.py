"""The choice of the format in which a mirror stores its tables."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_consumer.mirror.delta import delta_format
from spark_consumer.mirror.table_format import TableFormat

TABLE_FORMAT: TableFormat = delta_format


def number_if_any(spark: SparkSession, location: str, application: str) -> int | None:
    """Return the number that an application last noted in a table; None if it has noted none, or
    there is no table."""
    return TABLE_FORMAT.noted_number(spark, location, application) if TABLE_FORMAT.exists(spark, location) else None
