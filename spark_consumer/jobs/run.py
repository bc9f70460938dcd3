"""A streaming job run from the command line: reports its progress, and decides when to stop."""

from __future__ import annotations

import ast
import io
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import cache
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
from spark_consumer.mirror.progress_lines import Progress
from spark_consumer.mirror.progress_lines import facts_of as progress_facts_of
from spark_consumer.mirror.progress_lines import line_of as progress_line_of
from spark_consumer.mirror.report import BatchReport
from spark_consumer.reader.backlog import backlog
from spark_consumer.reader.marker_log import MarkerLog
from spark_consumer.reader.markers import CommittedTransaction, MarkerDecoder
from spark_consumer.reader.positions import resolve
from spark_consumer.reader.read_planning import first_complete
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.source.options import Options
from spark_consumer.source.shapes import ChangeShape

_LOOK_EVERY_S = 0.2
_ASK_EVERY_S = 1.0  # for the gateway's position
_MEASURE_EVERY_S = 5.0  # for the backlog in Kafka
_PATIENCE_S = 5.0
_LONGEST_PAUSE_S = 60.0


def say(progress: str, facts: Mapping[str, Any], line: str) -> None:
    """Print a report. `progress`: the value of the option, "json" or "lines"."""
    print(json.dumps(facts) if progress == "json" else line, flush=True)


