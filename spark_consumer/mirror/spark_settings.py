"""Session settings for a mirror's writes, where the user has set none: Spark's defaults are for
large jobs.

A batch consists of many small jobs. With 200 shuffle and 50 snapshot partitions each of them starts
hundreds of tasks: 34 s of CPU time for a batch instead of 3.5 s, measured on two cores. Each write
leaves one or two files; small ones are compacted from time to time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from pyspark.sql import SparkSession

from spark_consumer.jvm import java_session

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_OURS = "spark.walgate.shuffle.partitions"  # the value that was set here
# Numbers of tasks of a job that reads little, or that has shuffled what it read.
_TASKS_AT_LEAST = _SHUFFLE_PARTITIONS, "spark.sql.files.minPartitionNum"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
# Bytes that opening a file counts as: with Spark's 4 MB, some hundred small files make a dozen
# tasks, which take all cores.
_CHEAP_TO_OPEN = MappingProxyType({"spark.sql.files.openCostInBytes": str(64 << 10)})
_POOL = "spark.scheduler.pool"


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Change settings of this session within the context."""
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
    """Return settings with which small jobs have this many tasks, so that other cores stay free."""
    return {**dict.fromkeys(_TASKS_AT_LEAST, str(count)), **_CHEAP_TO_OPEN}


def use_pool(spark: SparkSession, name: str) -> None:
    """Run the jobs of this thread in the pool `name`. If the session's scheduler is fair, they
    share the cores with jobs of other pools; otherwise the tasks of a job wait for all tasks of an
    earlier one."""
    spark.sparkContext.setLocalProperty(_POOL, name)


def tune(spark: SparkSession, defaults: Mapping[str, str] = NO_SETTINGS) -> None:
    """Set `defaults` and the number of partitions, unless this session has its own values. This is
    called again for each batch, since the number of partitions follows the number of cores, and the
    executors of a cluster register after the session is created."""
    settings = java_session(spark).sessionState().conf()
    for name, value in defaults.items():
        if not settings.contains(name):
            spark.conf.set(name, value)
    partitions = str(max(2, spark.sparkContext.defaultParallelism))
    chosen = spark.conf.get(_SHUFFLE_PARTITIONS) if settings.contains(_SHUFFLE_PARTITIONS) else None
    if chosen is None or (chosen != partitions and chosen == spark.conf.get(_OURS, None)):
        spark.conf.set(_SHUFFLE_PARTITIONS, partitions)
        spark.conf.set(_OURS, partitions)
