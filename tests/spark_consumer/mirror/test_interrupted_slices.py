"""Merges that were interrupted between two tables, and are made again without a table that is left
out since."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumer.mirror import version_manifest, versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.reader.registry import Registry, SchemaCache
from tests.spark_consumer.feeder import Feeder
from tests.spark_consumer.mirror.test_killed_merges import STEPS, Scene, item, killed_at

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
