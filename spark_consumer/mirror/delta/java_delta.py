"""Delta's own Java objects, for what its Python interface does not offer."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from spark_consumer.jvm import java_class, java_session


def delta_log_class(spark: SparkSession) -> Any:
    """Return Delta's class DeltaLog. Raises MirrorError in a session of Spark Connect."""
    return java_class(spark, "org.apache.spark.sql.delta.DeltaLog")


def java_log(spark: SparkSession, location: str) -> Any:
    """Return Delta's own object for the table at the location. Raises MirrorError as
    `delta_log_class` does."""
    return delta_log_class(spark).forTable(java_session(spark), location)


def java_snapshot(spark: SparkSession, location: str, version: int | None = None) -> Any:
    """Return Delta's own snapshot of the table at a version (None: the current one). Reading the
    table's history instead would take a Spark job. Raises MirrorError as `delta_log_class` does."""
    log = java_log(spark, location)
    if version is None:  # stalenessAcceptable = false, and Scala's defaults for the others
        return log.update(False, getattr(log, "update$default$2")(), getattr(log, "update$default$3")())
    return log.getSnapshotAt(version, *(getattr(log, f"getSnapshotAt$default${place}")() for place in (2, 3, 4)))
