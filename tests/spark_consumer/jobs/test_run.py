"""A job as its operator meets it: what it waits for, what ends it, what it says. Without Spark."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from gateway.local import Kafka, Registry
from spark_consumer.errors import (
    BatchInterrupted,
    MarkerError,
    MirrorError,
    SourceUnavailable,
    TransactionIncomplete,
    told_by,
)
from spark_consumer.jobs import run as run_module
from spark_consumer.jobs.checkpoint_checks import check_new_checkpoint
from spark_consumer.jobs.run import Run, offset_of
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.backlog import Backlog
from spark_consumer.reader.marker_log import MarkerLog
from spark_consumer.source.options import parse_options
from tests.spark_consumer.jobs.test_jobs import foreign_folder
from tests.spark_consumer.reader.test_offsets import Decoder, topic_of
from tests.support.gateway_process import COMMAND

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:1", "registry.url": "http://127.0.0.1:1"}
# As Spark 4.2.0 gives them, shortened.
OF_A_TASK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An
error occurred
Traceback (most recent call last):
  File "mirror/batch.py", line 104, in apply
    found = look_at(raw)
  File "broker.py", line 110, in _chunks
    raise TransactionIncomplete(
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "broker.py", line 110, in _chunks
    raise TransactionIncomplete(
spark_consumer.errors.TransactionIncomplete: cdc.public.items[1]: no record at offset 1 for 5 s, but a manifest reaches to 40
The topic is shorter than its manifests say, or the broker is slow: see the option noProgressTimeout.
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: walgate mirror [id = 1, runId = 2]
"""
OF_THE_DRIVER = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed
when Python streaming data source perform latestOffset: Traceback (most recent call last):
  File "broker.py", line 77, in offsets
cimpl.KafkaException: KafkaError{code=_ALL_BROKERS_DOWN}

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "source.py", line 170, in latestOffset
spark_consumer.errors.SourceUnavailable: Kafka did not return the offsets of cdc.transaction[0]: _ALL_BROKERS_DOWN
\tat org.apache.spark.api.python.PythonStreamingSourceRunner.latestOffset(PythonStreamingSourceRunner.scala:1)
"""


def test_an_error_of_ours_is_found_in_what_spark_says() -> None:
    assert told_by(OF_A_TASK) == (
        "TransactionIncomplete: cdc.public.items[1]: no record at offset 1 for 5 s, but a manifest reaches to 40\n"
        "The topic is shorter than its manifests say, or the broker is slow: see the option noProgressTimeout."
    )
    assert told_by(OF_THE_DRIVER) == (
        "SourceUnavailable: Kafka did not return the offsets of cdc.transaction[0]: _ALL_BROKERS_DOWN"
    )
    assert told_by("[STREAM_FAILED] Query terminated with exception: Java heap space") is None


@dataclass
class Query:
    """Ends with `text` as its error, or by itself."""

    text: str | None = None
    lastProgress: Any = None

    def awaitTermination(self, _: float) -> bool:
        if self.text is not None:
            raise StreamingQueryException(self.text)
        return True


@dataclass
class Clock:
    pauses: list[float] = field(default_factory=list)

    def wait(self, pause_s: float) -> bool:
        self.pauses.append(pause_s)
        return False


def run(monkeypatch: pytest.MonkeyPatch, queries: list[Query], *, waits: bool = True) -> list[float]:
    """Pauses between the queries."""
    made = Run(parse_options(NEEDED, streaming=True), None, "lines", waits=waits)
    clock = Clock()
    monkeypatch.setattr(made.stopping, "wait", clock.wait)
    made.run_query(lambda: queries.pop(0))
    return clock.pauses


def test_a_query_whose_servers_were_away_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = [Query(OF_THE_DRIVER) for _ in range(8)]
    assert run(monkeypatch, [*queries, Query()]) == [2, 4, 8, 16, 32, 60, 60, 60]
    assert "trying again in 2 s: SourceUnavailable: Kafka did not return the offsets" in capsys.readouterr().out


def test_a_query_whose_python_process_did_not_start_in_time_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --once too, which does not wait for servers."""
    slow = Query(
        "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
    )
    assert run(monkeypatch, [slow, slow, Query()], waits=False) == [2, 4]
    assert "trying again in 2 s: Python worker failed to connect back" in capsys.readouterr().out
    with pytest.raises(StreamingQueryException):
        run(monkeypatch, [Query(OF_THE_DRIVER), Query()], waits=False)


