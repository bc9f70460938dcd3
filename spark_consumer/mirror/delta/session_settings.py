"""Settings of a Spark session for Delta."""

from __future__ import annotations

from pyspark.sql import SparkSession

# A session needs these, and Delta's jars, to read or write tables.
SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# Number of tasks of each job that reads a table's log: Delta's default is 50.
SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
COMPACT = "spark.databricks.delta.autoCompact.enabled"
# Default of a property of new tables, with which Delta forgets the numbers of commits (LSNs, epochs).
FORGETS_NUMBERS = "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration"


def session_defaults(*, compacts: bool | None = None) -> dict[str, str]:
    """Return the settings of a mirror's session where the user has set none. `compacts`: whether a
    write compacts the small files of its table; None: no setting for that."""
    found = {SNAPSHOT_PARTITIONS: "2"}
    return found if compacts is None else {**found, COMPACT: str(compacts).lower()}


def without_compaction() -> dict[str, str]:
    """Return settings with which no write compacts its table."""
    return {COMPACT: "false"}


def compacts(spark: SparkSession) -> bool:
    """Return whether writes of this session compact their tables."""
    return bool(spark.conf.get(COMPACT, "") == "true")
