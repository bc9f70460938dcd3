"""What a mirror removes with time: all that no picture of its retention needs, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from spark_consumer.arrow import to_frame
from spark_consumer.errors import MirrorError
from spark_consumer.mirror import changes, maintenance, version_manifest, versions
from spark_consumer.mirror.delta import cleanup, delta_table
from spark_consumer.mirror.delta.delta_write import write_once
from spark_consumer.mirror.delta.java_delta import delta_log_class
from spark_consumer.mirror.delta.log_entries import needless
from spark_consumer.mirror.delta.log_replay import open_delta
from spark_consumer.mirror.merge.merger import Merger
from spark_consumer.mirror.paths import changes_path, manifest_path, table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.slice_contents import BatchSize, batch_size
from spark_consumer.source.frames import RAW
from spark_consumer.tables import TableName


def name(version: int, kind: str) -> str:
    return f"{version:020}.{kind}"


def test_a_log_is_cut_at_the_last_checkpoint_before_the_oldest_version_that_is_needed() -> None:
    versions = range(3, 26)
    names = [name(version, kind) for version in versions for kind in ("json", "crc")]
    names += [name(version, "checkpoint.parquet") for version in (10, 20)]
    names += [f"{5:020}.{9:020}.compacted.json", "_last_checkpoint", ".s3-optimization-0"]
    below_ten = {found for found in names if found[:1] == "0" and int(found[:20]) < 10}
    assert set(needless(names, 19)) == set(needless(names, 10)) == below_ten
    assert {int(found[:20]) for found in needless(names, 25)} == set(range(3, 20))
    assert needless(names, 9) == []
    assert needless([*names, name(15, "checkpoint.0000000001.0000000002.parquet")], 25) == []


def data_files(location: Path) -> set[str]:
    return {path.name for path in location.glob("*.parquet")}


def log_versions(location: Path) -> list[int]:
    return sorted(int(path.stem) for path in (location / "_delta_log").glob("*.json") if path.stem.isdigit())


def files_since(location: Path, version: int) -> set[str]:
    """Of every version from there on."""
    found = range(version, max(log_versions(location)) + 1)
    return {file for number in found for file, _ in open_delta(location, number).files}


def age(file: Path, days: int) -> None:
    os.utime(file, times=(file.stat().st_atime, file.stat().st_mtime - days * 24 * 3600))


def make_old(spark: SparkSession, location: Path, needed: int, newer_days: int = 0) -> None:
    """Make a table's files 20 days old, and its log 10 days up to the version `needed`."""
    for entry in (location / "_delta_log").glob("*.json"):
        age(entry, 10 if int(entry.stem) <= needed else newer_days)
    for file in location.iterdir():
        if file.is_file():
            age(file, 20)
    delta_log_class(spark).clearCache()


ITEMS = TableName("public", "items")
EVERY_SECOND = "spark.databricks.delta.properties.defaults.checkpointInterval"


def append(spark: SparkSession, path: str, lsn: int) -> None:
    change = {"table": "public.items", "op": "INSERT", "commit_lsn": lsn, "ordinal": 0, "schema_id": 1, "value": b""}
    rows = pa.Table.from_pylist([change], pa.schema([RAW.field(name) for name in changes.COLUMNS]))
    changes.append(to_frame(spark, rows), path, BatchSize(1, 0, 0, lsn, lsn))


def merge(spark: SparkSession, path: str, lsn: int) -> datetime:
    """As a mirror does: an appended change, one row more, one less, and the picture. When all that
    was there."""
    append(spark, path, lsn)
    location = table_path(path, ITEMS)
    properties = {} if delta_table.exists(spark, location) else delta_table.properties(["id"], deletion_vectors=True)
    write_once(spark.range(lsn, lsn + 2), location, "append", lsn, properties=properties)
    DeltaTable.forPath(spark, location).delete(f"id = {lsn + 1}")
    found = {str(ITEMS): delta_table.version(spark, location)}
    version_manifest.record(
        spark, path, replace(version_manifest.RecordedVersion.before_all(), commit_lsn=lsn, tables=found)
    )
    return datetime.now(UTC)


def recorded(spark: SparkSession, path: str, lsn: int) -> int:
    """The version of the table in the mirror's version at an LSN."""
    picture = version_manifest.recorded_version(spark, path, lsn)
    assert picture is not None
    return picture.tables[str(ITEMS)]


