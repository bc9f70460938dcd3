"""Merges that were interrupted between two tables, and are made again with other options: a table is
left out, or the rows of a recreated one are not simply removed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.jvm import cloned
from spark_consumer.mirror import version_manifest, versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.merge.merge_command import merge_once
from spark_consumer.mirror.paths import kept_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.tables.prepare_table import KEEP_AS, STOP
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT4, Feeder
from tests.spark_consumer.mirror.test_killed_merges import (
    STEPS,
    Scene,
    columns_of,
    item,
    killed_at,
    numbered,
    rows_of,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.parametrize("goes_on", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_table_with_the_last_changes_of_a_merge_that_was_killed_is_left_out(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, goes_on: bool
) -> None:
    """`goes_on`: other tables have changed since."""
    scene = Scene(spark, feeder, str(tmp_path))
    scene.begin()
    scene.commit(*(("items", None, item(number, number)) for number in (20, 21, 22)))
    transaction = feeder.begin()
    transaction.insert(scene.tables["calls"], item(30, 30))
    reached_lsn = transaction.commit()
    scene.note(reached_lsn)
    scene.take()
    with killed_at(replace(STEPS["first table"], behind=True, table="items")):
        scene.merge()
    if goes_on:
        scene.commit(("items", None, item(40, 40)))
    feeder.kafka_commit()
    schemas = SchemaCache(Registry({"url": feeder.registry_url}))
    mirror = AppendingMirror(scene.path, schemas, exclude=["public.calls"], merge_every_s=math.inf)
    options = feeder.options(includeMarkers="true", exclude="public.calls")
    try:
        mirror.apply(spark.read.format("walgate").options(**options).load(), 0)
    finally:
        mirror.stop()
    scene.merge()
    for tables in scene.truth.values():
        del tables["calls"]
    scene.check(reached_lsn)
    last = version_manifest.recorded_version(spark, scene.path)
    assert last is not None and last.commit_lsn == max(scene.truth)
    assert "public.calls" not in versions.read(spark, scene.path)


def test_a_merge_that_would_have_removed_former_rows_and_was_killed_is_made_by_one_that_keeps_them(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    scene = Scene(spark, feeder, str(tmp_path))
    scene.begin()
    former = scene.tables["items"]
    kept = kept_path(scene.path, TableName("public", "items"), former.description.oid)
    rows = sorted(rows_of(former), key=repr)
    scene.commit(("items", None, item(20, 20)), *(("calls", None, item(number, 1)) for number in range(50, 60)))
    made = numbered("items", columns_of(INT4), ("id",))
    scene.alter("items", replace(made, oid=made.oid + 1), [])
    scene.commit(("items", None, item(3, 1)), ("calls", None, item(60, 1)))
    scene.take()
    with killed_at(replace(STEPS["first table"], behind=True, table="calls")):
        scene.merge()
    scene.on_recreated = STOP
    scene.commit(("items", None, item(4, 1)))
    scene.take()
    with pytest.raises(MirrorError, match=r"public\.items was dropped and recreated") as stopped:
        scene.merge()
    assert "--on-recreated=empty" in str(stopped.value)
    scene.on_recreated = KEEP_AS
    scene.commit(("items", None, item(5, 1)))
    scene.take()
    reports = list[BatchReport]()
    merge_once(cloned(spark), scene.path, reports.append)
    scene.check()
    found = spark.read.format("delta").load(kept).drop("_special").toArrow().to_pylist()
    assert sorted(found, key=repr) == rows
    lacking = [note for report in reports for note in report.notes if "the copy of its former rows lacks" in note]
    assert len(lacking) == 1
