"""`spark.read.format("walgate-transactions")` without `register`, as pyspark_walgate does it for
the changes."""

from __future__ import annotations

from spark_consumer.source.datasource import WalgateTransactions as DefaultSource

__all__ = ["DefaultSource"]
