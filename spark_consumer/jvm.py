"""Access to the Java objects of a session, beyond PySpark's documented interface. No other module
uses them (ruff's SLF001).

Hadoop's file systems, a session's own settings and Delta's objects (mirror/delta) cannot be reached
otherwise. They are not available over Spark Connect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import MirrorError


def submitted_settings() -> dict[str, str]:
    """Return the settings that were given to spark-submit, whose Java process is already
    running."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class by its full name. Otherwise, py4j would look up each package of the name, for
    which Java searches every jar. Raises MirrorError."""
    return getattr(_classic(spark)._jvm, name)


def java_session(spark: SparkSession) -> Any:
    """Return the Java object of the session. Raises MirrorError."""
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


def java_frame(frame: DataFrame) -> Any:
    return frame._jdf


@contextmanager
def activated(spark: SparkSession) -> Iterator[None]:
    """Make this the active session of the thread, so that Java code called within the context uses
    its settings."""
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
    """Return Hadoop's class Path. Raises MirrorError."""
    return java_class(spark, "org.apache.hadoop.fs.Path")


def hadoop_path(spark: SparkSession, location: str) -> tuple[Any, Any]:
    """Return a path or glob, and its file system."""
    path = path_class(spark)(location)
    return path, path.getFileSystem(java_session(spark).sessionState().newHadoopConf())


def folder_names(spark: SparkSession, location: str) -> list[str]:
    """Return the names in a folder; none if it does not exist."""
    path, files = hadoop_path(spark, location)
    return file_names(spark, location) if files.exists(path) else []


def file_names(spark: SparkSession, location: str) -> list[str]:
    """Return the names of the files in a folder. The names are transferred as one text:
    transferring single names would take several calls of Java for each file of a long Delta log."""
    path, files = hadoop_path(spark, location)
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "no Java"
    folders = gateway.new_array(path_class(spark), 1)
    folders[0] = path
    # For a single path, S3 returns an array of its own class, for which py4j finds no method.
    found = java_class(spark, "org.apache.hadoop.fs.FileUtil").stat2Paths(files.listStatus(folders))
    listed: str = java_class(spark, "scala.runtime.ScalaRunTime").stringOf(found)
    return re.findall(r"/([^/,)]+)[,)]", listed)


def file_text(spark: SparkSession, location: str) -> str:
    """Return the content of a small file."""
    path, files = hadoop_path(spark, location)
    stream = files.open(path)
    try:
        found: str = java_class(spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8")
        return found
    finally:
        stream.close()


def write_text(spark: SparkSession, location: str, text: str) -> None:
    """Write a file, replacing any that exists."""
    path, files = hadoop_path(spark, location)
    out = files.create(path, True)
    try:
        out.write(bytearray(text.encode()))
    finally:
        out.close()


def move_folder(spark: SparkSession, location: str, target: str) -> bool:
    """Rename a directory. Return False if it does not exist, or the target does. An object store
    copies the files, and may be interrupted in between."""
    path, files = hadoop_path(spark, location)
    to = path_class(spark)(target)
    try:
        return not files.exists(to) and bool(files.rename(path, to))
    except Py4JJavaError as problem:
        if problem.java_exception.getClass().getName() != "java.io.FileNotFoundException":
            raise
        return False


def remove_folder(spark: SparkSession, location: str) -> None:
    """Remove a directory and its contents, if it exists."""
    path, files = hadoop_path(spark, location)
    files.delete(path, True)


def cloned(spark: SparkSession) -> SparkSession:
    """Return a new session that begins with the settings of this one."""
    return SparkSession(spark.sparkContext, java_session(spark).cloneSession())
