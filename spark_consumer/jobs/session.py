"""A Spark session for this computer, with everything the jobs here rely on. On a cluster, set the same in spark-submit."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from spark_consumer.source.datasource import register

# What the jobs rely on, wherever they run.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's INT96 is nanoseconds: 1677 to 2262
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # a package `schemas` in a worker's directory is not ours
    "spark.python.authenticate.socketTimeout": "120s",  # a busy machine needs more than 15 s to start a Python
}
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    # A merge of a few rows is a dozen small jobs: what follows takes a quarter of their CPU time away.
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # a batch is kept for a moment, and read once or twice
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.pyspark.fallback.enabled": "false",
    # Short jobs over little data: the second compiler's work never pays back, and takes the cores that Python needs. Without it
    # Java reserves 48 MB for compiled code instead of 240, which Spark's generated code fills in half an hour of many tables.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
}


def set_up() -> None:
    """Gives the environment the variables (JAVA_HOME, WALGATE_SPARK_JARS) that it lacks and that the program named by
    WALGATE_SPARK_SETUP prints as JSON. Its failure ends this process with its exit code; it has said why."""
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
    jars: Sequence[Path] = (),
    cores: int | None = None,
    memory_mb: int = 1024,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session in this process, with both data sources registered.

    `jars`: Delta's; none where they are in Spark's own folder. `java_home`: Java 17 or 21 whose `java` takes Spark's flags.
    """
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # a worker takes python3 from PATH otherwise
    os.environ["PYTHONSAFEPATH"] = "1"
    packages = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH", "")]))
    builder = SparkSession.builder.appName(name).master(f"local[{cores or '*'}]")
    builder = builder.config("spark.driver.memory", f"{memory_mb}m")
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for key, value in {**NEEDED, **_LOCAL, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
