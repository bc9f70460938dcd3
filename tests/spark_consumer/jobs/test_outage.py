"""A query of `walgate mirror` that failed while Kafka or the registry was away, and the one after
it in the same process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_consumer.errors import SourceUnavailable
from spark_consumer.jobs import cli
from spark_consumer.jobs.run import Run
from spark_consumer.mirror import changes, version_manifest, versions
from spark_consumer.mirror.merge import merger
from spark_consumer.mirror.tables import write_table
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation
from tests.spark_consumer.here import run_here

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def insert(feeder: Feeder, *tables: Table) -> int:
    transaction = feeder.begin()
    for table in tables:
        transaction.insert(table, {"id": len(table.rows), "name": "a"})
    commit_lsn = transaction.commit()
    feeder.kafka_commit()
    return commit_lsn


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_new_query_appends_while_a_merge_of_the_one_before_runs(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query fails right after the commit of a batch that has a new table, too."""
    items, later = (feeder.table(relation(name, {"id": INT8, "name": TEXT}, ("id",))) for name in ("items", "later"))
    path, merging, may_merge, problems = str(tmp_path), threading.Event(), threading.Event(), list[BaseException]()
    insert(feeder, items)
    runs = list[Run]()

    class NotedRun(Run):
        def __init__(self, *facts: Any, **options: Any) -> None:
            super().__init__(*facts, **options)
            runs.append(self)

    append, write = changes.append, write_table.write

    def append_and_fail(*facts: Any) -> None:
        append(*facts)
        if second and not failed:
            failed.append(True)
            raise SourceUnavailable("Kafka was away")

    def wait_and_write(*facts: Any) -> None:
        merging.set()
        assert may_merge.wait(120)
        write(*facts)

    second, failed = list[bool](), list[bool]()
    monkeypatch.setattr(cli, "Run", NotedRun)
    monkeypatch.setattr(changes, "append", append_and_fail)
    monkeypatch.setattr(merger, "write", wait_and_write)

    def play() -> None:
        try:
            assert merging.wait(60), "no merge began"
            second.append(True)
            insert(feeder, items, later)
            wait_for(lambda: bool(failed), "no second batch came")
            third_lsn = insert(feeder, items, later)
            wait_for(
                lambda: changes.appended_lsn(spark, path) == third_lsn, "the new query waits for the running merge"
            )
            assert version_manifest.recorded_version(spark, path) is None
        except BaseException as problem:
            problems.append(problem)
        finally:
            may_merge.set()
            runs[0].stopping.set()

    player = threading.Thread(target=play)
    player.start()
    code, errors = run_here(spark, "mirror", feeder, tmp_path)
    player.join()
    assert not problems, problems
    assert code == 0, errors
    found = versions.read(spark, path)
    for table in (items, later):
        assert found[table.name].count() == len(table.rows)
