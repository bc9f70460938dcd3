"""Names of Delta tables in a Spark catalog."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_consumer.mirror.delta.delta_table import sql_table
from spark_consumer.mirror.sql_names import literal


def register(spark: SparkSession, name: str, location: str) -> str | None:
    """Register a table under a quoted name, unless the name is in use. If the name refers to
    another table, return the location of that table; otherwise return None."""
    own = _location(spark, sql_table(location))
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{literal(own)}'")
    there = _location(spark, name)
    return None if there == own else there


def _location(spark: SparkSession, table: str) -> str:
    details = spark.sql(f"DESCRIBE DETAIL {table}").head()
    assert details is not None
    return str(details["location"])
