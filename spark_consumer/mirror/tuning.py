"""Settings of a session that a mirror's writes need, where nobody has set them: Spark's defaults are for large jobs.

A batch is many small jobs. With 200 shuffle and 50 snapshot partitions each of them starts hundreds of tasks: 34 s of CPU time a
batch instead of 3.5, measured on two cores. Each write leaves a file or two, so that Delta puts small ones together in time.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_consumer.jvm import java_session

_SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
COMPACT = "spark.databricks.delta.autoCompact.enabled"


def tune(spark: SparkSession, *, compacts: bool | None = None) -> None:
    """Of this session alone; what it has set already stays.

    `compacts`: whether a write compacts the small files of its table; None: who writes says that.
    """
    settings = java_session(spark).sessionState().conf()
    ours = {
        _SHUFFLE_PARTITIONS: str(max(2, spark.sparkContext.defaultParallelism)),
        _SNAPSHOT_PARTITIONS: "2",
    }
    if compacts is not None:
        ours[COMPACT] = str(compacts).lower()
    for name, value in ours.items():
        if not settings.contains(name):
            spark.conf.set(name, value)
