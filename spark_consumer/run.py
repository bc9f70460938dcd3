"""One streaming job as it runs from the command line: says what it does, and knows when to stop."""

from __future__ import annotations

import io
import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import fastavro
from pyspark.errors import StreamingQueryException

from schemas.framing import FRAME_BYTES
from schemas.names import POSITION_TOPIC
from schemas.records import POSITION
from spark_consumer.errors import SourceUnavailable, told_by
from spark_consumer.lsn import format_lsn
from spark_consumer.manifest import MarkerDecoder
from spark_consumer.markers import MarkerLog
from spark_consumer.mirror.batch import BatchReport
from spark_consumer.options import Options
from spark_consumer.positions import resolve
from spark_consumer.registry import SchemaCache

_LOOK_EVERY_S = 0.2
_ASK_EVERY_S = 1.0  # where the gateway stands
_LONGEST_PAUSE_S = 60.0


class Run:
    """`until_lsn`: stop when everything up to it is written; None: run until told to stop. `progress`: lines or json."""

    def __init__(self, options: Options, until_lsn: int | None, progress: str) -> None:
        self.options = options
        self.stopping = threading.Event()
        self._until_lsn = until_lsn
        self._progress = progress
        self._commit_lsn = -1
        self._asked = -_ASK_EVERY_S
        schemas = SchemaCache(options.registry)
        self._schemas = schemas
        self._log = MarkerLog(options.broker, options.marker_topic, MarkerDecoder(schemas))

    def stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stopping.set())

    def say(self, facts: dict[str, Any], line: str) -> None:
        print(json.dumps(facts) if self._progress == "json" else line, flush=True)

    def report(self, report: BatchReport) -> None:
        """Called behind every batch that had changes."""
        self._commit_lsn = max(self._commit_lsn, report.commit_lsn)
        lsn = format_lsn(report.commit_lsn)
        facts = {**asdict(report), "commit_lsn": lsn, "seconds": round(report.seconds, 3)}
        tables = ", ".join(f"{name} {changes:,}" for name, changes in report.tables.items())
        counts = f"{report.transactions:,} transactions, {report.changes:,} changes"
        self.say(facts, f"batch {report.batch}: {counts} to {lsn} in {report.seconds:.1f} s ({tables})")

    def wait_for_topic(self) -> None:
        """The gateway makes the topics at its first start, which may be after ours."""
        told = False
        while not self.stopping.is_set():
            try:
                self._log.bounds(patience_s=0)
                return
            except SourceUnavailable as problem:
                if not told:
                    topic = self.options.marker_topic
                    self.say({"waiting": topic}, f"waiting for {topic}: {problem}")
                told = True
                self.stopping.wait(0.5)

    def keep_up(self, start: Callable[[], Any]) -> None:
        """Runs the query that `start` starts, and another one where Kafka or the registry was away for too long: it goes on
        at its checkpoint. Raises what else ends a query."""
        pause_s, reached = 1.0, self._commit_lsn
        while not self.stopping.is_set():
            try:
                self.watch(start())
                return
            except StreamingQueryException as problem:
                told = told_by(str(problem)) or ""
                if not told.startswith("SourceUnavailable"):
                    raise
            pause_s = 1.0 if self._commit_lsn > reached else min(2 * pause_s, _LONGEST_PAUSE_S)
            reached = self._commit_lsn
            self.say({"waiting_s": pause_s, "problem": told}, f"trying again in {pause_s:g} s: {told}")
            self.stopping.wait(pause_s)

    def watch(self, query: Any) -> None:
        """Until the query ends, a signal comes, or everything up to `until_lsn` is written. Raises the query's own error."""
        self.say({"ready": True}, "reading")
        while not query.awaitTermination(_LOOK_EVERY_S):
            if self.stopping.is_set() or self._is_done(query.lastProgress):
                query.stop()
                return

    def _is_done(self, progress: Any) -> bool:
        position = self._catch_up(progress)
        if self._until_lsn is None:
            return False
        return self._commit_lsn >= self._until_lsn or self._is_delivered_beyond(self._until_lsn, position)

    def _catch_up(self, progress: Any) -> int | None:
        """Position of the last batch; transactions that had no change to write count too."""
        end = json.loads(progress.sources[0].endOffset) if progress is not None and progress.sources else None
        if not isinstance(end, dict):
            return None
        if end["commit_lsn"] > self._commit_lsn:
            self.report(BatchReport(progress.batchId, end["commit_lsn"], 0, 0, {}, 0.0))
        return int(end["position"])

    def _is_delivered_beyond(self, lsn: int, position: int | None) -> bool:
        """The gateway has delivered everything up to `lsn`, and no transaction of it waits for us."""
        if time.monotonic() < self._asked + _ASK_EVERY_S:
            return False
        self._asked = time.monotonic()
        try:
            if resume_lsn(self.options, self._schemas) < lsn:
                return False
            end = self._log.bounds()[1]
            start = resolve(self.options.starting, self._log) if position is None else position
            return self._log.first_between(start, end) is None
        except SourceUnavailable:
            return False


def resume_lsn(options: Options, schemas: SchemaCache) -> int:
    """How far the gateway of this prefix has delivered, from its durable position; -1: no position. Raises SourceUnavailable."""
    found = -1
    low, high = options.broker.offsets(POSITION_TOPIC)
    for _, values in options.broker.read(POSITION_TOPIC, 0, low, high - 1, skip_tombstones=True):
        for value in values.to_pylist():
            position = _decode_position(value, schemas)
            if position["prefix"] == options.prefix:
                found = int(position["resume_lsn"])
    return found


def _decode_position(value: bytes, schemas: SchemaCache) -> Any:
    writer = schemas[int.from_bytes(value[1:FRAME_BYTES], "big")]
    return fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), writer, POSITION)
