"""Spark sessions for the jobs: local ones, those on a cluster (`master`), and those that
spark-submit determines."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from spark_consumer.jobs.secret_settings import passed_in_file
from spark_consumer.jvm import connect_refused, submitted_settings
from spark_consumer.mirror.delta.session_settings import FORGETS_NUMBERS, SESSION, SNAPSHOT_PARTITIONS, session_defaults
from spark_consumer.mirror.spark_settings import tune
from spark_consumer.source.datasource import register

# Settings that the jobs rely on, wherever they run.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's default INT96 has nanoseconds: only 1677 to 2262
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # a package `schemas` in a worker's directory is not Walgate's
    "spark.python.authenticate.socketTimeout": "120s",  # a busy machine may need more than 15 s to start Python
}
# Settings for readers of mirrors and changelogs in Delta; a query that only reads topics needs no
# jar. With Delta's default number of tasks that read a log (50), versions.register took 2.5 times
# the CPU time.
DELTA = {**SESSION, SNAPSHOT_PARTITIONS: "2"}
# Settings for many small batches. Shuffle partitions: mirror/spark_settings.py.
_CHEAP_BATCHES = {
    # A merge compiles dozens of classes, and so does each version of a Delta table: with Spark's
    # default of 100, all would be compiled again each time.
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # a batch is cached briefly, and read once or twice
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "50ms",
    # A batch must not wait for the tasks of an earlier merge: the mirror uses a separate pool for
    # batches.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_STREAMING = "org.apache.spark.sql.execution.streaming."
_CHECKPOINTS = _STREAMING if pyspark.__version__.startswith("4.0.") else f"{_STREAMING}checkpointing."
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    # A merge of a few rows is a dozen small jobs, whose CPU time these settings reduce by a
    # quarter.
    "spark.sql.adaptive.enabled": "false",
    SNAPSHOT_PARTITIONS: "1",
    # Spark's default starts the program `readlink` a dozen times for each batch, which takes a
    # tenth of the time. Both managers write a file under a temporary name, rename it, and refuse a
    # name that is taken.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS + "FileSystemBasedCheckpointFileManager",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA = "-XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
# In a job of a minute or two the second compiler (C2) does not pay off, and takes cores that Python
# needs. Without it Java reserves only 48 MB for compiled code by default: Spark's generated code
# for many tables fills them in half an hour, so 240 MB are set.
_QUICK_START = "-XX:TieredStopAtLevel=1"
_NAMING_JARS = {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"}
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # in the environment of a program that spark-submit has started


def set_up() -> None:
    """Set the environment variables (JAVA_HOME, WALGATE_SPARK_JARS) that the program named by
    WALGATE_SPARK_SETUP prints as JSON. If the program fails, this process ends with the program's
    exit code; the program has reported the reason."""
    if not (program := os.environ.get("WALGATE_SPARK_SETUP")):
        return
    done = subprocess.run(shlex.split(program), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    os.environ.update(json.loads(done.stdout))


def local_session(
    name: str,
    *,
    java_home: Path | None = None,
    jars: Sequence[str | Path] = (),
    cores: int | None = None,
    memory_mb: int = 1024,
    settings: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    lasting: bool = False,
    delta: bool | None = None,
) -> SparkSession:
    """Return a session in this process, with both data sources registered.

    `lasting`: whether the job runs for hours, so that its throughput matters more than its start.
    `jars`: Delta's jars; none if Spark has them itself, or if only topics are read. `delta`:
    whether to configure Delta; None: only if its jars are found. `java_home`: a Java 17 or 21 whose
    `java` accepts Spark's flags.
    """
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise a worker takes python3 from PATH
    os.environ.setdefault(
        "SPARK_LOCAL_IP", "127.0.0.1"
    )  # otherwise Spark warns about a host name that resolves to a loopback address
    given = {**_LOCAL, _JAVA_OPTIONS: _JAVA if lasting else f"{_QUICK_START} {_JAVA}", **(settings or {})}
    knows_delta = bool(jars) or _may_have_delta(given) if delta is None else delta
    return job_session(
        name,
        f"local[{cores or '*'}]",
        jars,
        memory_mb=memory_mb,
        settings=given,
        secrets=secrets,
        delta=knows_delta,
    )


def job_session(
    name: str,
    master: str,
    jars: Sequence[str | Path] = (),
    *,
    memory_mb: int | None = None,
    settings: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    delta: bool = True,
) -> SparkSession:
    """Return a session with both data sources registered; the driver is this process. `settings`
    override the settings that the jobs rely on.

    `master` is empty if spark-submit has set it. Other settings of spark-submit also override those
    that the jobs rely on. `secrets`: settings that must not appear in the list of processes. Raises
    MirrorError.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    packages = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH", "")]))
    submitted = submitted_settings() if is_submitted() else {}
    given = {**submitted, **(settings or {})}
    if master.startswith("sc://") or "SPARK_REMOTE" in os.environ or "spark.remote" in given:
        raise connect_refused()
    wanted: dict[str, Any] = {**NEEDED, **_CHEAP_BATCHES, **given}
    if delta:
        wanted = {**SESSION, **wanted, "spark.sql.extensions": _with_delta(given)}
    if master:
        wanted["spark.master"] = master
    if memory_mb is not None and "spark.driver.memory" not in given and not is_submitted():
        wanted["spark.driver.memory"] = f"{memory_mb}m"
    if jars and "spark.jars" not in submitted:
        wanted["spark.jars"] = ",".join(map(str, jars))
    builder = SparkSession.builder.config(map=wanted).appName(name)
    if is_submitted():
        spark = builder.config(map=dict(secrets or {})).getOrCreate()
    else:
        with passed_in_file(secrets or {}):
            spark = builder.getOrCreate()
    register(spark)
    tune(spark, session_defaults())  # Delta reads its log in threads that have no other session
    spark.conf.unset(FORGETS_NUMBERS)
    return spark


def is_submitted() -> bool:
    """Return whether this program was started by spark-submit."""
    return _SUBMITTED in os.environ


def _may_have_delta(given: Mapping[str, str]) -> bool:
    """Return whether settings name jars, or Spark's own directory contains Delta's."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return bool(given.keys() & _NAMING_JARS) or any((home / "jars").glob("delta-spark*.jar"))


def _with_delta(given: Mapping[str, str]) -> str:
    """Return the value of spark.sql.extensions with Delta's extension added."""
    delta = SESSION["spark.sql.extensions"]
    there = [name for name in given.get("spark.sql.extensions", "").split(",") if name]
    return ",".join(there if delta in there else [delta, *there])