def test_an_empty_topic_is_judged_by_its_first_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of another server, or retention has removed everything."""
    made = Run(parse_options({**NEEDED, "startingPosition": "marker:0"}, streaming=True), None, "lines")
    monkeypatch.setattr(made, "lost", lambda _: None)
    topic = topic_of()
    made.log = MarkerLog(topic, "cdc.transaction", Decoder({}, "cdc.transaction"))
    with pytest.raises(SourceUnavailable, match="it is empty"):
        check_new_checkpoint(made, 30)
    topic.lsns.append(0)
    with pytest.raises(SourceUnavailable, match="it is empty"):
        check_new_checkpoint(made, 30)
    topic.lsns.append(20)
    with pytest.raises(MarkerError, match="another marker topic"):
        check_new_checkpoint(made, 30)
    topic.lsns[:] = [40]
    check_new_checkpoint(made, 30)


def test_a_stall_before_the_query_is_waited_for_as_long_as_the_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes 5 s."""
    made = Run(parse_options({**NEEDED, "noProgressTimeout": "30"}, streaming=True), None, "lines")
    clock = SimpleNamespace(now=100.0)
    answers: list[Exception | None] = []

    def ask() -> None:
        clock.now += 5
        if answer := answers.pop(0) if answers else TransactionIncomplete("no record at offset 1 for 5 s"):
            raise answer

    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(made.stopping, "wait", lambda _: False)
    stalls, down = [TransactionIncomplete("no record")] * 5, SourceUnavailable("the broker is down")
    answers = [*stalls, *[down] * 100, *stalls, None]
    made.when_available(ask)
    assert not answers and "no record" in made.status.answer("/readyz")[1]
    began = clock.now
    with pytest.raises(TransactionIncomplete):
        made.when_available(ask)
    assert clock.now == began + 30


async def test_a_job_that_does_not_wait_ends_without_a_marker_topic(kafka: Kafka, registry: Registry) -> None:
    """The broker is down, or the prefix is wrong."""
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "registry.url": registry.url}
    for given, problem in ((NEEDED, r"cdc\.transaction"), ({**servers, "prefix": "nosuch"}, r"nosuch\.transaction")):
        options = parse_options({**given, "noProgressTimeout": "1"}, streaming=True)
        with pytest.raises(SourceUnavailable, match=problem):
            await asyncio.to_thread(Run(options, None, "lines", waits=False).wait_for_topic)


@dataclass
class Endless(Query):
    """Until it is stopped."""

    is_stopped: bool = False

    def awaitTermination(self, _: float) -> bool:
        return False

    def stop(self) -> None:
        self.is_stopped = True


def test_what_fails_beside_the_query_ends_it_though_no_batch_comes() -> None:
    def fails() -> None:
        raise MirrorError("a merge failed")

    made, query = Run(parse_options(NEEDED, streaming=True), None, "lines"), Endless()
    made.check = fails
    with pytest.raises(MirrorError, match="a merge failed"):
        made.watch(query)
    assert query.is_stopped


def test_a_merge_that_is_made_again_is_waited_for_until_one_succeeds() -> None:
    made = Run(parse_options(NEEDED, streaming=True), None, "lines")
    made.watch(Query())
    problem = OSError("storage is down")
    problem.add_note("while the changes of public.t were merged")
    made.retrying(problem, 5.0)
    status, told = made.status.answer("/readyz")
    assert (
        status == 503
        and made.status.last_error is not None
        and "storage is down, while the changes of public.t" in told
    )
    made.report(BatchReport(0, 16, 1, 1, {"public.t": 1}, 0.1))
    made.report(BatchReport(0, 16, 1, 1, {"public.t": 1}, 0.1, is_merge=True))
    assert made.status.answer("/readyz")[0] == 200


def test_tables_are_merged_up_to_where_a_merge_has_come() -> None:
    made = Run(parse_options(NEEDED, streaming=True), None, "lines")

    def merged_lsn(report: BatchReport) -> float:
        made.report(report)
        return made.status.values["walgate_job_merged_lsn"]

    changes = {"public.t": 1}
    assert merged_lsn(BatchReport(0, 16, 1, 1, changes, 0.1)) == 0
    assert merged_lsn(BatchReport(0, 20, 0, 0, {}, 0.0)) == 0  # transactions without changes
    assert merged_lsn(BatchReport(0, 16, 1, 1, changes, 0.1, is_merge=True)) == 16


