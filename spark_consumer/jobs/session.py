"""A Spark session for the jobs: of this computer, of a cluster (`master`), or the one that
spark-submit describes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from spark_consumer.jvm import connect_refused, file_text, folder_names, submitted_settings
from spark_consumer.mirror.spark_settings import tune
from spark_consumer.source.datasource import register

# What the jobs rely on, wherever they run.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # Spark's INT96 is nanoseconds: 1677 to 2262
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # a package `schemas` in a worker's directory is not ours
    "spark.python.authenticate.socketTimeout": "120s",  # a busy machine needs more than 15 s to start a Python
}
# Of mirrors and changelogs in Delta, and of who reads them: a query that only reads topics needs no
# jar.
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# Batches are small and many. Shuffle and snapshot partitions: mirror/tuning.py.
_CHEAP_BATCHES = {
    # A merge compiles dozens of classes, a version of a Delta table as many: with Spark's 100 each
    # would compile them all anew.
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # a batch is kept for a moment, and read once or twice
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "50ms",
    # A batch is not to wait for the tasks of a merge that came before it: the mirror names a pool
    # of its own for batches.
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
    # A merge of a few rows is a dozen small jobs: what follows takes a quarter of their CPU time
    # away.
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Spark's own choice starts the program `readlink` a dozen times for each batch, which takes a
    # tenth of the time. Both write a file under another name, rename it, and refuse a name that is
    # taken.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS + "FileSystemBasedCheckpointFileManager",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA = "-XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
# In a job of a minute or two the second compiler's work never pays back, and takes the cores that
# Python needs. Without it Java reserves 48 MB for compiled code instead of 240, which Spark's
# generated code fills in half an hour of many tables.
_QUICK_START = "-XX:TieredStopAtLevel=1"
_NAMING_JARS = {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"}
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"  # of the spark-submit by which PySpark starts Java
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # in the environment of a program that spark-submit has started


def set_up() -> None:
    """Gives the environment the variables (JAVA_HOME, WALGATE_SPARK_JARS) that it lacks and that
    the program named by WALGATE_SPARK_SETUP prints as JSON. Its failure ends this process with its
    exit code; it has said why."""
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
    """A session in this process, with both data sources registered.

    `lasting`: for a job of hours, whose rate counts more than its start. `jars`: Delta's; none
    where Spark has them itself, or only topics are read. `delta`: whether the session knows Delta;
    None: where its jars can be found. `java_home`: Java 17 or 21 whose `java` takes Spark's flags.
    """
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # a worker takes python3 from PATH otherwise
    os.environ.setdefault(
        "SPARK_LOCAL_IP", "127.0.0.1"
    )  # else Spark warns of a host name that is one of this computer alone
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
    """A session with both data sources registered; the driver is this process. `settings` win over
    what the jobs rely on.

        `master` empty: spark-submit has said it, with the rest of its settings, which win too.
        `secrets`: settings that the list of processes must not show. Raises MirrorError.
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
        wanted = {**DELTA, **wanted, "spark.sql.extensions": _with_delta(given)}
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
        with _told_by_file(secrets or {}):
            spark = builder.getOrCreate()
    register(spark)
    tune(spark)  # Delta looks at its log in threads that know no other session
    return spark


def is_submitted() -> bool:
    """spark-submit has started this program."""
    return _SUBMITTED in os.environ


def _may_have_delta(given: Mapping[str, str]) -> bool:
    """Jars are named by settings, or Delta's are in Spark's own folder."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return bool(given.keys() & _NAMING_JARS) or any((home / "jars").glob("delta-spark*.jar"))


def _with_delta(given: Mapping[str, str]) -> str:
    """Extensions of others stay."""
    delta = DELTA["spark.sql.extensions"]
    there = [name for name in given.get("spark.sql.extensions", "").split(",") if name]
    return ",".join(there if delta in there else [delta, *there])


@contextmanager
def _told_by_file(secrets: Mapping[str, str]) -> Iterator[None]:
    """Spark's Java gets settings as arguments, which every user of the computer may read; these in
    a file of this user's."""
    if not secrets:
        yield
        return
    with tempfile.NamedTemporaryFile("w", prefix="walgate-", suffix=".conf", encoding="utf-8") as file:
        file.writelines(f"{name}={_property(value)}\n" for name, value in secrets.items())
        file.flush()
        before = os.environ.get(_ARGUMENTS)
        os.environ[_ARGUMENTS] = f"--extra-properties-file {shlex.quote(file.name)} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            del os.environ[_ARGUMENTS]
            if before is not None:
                os.environ[_ARGUMENTS] = before


def _property(value: str) -> str:
    """As java.util.Properties reads it back."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def is_new(spark: SparkSession, checkpoint: str) -> bool:
    """No query has ever planned a batch in this checkpoint location."""
    return not any(name.isdigit() for name in folder_names(spark, f"{checkpoint}/offsets"))


def last_offset(spark: SparkSession, checkpoint: str) -> dict[str, int] | None:
    """Where the last batch of this checkpoint location that has ended stands in the marker topic:
    offsets of the data source. None: no batch has."""
    numbers = [int(name) for name in folder_names(spark, f"{checkpoint}/commits") if name.isdigit()]
    if not numbers:
        return None
    lines = file_text(spark, f"{checkpoint}/offsets/{max(numbers)}").splitlines()
    found = json.loads(lines[-1])  # behind the version and what Spark notes of the batch, of the one source
    return found if isinstance(found, dict) and "position" in found else None
