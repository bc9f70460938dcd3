"""OPTIMIZE and VACUUM by others, again and again while a mirror appends and merges: no row is lost,
and no merge ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from delta.exceptions import DeltaConcurrentModificationException
from delta.tables import DeltaTable
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from schemas.relation import RelationDescription
from spark_consumer.jvm import cloned
from spark_consumer.mirror import versions
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.delta.delta_table import exists
from spark_consumer.mirror.delta.delta_write import despite_conflicts
from spark_consumer.mirror.paths import changes_path, table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.tables import TableName
from tests.spark_consumer.feeder import INT4, INT8, TEXT, Feeder, Row, relation
from tests.spark_consumer.workload import VISITS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TIMEOUT_S = 300.0
# Of VACUUM: 10,000 by default, of which one round would take minutes.
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
SMALL_FILES = "spark.databricks.delta.optimize.minFileSize"


def items_of(size: object) -> RelationDescription:
    return relation("items", {"id": INT8, "name": TEXT, "size": size}, ("id",))  # type: ignore[dict-item]


def item(number: int, name: str = "a") -> Row:
    return {"id": number, "name": name, "size": number % 7}


@dataclass
class Foreign:
    """What another session did: OPTIMIZE and VACUUM by turns, of every table and of `changes`."""

    spark: SparkSession
    path: str
    is_over: threading.Event = field(default_factory=threading.Event)
    rounds: int = 0
    rewrites: int = 0  # OPTIMIZE that rewrote files
    conflicts: int = 0  # of its own with merges
    problem: BaseException | None = None

    def run(self) -> None:
        session = cloned(self.spark)
        session.conf.set(SMALL_FILES, str(1 << 30))
        session.conf.set(LISTING_TASKS, "4")
        locations = [table_path(self.path, TableName("public", name)) for name in ("items", "visits")]
        try:
            while not self.is_over.is_set():
                there = [place for place in (*locations, changes_path(self.path)) if exists(session, place)]
                for location in there:
                    self._tidy(session, location)
                self.rounds += bool(there)
                self.is_over.wait(0.1)
        except BaseException as problem:
            self.problem = problem

    def _tidy(self, session: SparkSession, location: str) -> None:
        table = DeltaTable.forPath(session, location)
        try:
            found = table.optimize().executeCompaction().head()
        except DeltaConcurrentModificationException:  # the mirror was first: so this one is to be made again
            self.conflicts += 1
        else:
            assert found is not None
            self.rewrites += found["metrics"]["numFilesRemoved"] > 0
        table.vacuum()


@contextmanager
def tidied(spark: SparkSession, path: str) -> Iterator[Foreign]:
    foreign = Foreign(spark, path)
    thread = InheritableThread(target=foreign.run)
    thread.start()
    try:
        yield foreign
    finally:
        foreign.is_over.set()
        thread.join()
    assert foreign.problem is None, foreign.problem


@pytest.mark.long
@pytest.mark.parametrize("every_s", [0.05, 0.0])
def test_optimize_and_vacuum_of_others_beside_merges_lose_no_row(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    path, reports = str(tmp_path), queue.SimpleQueue[BatchReport]()
    retried: list[str] = []
    schemas = SchemaCache(Registry({"url": feeder.registry_url}))
    appending = AppendingMirror(
        path, schemas, reports.put, merge_every_s=every_s, retrying=lambda problem, _: retried.append(str(problem))
    )
    items, visits = feeder.table(items_of(INT4)), feeder.table(VISITS)
    frame = spark.read.format("walgate").options(**feeder.options(includeMarkers="true")).load

    def take(last_lsn: int) -> None:
        """And waits until it is merged: what a merge that ended has raised is raised here."""
        feeder.kafka_commit()
        appending.apply(frame(), 0)
        reached = -1
        while reached < last_lsn:
            try:
                report = reports.get(timeout=1.0)
            except queue.Empty:
                appending.check()
                assert appending._merges.thread._thread is None or appending._merges.thread._thread.is_alive()
                continue
            if report.is_merge:
                reached = report.commit_lsn

    def change(number: int) -> int:
        transaction = feeder.begin()
        for row in list(items.rows.values())[number % 3 :: 5]:
            transaction.delete(items, row)
        for row in list(items.rows.values())[(number + 1) % 3 :: 5]:
            transaction.update(items, row, {**row, "name": f"changed by {number}"})
        for key in range(number * 40, number * 40 + 40):
            if (key,) not in items.rows:
                transaction.insert(items, item(key))
        transaction.insert(visits, {"page": f"/{number}", "seconds": 1.0})
        return transaction.commit()

    pauses: list[float] = []

    def slept(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    assert despite_conflicts.__defaults__ == (time.sleep,)
    monkeypatch.setattr(despite_conflicts, "__defaults__", (slept,))
    pages = []
    with tidied(spark, path) as foreign:
        for number in range(10):
            pages.append(f"/{number}")
            if number == 4:
                begin_lsn = feeder.bound("SNAPSHOT_BEGIN", items, "REPLACE")
                feeder.chunk(items, [item(key, "of the snapshot") for key in range(100, 160)], "REPLACE")
                change(number)
                last_lsn = feeder.bound("SNAPSHOT_END", items, "REPLACE", rows=60)
                there = {
                    items.key(made.row)
                    for made in feeder.truth
                    if made.commit_lsn > begin_lsn and made.table is items and made.row is not None
                }
                items.rows = {key: row for key, row in items.rows.items() if key in there}
            elif number == 7:
                items = feeder.alter(items, items_of(INT8))
                last_lsn = change(number)
            else:
                last_lsn = change(number)
            take(last_lsn)
            found = versions.read(spark, path)
            rows = found["public.items"].drop("_special").toArrow().to_pylist()
            assert sorted(rows, key=lambda row: row["id"]) == sorted(items.rows.values(), key=lambda row: row["id"]), (
                number
            )
            assert sorted(row["page"] for row in found["public.visits"].collect()) == pages
    appending.finish(spark, merge=True)
    assert not retried, retried
    assert foreign.rounds > 2 and foreign.rewrites, foreign
    print(
        f"{foreign.rounds} rounds, {foreign.rewrites} rewrote files, {foreign.conflicts} conflicts of theirs, {pauses} of ours"
    )