def test_a_merge_that_succeeds_ends_no_outage_of_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges need neither Kafka nor the registry. Of two problems, the query's is told first."""
    made, told = Run(parse_options(NEEDED, streaming=True), None, "lines"), list[str]()

    def note() -> None:
        told.append(made.status.answer("/readyz")[1])

    def wait(_: float) -> bool:
        """Between the two queries."""
        made.retrying(OSError("storage is down"), 5.0)
        note()
        made.merged()
        made.report(BatchReport(0, 16, 1, 1, {"public.t": 1}, 0.1, is_merge=True))
        note()
        made.retrying(OSError("storage is down"), 5.0)
        made.report(BatchReport(1, 20, 1, 1, {"public.t": 1}, 0.1))
        note()
        return False

    monkeypatch.setattr(made.stopping, "wait", wait)
    queries = [Query(OF_THE_DRIVER), Query()]
    made.run_query(lambda: queries.pop(0))
    note()
    assert [text.strip().split(":")[0] for text in told] == [
        "waiting for SourceUnavailable",
        "waiting for SourceUnavailable",
        "waiting for storage is down",
        "waiting for storage is down",
    ]
    made.merged()  # there was nothing left to merge, so that no report comes
    assert made.status.answer("/readyz")[0] == 200


def test_transactions_without_changes_move_only_the_commit_lsn(capsys: pytest.CaptureFixture[str]) -> None:
    made = Run(parse_options(NEEDED, streaming=True), None, "json")
    made.report(BatchReport(1, 40, 1, 1, {"public.t": 1}, 0.1, stale=2, filling=1))
    before = {**made.status.values}
    told = '{"position":5,"commit_lsn":50}'
    made._measured = math.inf  # there is no Kafka to be asked
    made._catch_up(SimpleNamespace(batchId=1, sources=[SimpleNamespace(endOffset=told, latestOffset=told)]))
    assert made.status.values == {**before, "walgate_job_commit_lsn": 50}
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (line["commit_lsn"], line["changes"], line["stale"], line["filling"]) == ("0/32", 0, 2, 1)


def test_a_job_is_behind_while_a_batch_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query's progress is still that of the batch before."""
    made, clock = Run(parse_options(NEEDED, streaming=True), None, "lines"), SimpleNamespace(now=100.0)
    told = '{"position":5,"commit_lsn":50}'
    progress = SimpleNamespace(batchId=1, sources=[SimpleNamespace(endOffset=told, latestOffset=told)])
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(made.log, "bounds", lambda patience_s: (0, 9))
    monkeypatch.setattr(run_module, "backlog", lambda *_: Backlog(3, 90, 1_000_000))

    def lag() -> tuple[bool, float]:
        return made.status.is_behind, made.status.values["walgate_job_lag_markers"]

    for _ in range(3):
        made._catch_up(progress)
        clock.now += 0.2
    assert lag() == (True, 4)
    told = '{"position":9,"commit_lsn":90}'
    made._catch_up(SimpleNamespace(batchId=2, sources=[SimpleNamespace(endOffset=told, latestOffset=told)]))
    assert lag() == (False, 0)


def test_a_query_that_failed_is_not_ready_again_until_a_batch_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ready = Run(parse_options(NEEDED, streaming=True), None, "lines"), list[int]()

    @dataclass
    class Fails(Query):
        def awaitTermination(self, _: float) -> bool:
            ready.append(made.status.answer("/readyz")[0])
            if len(ready) == 4:
                made.report(BatchReport(0, 16, 1, 1, {"public.t": 1}, 0.1))
                ready.append(made.status.answer("/readyz")[0])
                return True
            raise StreamingQueryException(OF_THE_DRIVER)

    monkeypatch.setattr(made.stopping, "wait", lambda _: False)
    made.run_query(Fails)
    assert ready == [200, 503, 503, 503, 200]


def test_a_mirror_that_has_everything_already_ends_at_once() -> None:
    """Everything was appended before it was killed: no batch comes that would say so."""
    made = Run(parse_options(NEEDED, streaming=True), 100, "lines")
    made.begins_after(100)
    query = Endless()
    made.watch(query)
    assert query.is_stopped


