"""One streaming job as it runs from the command line: says what it does, and knows when to stop."""

from __future__ import annotations

import ast
import io
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import fastavro
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from schemas.lsn import format_lsn
from schemas.records import POSITION
from schemas.topic_names import POSITION_TOPIC, counted
from schemas.wire_format import FRAME_BYTES
from spark_consumer.errors import (
    BatchInterrupted,
    ConsumerError,
    SourceUnavailable,
    TransactionIncomplete,
    slow_start_in,
    told_by,
)
from spark_consumer.jobs.status import Status
from spark_consumer.mirror.progress import Progress
from spark_consumer.mirror.progress import facts_of as progress_facts_of
from spark_consumer.mirror.progress import line_of as progress_line_of
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.backlog import backlog
from spark_consumer.reader.marker_log import MarkerLog
from spark_consumer.reader.markers import MarkerDecoder
from spark_consumer.reader.positions import resolve
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.source.options import Options
from spark_consumer.source.shapes import ChangeShape

_LOOK_EVERY_S = 0.2
_ASK_EVERY_S = 1.0  # where the gateway stands
_MEASURE_EVERY_S = 5.0  # what waits in Kafka
_PATIENCE_S = 5.0
_LONGEST_PAUSE_S = 60.0


def say(progress: str, facts: Mapping[str, Any], line: str) -> None:
    """`progress`: the option, json or lines."""
    print(json.dumps(facts) if progress == "json" else line, flush=True)


