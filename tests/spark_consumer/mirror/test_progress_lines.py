"""What a job says while a micro-batch or a merge takes long."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_consumer.jobs.run import Run
from spark_consumer.mirror import progress_lines
from spark_consumer.mirror.progress_lines import Progress, facts_of, line_of, report_progress
from spark_consumer.reader.registry import Registry, SchemaCache
from spark_consumer.source.options import parse_options
from tests.spark_consumer.feeder import INT8, Feeder, relation
from tests.spark_consumer.mirrors import merging_mirror


def test_a_line_has_the_time_the_share_that_is_done_and_the_rate() -> None:
    assert line_of(Progress("merge", 20.04, 0.25, 1_000_000)) == (
        "merge: 20 s, 25% of 1,000,000 changes done, 12,475 changes/s"
    )
    assert line_of(Progress("micro-batch 7", 10.0, 0.5, None)) == "micro-batch 7: 10 s, 50% done"
    assert line_of(Progress("micro-batch 7", 10.0, None, None)) == "micro-batch 7: 10 s"
    assert facts_of(Progress("merge", 20.04, 0.25, 8)) == {
        "working": "merge", "seconds": 20.0, "share": 0.25, "changes": 8,
    }  # fmt: skip


def test_how_many_changes_a_micro_batch_has_is_told_by_what_waited(capsys: pytest.CaptureFixture[str]) -> None:
    needed = {"kafka.bootstrap.servers": "127.0.0.1:1", "registry.url": "http://127.0.0.1:1"}
    run = Run(parse_options({**needed, "maxChangesPerTrigger": "500"}, streaming=True), None, "lines")
    for waiting in (0, 300, 9_000):
        run.status.set("lag_changes", waiting)
        run.working(Progress("micro-batch 7", 10.0, 0.5, None))
    assert capsys.readouterr().out.splitlines() == [
        "micro-batch 7: 10 s, 50% done",
        "micro-batch 7: 10 s, 50% of 300 changes done, 15 changes/s",
        "micro-batch 7: 10 s, 50% of 500 changes done, 25 changes/s",
    ]


def test_it_is_told_as_long_as_the_work_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "EVERY_S", 0.01)
    told, thrice = list[Progress](), threading.Event()

    def tell(made: Progress) -> None:
        told.append(made)
        if len(told) == 3:
            thrice.set()

    with report_progress(tell, "merge", lambda: len(told) / 10, lambda: 7):
        assert thrice.wait(60)
    count = len(told)
    assert not [thread for thread in threading.enumerate() if thread.name == "progress of merge"]
    assert [made.share for made in told] == [number / 10 for number in range(count)] and len(told) == count
    assert all(made.changes == 7 for made in told) and told[-1].seconds > told[0].seconds


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_batch_and_its_merge_tell_how_far_they_are(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_lines, "EVERY_S", 0.02)
    tables = [feeder.table(relation(f"items_{number}", {"id": INT8}, ("id",))) for number in range(4)]
    transaction = feeder.begin()
    for table in tables:
        for number in range(500):
            transaction.insert(table, {"id": number})
    transaction.commit()
    feeder.kafka_commit()
    told: list[Progress] = []
    schemas = SchemaCache(Registry({"url": feeder.registry_url}))
    mirror = merging_mirror(str(tmp_path), schemas, working=told.append)
    mirror.apply(spark.read.format("walgate").options(**feeder.options()).load(), 3)
    mirror.stop()
    merge = [made for made in told if made.name == "merge"]
    assert {made.name for made in told} == {"micro-batch 3", "merge"}
    shares = [made.share or 0.0 for made in merge]
    assert shares == sorted(shares) and shares[0] == 0.0 and 0.0 < shares[-1] <= 1.0
    assert {made.changes for made in merge} <= {None, 2_000}
    assert all(made.share is None or 0.0 <= made.share <= 1.0 for made in told)