def test_the_error_of_a_batch_becomes_short_only_where_the_query_was_stopped() -> None:
    """What Spark makes of it: tests/spark_consumer/jobs/test_jobs.py."""

    @dataclass
    class Stopped(Query):
        def awaitTermination(self, _: float) -> bool:
            made.stopping.set()
            with pytest.raises(ValueError, match="the batch's own"):
                batch(None, 1)
            return False

        def stop(self) -> None:
            with pytest.raises(BatchInterrupted):
                batch(None, 1)

    def apply(_frame: object, _number: int) -> None:
        raise ValueError("the batch's own")

    made = Run(parse_options(NEEDED, streaming=True), None, "lines")
    batch = made.interruptible(apply)
    made.watch(Stopped())


@pytest.mark.parametrize("text", [OF_A_TASK, "[STREAM_FAILED] Java heap space"])
def test_another_error_ends_the_job(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(StreamingQueryException):
        run(monkeypatch, [Query(text), Query()])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--option", "kafka.ssl.ca.locatoin=/ca.pem"], "ssl.ca.locatoin"),
        (["--option", "maxChangesPerTriger=5"], "Did you mean maxChangesPerTrigger?"),
        (["--on-recreated", "stp"], "--on-recreated must be"),
        (["--http", "9000"], "HOST:PORT"),
    ],
)
def test_a_mistyped_option_is_named_before_anything_is_downloaded(words: list[str], named: str, tmp_path: Path) -> None:
    servers = [
        "--bootstrap-servers",
        "127.0.0.1:1",
        "--registry",
        "http://127.0.0.1:1",
        "--to",
        str(tmp_path / "mirror"),
    ]
    environment = os.environ | {"WALGATE_CACHE": str(tmp_path / "cache"), "WALGATE_REPOSITORY": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli.main", "mirror", *servers, *words],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2) and named in done.stderr, done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("java", "said"),
    [
        (
            None,
            "walgate: Spark needs Java, but {home}/bin/java does not exist (JAVA_HOME is {home}): set JAVA_HOME to ",
        ),
        (
            "echo 'openjdk version \"11.0.2\" 2019' >&2; exit 1",
            "walgate: Spark needs Java 17 or later, but {home}/bin/java is Java 11: ",
        ),
        (
            '[ "$1" != -version ] || { echo \'java version "21"\'; exit; }; echo "Error: no memory" >&2; exit 1',
            "walgate: {home}/bin/java ended while Spark was starting: Error: no memory",
        ),
    ],
    ids=["none", "old", "other"],
)
def test_a_java_that_spark_cannot_use_is_told_in_one_line(java: str | None, said: str, tmp_path: Path) -> None:
    if java is not None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\n{java}\n")
        (tmp_path / "bin" / "java").chmod(0o755)
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    environment.pop("WALGATE_SPARK_SETUP", None)
    done = subprocess.run(
        [sys.executable, "-m", "spark_consumer", "merge", "--path", str(tmp_path / "mirror")],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith(said.format(home=tmp_path)), done.stderr


async def test_sigterm_ends_the_job_that_walgate_started(tmp_path: Path) -> None:
    """`walgate mirror` is the job: there is no child that lives on, and holds the end of the pipe.
    Packages of the working directory are not ours."""
    words = ["--bootstrap-servers", "127.0.0.1:1", "--registry", "http://127.0.0.1:1", "--to", "/nowhere"]
    process = await asyncio.create_subprocess_exec(
        *(COMMAND[0], "mirror", *words), stdout=asyncio.subprocess.PIPE, cwd=foreign_folder(tmp_path / "mirror")
    )
    assert process.stdout is not None
    waiting = await process.stdout.readline()
    assert b"waiting for cdc.transaction: Kafka did not return" in waiting
    assert b"Connection refused" in waiting
    process.terminate()
    await asyncio.wait_for(process.stdout.read(), 30)
    assert await process.wait() == 0


@pytest.mark.parametrize("told", ['{"position":7,"commit_lsn":9}', "{'position': 7, 'commit_lsn': 9}"])
def test_an_offset_is_read_as_each_release_of_spark_writes_it(told: str) -> None:
    assert offset_of(told) == {"position": 7, "commit_lsn": 9}
    assert offset_of(None) is offset_of("null") is offset_of("None") is None
