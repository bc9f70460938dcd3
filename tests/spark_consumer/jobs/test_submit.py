"""`spark-submit` with the wheel, on two executors that are processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.jobs.session import DELTA, NEEDED
from tests.spark_consumer import submitted_job
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation
from tests.spark_consumer.jobs.test_jobs import change_items

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))
ROOT = Path(__file__).parents[3]


def build_wheel(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(wheel.with_suffix(".zip"))  # Spark puts zip, egg and jar on the path of Python, not whl


def submit(archive: Path, folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings = {
        **NEEDED, **DELTA, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "1",
    }  # fmt: skip
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]",
        "--py-files", str(archive), "--jars", ",".join(map(str, jars("delta"))),
        *(f"--conf={name}={value}" for name, value in settings.items()), submitted_job.__file__, *arguments,
    ]  # fmt: skip
    java = {"JAVA_HOME": str(spark_java_home()), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=folder, env=environment | java, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


async def test_a_submitted_mirror_runs_from_the_wheel_on_two_executors(feeder: Feeder, tmp_path: Path) -> None:
    archive = await asyncio.to_thread(build_wheel, tmp_path)
    items = await asyncio.to_thread(feeder.table, ITEMS)
    for seed in range(3):
        await asyncio.to_thread(change_items, feeder, items, random.Random(seed))
    output = await asyncio.to_thread(
        submit, archive, tmp_path, json.dumps(feeder.options()), str(tmp_path), "public.items"
    )
    found = json.loads(output.splitlines()[-1])
    assert {row["id"]: row for row in found["rows"]} == {key: row for (key,), row in items.rows.items()}
    assert found["typed"] == len(feeder.truth)
    assert all(archive.name in place["package"] for place in found["places"])
    assert len({place["folder"] for place in found["places"]}) == 2
