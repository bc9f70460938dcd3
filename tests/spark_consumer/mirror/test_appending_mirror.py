"""Mirrors that append first and merge later: at every commit their versions are what the source's
tables were behind it."""

from __future__ import annotations

import copy
import math
import queue
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread, SparkContext
from pyspark.sql import SparkSession

from schemas.relation import ReplicaIdentity, TypeFacts
from spark_consumer.errors import MirrorError
from spark_consumer.jvm import cloned, java_frame
from spark_consumer.mirror import changes, paths, unmerged_overlay, version_manifest, versions, writer_epoch
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.delta.delta_table import noted_number
from spark_consumer.mirror.delta.session_settings import COMPACT, session_defaults
from spark_consumer.mirror.local.dump import newest
from spark_consumer.mirror.merge import merge_command
from spark_consumer.mirror.merge.merge_command import merge_once
from spark_consumer.mirror.merge.merger import Merger
from spark_consumer.mirror.mirror_state import state_of
from spark_consumer.mirror.paths import changes_path, manifest_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.spark_settings import tune, use_pool
from spark_consumer.mirror.tables.prepare_table import STOP
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation
from tests.spark_consumer.mirrors import merged_rows, merging_mirror
from tests.spark_consumer.queries import run_to_end
from tests.spark_consumer.workload import VISITS, Workload

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ITEMS = relation("items", {"id": INT8, "name": TEXT, "note": TEXT}, ("id",))
LATER = 10_000.0
Rows = dict[Any, dict[str, Any]]


def appending(feeder: Feeder, path: Path, reports: list[BatchReport] | None = None) -> AppendingMirror:
    """Merges at its first batch, then not before its end."""
    report = (lambda _: None) if reports is None else reports.append
    schemas = SchemaCache(Registry({"url": feeder.registry_url}))
    return AppendingMirror(str(path), schemas, report, merge_every_s=LATER)


def take(spark: SparkSession, feeder: Feeder, mirror: AppendingMirror, **options: str) -> None:
    mirror.apply(spark.read.format("walgate").options(**feeder.options(**options)).load(), 0)


def stream(spark: SparkSession, feeder: Feeder, mirror: AppendingMirror, path: Path, limit: int) -> None:
    frame = spark.readStream.format("walgate").options(**feeder.options(maxChangesPerTrigger=str(limit))).load()
    run_to_end(frame.writeStream.foreachBatch(mirror.apply).option("checkpointLocation", f"{path}/checkpoint"))


def rows_of(picture: versions.MirrorVersion, table: Table) -> Rows:
    rows = picture[table.name].toArrow().to_pylist() if table.name in picture else []
    return {table.key(row): {name: value for name, value in row.items() if name != "_special"} for row in rows}


def pages_of(picture: versions.MirrorVersion) -> list[tuple[str, str]]:
    if "public.visits" not in picture:
        return []
    rows = picture["public.visits"].orderBy("_commit_lsn", "_ordinal").collect()
    return [(row["_op"], row["page"]) for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.timeout(3600))])
