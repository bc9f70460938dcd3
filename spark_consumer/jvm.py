"""PySpark beyond its documented interface: the Java objects behind a session. Nothing else here
touches them (ruff's SLF001).

Delta's snapshots, Hadoop's file systems and a session's own settings cannot be reached otherwise.
Spark Connect has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import MirrorError


def submitted_settings() -> dict[str, str]:
    """What spark-submit was told: its Java runs already."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def java_class(spark: SparkSession, name: str) -> Any:
    """By its full name: py4j would ask for each package on the way, and Java look for a class of
    that name in every jar. Raises MirrorError."""
    return getattr(_classic(spark)._jvm, name)


def java_session(spark: SparkSession) -> Any:
    """Raises MirrorError."""
    return _classic(spark)._jsparkSession


def connect_refused() -> MirrorError:
    return MirrorError(
        "mirrors and changelogs do not run over Spark Connect: a Spark Connect session gives no access to Delta's "
        "transaction log or Hadoop's file systems",
        hint="Run walgate mirror (with --master URL on a cluster), or spark-submit. "
        'format("walgate") and the mirror\'s Delta tables can be read over Spark Connect.',
    )


def _classic(spark: SparkSession) -> Any:
    if not hasattr(spark, "_jvm"):
        raise connect_refused()
    return spark


def delta_log(spark: SparkSession) -> Any:
    """Delta's class DeltaLog. Raises MirrorError."""
    return java_class(spark, "org.apache.spark.sql.delta.DeltaLog")


def java_log(spark: SparkSession, location: str) -> Any:
    """Delta's own object for the table there. Raises MirrorError."""
    return delta_log(spark).forTable(java_session(spark), location)


def java_snapshot(spark: SparkSession, location: str, version: int | None = None) -> Any:
    """Delta's own snapshot of the table as it is now, or was; its history would cost a job. Raises
    MirrorError."""
    log = java_log(spark, location)
    if version is None:  # stalenessAcceptable = false, and Scala's defaults for the rest
        return log.update(False, getattr(log, "update$default$2")(), getattr(log, "update$default$3")())
    return log.getSnapshotAt(version, *(getattr(log, f"getSnapshotAt$default${place}")() for place in (2, 3, 4)))


def java_frame(frame: DataFrame) -> Any:
    return frame._jdf


@contextmanager
def activated(spark: SparkSession) -> Iterator[None]:
    """What Java does within for this thread, it does with the settings of this session."""
    sessions = SparkSession._get_j_spark_session_class(_classic(spark)._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(java_session(spark))
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def path_class(spark: SparkSession) -> Any:
    """Hadoop's class Path. Raises MirrorError."""
    return java_class(spark, "org.apache.hadoop.fs.Path")


def hadoop_path(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """A path or glob, and the file system that it is in."""
    path = path_class(spark)(location)
    return path, path.getFileSystem(java_session(spark).sessionState().newHadoopConf())


def folder_names(spark: SparkSession, location: str) -> list[str]:
    """Of what is in a folder; none where that does not exist."""
    path, files = hadoop_path(spark, location)
    return file_names(spark, location) if files.exists(path) else []


def file_names(spark: SparkSession, location: str) -> list[str]:
    """Of the files in a folder. As one text: each file of a long Delta log would cost several calls
    of Java."""
    path, files = hadoop_path(spark, location)
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "no Java"
    folders = gateway.new_array(path_class(spark), 1)
    folders[0] = path
    # Of a single path, S3 gives an array of a class of its own, for which py4j finds no method.
    found = java_class(spark, "org.apache.hadoop.fs.FileUtil").stat2Paths(files.listStatus(folders))
    listed: str = java_class(spark, "scala.runtime.ScalaRunTime").stringOf(found)
    return re.findall(r"/([^/,)]+)[,)]", listed)


def file_text(spark: SparkSession, location: str) -> str:
    """Of a small file."""
    path, files = hadoop_path(spark, location)
    stream = files.open(path)
    try:
        found: str = java_class(spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8")
        return found
    finally:
        stream.close()


def cloned(spark: SparkSession) -> SparkSession:
    """With the same settings, and its own from now on."""
    return SparkSession(spark.sparkContext, java_session(spark).cloneSession())