def check(spark: SparkSession, path: str, lsns: Iterable[int]) -> None:
    for lsn in lsns:
        picture = versions.read(spark, path, at=lsn)
        assert picture.commit_lsn == lsn
        assert sorted(row["id"] for row in picture[str(ITEMS)].collect()) == list(range(2, lsn + 1, 2))


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_files_of_the_last_commits_have_what_a_version_of_changes_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path)
    changes.create(spark, path)

    def append(lsn: int, count: int = 3) -> None:
        row = {"op": "INSERT", "commit_lsn": lsn, "schema_id": 1, "value": b"a"}
        rows = [{**row, "table": f"public.{word}", "ordinal": place} for place in range(count) for word in ("a", "b")]
        schema = pa.schema([RAW.field(name) for name in changes.COLUMNS])
        size = BatchSize(len(rows), 0, len(rows), lsn, lsn)
        changes.append(to_frame(spark, pa.Table.from_pylist(rows, schema)), path, size)

    def check(*behind: int, last: int) -> None:
        pinned = changes.pinned(spark, path)
        assert pinned is not None
        kept = pinned.collect()
        for lsn in behind:
            rows, size = changes.unmerged(spark, path, lsn, last)
            assert rows is not None and size == batch_size(rows)
            wanted = sorted((tuple(row) for row in kept if lsn < row.commit_lsn <= last), key=str)
            assert wanted and sorted(map(tuple, rows.collect()), key=str) == wanted

    for lsn in (2, 4, 6):
        append(lsn)
    check(-1, 1, 2, 3, 5, last=6)
    check(-1, 2, last=4)
    changes.prune(spark, path, 2)
    check(2, 3, 4, last=6)
    DeltaTable.forPath(spark, changes_path(path)).optimize().executeCompaction()
    append(8)
    check(2, 4, 5, 6, 7, last=8)
    changes.prune(spark, path, 4)  # of a file that has more
    append(10)
    check(4, 6, 7, 9, last=10)
    log = Path(changes_path(path), "_delta_log")
    for version in range(3):
        (log / f"{version:020}.json").unlink()
    assert [bool(changes._commits_after(spark, changes_path(path), lsn)) for lsn in (1, 6, 8)] == [False, True, True]
    monkeypatch.setattr(changes, "_COMMITS", 4)  # the last append, and what the last prune notes and removes
    assert [bool(changes._commits_after(spark, changes_path(path), lsn)) for lsn in (6, 8)] == [False, True]


@pytest.mark.integration
def test_checkpoints_of_changes_are_written_by_upkeep_and_not_by_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_CHECKPOINT_EVERY", 3)
    path, log = str(tmp_path), Path(changes_path(str(tmp_path))) / "_delta_log"
    changes.create(spark, path)

    def checkpoints() -> list[int]:
        return sorted(int(file.name[:20]) for file in log.glob("*.checkpoint.parquet"))

    found: list[list[int]] = []
    for lsn in range(1, 8):
        before = checkpoints()
        append(spark, path, lsn)
        assert checkpoints() == before
        if lsn % 2 == 0:
            maintenance.compact(spark, path)
            found.append(checkpoints())
    assert found == [[], [4], [4]]
    kept = changes.pinned(spark, path)
    assert kept is not None and sorted(row[0] for row in kept.select("commit_lsn").collect()) == list(range(1, 8))


def test_what_upkeep_cannot_do_is_reported_and_tried_again_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fail(step: str) -> None:
        tried.append(step)
        raise PermissionError(f"no right to {step}\nat line 1\nat line 2")

    monkeypatch.setattr(maintenance, "compact", lambda *_: fail("compact"))
    monkeypatch.setattr(maintenance, "remove", lambda *_: fail("remove"))
    monkeypatch.setattr(maintenance.Maintenance, "_own_session", lambda *_: None)
    reports: list[BatchReport] = []
    mirror, spark = Merger("/mirror", {}, reports.append), cast(SparkSession, None)
    mirror.maintain(spark, 1)
    assert not tried  # nothing is there yet
    mirror.last = replace(version_manifest.RecordedVersion.before_all(), commit_lsn=7)
    for batch in (1, 2, 3):
        mirror.maintain(spark, batch, compacts=True)
    assert tried == ["compact", "remove"]
    (report,) = reports
    assert (report.batch, report.commit_lsn, report.changes) == (1, 7, 0)
    assert [note.partition(": ")[2] for note in report.notes] == [
        f"PermissionError no right to {step} at line 1" for step in tried
    ]
    mirror.maintenance = maintenance.Maintenance("/mirror", 0.0)  # due at once
    for batch in (4, 5):
        mirror.maintain(spark, batch)
    assert tried == ["compact", "remove", "remove", "remove"] and [each.batch for each in reports] == [1, 4, 5]


