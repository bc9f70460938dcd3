"""What a job says of itself before its first batch has ended, and what the gateway makes of a job
that never ends one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

from gateway.local.ports import HOST, free_port
from gateway.observe.status_board import StatusBoard
from gateway.runtime.monitor import ask_mirror
from schemas.lsn import format_lsn
from spark_consumer.errors import MirrorError
from spark_consumer.jobs.checkpoint_checks import last_offset
from spark_consumer.jobs.run import Run
from spark_consumer.jobs.status import serve
from spark_consumer.mirror.append.appending_mirror import AppendingMirror
from spark_consumer.mirror.mirror_state import state_of
from spark_consumer.reader.positions import resolve
from spark_consumer.source.options import parse_options
from tests.observe.test_mirror_status import metrics_of
from tests.spark_consumer.feeder import INT8, TEXT, Feeder, Table, relation
from tests.spark_consumer.here import run_here

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ITEMS = relation("items", {"id": INT8, "name": TEXT}, ("id",))
ALERT_S = 300
"""WalgateMirrorLag."""


def insert(feeder: Feeder, items: Table, number: int) -> int:
    transaction = feeder.begin()
    transaction.insert(items, {"id": number, "name": "a"})
    commit_lsn = transaction.commit()
    feeder.kafka_commit()
    return commit_lsn


async def test_a_job_that_dies_again_and_again_before_its_first_batch_ends_is_behind(feeder: Feeder) -> None:
    """Its process starts, looks at what waits, and dies: the gateway's metric does not forget it
    meanwhile."""
    items = feeder.table(ITEMS)
    for number in range(3):
        insert(feeder, items, number)
    port, board = free_port(), StatusBoard(prefix=feeder.prefix)
    url = f"http://{HOST}:{port}"
    lags: list[float | None] = []

    async def asked() -> None:
        await ask_mirror(url, board)
        lags.append(metrics_of(board).get("walgate_mirror_lag_seconds"))

    for _ in range(3):
        run = Run(parse_options(feeder.options(), streaming=True), None, "json")
        server = serve(run.status, f"{HOST}:{port}")
        try:
            await asked()  # Spark starts: nothing is known yet
            run.begins_at(resolve(run.options.starting, run.log))
            found = json.loads(run.status.as_json())
            assert (found["commit_lsn"], found["lag_changes"]) == (0, 3) and found["lag_seconds"] > ALERT_S
            await asked()
        finally:
            server.shutdown()
            server.server_close()
        await asked()
    first, *later = lags
    assert first is None or first != first, "nothing is known yet"
    assert len(later) == 8 and all(lag is not None and lag > ALERT_S for lag in later), lags


def test_what_a_job_says_within_its_first_batch_is_true(
    spark: SparkSession, feeder: Feeder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the manifest, the changes that wait for a merge, the checkpoint and the topic."""
    items, path = feeder.table(ITEMS), tmp_path / "mirror"
    merged_lsn = insert(feeder, items, 1)
    assert run_here(spark, "mirror", feeder, path, "--until-lsn", format_lsn(merged_lsn)) == (0, "")
    appended_lsn = insert(feeder, items, 2)
    end = AppendingMirror.finish
    monkeypatch.setattr(AppendingMirror, "finish", lambda mirror, session, merge: end(mirror, session, merge=False))
    assert run_here(spark, "mirror", feeder, path, "--once", "--merge-every", "inf") == (0, "")
    taken, offset = state_of(spark, str(path)), last_offset(spark, f"{path}/checkpoint")
    assert taken is not None and offset is not None
    assert (taken.commit_lsn, taken.merged_lsn, offset["commit_lsn"]) == (appended_lsn, merged_lsn, appended_lsn)
    insert(feeder, items, 3)
    insert(feeder, items, 4)
    port, said = free_port(), list[dict[str, Any]]()

    def stands(*_: object) -> None:
        said.append(json.loads(urlopen(f"http://{HOST}:{port}/status").read()))
        raise MirrorError("this batch fails")

    monkeypatch.setattr(AppendingMirror, "apply", stands)
    code, error = run_here(spark, "mirror", feeder, path, "--once", "--http", f"{HOST}:{port}")
    assert code == 1 and "this batch fails" in error
    (found,) = said
    assert taken.commit_time is not None and found["commit_time"] == pytest.approx(taken.commit_time.timestamp())
    names = ("commit_lsn", "merged_lsn", "lag_changes", "state")
    assert [found[name] for name in names] == [appended_lsn, merged_lsn, 2, "running"]
    assert found["lag_bytes"] > 0 and found["lag_seconds"] == pytest.approx(
        time.time() - found["oldest_waiting_time"], abs=60
    )
