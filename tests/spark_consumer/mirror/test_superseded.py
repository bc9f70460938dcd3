"""Two that merge one mirror at the same moment, each where the other could do most harm: rows are
neither doubled nor lost."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.sql import SparkSession

from schemas.relation import RelationDescription
from spark_consumer.errors import MirrorError
from spark_consumer.jvm import cloned
from spark_consumer.mirror import changes, snapshot_keys, version_manifest, versions, writer_epoch
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.merge import merger
from spark_consumer.mirror.merge.merge_command import merge_once
from spark_consumer.mirror.merge.merger import Merger
from spark_consumer.mirror.paths import seen_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.tables import write_table
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation
from tests.spark_consumer.mirrors import merged_rows, merging_mirror
from tests.spark_consumer.workload import VISITS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))
WAIT_S = 300


class Scene:
    def __init__(self, spark: SparkSession, feeder: Feeder, path: Path) -> None:
        self.spark, self.feeder, self.path = spark, feeder, str(path)
        schemas = SchemaCache(Registry({"url": feeder.registry_url}))
        self.appending = AppendingMirror(self.path, schemas, merge_every_s=math.inf)
        self.items, self.visits = feeder.table(ITEMS), feeder.table(VISITS)

    def append(self) -> None:
        self.take(self.appending)

    def take(self, mirror: AppendingMirror) -> None:
        self.feeder.kafka_commit()
        options = self.feeder.options(includeMarkers="true")
        mirror.apply(self.spark.read.format("walgate").options(**options).load(), 0)

    def merge(self) -> None:
        """As `walgate merge` in another process."""
        merge_once(cloned(self.spark), self.path, lambda _: None)

    def insert(self, first: int, last: int) -> int:
        """One transaction, appended; its commit LSN."""
        transaction = self.feeder.begin()
        for number in range(first, last + 1):
            transaction.insert(self.items, {"id": number, "name": "a"})
            transaction.insert(self.visits, {"page": f"/{number}", "seconds": 1.0})
        commit_lsn = transaction.commit()
        self.append()
        return commit_lsn

    def replace(self, table: Table, rows: list[dict[str, Any]]) -> None:
        self.feeder.bound("SNAPSHOT_BEGIN", table, "REPLACE")
        self.feeder.chunk(table, rows, "REPLACE")
        self.feeder.bound("SNAPSHOT_END", table, "REPLACE", rows=len(rows))

    def found(self) -> tuple[list[int], list[str]]:
        """What is merged."""
        rows = merged_rows(self.path)
        return sorted(row["id"] for row in rows["public.items"]), sorted(row["page"] for row in rows["public.visits"])


@pytest.fixture
def scene(spark: SparkSession, feeder: Feeder, tmp_path: Path) -> Scene:
    return Scene(spark, feeder, tmp_path)


def expected(last: int) -> tuple[list[int], list[str]]:
    return list(range(1, last + 1)), [f"/{number}" for number in range(1, last + 1)]


@pytest.mark.parametrize("tables", ["there", pytest.param("new", marks=pytest.mark.long)])
def test_a_merge_that_was_prepared_before_another_wrote_looks_again(scene: Scene, tables: str) -> None:
    """The first writes its tables between the moment when the second has looked at them and its own
    writes."""
    scene.insert(1, 1)
    if tables == "there":
        scene.merge()
        scene.insert(2, 2)
    write = write_table.write
    stands, second_stands, first_is_done = threading.Event(), threading.Event(), threading.Event()
    first = cloned(scene.spark)

    def waits(session: SparkSession, *rest: Any) -> None:
        if session is first:
            stands.set()
            assert second_stands.wait(WAIT_S)
        else:
            second_stands.set()
            assert first_is_done.wait(WAIT_S)
        write(session, *rest)

    def merge_first() -> None:
        try:
            merge_once(first, scene.path, lambda _: None)
        finally:
            first_is_done.set()

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as beside:
        patched.setattr(merger, "write", waits)
        early = beside.submit(merge_first)
        assert stands.wait(WAIT_S)
        scene.insert(3 if tables == "there" else 2, 3)
        scene.merge()
        with pytest.raises(MirrorError, match="another writer has taken over"):
            early.result()
    assert scene.found() == expected(3)
    scene.insert(4, 4)
    scene.merge()
    assert scene.found() == expected(4)


def overtaken(scene: Scene, last_lsn: int) -> None:
    """Merge everything, while a second writer merges up to `last_lsn` after the first has looked at
    the tables, and before it writes them."""
    write = write_table.write
    stands, second_is_done = threading.Event(), threading.Event()
    first, second = cloned(scene.spark), cloned(scene.spark)

    def waits(session: SparkSession, *rest: Any) -> None:
        if session is first:
            stands.set()
            assert second_is_done.wait(WAIT_S)
        write(session, *rest)

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as beside:
        patched.setattr(merger, "write", waits)
        early = beside.submit(merge_once, first, scene.path, lambda _: None)
        try:
            assert stands.wait(WAIT_S)
            late = Merger(scene.path, {})
            late.open(second)
            late.merge_waiting(second, last_lsn=last_lsn)
            assert late.merged_lsn == last_lsn
        finally:
            second_is_done.set()
        with pytest.raises(MirrorError, match="another writer has taken over"):
            early.result()


def test_a_merge_that_was_overtaken_moves_the_values_that_were_not_sent(scene: Scene) -> None:
    scene.insert(1, 2)
    scene.merge()
    moved = scene.feeder.begin()
    moved.update(scene.items, {"id": 1, "name": "a"}, {"id": 9, "name": "a"}, unchanged=("name",))
    moved.insert(scene.items, {"id": 1, "name": "another"})
    lsn = moved.commit()
    scene.append()
    scene.insert(3, 3)
    overtaken(scene, lsn)
    scene.merge()
    found = merged_rows(scene.path)["public.items"]
    assert {row["id"]: row["name"] for row in found} == {1: "another", 2: "a", 3: "a", 9: "a"}


def test_a_rewrite_that_was_overtaken_neither_doubles_nor_loses_rows(scene: Scene) -> None:
    scene.items, scene.visits = (scene.feeder.alter(table, numbered(table)) for table in (scene.items, scene.visits))
    scene.insert(1, 1)
    scene.merge()
    lsn = scene.insert(2, 2)
    items = scene.feeder.alter(scene.items, numbered(scene.items, name="title"))
    visits = scene.feeder.alter(scene.visits, numbered(scene.visits, page="url"))
    renamed = scene.feeder.begin()
    renamed.insert(items, {"id": 3, "title": "a"})
    renamed.insert(visits, {"url": "/3", "seconds": 1.0})
    renamed.commit()
    scene.append()
    overtaken(scene, lsn)
    scene.merge()
    rows = merged_rows(scene.path)
    assert sorted((row["id"], row["title"]) for row in rows["public.items"]) == [(1, "a"), (2, "a"), (3, "a")]
    assert sorted(row["url"] for row in rows["public.visits"]) == ["/1", "/2", "/3"]


def numbered(table: Table, **renames: str) -> RelationDescription:
    columns = enumerate(table.description.columns, 1)
    renamed = [replace(column, attnum=number, name=renames.get(column.name, column.name)) for number, column in columns]
    return replace(table.description, columns=tuple(renamed))


def test_who_was_followed_within_a_snapshot_deletes_nothing(scene: Scene) -> None:
    """The keys that came in the snapshot are gone when the first goes on: another has taken its end
    in."""
    scene.insert(1, 5)
    scene.merge()
    scene.replace(scene.items, list(scene.items.rows.values()))
    scene.append()
    write_tables: Callable[..., None] = Merger._write_tables
    stood: list[bool] = []

    def stalls(mirror: Merger, *rest: Any) -> None:
        if not stood:
            stood.append(True)
            scene.merge()
        write_tables(mirror, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Merger, "_write_tables", stalls)
        with pytest.raises(MirrorError, match="another writer has taken over"):
            scene.merge()
    assert scene.found() == expected(5)
    scene.insert(6, 6)
    scene.merge()
    assert scene.found() == expected(6)


def test_a_conflict_at_the_end_of_a_snapshot_is_met_again(scene: Scene) -> None:
    schemas = SchemaCache(Registry({"url": scene.feeder.registry_url}))
    mirror = merging_mirror(scene.path, schemas)
    transaction = scene.feeder.begin()
    for number in range(1, 6):
        transaction.insert(scene.items, {"id": number, "name": "a"})
    transaction.commit()
    scene.take(mirror)
    delete_surplus, calls = snapshot_keys.delete_surplus, []

    def meets(*rest: Any) -> None:
        calls.append(rest)
        if len(calls) == 1:
            raise ConcurrentAppendException("OPTIMIZE was here")
        delete_surplus(*rest)

    scene.replace(scene.items, [scene.items.rows[number,] for number in range(1, 5)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot_keys, "delete_surplus", meets)
        scene.take(mirror)
    assert len(calls) == 2
    # Keys of a snapshot that began again, or that were left by a crash, go with the next start;
    # those of one in progress stay.
    lsn = scene.feeder.bound("SNAPSHOT_BEGIN", scene.items, "REPLACE", "two")
    scene.feeder.chunk(scene.items, [scene.items.rows[1,]], "REPLACE", "two")
    scene.take(mirror)
    in_progress, left = (seen_path(scene.path, TableName("public", "items"), at) for at in (lsn, 1))
    seen_by = scene.spark.read.format("delta").load(in_progress)
    seen_by.write.format("delta").save(left)
    scene.take(merging_mirror(scene.path, schemas))
    assert Path(in_progress).is_dir() and not Path(left).exists()
    assert sorted(row["id"] for row in merged_rows(scene.path)["public.items"]) == [1, 2, 3, 4]


def test_a_snapshot_in_which_the_key_changed_deletes_nothing_and_says_so(scene: Scene) -> None:
    reports: list[str] = []
    schemas = SchemaCache(Registry({"url": scene.feeder.registry_url}))
    mirror = merging_mirror(scene.path, schemas, lambda report: reports.extend(report.notes))
    by_id = scene.feeder.table(relation("codes", {"id": INT8, "code": INT8}, ("id",)))
    transaction = scene.feeder.begin()
    for number in range(5):
        transaction.insert(by_id, {"id": number, "code": 100 + number})
    transaction.commit()
    scene.take(mirror)
    scene.feeder.bound("SNAPSHOT_BEGIN", by_id, "REPLACE")
    scene.feeder.chunk(by_id, list(by_id.rows.values()), "REPLACE")
    by_code = scene.feeder.alter(by_id, relation("codes", {"id": INT8, "code": INT8}, ("code",)))
    transaction = scene.feeder.begin()
    transaction.insert(by_code, {"id": 7, "code": 107})
    transaction.commit()
    scene.feeder.bound("SNAPSHOT_END", by_code, "REPLACE", rows=5)
    scene.take(mirror)
    assert sorted(row["id"] for row in merged_rows(scene.path)["public.codes"]) == [0, 1, 2, 3, 4, 7]
    assert any("public.codes: its key changed while its snapshot was read" in note for note in reports), reports


def test_an_unpruned_change_below_the_oldest_version_is_no_picture(scene: Scene) -> None:
    """Upkeep was stopped between the two tables that it prunes, and a reader looked at one before
    and at the other after."""
    lsns = []
    for number in range(1, 5):
        lsns.append(scene.insert(number, number))
        if not number % 2:
            scene.merge()
    assert versions.read(scene.spark, scene.path, at=lsns[2])["public.items"].count() == 3
    changes.prune(scene.spark, scene.path, lsns[1])
    version_manifest.prune(scene.spark, scene.path, lsns[1])
    kept = changes.pinned(scene.spark, scene.path)
    changes.prune(scene.spark, scene.path, lsns[3])
    assert versions.read(scene.spark, scene.path, at=lsns[2])["public.items"].count() == 2  # the last merge before it
    version_manifest.prune(scene.spark, scene.path, lsns[3])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(changes, "pinned", lambda *_: kept)
        with pytest.raises(MirrorError, match="the mirror begins at"):
            versions.read(scene.spark, scene.path, at=lsns[2])


@pytest.mark.parametrize(
    ("place", "meets_another"),
    [
        ((Merger, "merge_waiting"), False),
        pytest.param((writer_epoch, "claim"), False, marks=pytest.mark.long),
        pytest.param((snapshot_keys, "remove_ended"), False, marks=pytest.mark.long),  # in `open`, after the claim
        ((snapshot_keys, "remove_ended"), True),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "another claims" if value else "alone",
)
def test_a_mirror_that_fails_once_as_it_takes_the_merges_back_merges_again(
    scene: Scene, place: tuple[object, str], meets_another: bool
) -> None:
    """Its claim is noted already, so that the merges do not look given back any more. If a new
    `walgate merge` has claimed them meanwhile, that one ends first."""
    owner, name = place
    called, problems, reports = getattr(owner, name), list[Exception](), queue.SimpleQueue[BatchReport]()
    schemas = SchemaCache(Registry({"url": scene.feeder.registry_url}))
    handed_over, failed, another = list[bool](), list[bool](), Merger(scene.path, {})
    scene.appending = AppendingMirror(
        scene.path,
        schemas,
        reports.put,
        merge_every_s=0.0,
        retrying=lambda problem, _: problems.append(problem),
        handed_over=lambda: handed_over.append(True),
    )
    scene.insert(1, 1)
    scene.merge()

    def fails_once(*args: Any, **named: Any) -> Any:
        is_taken_back = not isinstance(args[0], Merger) or args[0] is not first
        if failed or not is_taken_back or threading.current_thread().name != "merges":
            return called(*args, **named)
        failed.append(True)
        if name == "claim":
            called(*args, **named)
        if meets_another:
            another.open(cloned(scene.spark))
        raise TimeoutError("of the storage")

    first, last_id = scene.appending._merges.merger, 2
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, fails_once)
        commit_lsn = scene.insert(2, 2)
        assert bool(handed_over) == meets_another
        if meets_another:
            another.merge_waiting(cloned(scene.spark))
            another.give_back(scene.spark)
            commit_lsn, last_id = scene.insert(3, 3), 3
        while not (report := reports.get(timeout=60)).is_merge or report.commit_lsn < commit_lsn:
            pass
    assert [type(problem) for problem in problems] == [TimeoutError]
    scene.appending.stop()
    last = version_manifest.recorded_version(scene.spark, scene.path)
    assert last is not None and last.commit_lsn == commit_lsn
    assert scene.found() == expected(last_id)


def test_a_table_that_a_former_writer_writes_while_the_new_one_looks_is_looked_at_again(scene: Scene) -> None:
    """The rightful writer goes on; another stops."""
    scene.insert(1, 1)
    scene.merge()

    def merge(*, opens_again: bool) -> None:
        """Merge as a writer who still is the owner, or who was superseded meanwhile."""
        session = cloned(scene.spark)
        owner, other = Merger(scene.path, {}), Merger(scene.path, {})
        owner.open(session)
        preparation, asked, done = owner._preparation, owner._preparation.reached_lsn, list[bool]()

        def looks_in_between(spark: SparkSession, tables: Any) -> int:
            """The write of the former writer, between two looks."""
            tables = list(tables)
            reached = asked(spark, tables)
            if done:
                return reached
            done.append(True)
            preparation._applied = {table: (known[0] - 1, -2) for table, known in preparation._applied.items()}
            if not opens_again:
                other.open(spark)
            return asked(spark, tables)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(preparation, "reached_lsn", looks_in_between)
            if opens_again:
                owner.merge_waiting(session)
            else:
                with pytest.raises(MirrorError, match="another writer has taken over"):
                    owner.merge_waiting(session)
                other.merge_waiting(session)
        assert done

    for number, opens_again in ((2, True), (3, False)):
        commit_lsn = scene.insert(number, number)
        merge(opens_again=opens_again)
        last = version_manifest.recorded_version(scene.spark, scene.path)
        assert last is not None and last.commit_lsn == commit_lsn
        assert scene.found() == expected(number)