@pytest.mark.integration
def test_a_table_is_compacted_where_its_small_files_have_become_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_SMALL_FILES", ((1 << 20, 3),))
    monkeypatch.setattr(maintenance, "_LOOK_EVERY", 2)
    location, keeper = str(tmp_path / "items"), maintenance.Maintenance(str(tmp_path))
    for lsn, files in ((1, 1), (2, 2), (3, 1), (4, 2)):
        rows = spark.range(1).selectExpr(f"{lsn} AS id").coalesce(1)
        write_once(
            rows,
            location,
            "append",
            lsn,
            properties={} if lsn > 1 else delta_table.properties(["id"], deletion_vectors=True),
        )
        version = delta_table.version(spark, location)
        keeper.note_version(location, version - 1, version)
        keeper.compact_tables(spark)
        assert delta_table.files_below(spark, location, 1 << 20) == files
    assert sorted(row["id"] for row in spark.read.format("delta").load(location).collect()) == [1, 2, 3, 4]


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(900)
def test_files_whose_removal_the_log_has_forgotten_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written long ago, replaced a moment ago, which the log of the table remembers for no time at
    all."""
    path, items = str(tmp_path), Path(table_path(str(tmp_path), ITEMS))
    monkeypatch.setattr(cleanup, "LOG_GRACE_S", 0.0)
    spark.conf.set(EVERY_SECOND, "2")
    try:
        changes.create(spark, path)
        for lsn in (2, 4):
            merge(spark, path, lsn)
        spark.sql(f"ALTER TABLE delta.`{items}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '0 hours')")
        for lsn in (6, 8):
            merge(spark, path, lsn)
        DeltaTable.forPath(spark, str(items)).optimize().executeCompaction()
        merge(spark, path, 10)
    finally:
        spark.conf.unset(EVERY_SECOND)
    make_old(spark, items, recorded(spark, path, 6))
    monkeypatch.setattr(version_manifest, "merged_before", lambda *_: 6)
    retention = timedelta(days=5).total_seconds()
    maintenance.Maintenance(path, retention).remove(spark, [str(ITEMS)])
    check(spark, path, (6, 8, 10))
    newest = delta_table.version(spark, str(items))
    assert delta_table.tombstones_s(spark, str(items), newest) == retention + cleanup.GRACE_S
    maintenance.Maintenance(path, retention).remove(spark, [str(ITEMS)])
    check(spark, path, (6, 8, 10))
    assert delta_table.version(spark, str(items)) == newest


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(900)
def test_files_that_were_replaced_long_ago_stay_for_the_last_version_of_the_mirror(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge wrote the table, and ended before it recorded a version. No merge followed for as
    long as the log lists replaced files."""
    monkeypatch.setattr(cleanup, "GRACE_S", 0.0)
    monkeypatch.setattr(cleanup, "LOG_GRACE_S", 0.0)
    path, items = str(tmp_path), Path(table_path(str(tmp_path), ITEMS))
    spark.conf.set(EVERY_SECOND, "2")
    try:
        changes.create(spark, path)
        for lsn in (2, 4):
            merge(spark, path, lsn)
        spark.sql(f"ALTER TABLE delta.`{items}` SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = '0 hours')")
        merge(spark, path, 6)
        for number in (8, 10, 12):
            write_once(spark.range(number, number + 1), str(items), "overwrite", number)
    finally:
        spark.conf.unset(EVERY_SECOND)
    make_old(spark, items, recorded(spark, path, 6), newer_days=5)
    maintenance.Maintenance(path, 0.0).remove(spark, [str(ITEMS)])
    check(spark, path, (6,))


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_no_picture_of_the_retention_needs_is_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"GRACE_S": 0.0, "LOG_GRACE_S": 0.0, "_SMALL_FILES": ((1 << 20, 4),)}.items():
        monkeypatch.setattr(cleanup, name, value)
    path, items = str(tmp_path), Path(table_path(str(tmp_path), ITEMS))
    spark.conf.set(EVERY_SECOND, "2")
    try:
        changes.create(spark, path)
        merged = [merge(spark, path, lsn) for lsn in (2, 4, 6, 8)]
    finally:
        spark.conf.unset(EVERY_SECOND)
    maintenance.Maintenance(path).compact(spark)
    assert delta_table.files_below(spark, changes_path(path), 1 << 20) == 1
    maintenance.Maintenance(path, (datetime.now(UTC) - merged[1]).total_seconds()).remove(spark, [str(ITEMS)])
    check(spark, path, (4, 6, 8))
    with pytest.raises(MirrorError, match="the mirror begins at"):
        versions.read(spark, path, at=2)
    needed = recorded(spark, path, 4)
    assert 0 < min(log_versions(items)) <= needed < min(log_versions(items)) + 3
    assert files_since(items, needed) <= data_files(items)
    # Delta would refuse a version for its age, though it was replaced just now.
    for version in log_versions(items):
        if version <= needed:
            age(items / "_delta_log" / f"{version:020}.json", 10)
    delta_log_class(spark).clearCache()
    check(spark, path, (4,))
    maintenance.Maintenance(path, 0.0).remove(spark, [str(ITEMS)])
    check(spark, path, (8,))
    assert spark.read.format("delta").load(manifest_path(path)).count() == 1
    assert spark.read.format("delta").load(changes_path(path)).isEmpty()
    assert len(log_versions(items)) <= 2 and len(log_versions(Path(manifest_path(path)))) <= 3
    assert data_files(items) == files_since(items, max(log_versions(items)))
    # A table's own properties may keep more.
    own = "('delta.deletedFileRetentionDuration' = 'interval 2 days')"
    spark.sql(f"ALTER TABLE delta.`{items}` SET TBLPROPERTIES {own}")
    assert delta_table.own_retention_s(spark, str(items)) == timedelta(days=2).total_seconds()
    merge(spark, path, 10)
    kept = set(items.rglob("*"))
    maintenance.Maintenance(path, 0.0).remove(spark, [str(ITEMS)])
    check(spark, path, (10,))
    assert kept <= set(items.rglob("*"))
