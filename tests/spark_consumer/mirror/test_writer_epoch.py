"""Two writers at one mirror, others that change its files, and tables that are left out: nothing
twice, nothing lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentTransactionException
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.jvm import java_frame
from spark_consumer.mirror import changes, version_manifest, versions, writer_epoch
from spark_consumer.mirror.delta import delta_append
from spark_consumer.mirror.delta.delta_table import files_below, noted_numbers, noted_versions
from spark_consumer.mirror.delta.delta_write import despite_conflicts, once, write_once
from spark_consumer.mirror.delta.java_delta import delta_log_class
from spark_consumer.mirror.merge import merger
from spark_consumer.mirror.merge.merger import Merger
from spark_consumer.mirror.paths import changes_path, manifest_path, table_path
from spark_consumer.mirror.slice_contents import BatchSize
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import APPLICATION
from spark_consumer.mirror.tables import write_table
from spark_consumer.mirror.tables.write_table import TableWork
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.source.datasource import register
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation
from tests.spark_consumer.mirror.test_mirror import mirrored
from tests.spark_consumer.mirrors import merging_mirror
from tests.spark_consumer.workload import VISITS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))


def visit(feeder: Feeder, items: object, visits: object, number: int) -> None:
    transaction = feeder.begin()
    transaction.insert(items, {"id": number, "name": "a"})  # type: ignore[arg-type]
    transaction.insert(visits, {"page": f"/{number}", "seconds": 1.0})  # type: ignore[arg-type]
    transaction.commit()
    feeder.kafka_commit()


@pytest.mark.long
def test_a_writer_that_another_one_follows_stops_and_nothing_is_there_twice(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    schemas = SchemaCache(Registry({"url": feeder.registry_url}))
    first, second, third = (merging_mirror(str(tmp_path), schemas) for _ in range(3))
    sessions = [spark, spark.newSession(), spark.newSession()]  # Delta's transaction options are of a session
    for session in sessions:
        register(session)

    def apply(place: int, number: int) -> None:
        mirrors = (first, second, third)
        frame = sessions[place].read.format("walgate").options(**feeder.options()).load()
        mirrors[place].apply(frame, number)

    def pages() -> list[str]:
        rows = versions.read(spark, str(tmp_path))["public.visits"].collect()
        return sorted(row.page for row in rows)

    # In turn: the second begins with a checkpoint of its own, from the start of the topics.
    visit(feeder, items, visits, 1)
    apply(0, 0)
    visit(feeder, items, visits, 2)
    apply(1, 0)
    visit(feeder, items, visits, 3)
    with pytest.raises(MirrorError, match="another writer has taken over"):
        apply(0, 1)
    assert pages() == ["/1", "/2"]
    # At once: the second stands within its batch, before its first write, when the third takes
    # over.
    stands, goes_on = threading.Event(), threading.Event()
    write = write_table.write

    def waits(session: SparkSession, work: TableWork, *rest: object) -> None:
        if session is second._merges.session:
            stands.set()
            assert goes_on.wait(300)
        write(session, work, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as beside:
        patched.setattr(merger, "write", waits)
        late = beside.submit(apply, 1, 1)
        assert stands.wait(300)
        apply(2, 0)
        goes_on.set()
        with pytest.raises(MirrorError, match="another writer has taken over"):
            late.result()
    visit(feeder, items, visits, 4)
    apply(2, 1)
    assert pages() == ["/1", "/2", "/3", "/4"]
    assert mirrored(tmp_path, items) == items.rows
    # OPTIMIZE and VACUUM by others change versions, and no row.
    for name in ("items", "visits"):
        location = table_path(str(tmp_path), TableName("public", name))
        DeltaTable.forPath(spark, location).optimize().executeCompaction()
        DeltaTable.forPath(spark, location).vacuum()
        properties = DeltaTable.forPath(spark, location).detail().head()
        assert properties is not None and "delta.columnMapping.mode" not in properties["properties"]
    visit(feeder, items, visits, 5)
    apply(2, 2)
    assert pages() == ["/1", "/2", "/3", "/4", "/5"] and mirrored(tmp_path, items) == items.rows
    # A table that is left out leaves the pictures, and is not taken in again by the same mirror.
    options = feeder.options(exclude="public.vis*")
    left = merging_mirror(str(tmp_path), schemas, exclude=["public.vis*"])
    visit(feeder, items, visits, 6)
    left.apply(spark.read.format("walgate").options(**options).load(), 0)
    assert set(versions.read(spark, str(tmp_path))) == {"public.items"}
    with pytest.raises(MirrorError, match=r"tables matching public\.vis\* are not in the mirror"):
        merging_mirror(str(tmp_path), schemas).apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    assert spark.read.format("delta").load(manifest_path(str(tmp_path))).count() == 6


def test_a_writer_that_another_one_follows_appends_nothing_behind_its_own_last_look(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, rows = str(tmp_path), changes.no_rows(spark)
    changes.create(spark, path)
    first = writer_epoch.claim_appends(spark, path, rows)
    changes.append(rows, path, BatchSize(1, 0, 0, 1, 1), writer_epoch.expected_epoch(first))
    _, commit = next(iter(TABLE_FORMAT.commits(spark, changes_path(path))))
    # Other releases read this note, and this one reads theirs.
    assert commit.note == 'walgate.size {"changes": 1, "signs": 0, "value_bytes": 0, "first_lsn": 1, "last_lsn": 1}'
    second = writer_epoch.claim_appends(spark, path, rows)
    with pytest.raises(TABLE_FORMAT.TAKEN_OVER):
        changes.append(rows, path, BatchSize(1, 0, 0, 2, 2), writer_epoch.expected_epoch(first))
    assert changes.appended_lsn(spark, path) == 1
    # The third comes while the second commits: it has looked already.
    look = noted_versions
    third: list[int] = []

    def looks(snapshot: object) -> dict[str, int] | None:
        found = look(snapshot)
        if not third:
            third.append(0)
            third[0] = writer_epoch.claim_appends(spark, path, rows)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("spark_consumer.mirror.delta.delta_append.noted_versions", looks)
        with pytest.raises(ConcurrentTransactionException):
            changes.append(rows, path, BatchSize(1, 0, 0, 2, 2), writer_epoch.expected_epoch(second))
    assert changes.appended_lsn(spark, path) == 1
    changes.append(rows, path, BatchSize(1, 0, 0, 2, 2), writer_epoch.expected_epoch(third[0]))
    assert changes.appended_lsn(spark, path) == 2


def test_what_the_writer_before_has_recorded_at_the_last_moment_is_not_taken_in_again(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """`walgate merge` takes over the merges while the mirror merges once more."""
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    schemas, told = SchemaCache(Registry({"url": feeder.registry_url})), list[None]()
    first = merging_mirror(str(tmp_path), schemas, handed_over=lambda: told.append(None))
    second = Merger(str(tmp_path), schemas)

    def apply() -> None:
        first.apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)

    visit(feeder, items, visits, 1)
    apply()
    claim, other = writer_epoch.claim, spark.newSession()

    def claims(*given: Any) -> int:
        visit(feeder, items, visits, 2)
        apply()
        return claim(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer_epoch, "claim", claims)
        second.open(other)
    assert second.merged_lsn == first._merges.merger.merged_lsn == feeder.truth[-1].commit_lsn and not told
    # And what it would record afterwards is refused, although it has looked before.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer_epoch, "check", lambda *_: None)
        visit(feeder, items, visits, 3)
        apply()
    last = version_manifest.recorded_version(spark, str(tmp_path))
    assert told and last is not None and last.commit_lsn == second.merged_lsn
    first.stop()


def test_a_write_that_meets_others_is_made_again_and_one_that_meets_another_writer_is_not() -> None:
    met: list[Exception] = [ConcurrentAppendException("files were added"), ConcurrentAppendException("again")]
    pauses: list[float] = []

    def write() -> None:
        if met:
            raise met.pop()

    despite_conflicts(write, pauses.append)
    assert len(pauses) == 2 and not met
    met.append(ConcurrentTransactionException("another"))
    with pytest.raises(ConcurrentTransactionException):
        despite_conflicts(write, pauses.append)


@pytest.mark.integration
def test_what_writers_have_noted_is_known_with_and_without_the_checksum_of_a_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path)
    for application, number in ((APPLICATION, 7), ("another", 9), (APPLICATION, 8)):
        write_once(spark.range(1), location, "append", number, application=application)
    wanted = [8, 9, None]
    assert noted_numbers(spark, location, APPLICATION, "another", "nobody") == wanted
    assert [files_below(spark, location, 1 << 20, enough) for enough in (0, 3, 4)] == [3, 3, 3]
    assert [files_below(spark, location, 1, enough) for enough in (0, 3, 4)] == [0, 0, 3]
    checksums = [file for file in (tmp_path / "_delta_log").glob("*.crc") if not file.name.startswith(".")]
    assert len(checksums) == 3 and all(b"setTransactions" in file.read_bytes() for file in checksums)
    for file in checksums:
        file.unlink()
    delta_log_class(spark).clearCache()
    assert noted_numbers(spark, location, APPLICATION, "another", "nobody") == wanted
    assert files_below(spark, location, 1, 4) == 0


@pytest.mark.integration
def test_an_append_is_made_once_without_a_job_that_reads_the_log(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path)
    write_once(spark.range(1), location, "append", 1, properties=TABLE_FORMAT.changelog_properties(["id"]))
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    spark.sparkContext.setJobGroup(location, "appends")
    for number in (2, 2, 3, 1):
        assert delta_append.append(spark.range(number, number + 1), location, APPLICATION, number)
    assert len(jobs(location)) == 2
    assert not delta_append.append(spark.range(1).selectExpr("id", "id more"), location, APPLICATION, 4)
    assert not delta_append.append(spark.range(1), str(tmp_path / "new"), APPLICATION, 4)
    assert sorted(row.id for row in spark.read.format("delta").load(location).collect()) == [0, 2, 3]
    assert noted_numbers(spark, location, APPLICATION) == [3]


@pytest.mark.integration
@pytest.mark.parametrize("is_direct", [True, False])
def test_of_two_appends_that_began_at_once_for_one_application_the_second_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_direct: bool
) -> None:
    location = str(tmp_path)
    write_once(spark.range(1), location, "append", 1)

    def overtaken(frame: DataFrame) -> object:
        """Between the beginning of a transaction and its commit."""
        monkeypatch.setattr(delta_append, "java_frame", java_frame)
        mode = "append" if is_direct else "overwrite"
        write_once(spark.range(5, 6), location, mode, 3)
        return java_frame(frame)

    monkeypatch.setattr(delta_append, "java_frame", overtaken)
    with pytest.raises(ConcurrentTransactionException):
        delta_append.append(spark.range(2, 3), location, APPLICATION, 2)
    assert noted_numbers(spark, location, APPLICATION) == [3]


@pytest.mark.integration
def test_settings_of_a_person_stay_behind_a_write_that_is_done_once(spark: SparkSession) -> None:
    name = "spark.databricks.delta.merge.materializeSource"
    spark.conf.set(name, "all")
    try:
        with once(spark, 1, rows_here=10):
            assert spark.conf.get(name) == "none"
        assert spark.conf.get(name) == "all"
    finally:
        spark.conf.unset(name)