def test_a_picture_at_any_commit_is_the_source_behind_it(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, count: int
) -> None:
    """Most of these commits are no batch's last, and none needs to be that of a merge."""
    workload = Workload(feeder, count)
    history: dict[int, tuple[Rows, Rows, list[tuple[Any, Any]]]] = {}

    def note() -> None:
        if any(change.table is not None for change in feeder.truth):  # the mirror begins there
            pages = [(row["op"], row.get("page")) for row in workload.visits.log]
            history[feeder.truth[-1].commit_lsn] = copy.deepcopy((workload.customers.rows, workload.orders.rows, pages))

    mirror = appending(feeder, tmp_path)
    for _ in range(2):
        for _ in range(max(30, count)):
            workload.step()
            note()
        feeder.kafka_commit()
        stream(spark, feeder, mirror, tmp_path, 60)
    mirror.finish(spark, merge=False)
    chosen = sorted({*random.Random(1).sample(sorted(history), min(count, len(history))), min(history), max(history)})
    visible = changes.appended_lsn(spark, str(tmp_path))
    for commit_lsn in (lsn for lsn in chosen if lsn <= visible):
        found = versions.read(spark, str(tmp_path), at=commit_lsn)
        customers, orders, pages = history[commit_lsn]
        assert rows_of(found, workload.customers) == customers, commit_lsn
        assert rows_of(found, workload.orders) == orders, commit_lsn
        assert pages_of(found) == pages, commit_lsn
    appending(feeder, tmp_path).finish(spark, merge=True)
    merged = version_manifest.recorded_version(spark, str(tmp_path))
    assert merged is not None and merged.commit_lsn == visible
    found = versions.read(spark, str(tmp_path))
    expected = history[max(commit_lsn for commit_lsn in history if commit_lsn <= visible)]
    assert found.commit_lsn == visible
    assert (rows_of(found, workload.customers), rows_of(found, workload.orders), pages_of(found)) == expected


def test_who_merges_does_it_as_the_mirror_was_told_and_keeps_that_over_its_restarts(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    path, schemas = str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url}))

    def leaves_merging() -> AppendingMirror:
        told: dict[str, Any] = {
            "exclude": ["public.none*"],
            "on_recreated": STOP,
            "deletion_vectors": False,
            "strict": True,
        }
        return AppendingMirror(path, schemas, merge_every_s=math.inf, retention_s=604_800.0, **told)

    def merges() -> tuple[Merger, int | None]:
        made: list[Merger] = []

        def noted(*facts: Any, **more: Any) -> Merger:
            made.append(Merger(*facts, **more))
            return made[0]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(merge_command, "Merger", noted)
            merge_once(cloned(spark), path, lambda _: None)
        return made[0], noted_number(spark, manifest_path(path), writer_epoch.WRITER)

    change(feeder, items, visits, 1)
    first = leaves_merging()
    take(spark, feeder, first)
    assert noted_number(spark, manifest_path(path), writer_epoch.WRITER) is None
    merger, epoch = merges()
    assert (merger.on_recreated, merger.deletion_vectors, merger.strict) == (STOP, False, True)
    assert (merger.retention_s, list(merger.exclude)) == (604_800.0, ["public.none*"])
    last = version_manifest.recorded_version(spark, path)
    assert last is not None and last.commit_lsn == changes.appended_lsn(spark, path)
    first.stop()
    last_lsn = change(feeder, items, visits, 2)
    again = leaves_merging()
    take(spark, feeder, again)
    assert noted_number(spark, manifest_path(path), writer_epoch.WRITER) == epoch
    assert changes.appended_lsn(spark, path) == last_lsn
    again.finish(spark, merge=True)
    last = version_manifest.recorded_version(spark, path)
    assert last is not None and last.commit_lsn == last_lsn


def change(feeder: Feeder, items: Table, visits: Table, number: int) -> int:
    transaction = feeder.begin()
    transaction.insert(items, {"id": number, "name": "a", "note": "long"})
    transaction.insert(visits, {"page": f"/{number}", "seconds": 1.0})
    commit_lsn = transaction.commit()
    feeder.kafka_commit()
    return commit_lsn


