"""A mirror of a release that had no `changes` goes on without a new start: its tables, manifest,
snapshot and checkpoint."""

from __future__ import annotations

import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumer.jvm import cloned
from spark_consumer.mirror import version_manifest, versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.merge.merge_command import merge_once
from spark_consumer.mirror.report import BatchReport
from tests.spark_consumer.feeder import Feeder, Row, Table
from tests.spark_consumer.older import ARCHIVE, Source, query
from tests.spark_consumer.queries import run_to_end

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LATER_S = 10_000.0


def rows_in(picture: versions.MirrorVersion, table: Table) -> list[Row]:
    rows = picture[table.name].drop("_special").toArrow().to_pylist()
    return sorted(rows, key=lambda row: str(table.key(row)))


def check(spark: SparkSession, path: Path, source: Source, at: str | int = "latest") -> versions.MirrorVersion:
    picture = versions.read(spark, str(path), at)
    for table in (source.items, source.stock):
        assert rows_in(picture, table) == sorted(table.rows.values(), key=lambda row: str(table.key(row))), table.name
    calls = picture["public.calls"].orderBy("_commit_lsn", "_ordinal").collect()
    assert [(row["_op"], row["page"]) for row in calls] == [(row["op"], row.get("page")) for row in source.calls.log]
    return picture


@pytest.mark.parametrize(
    ("merge_every_s", "has_checkpoint"),
    [
        (LATER_S, True),
        pytest.param(LATER_S, False, marks=pytest.mark.long),
        pytest.param(0.0, True, marks=pytest.mark.long),
    ],
)
def test_an_older_mirror_goes_on_without_a_new_start(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, merge_every_s: float, has_checkpoint: bool
) -> None:
    """Without its checkpoint the query begins at the start of the topics: nothing is taken in
    twice."""
    path, reports = tmp_path / "mirror", list[BatchReport]()
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(path, filter="data")
    if not has_checkpoint:
        shutil.rmtree(path / "checkpoint")
    source = Source.begin(feeder)
    before = check(spark, path, source)
    assert before.commit_lsn == feeder.truth[-1].commit_lsn
    mirror = AppendingMirror(str(path), source.schemas, reports.append, merge_every_s=merge_every_s)
    old_count = len(feeder.truth)
    source.go_on()
    run_to_end(query(spark, feeder, mirror.apply, path, 5))
    taken = Counter(change.table.name for change in feeder.truth[old_count:] if change.table is not None)
    assert sum((Counter(report.tables) for report in reports if not report.is_merge), Counter()) == taken
    mirror.finish(spark, merge=False)
    merge_once(cloned(spark), str(path), lambda _: None)  # what a snapshot replaces, a merge alone knows
    after = check(spark, path, source)
    merged = version_manifest.recorded_version(spark, str(path))
    assert merged is not None and merged.commit_lsn == after.commit_lsn == feeder.truth[-1].commit_lsn
    assert not list((path / "seen").rglob("*.parquet")), "the keys of the snapshot stay"