class Run:
    """`until_lsn`: stop when everything up to it is written; None: run until told to stop.
    `progress`: lines or json."""

    def __init__(self, options: Options, until_lsn: int | None, progress: str) -> None:
        self.options = options
        self.stopping = threading.Event()
        self._is_query_stopped = False
        self.check: Callable[[], None] = lambda: None
        """Raises what has failed beside the query, while no batch comes that would."""
        self._until_lsn = until_lsn
        self._progress = progress
        self._commit_lsn = -1
        self.differences = 0  # that a VERIFY has found
        self.status = Status(prefix=options.prefix)
        self._asked = -_ASK_EVERY_S
        self._measured = -_MEASURE_EVERY_S
        self._looked_up_to = -1  # in the marker topic: what waited there was looked for at once
        self._position: int | None = None  # in the marker topic: behind the last batch
        self._has_failed = False  # the last query did, and no batch has ended since
        # Position in the marker topic: between the last batch and it no marker is that of a
        # transaction.
        self._nothing_up_to = 0
        self._newest_position = 0  # as the last look at the topic has found it
        # Transactions of other tables do not move a query's offset at once: they are no lag.
        self._weight = ChangeShape(options, None).weight
        schemas = SchemaCache(options.registry)
        self._schemas = schemas
        # Nothing that is asked here is worth a long wait, which signals would have to wait for too.
        broker = replace(options.broker, no_progress_s=min(options.broker.no_progress_s, _PATIENCE_S))
        self._asked_with = replace(options, broker=broker)
        self.log = MarkerLog(broker, options.marker_topic, MarkerDecoder(schemas, options.marker_topic))

    def stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopping.set())

    def say(self, facts: dict[str, Any], line: str) -> None:
        say(self._progress, facts, line)

    def begins_behind(self, commit_lsn: int, commit_time: datetime | None = None) -> None:
        """Everything up to there was written before this run."""
        self._commit_lsn = commit_lsn
        self.status.set("commit_lsn", commit_lsn)
        if commit_time is not None:
            self.status.set("commit_time_seconds", commit_time.timestamp())

    def begins_at(self, position: int) -> None:
        """Where the first batch begins in the marker topic: from now on it is known how much
        waits."""
        self._position = position
        self._measure(position)

    def report(self, report: BatchReport) -> None:
        """Called behind every batch that had changes, and every merge."""
        if not report.is_merge:
            self._commit_lsn = max(self._commit_lsn, report.commit_lsn)
        self.differences += report.differences
        self._note(report)
        self.say(facts_of(report), line_of(report))
        if self._progress != "json":  # there it has them
            for note in report.notes:
                print(note, flush=True)

    def _note(self, report: BatchReport) -> None:
        status = self.status
        if not report.is_merge:
            self._goes_on()
        status.set("stale_tables", report.stale)
        status.set("filling_tables", report.filling)
        status.add("differences_total", report.differences)
        if report.is_merge:
            status.set("merged_lsn", report.commit_lsn)
            status.waits_for = ""
            return
        status.set("commit_lsn", report.commit_lsn)
        status.set("written_time_seconds", time.time())
        if report.commit_time is not None:
            status.set("commit_time_seconds", report.commit_time.timestamp())
        if report.changes:
            status.add("batches_total", 1)
        status.add("transactions_total", report.transactions)
        status.add("changes_total", report.changes)
        status.add("batch_seconds_total", report.seconds)

    def wait_for_topic(self) -> None:
        """The gateway makes the topics at its first start, which may be after ours."""
        told = False
        while not self.stopping.is_set():
            try:
                self.log.bounds(patience_s=0)
                return
            except SourceUnavailable as problem:
                if not told:
                    topic = self.options.marker_topic
                    self.say({"waiting": topic}, f"waiting for {topic}: {problem}")
                told = True
                self.status.waits_for = f"{self.options.marker_topic}: {problem}"
                self.stopping.wait(0.5)

    def keep_up(self, start: Callable[[], Any], *, outages: bool = True, until_position: int | None = None) -> None:
        """Runs the query that `start` starts, and another one where Spark could not start a Python
        process in time, or where Kafka or the registry was away for too long (`outages`): it goes
        on at its checkpoint. Raises what else ends a query.

        `until_position`: of queries that end behind one batch, as `availableNow` is on Spark 4.0
        and 4.1: they are repeated until everything before it is written.
        """
        pause_s, reached = 1.0, self._commit_lsn
        while not self.stopping.is_set():
            try:
                query = start()
                self.watch(query)
                if until_position is None or self._is_reached(query.lastProgress, until_position):
                    return
                continue
            except (PySparkException, Py4JJavaError) as problem:
                away = told_by(str(problem)) or ""
                told = slow_start_in(str(problem)) or (away if outages and away.startswith("SourceUnavailable") else "")
                if not told:
                    raise
            pause_s = 1.0 if self._commit_lsn > reached else min(2 * pause_s, _LONGEST_PAUSE_S)
            reached = self._commit_lsn
            self._has_failed = True
            self.status.failed(told)
            self.status.add("restarts_total", 1)
            self._measure(self._position)
            self.say({"waiting_s": pause_s, "problem": told}, f"trying again in {pause_s:g} s: {told}")
            self.stopping.wait(pause_s)

    def _is_reached(self, progress: Any, position: int) -> bool:
        """The query has no batch left, or its last one is behind everything wanted before
        `position`."""
        if progress is None or not progress.sources or progress.sources[0].startOffset == progress.sources[0].endOffset:
            return True
        end = offset_of(progress.sources[0].endOffset)
        return end is None or self.log.first_between(end["position"], position, is_wanted=self._weight) is None

    def watch(self, query: Any) -> None:
        """Until the query ends, a signal comes, or everything up to `until_lsn` is written. Raises
        the query's own error."""
        self.say({"ready": True}, "reading")
        if not self._has_failed:
            self.status.waits_for = ""
        while not query.awaitTermination(_LOOK_EVERY_S):
            self._check_beside(query)
            if self.stopping.is_set() or self._is_done(query.lastProgress):
                self._is_query_stopped = True
                query.stop()
                return

    def _goes_on(self) -> None:
        """A batch has ended, or there was nothing to do: what a query failed with before is
        over."""
        if self._has_failed:
            self._has_failed, self.status.waits_for = False, ""

    def _check_beside(self, query: Any) -> None:
        try:
            self.check()
        except Exception:
            self._is_query_stopped = True
            query.stop()
            raise

    def retrying(self, problem: Exception, pause_s: float) -> None:
        """A merge failed, and will be made again."""
        told = told_by(str(problem)) or str(problem).strip().partition("\n")[0]
        self.status.failed(told)
        self.say({"waiting_s": pause_s, "problem": told}, f"merging again in {pause_s:g} s: {told}")

    def working(self, progress: Progress) -> None:
        """Of a batch or merge that takes long. How many changes a batch has is known when it ends:
        before, by what waited."""
        if progress.changes is None:
            waiting = int(self.status.values["walgate_job_lag_changes"])
            most = self.options.max_changes or waiting
            progress = replace(progress, changes=min(waiting, most) or None)
        self.say(progress_facts_of(progress), progress_line_of(progress))

    def handed_over(self) -> None:
        told = "walgate merge has taken over the merges until it ends (if it was killed, run it again, or restart this job)"
        self.say({"merges": False, "reason": told}, told)

    def interruptible(self, apply: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """`apply`, which fails with BatchInterrupted where `watch` stops the query during it,
        whatever its own error is."""

        def batch(frame: Any, number: int) -> None:
            try:
                apply(frame, number)
            except Exception:
                if self._is_query_stopped:
                    raise BatchInterrupted from None
                raise

        return batch

    def _is_done(self, progress: Any) -> bool:
        position = self._catch_up(progress)
        if self._until_lsn is None:
            return False
        return self._commit_lsn >= self._until_lsn or self._is_delivered_beyond(self._until_lsn, position)

    def _catch_up(self, progress: Any) -> int | None:
        """Position of the last batch; transactions that had no change to write count too."""
        end = offset_of(progress.sources[0].endOffset) if progress is not None and progress.sources else None
        if end is None:
            self._measure(self._position)
            return None
        self._goes_on()
        self._position = end["position"]
        newest = offset_of(progress.sources[0].latestOffset)
        # Spark 4.0 and 4.1 do not ask the source for the end of the topic: that of the last look
        # serves.
        newest_position = self._newest_position if newest is None else newest["position"]
        self.status.set("lag_markers", max(0, newest_position - end["position"]))
        is_behind = newest_position > max(end["position"], self._nothing_up_to)
        if is_behind and not self.status.is_behind and newest_position != self._looked_up_to:
            self._looked_up_to = newest_position
            self._measured = -_MEASURE_EVERY_S  # the oldest that waits is looked for at once
        else:
            self.status.is_behind = is_behind
        if end["commit_lsn"] > self._commit_lsn:
            self.report(BatchReport(progress.batchId, end["commit_lsn"], 0, 0, {}, 0.0))
        self._measure(end["position"])
        return int(end["position"])

    def _measure(self, position: int | None) -> None:
        """How far the job is behind, for those who watch it."""
        if position is None or time.monotonic() < self._measured + _MEASURE_EVERY_S:
            return
        self._measured = time.monotonic()
        try:
            newest_position = self.log.bounds(patience_s=0)[1]
            waiting = backlog(self.log, position, newest_position, self._weight)
        except ConsumerError:  # only figures are missing: what keeps the query from going on ends the query
            return
        self._newest_position = newest_position
        status = self.status
        status.is_behind, status.is_measured = waiting.newest_lsn is not None, True
        status.oldest_waiting = (waiting.oldest_time_us or 0) / 1e6
        if waiting.newest_lsn is None:
            self._nothing_up_to = newest_position
        newest = self._commit_lsn if waiting.newest_lsn is None else waiting.newest_lsn
        status.set("lag_bytes", max(0, newest - self._commit_lsn) if self._commit_lsn >= 0 else 0)
        status.set("lag_changes", waiting.changes)
        status.set("lag_markers", newest_position - position)

    def _is_delivered_beyond(self, lsn: int, position: int | None) -> bool:
        """The gateway has delivered everything up to `lsn`, and no transaction of it waits for
        us."""
        if time.monotonic() < self._asked + _ASK_EVERY_S:
            return False
        self._asked = time.monotonic()
        try:
            if resume_lsn(self._asked_with, self._schemas) < lsn:
                return False
            end = self.log.bounds()[1]
            start = resolve(self.options.starting, self.log) if position is None else position
            return self.log.first_between(start, end, is_wanted=self._weight) is None
        except (SourceUnavailable, TransactionIncomplete):
            return False


def offset_of(told: str | None) -> dict[str, int] | None:
    """An offset in a query's progress; None: it has none.

    It is JSON, which PySpark 4.0 and 4.1 have read and written down as Python does.
    """
    if not told or not told.startswith("{"):
        return None
    return dict(ast.literal_eval(told) if told.startswith("{'") else json.loads(told))


def facts_of(report: BatchReport) -> dict[str, Any]:
    """For JSON. A merge has no `batch`: what it takes in was in batches before."""
    lsn = format_lsn(report.commit_lsn)
    if report.is_merge:
        tables, notes = list(report.tables), list(report.notes)
        seconds = round(report.seconds, 3)
        return {
            "merged_lsn": lsn,
            "tables": tables,
            "seconds": seconds,
            "notes": notes,
            "differences": report.differences,
        }
    facts = {**asdict(report), "commit_lsn": lsn, "seconds": round(report.seconds, 3)}
    del facts["is_merge"]
    return {**facts, "commit_time": report.commit_time and report.commit_time.isoformat()}


def line_of(report: BatchReport) -> str:
    lsn = format_lsn(report.commit_lsn)
    if report.is_merge:
        return f"merged up to {lsn} in {report.seconds:.1f} s ({', '.join(report.tables)})"
    tables = ", ".join(f"{name} {changes:,}" for name, changes in report.tables.items())
    counts = f"{counted(report.transactions, 'transaction')}, {counted(report.changes, 'change')}"
    return f"micro-batch {report.batch}: {counts}, up to {lsn} in {report.seconds:.1f} s ({tables})"


def resume_lsn(options: Options, schemas: SchemaCache) -> int:
    """How far the gateway of this prefix has delivered, from its durable position; -1: no position.
    Raises SourceUnavailable."""
    found = -1
    low, high = options.broker.offsets(POSITION_TOPIC)
    for _, values in options.broker.read(POSITION_TOPIC, 0, low, high - 1, skip_tombstones=True):
        for value in values:
            position = _decode_position(value, schemas)
            if position["prefix"] == options.prefix:
                found = int(position["resume_lsn"])
    return found


def _decode_position(value: bytes, schemas: SchemaCache) -> Any:
    writer = schemas[int.from_bytes(value[1:FRAME_BYTES], "big")]
    return fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), writer, POSITION)