@pytest.mark.long
def test_only_merges_compact(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    session = cloned(spark)
    session.conf.unset(COMPACT)  # another mirror of this session may have set it
    tune(session, session_defaults())  # as for every job
    change(feeder, feeder.table(ITEMS), feeder.table(VISITS), 1)
    mirror = appending(feeder, tmp_path)
    take(session, feeder, mirror)
    assert mirror._merges.session is not None
    assert (session.conf.get(COMPACT), mirror._merges.session.conf.get(COMPACT)) == ("false", "true")


def test_a_batch_does_not_wait_for_the_tasks_of_a_merge(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    context = spark.sparkContext
    items, mirror = feeder.table(ITEMS), appending(feeder, tmp_path)
    transaction = feeder.begin()
    transaction.insert(items, {"id": 1, "name": "a", "note": "b"})
    transaction.commit()
    feeder.kafka_commit()
    take(spark, feeder, mirror)
    mirror.stop()
    assert context.getLocalProperty("spark.scheduler.pool") == "batches"
    tasks = [0.5] * 12 * context.defaultParallelism
    use_pool(spark, "merges")
    long_job = InheritableThread(context.parallelize(tasks, len(tasks)).foreach, args=(time.sleep,))
    long_job.start()
    while not context.statusTracker().getActiveJobsIds():
        assert long_job.is_alive()
    use_pool(spark, "batches")
    assert spark.range(100).selectExpr("sum(id)").head() == (4950,)
    assert long_job.is_alive(), "its tasks came first"
    long_job.join()


def test_shuffles_have_a_partition_for_each_core_of_executors_that_came_late(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, name = cloned(spark), "spark.sql.shuffle.partitions"
    session.conf.unset(name)
    found = []
    for cores in (2, 12, 8):
        monkeypatch.setattr(SparkContext, "defaultParallelism", cores)
        tune(session)
        found.append(session.conf.get(name))
    session.conf.set(name, "5")  # from now on the user's
    tune(session)
    assert [*found, session.conf.get(name)] == ["2", "12", "8", "5"]


def test_what_was_appended_is_there_once_whoever_merges_it(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    """A mirror from before, a merge that is killed, one by another program, another writer, and
    back to a merge a batch."""
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    path = str(tmp_path)
    before = merging_mirror(path, SchemaCache(Registry({"url": feeder.registry_url})))
    change(feeder, items, visits, 1)
    take(spark, feeder, before)
    first = appending(feeder, tmp_path)
    second_lsn = change(feeder, items, visits, 2)
    take(spark, feeder, first)
    third_lsn = change(feeder, items, visits, 3)
    take(spark, feeder, first)

    def pages(version: versions.MirrorVersion) -> list[str]:
        return [page for _, page in pages_of(version)]

    version = versions.read(spark, path)
    assert pages(version) == ["/1", "/2", "/3"] and rows_of(version, items) == items.rows
    unmerged_time = version.commit_time
    merged = version_manifest.recorded_version(spark, path)
    assert merged is not None and merged.commit_lsn < second_lsn
    with pytest.raises(MirrorError, match="another writer has taken over"):
        take(spark, feeder, before)
    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(version_manifest, "record", lambda *_: 1 / 0)  # the tables are written, the picture is not
        with pytest.raises(ZeroDivisionError):
            merge_once(spark, path, lambda _: None)
    assert pages(versions.read(spark, path)) == ["/1", "/2", "/3"]
    fourth_lsn = change(feeder, items, visits, 4)
    take(spark, feeder, first)  # goes on appending
    reports: list[BatchReport] = []
    merge_once(spark, path, reports.append)  # first what the killed one had begun
    assert [(report.commit_lsn, report.is_merge) for report in reports] == [(third_lsn, True), (fourth_lsn, True)]
    tables = {table.name: table for table in newest(tmp_path)}
    assert sorted(str(row[0]) for row in tables["public.items"].rows()) == ["1", "2", "3", "4"]
    assert len(list(tables["public.visits"].rows())) == 4
    first.handed_over = lambda: pytest.fail("the other program has ended")
    first.finish(spark, merge=True)
    second = appending(feeder, tmp_path)
    change(feeder, items, visits, 5)
    take(spark, feeder, second)  # from the start of the topics
    with pytest.raises(MirrorError, match="another writer has taken over"):
        take(spark, feeder, first)
    first.stop()
    change(feeder, items, visits, 6)
    take(spark, feeder, second)
    second.stop()
    again = merging_mirror(path, SchemaCache(Registry({"url": feeder.registry_url})))
    change(feeder, items, visits, 7)
    take(spark, feeder, again)  # merges what waits, then its own
    version = versions.read(spark, path)
    assert pages(version) == [f"/{number}" for number in range(1, 8)] and rows_of(version, items) == items.rows
    found = versions.read(spark, path, at=third_lsn)
    assert found.commit_lsn == third_lsn and set(rows_of(found, items)) == {(1,), (2,), (3,)}
    assert found.commit_time == unmerged_time and found.commit_time and found.commit_time.tzinfo
    changes.prune(spark, path, fourth_lsn)
    assert versions.read(spark, path, at=third_lsn - 1).commit_lsn == merged.commit_lsn  # the last merge before
    left = spark.read.format("delta").load(changes_path(path))
    assert left.where(f"commit_lsn <= {fourth_lsn}").isEmpty() and not left.isEmpty()


def test_a_mirror_leaves_the_merges_to_another_program_until_that_has_ended(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    path, told, reports = str(tmp_path), threading.Semaphore(0), queue.SimpleQueue[BatchReport]()
    mirror = AppendingMirror(
        path,
        SchemaCache(Registry({"url": feeder.registry_url})),
        reports.put,
        merge_every_s=0.0,
        handed_over=told.release,
    )

    def merged_lsn() -> int:
        while not (report := reports.get(timeout=60)).is_merge:
            pass
        return report.commit_lsn

    first_lsn = change(feeder, items, visits, 1)
    take(spark, feeder, mirror)
    assert merged_lsn() == first_lsn
    other = Merger(path, mirror.schemas)
    other.open(spark)
    second_lsn = change(feeder, items, visits, 2)
    take(spark, feeder, mirror)
    assert told.acquire(timeout=60)
    third_lsn = change(feeder, items, visits, 3)
    take(spark, feeder, mirror)
    other.merge_waiting(spark, last_lsn=second_lsn)
    other.give_back(spark)
    assert merged_lsn() == third_lsn  # also where nothing more comes
    assert not told.acquire(blocking=False)
    merge_once(spark, path, lambda _: pytest.fail("nothing waits"))
    last_lsn = change(feeder, items, visits, 4)
    take(spark, feeder, mirror)
    assert merged_lsn() == last_lsn
    mirror.stop()
    assert not told.acquire(blocking=False)
    rows = merged_rows(path)
    assert sorted(row["page"] for row in rows[visits.name]) == ["/1", "/2", "/3", "/4"]
    assert {
        items.key(row): {name: row[name] for name in ("id", "name", "note")} for row in rows[items.name]
    } == items.rows


@pytest.mark.long
def test_a_release_that_does_not_know_the_form_of_a_mirror_leaves_it_alone(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Its checkpoint, which it would follow, is behind changes that no table has yet."""
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    path = str(tmp_path)
    mirror = appending(feeder, tmp_path)
    for number in range(2):
        change(feeder, items, visits, number)
        take(spark, feeder, mirror)
    mirror.stop()
    change(feeder, items, visits, 2)
    files = sorted(tmp_path.rglob("*"))
    plain = merging_mirror(path, SchemaCache(Registry({"url": feeder.registry_url})))
    uses: list[Callable[[], object]] = [
        lambda: take(spark, feeder, plain),
        lambda: take(spark, feeder, appending(feeder, tmp_path)),
        lambda: merge_once(spark, path, lambda _: None),
        lambda: versions.read(spark, path),
        lambda: state_of(spark, path),
        lambda: newest(tmp_path),
    ]
    with pytest.MonkeyPatch.context() as older:
        older.setattr(paths, "NEWEST_FORMAT", 1)
        for use in uses:
            with pytest.raises(MirrorError, match="written by a newer release of Walgate, in format version 2"):
                use()
    assert sorted(tmp_path.rglob("*")) == files
    take(spark, feeder, plain)
    assert [page for _, page in pages_of(versions.read(spark, path))] == ["/0", "/1", "/2"]


def test_rows_of_every_version_of_a_log_are_in_a_picture(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> None:
    mirror = appending(feeder, tmp_path)
    columns: dict[str, TypeFacts | tuple[TypeFacts, int]] = {"id": INT8}
    table = feeder.table(relation("log", columns, (), ReplicaIdentity.NOTHING))
    for number in range(4):
        if number:
            columns |= {f"c{number}": INT8}
            table = feeder.alter(table, relation("log", columns, (), ReplicaIdentity.NOTHING))
        transaction = feeder.begin()
        transaction.insert(table, dict.fromkeys(columns, number))
        transaction.commit()
        feeder.kafka_commit()
        if number in (0, 3):
            take(spark, feeder, mirror)
    picture = versions.read(spark, str(tmp_path))["public.log"]
    assert [row["id"] for row in picture.orderBy("id").collect()] == [0, 1, 2, 3]


def test_of_a_backlog_a_reader_reads_the_table_it_asks_for(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is decoded in its own process, nor read into it."""
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    mirror = AppendingMirror(str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url})), merge_every_s=math.inf)
    for number in range(3):
        change(feeder, items, visits, number)
        if number:
            take(spark, feeder, mirror)
    mirror.stop()
    monkeypatch.setattr(unmerged_overlay, "READ_HERE", 2)
    monkeypatch.setattr(unmerged_overlay, "small_states", lambda *_: pytest.fail("in this process"))
    picture = versions.read(spark, str(tmp_path))
    plan = java_frame(picture[items.name]).queryExecution().optimizedPlan().toString()
    assert re.search(rf"table#\d+ = {re.escape(items.name)}", plan) and visits.name not in plan, plan
    assert rows_of(picture, items) == items.rows and len(pages_of(picture)) == 3


ODD = relation("odd", {"id": INT8, "Name": TEXT, "name": TEXT}, ("id",))


def odd_change(feeder: Feeder, items: Table, odd: Table, number: int) -> int:
    """Of a table that no merge can take, which comes last."""
    transaction = feeder.begin()
    transaction.insert(items, {"id": number, "name": "a", "note": "long"})
    transaction.commit()
    transaction = feeder.begin()
    transaction.insert(odd, {"id": number, "Name": "A", "name": "a"})
    commit_lsn = transaction.commit()
    feeder.kafka_commit()
    return commit_lsn


@pytest.mark.parametrize("who_merges", ["the mirror", pytest.param("walgate merge", marks=pytest.mark.long)])
def test_a_mirror_goes_on_without_a_table_that_no_merge_can_take(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, who_merges: str
) -> None:
    """It is appended before a merge looks at it: then --exclude has to leave out what waits,
    too."""
    items, odd = feeder.table(ITEMS), feeder.table(ODD)
    path, schemas = str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url}))
    every_s, reports = LATER if who_merges == "the mirror" else math.inf, list[BatchReport]()

    def mirror(*exclude: str) -> AppendingMirror:
        return AppendingMirror(path, schemas, reports.append, exclude=exclude, merge_every_s=every_s)

    def run(made: AppendingMirror, **options: str) -> None:
        try:
            take(spark, feeder, made, **options)
            if who_merges == "walgate merge":
                merge_once(cloned(spark), path, reports.append)
            made.finish(spark, merge=who_merges == "the mirror")
        finally:
            made.stop()

    odd_lsn = odd_change(feeder, items, odd, 1)
    for _ in range(2):
        with pytest.raises(MirrorError, match=r"public\.odd has the columns 'Name', 'name'"):
            run(mirror())
    run(mirror("public.o*"), exclude="public.o*")
    last = version_manifest.recorded_version(spark, path)
    assert last is not None and (last.commit_lsn, set(last.tables)) == (odd_lsn, {items.name})
    assert [note for report in reports for note in report.notes] == [
        "public.odd is left out: its changes that were waiting to be merged are not merged"
    ]
    odd_change(feeder, items, odd, 2)
    run(mirror("public.o*"), exclude="public.o*", startingPosition=f"lsn:{odd_lsn}")
    version = versions.read(spark, path)
    assert set(version) == {items.name} and rows_of(version, items) == items.rows
    with pytest.raises(MirrorError, match=r"tables matching public\.o\* are not in the mirror"):
        take(spark, feeder, mirror())


