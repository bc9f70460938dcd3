"""`walgate mirror --catalog`: the tables of a mirror by name in Spark SQL, from a Hive metastore
(Derby)."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from gateway.local.artifacts import jars
from gateway.local.java import spark_java_home
from spark_consumer.mirror.tables.catalog import Catalog
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation
from tests.spark_consumer.here import reports_here, run_here
from tests.spark_consumer.jobs.test_jobs import ITEMS, change_items, foreign_folder, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ODD = relation("Odd name", {"id": INT8, "name": TEXT}, ("id",))
TAKEN = relation("taken", {"id": INT8, "name": TEXT}, ("id",))

# A program of its own, with the same metastore: who else would read by name.
READ = """
import json, sys
from spark_consumer.jobs.session import local_session
spark = local_session("reader", jars=json.loads(sys.argv[1]), cores=1, settings=json.loads(sys.argv[2]))
for statement in json.loads(sys.argv[3]):
    print(json.dumps([row.asDict() for row in spark.sql(statement).collect()]))
spark.stop()
"""


def metastore(folder: Path) -> dict[str, str]:
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
    }


async def sql(folder: Path, *statements: str) -> list[list[dict[str, Any]]]:
    words = (json.dumps([str(path) for path in jars("delta")]), json.dumps(metastore(folder)), json.dumps(statements))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", READ, *words,
        cwd=foreign_folder(folder / "mirror"), env={**os.environ, "JAVA_HOME": str(spark_java_home())},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-4000:]
    return [json.loads(line) for line in out.splitlines()]


def rows(table: Table) -> list[dict[str, Any]]:
    return sorted(table.rows.values(), key=lambda row: row["id"])


def fill(feeder: Feeder, *tables: Table) -> None:
    transaction = feeder.begin()
    for table in tables:
        for number in range(3):
            transaction.insert(table, {"id": len(table.rows), "name": f"name {number}"})
    transaction.commit()
    feeder.kafka_commit()


def given(folder: Path, *more: str) -> list[str]:
    words = [word for name, value in metastore(folder).items() for word in ("--conf", f"{name}={value}")]
    return ["--once", "--catalog", "spark_catalog", *words, *more]


def notes_of(reports: list[dict[str, Any]]) -> list[str]:
    return [note for report in reports for note in report.get("notes", [])]


def test_tables_of_a_mirror_have_names_in_a_catalog(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    items, odd, taken = (feeder.table(description) for description in (ITEMS, ODD, TAKEN))
    fill(feeder, items, odd, taken)
    spark.sql("CREATE SCHEMA public")
    try:
        spark.sql(f"CREATE TABLE public.taken (mine INT) USING delta LOCATION '{tmp_path}/taken'")
        words = ("--once", "--catalog", "spark_catalog")
        notes = notes_of(reports_here(spark, "mirror", feeder, tmp_path / "mirror", *words))
        assert any("public.taken was not registered" in note and "refers to another table" in note for note in notes)
        assert any("public.Odd name was not registered" in note for note in notes)
        assert len(notes) == 2
        found = spark.sql("SELECT id, name FROM spark_catalog.public.items ORDER BY id").collect()
        assert [row.asDict() for row in found] == rows(items)
        assert spark.sql("SELECT * FROM public.taken").count() == 0
    finally:
        spark.sql("DROP SCHEMA public CASCADE")


@pytest.mark.long
@pytest.mark.parametrize("merge_every", ["0", "60"])
async def test_tables_of_a_mirror_have_names_in_a_metastore(feeder: Feeder, tmp_path: Path, merge_every: str) -> None:
    items, odd, taken = (feeder.table(description) for description in (ITEMS, ODD, TAKEN))
    await sql(
        tmp_path,
        "CREATE SCHEMA public",
        "CREATE TABLE public.taken (mine INT) USING delta",
        "INSERT INTO public.taken VALUES (7)",
    )
    await asyncio.to_thread(fill, feeder, items, odd, taken)
    words = given(tmp_path, "--merge-every", merge_every)
    first = notes_of(await run("mirror", feeder, tmp_path / "mirror", *words))
    await asyncio.to_thread(change_items, feeder, items, random.Random(3))
    again = notes_of(await run("mirror", feeder, tmp_path / "mirror", *words))
    assert again == first  # told at each start, and no more than that
    assert any("public.taken was not registered" in note and "refers to another table" in note for note in first)
    assert any("public.Odd name was not registered" in note for note in first)
    assert len(first) == 2
    found, untouched = await sql(
        tmp_path, "SELECT id, name FROM spark_catalog.public.items ORDER BY id", "SELECT * FROM public.taken"
    )
    assert (found, untouched) == (rows(items), [{"mine": 7}])


def test_a_catalog_that_is_not_configured_is_named(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    fill(feeder, feeder.table(ITEMS))
    code, errors = run_here(spark, "mirror", feeder, tmp_path / "mirror", "--once", "--catalog", "nowhere")
    assert code == 1
    assert "--catalog nowhere: Spark cannot use this catalog" in errors
    assert "spark.sql.catalog.NAME" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "mirror" / "tables").exists()


class Outage:
    """What Spark says while a metastore is down: an exception for which PySpark has no class."""

    _target_id = "o1"

    def __str__(self) -> str:
        return "org.apache.thrift.transport.TTransportException: the metastore is down"


def test_a_catalog_that_is_away_is_told_once_and_asked_again() -> None:
    asked: list[str] = []

    class Answers:
        is_down = True

        def sql(self, statement: str) -> Answers:
            asked.append(statement)
            if self.is_down:
                raise Py4JJavaError("an error occurred while calling o1.sql", Outage())
            return self

        def head(self) -> dict[str, str]:
            return {"location": "/mirror/tables/public/items"}

    spark: Any = Answers()
    catalog = Catalog("lake", "/mirror")
    (note,) = catalog.register(spark, ["public.items"])
    assert note.endswith("TTransportException: the metastore is down")
    assert catalog.register(spark, ["public.items"]) == []
    spark.is_down = False
    assert catalog.register(spark, ["public.items"]) == [] and "CREATE TABLE" in asked[-2]
    count = len(asked)
    assert catalog.register(spark, ["public.items"]) == [] and len(asked) == count