class Run:
    """The state of a job. `until_lsn`: stop when everything up to this LSN is written; None: run
    until stopped. `progress`: "lines" or "json". `waits`: whether the job waits until Kafka and the
    registry are available."""

    def __init__(self, options: Options, until_lsn: int | None, progress: str, *, waits: bool = True) -> None:
        self.options = options
        self._waits = waits
        self.stopping = threading.Event()
        self._is_query_stopped = False
        self.check: Callable[[], None] = lambda: None
        """Raises the error of work beside the query, which would otherwise be noticed only at the
        next batch."""
        self._until_lsn = until_lsn
        self._progress = progress
        self._commit_lsn = -1
        self.differences = 0  # found by a VERIFY
        self.status = Status(prefix=options.prefix)
        self._asked = -_ASK_EVERY_S
        self._measured = -_MEASURE_EVERY_S
        self._looked_up_to = -1  # in the marker topic: the end for which `_measure` was last run early
        self._position: int | None = None  # in the marker topic: after the last batch
        self._has_failed = False  # the last query failed, and no batch has ended since
        # Position in the marker topic up to which no transaction waits after the last batch.
        self._nothing_up_to = 0
        self._newest_position = 0  # the end of the topic when it was last read
        # Transactions of other tables do not advance a query's offset at once, so they do not count
        # as lag.
        self._shape = ChangeShape(options, None)
        self.weight = self._shape.weight
        schemas = SchemaCache(options.registry)
        self._schemas = schemas
        # Requests of this object have short time-outs, since signals are handled only after them.
        broker = replace(options.broker, no_progress_s=min(options.broker.no_progress_s, _PATIENCE_S))
        self._asked_with = replace(options, broker=broker)
        self.log = MarkerLog(broker, options.marker_topic, MarkerDecoder(schemas, options.marker_topic))

    def lost(self, transactions: Iterable[CommittedTransaction]) -> int | None:
        """Return the position after the last of these transactions whose records are no longer in
        Kafka. Return None if there is none, or Kafka does not tell: then the query raises the
        error."""
        offsets = self._asked_with.broker.offsets
        with suppress(SourceUnavailable):
            return first_complete(transactions, self._shape.wants, cache(lambda *place: offsets(*place)[0]))
        return None

    def stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopping.set())

    def say(self, facts: dict[str, Any], line: str) -> None:
        say(self._progress, facts, line)

    def begins_after(self, commit_lsn: int, commit_time: datetime | None = None) -> None:
        """Record that everything up to this commit LSN was written before this run."""
        self._commit_lsn = commit_lsn
        self.status.set("commit_lsn", commit_lsn)
        if commit_time is not None:
            self.status.set("commit_time_seconds", commit_time.timestamp())

    def begins_at(self, position: int) -> None:
        """Record where the first batch begins in the marker topic. From now on the backlog is
        measured."""
        self._position = position
        self._measure(position)

    def report(self, report: BatchReport) -> None:
        """Report a batch that had changes, or a merge."""
        if not report.is_merge:
            self._commit_lsn = max(self._commit_lsn, report.commit_lsn)
        self.differences += report.differences
        self._note(report)
        self.say(facts_of(report), line_of(report))
        if self._progress != "json":  # there they are part of the report
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
            status.merge_waits_for = ""
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
        """Wait for the marker topic. The gateway creates it at its first start, which may be later
        than that of this job."""
        self.when_available(lambda: self.log.bounds(patience_s=0))

    def when_available(self, ask: Callable[[], object]) -> None:
        """Call `ask` until Kafka and the registry can answer it, or the job is stopped. A read
        that stands still is repeated until the option noProgressTimeout is over; its error is then
        raised. The same applies to SourceUnavailable in a job that does not wait."""
        told = False
        since: float | None = None  # it stands still
        while not self.stopping.is_set():
            asked = time.monotonic()
            try:
                ask()
                return
            except (SourceUnavailable, TransactionIncomplete) as problem:
                if self._waits and isinstance(problem, SourceUnavailable):
                    since = None
                else:
                    since = asked if since is None else since
                    if time.monotonic() - since >= self.options.broker.no_progress_s:
                        raise
                topic = self.options.marker_topic
                if not told:
                    self.say({"waiting": topic}, f"waiting for {topic}: {problem}")
                told = True
                self.status.query_waits_for = f"{topic}: {problem}"
                self.stopping.wait(0.5)

    def run_query(self, start: Callable[[], Any], *, until_position: int | None = None) -> None:
        """Run the query that `start` starts. Start it again from its checkpoint if Spark could not
        start a Python process in time, or, in a job that waits, if Kafka or the registry was
        unavailable for too long. Raises other errors of a query.

        `until_position` is given for queries that end after one batch, as with `availableNow` on
        Spark 4.0 and 4.1. The query is repeated until everything before this position is written.
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
                told = slow_start_in(str(problem)) or (
                    away if self._waits and away.startswith("SourceUnavailable") else ""
                )
                if not told:
                    raise
            pause_s = 1.0 if self._commit_lsn > reached else min(2 * pause_s, _LONGEST_PAUSE_S)
            reached = self._commit_lsn
            self._has_failed = True
            self.status.query_failed(told)
            self.status.add("restarts_total", 1)
            self._measure(self._position)
            self.say({"waiting_s": pause_s, "problem": told}, f"trying again in {pause_s:g} s: {told}")
            self.stopping.wait(pause_s)

    def _is_reached(self, progress: Any, position: int) -> bool:
        """Return whether the query has no batch left, or its last batch ends after all wanted
        transactions before `position`."""
        if progress is None or not progress.sources or progress.sources[0].startOffset == progress.sources[0].endOffset:
            return True
        end = offset_of(progress.sources[0].endOffset)
        return end is None or self.log.first_between(end["position"], position, is_wanted=self.weight) is None

    def watch(self, query: Any) -> None:
        """Wait until the query ends, a signal arrives, or everything up to `until_lsn` is written.
        Raises the query's own error."""
        self.say({"ready": True}, "reading")
        if not self._has_failed:
            self.status.query_waits_for = ""
        while not query.awaitTermination(_LOOK_EVERY_S):
            self._check_beside(query)
            if self.stopping.is_set() or self._is_done(query.lastProgress):
                self._is_query_stopped = True
                query.stop()
                return

    def _goes_on(self) -> None:
        """Clear the error of an earlier query. Call this when a batch has ended, or there was
        nothing to do."""
        if self._has_failed:
            self._has_failed, self.status.query_waits_for = False, ""

    def _check_beside(self, query: Any) -> None:
        try:
            self.check()
        except Exception:
            self._is_query_stopped = True
            query.stop()
            raise

    def retrying(self, problem: Exception, pause_s: float) -> None:
        """Report that a merge failed and will be repeated."""
        told = told_by(str(problem)) or str(problem).strip().partition("\n")[0]
        told = ", ".join([told, *getattr(problem, "__notes__", ())])
        self.status.merge_failed(told)
        self.say({"waiting_s": pause_s, "problem": told}, f"merging again in {pause_s:g} s: {told}")

    def merged(self) -> None:
        """Clear the error of an earlier merge, because a merge has succeeded, perhaps with nothing
        to do."""
        self.status.merge_waits_for = ""

    def working(self, progress: Progress) -> None:
        """Report the progress of a long batch or merge. The number of a batch's changes is known
        only when the batch ends. Until then, it is estimated from the backlog."""
        if progress.changes is None:
            waiting = int(self.status.values["walgate_job_lag_changes"])
            most = self.options.max_changes or waiting
            progress = replace(progress, changes=min(waiting, most) or None)
        self.say(progress_facts_of(progress), progress_line_of(progress))

    def handed_over(self) -> None:
        told = "walgate merge has taken over the merges until it ends (if it was killed, run it again, or restart this job)"
        self.say({"merges": False, "reason": told}, told)

    def interruptible(self, apply: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """Return a function that calls `apply`. If `apply` fails and `watch` has stopped the query
        in the meantime, the function raises BatchInterrupted instead of that error."""

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
        """Update the status from the query's progress. Return the position that the query has
        reached, or None if the progress has no position. Transactions without changes to write
        count as well."""
        end = offset_of(progress.sources[0].endOffset) if progress is not None and progress.sources else None
        if end is None:
            self._measure(self._position)
            return None
        self._goes_on()
        self._position = end["position"]
        newest = offset_of(progress.sources[0].latestOffset)
        # The progress is that of the last batch: while the next one runs, `_measure` knows a later
        # end. Spark 4.0 and 4.1 do not request the end of the topic from the source at all.
        newest_position = max(self._newest_position, 0 if newest is None else newest["position"])
        self.status.set("lag_markers", max(0, newest_position - end["position"]))
        is_behind = newest_position > max(end["position"], self._nothing_up_to)
        if is_behind and not self.status.is_behind and newest_position != self._looked_up_to:
            self._looked_up_to = newest_position
            self._measured = -_MEASURE_EVERY_S  # look for the oldest waiting transaction at once
        else:
            self.status.is_behind = is_behind
        if end["commit_lsn"] > self._commit_lsn:
            self._move_on(progress.batchId, end["commit_lsn"])
        self._measure(end["position"])
        return int(end["position"])

    def _move_on(self, batch: int, commit_lsn: int) -> None:
        """Report that the query has passed transactions without changes to write, which affect no
        table."""
        self._commit_lsn = commit_lsn
        self.status.set("commit_lsn", commit_lsn)
        stale, filling = (int(self.status.values[f"walgate_job_{name}_tables"]) for name in ("stale", "filling"))
        report = BatchReport(batch, commit_lsn, 0, 0, {}, 0.0, stale=stale, filling=filling)
        self.say(facts_of(report), line_of(report))

    def _measure(self, position: int | None) -> None:
        """Update the metrics of the job's lag."""
        if position is None or time.monotonic() < self._measured + _MEASURE_EVERY_S:
            return
        self._measured = time.monotonic()
        try:
            newest_position = self.log.bounds(patience_s=0)[1]
            waiting = backlog(self.log, position, newest_position, self.weight)
        except ConsumerError:  # only metrics are missing; an error that persists ends the query itself
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
        """Return whether the gateway has delivered everything up to `lsn`, and no transaction that
        the query wants is left to be read. This is checked at most every `_ASK_EVERY_S` seconds;
        between checks, return False."""
        if time.monotonic() < self._asked + _ASK_EVERY_S:
            return False
        self._asked = time.monotonic()
        try:
            if resume_lsn(self._asked_with, self._schemas) < lsn:
                return False
            end = self.log.bounds()[1]
            start = resolve(self.options.starting, self.log) if position is None else position
            return self.log.first_between(start, end, is_wanted=self.weight) is None
        except (SourceUnavailable, TransactionIncomplete):
            return False


def offset_of(told: str | None) -> dict[str, int] | None:
    """Return an offset from a query's progress; None if the progress has none.

    The text is JSON, or that of a Python dict: PySpark 4.0 and 4.1 parse the JSON, and convert it
    back with str.
    """
    if not told or not told.startswith("{"):
        return None
    return dict(ast.literal_eval(told) if told.startswith("{'") else json.loads(told))


def facts_of(report: BatchReport) -> dict[str, Any]:
    """Return a report for JSON. The report of a merge has no `batch`, since it merges changes of
    earlier batches."""
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
    """Return the LSN up to which the gateway of this prefix has delivered, from its durable
    position; -1 if there is none. Raises SourceUnavailable."""
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