@pytest.mark.long
def test_a_table_that_waits_and_is_left_out_is_in_no_picture_any_more(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """Its changes do not come any more, whether or not that was merged."""
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    path, schemas = str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url}))

    def append(*exclude: str, **options: str) -> None:
        mirror = AppendingMirror(path, schemas, exclude=exclude, merge_every_s=math.inf)
        take(spark, feeder, mirror, **options)
        mirror.stop()

    change(feeder, items, visits, 1)
    append()
    merge_once(cloned(spark), path, lambda _: None)
    first_lsn = change(feeder, items, visits, 2)
    append()
    assert set(versions.read(spark, path)) == {items.name, visits.name}
    change(feeder, items, visits, 3)
    append(visits.name, exclude=visits.name, startingPosition=f"lsn:{first_lsn}")
    assert set(versions.read(spark, path)) == {items.name}
    merge_once(cloned(spark), path, lambda _: None)
    picture = versions.read(spark, path)
    assert set(picture) == {items.name} and rows_of(picture, items) == items.rows


@pytest.mark.parametrize(
    ("is_new", "every_s"),
    [
        pytest.param(True, math.inf, id="a new mirror"),
        pytest.param(False, 0, id="a mirror with a version"),
        pytest.param(True, 0, marks=pytest.mark.long),
        pytest.param(False, math.inf, marks=pytest.mark.long),
    ],
)
def test_a_mirror_that_was_run_without_a_table_does_not_get_it_back(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, every_s: float, is_new: bool
) -> None:
    """Though no version tells of it: it was killed before its first merge, or its batch had nothing
    of the other tables."""
    items, visits = feeder.table(ITEMS), feeder.table(VISITS)
    path, schemas = str(tmp_path), SchemaCache(Registry({"url": feeder.registry_url}))

    def mirror(**scope: Any) -> AppendingMirror:
        return AppendingMirror(path, schemas, merge_every_s=every_s, **scope)

    def run(*, exclude: str = "", tables: str = "", start: str = "earliest") -> None:
        told = {"exclude": [exclude] if exclude else [], "tables": [TableName.parse(tables)] if tables else []}
        made = mirror(**told)
        made._merges.thread.want = lambda **_: None  # type: ignore[method-assign]
        wanted = {name: text for name, text in {"exclude": exclude, "tables": tables}.items() if text}
        take(spark, feeder, made, startingPosition=start, **wanted)
        made.stop()

    if not is_new:
        change(feeder, items, visits, 1)
        merging_mirror(path, schemas).apply(spark.read.format("walgate").options(**feeder.options()).load(), 0)
    begin_lsn = feeder.truth[-1].commit_lsn if feeder.truth else 0
    transaction = feeder.begin()
    transaction.insert(visits, {"page": "/2", "seconds": 1.0})
    if every_s:
        transaction.insert(items, {"id": 2, "name": "a", "note": "long"})
    passed_lsn = transaction.commit()
    feeder.kafka_commit()
    before = version_manifest.recorded_version(spark, path)
    run(exclude=visits.name, start=f"lsn:{begin_lsn}")
    assert version_manifest.recorded_version(spark, path) == before
    with pytest.raises(
        MirrorError, match=r"tables matching public\.visits .* since it was run with --exclude public\.visits"
    ):
        run(start=f"lsn:{passed_lsn}")
    run(tables=items.name, exclude=visits.name, start=f"lsn:{passed_lsn}")
    with pytest.raises(MirrorError, match=r"every other table is new .* or later restricted to, public\.items: other"):
        run(exclude=visits.name, start=f"lsn:{passed_lsn}")
