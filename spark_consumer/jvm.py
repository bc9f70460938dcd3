"""PySpark beyond its documented interface: the Java objects behind a session. Nothing else here touches them (ruff's SLF001).

Delta's snapshots, Hadoop's file systems and a session's own settings cannot be reached otherwise. Spark Connect has none.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def java(spark: SparkSession) -> Any:
    """Java's packages."""
    return spark._jvm


def java_session(spark: SparkSession) -> Any:
    return spark._jsparkSession


def hadoop_path(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """A path or glob, and the file system that it is in."""
    path = java(spark).org.apache.hadoop.fs.Path(location)
    return path, path.getFileSystem(java_session(spark).sessionState().newHadoopConf())


def cloned(spark: SparkSession) -> SparkSession:
    """With the same settings, and its own from now on."""
    return SparkSession(spark.sparkContext, java_session(spark).cloneSession())
