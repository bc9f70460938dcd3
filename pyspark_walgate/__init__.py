"""Makes `spark.read.format("walgate")` work without `register`: Spark loads the `DefaultSource` of
every module named pyspark_*."""

from __future__ import annotations

from spark_consumer.source.datasource import WalgateChanges as DefaultSource

__all__ = ["DefaultSource"]
