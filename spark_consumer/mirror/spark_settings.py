"""Settings of a session that a mirror's writes need, where nobody has set them: Spark's defaults
are for large jobs.

A batch is many small jobs. With 200 shuffle and 50 snapshot partitions each of them starts hundreds
of tasks: 34 s of CPU time a batch instead of 3.5, measured on two cores. Each write leaves a file
or two, so that Delta puts small ones together in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from pyspark.sql import SparkSession

from spark_consumer.jvm import java_session

_SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_OURS = "spark.walgate.shuffle.partitions"  # what we have set it to
# How many tasks a job has that reads little, or has shuffled what it read.
_TASKS_AT_LEAST = _SHUFFLE_PARTITIONS, "spark.sql.files.minPartitionNum"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
COMPACT = "spark.databricks.delta.autoCompact.enabled"
# Bytes that opening a file counts as: with Spark's 4 MB, some hundred small files are a dozen
# tasks, which take all cores.
_CHEAP_TO_OPEN = MappingProxyType({"spark.sql.files.openCostInBytes": str(64 << 10)})
_POOL = "spark.scheduler.pool"


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Of this session, within."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def tasks(count: int) -> dict[str, str]:
    """Settings with which small jobs have so many tasks, and leave the other cores to others."""
    return {**dict.fromkeys(_TASKS_AT_LEAST, str(count)), **_CHEAP_TO_OPEN}


def use_pool(spark: SparkSession, name: str) -> None:
    """The jobs of this thread share the cores with those of other pools, where the session's
    scheduler is fair: else the tasks of a job wait for all of an earlier one."""
    spark.sparkContext.setLocalProperty(_POOL, name)


def tune(spark: SparkSession, *, compacts: bool | None = None) -> None:
    """Of this session alone; what it has set already stays. Again for each batch: the executors of
    a cluster, whose cores are counted, come after the session, and more may come later.

    `compacts`: whether a write compacts the small files of its table; None: who writes says that.
    """
    settings = java_session(spark).sessionState().conf()
    ours = {_SNAPSHOT_PARTITIONS: "2"}
    if compacts is not None:
        ours[COMPACT] = str(compacts).lower()
    for name, value in ours.items():
        if not settings.contains(name):
            spark.conf.set(name, value)
    partitions = str(max(2, spark.sparkContext.defaultParallelism))
    chosen = spark.conf.get(_SHUFFLE_PARTITIONS) if settings.contains(_SHUFFLE_PARTITIONS) else None
    if chosen is None or (chosen != partitions and chosen == spark.conf.get(_OURS, None)):
        spark.conf.set(_SHUFFLE_PARTITIONS, partitions)
        spark.conf.set(_OURS, partitions)
