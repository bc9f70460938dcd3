"""One Spark session for the run; a feeder of its own for each test."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest
import pytest_asyncio
from pyspark.sql import SparkSession

from gateway.local import Kafka, Registry
from gateway.local.artifacts import jars, locked_version
from gateway.local.java import spark_java_home
from gateway.local.spark import delta_jars
from spark_consumer.jobs.session import local_session
from tests.spark_consumer.feeder import Feeder

_JAVA = (
    "-XX:TieredStopAtLevel=4 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:+UseTransparentHugePages "
    "-Xms1g -Xmn450m -XX:MetaspaceSize=256m"
)
# The second compiler would be a quarter of the CPU time: code is to run four times as often as
# usual before it is compiled again.
_LIMITS = {"Invocation": 20_000, "MinInvocation": 2_400, "Compile": 60_000, "BackEdge": 160_000}
# Hundreds of batches of a few rows: to write and compile Java for each query would be a tenth of
# the time. The jobs that tests start as programs do it, as those of users do.
SMALL_BATCHES = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.extraJavaOptions": _JAVA
    + "".join(f" -XX:Tier4{name}Threshold={count}" for name, count in _LIMITS.items()),
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder: Path = tmp_path_factory.mktemp("spark")
    settings = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    settings |= SMALL_BATCHES
    needed = delta_jars() if find_spec("delta") else ()
    if pyspark.__version__ == locked_version("spark-kafka", "spark-avro_2.13"):  # for examples/plain_spark.py
        needed += jars("spark-kafka")
    session = local_session("tests", java_home=spark_java_home(), jars=needed, cores=2, settings=settings)
    yield session
    gateway = session.sparkContext._gateway
    assert gateway is not None
    with warnings.catch_warnings():
        # py4j leaves sockets to the collector of garbage.
        warnings.simplefilter("ignore", ResourceWarning)
        session.stop()
        gateway.shutdown()
        del gateway
        gc.collect()


@pytest_asyncio.fixture
async def feeder(kafka: Kafka, registry: Registry, topic_prefix: str) -> AsyncIterator[Feeder]:
    made = await asyncio.to_thread(Feeder, kafka.bootstrap_servers, registry.url, topic_prefix)
    yield made
    await asyncio.to_thread(made.close)
