"""Makes `spark.read.format("walgate-transactions")` work without `register`, as pyspark_walgate
does for the changes."""

from __future__ import annotations

from spark_consumer.source.datasource import WalgateTransactions as DefaultSource

__all__ = ["DefaultSource"]
