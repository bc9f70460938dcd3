"""A mirror that is started again while the source commits nothing, so that no batch comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_consumer.jobs import cli
from spark_consumer.jobs.checkpoint_checks import last_offset
from spark_consumer.jobs.run import Run
from spark_consumer.mirror import changes, version_manifest, writer_epoch
from spark_consumer.mirror.local.dump import newest
from spark_consumer.mirror.local.version_list import listed_versions
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, relation
from tests.spark_consumer.here import run_here

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WAIT_S = 60.0


def run_until(reached: Callable[[], bool], *job: Any) -> tuple[int, str]:
    """Run a job until it ends, or is stopped as by a signal: when `reached`, or after WAIT_S."""
    runs, deadline = list[Run](), time.monotonic() + WAIT_S

    class NotedRun(Run):
        def __init__(self, *facts: Any, **options: Any) -> None:
            super().__init__(*facts, **options)
            runs.append(self)

    def stop() -> None:
        while not (runs and reached()) and time.monotonic() < deadline:
            time.sleep(0.1)
        runs[0].stopping.set()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cli, "Run", NotedRun)
        player = threading.Thread(target=stop)
        player.start()
        ended = run_here(*job)
        deadline = 0.0
        player.join()
    return ended


def test_a_restarted_mirror_merges_what_waits_though_no_batch_comes(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """The run before was stopped by a signal, and a `walgate merge` after it was killed. The third
    start has a selection that the mirror cannot have."""
    items = feeder.table(relation("items", {"id": INT8, "name": TEXT}, ("id",)))
    path, left_out = str(tmp_path), ("--exclude", "public.none")
    transaction = feeder.begin()
    transaction.insert(items, {"id": 1, "name": "a"})
    commit_lsn = transaction.commit()
    feeder.kafka_commit()

    def is_read() -> bool:
        offset = last_offset(spark, f"{path}/checkpoint")
        return offset is not None and offset["commit_lsn"] == commit_lsn

    def is_merged() -> bool:
        return [version.commit_lsn for version in listed_versions(tmp_path)] == [commit_lsn]

    job = (spark, "mirror", feeder, tmp_path)
    assert run_until(is_read, *job, "--merge-every", "inf") == (0, "")
    assert changes.appended_lsn(spark, path) == commit_lsn and not is_merged()
    writer_epoch.claim(spark, path, version_manifest.no_rows(spark))
    assert run_until(is_merged, *job, *left_out) == (0, "")
    assert [list(table.rows()) for table in newest(tmp_path)] == [[("1", "a")]]
    assert version_manifest.noted_options(spark, path)["exclude"] == [left_out[1]]
    code, errors = run_until(lambda: False, *job)
    assert code == 1 and "keep --exclude public.none" in errors
