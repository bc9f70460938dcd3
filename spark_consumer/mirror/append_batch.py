"""Mirror that appends each batch at once and merges it into the tables later, in another thread.

A batch is one Delta commit to `changes`, however many tables it has; nothing is decoded or folded
for it. Every `merge_every_s` seconds the merge thread applies what was appended to the tables
(merge_batch.Mirror), reading it from `changes` instead of Kafka. `versions.read` combines both. The
merge thread also merges what an earlier run has left, so that the first batch does not wait for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.errors import MirrorError
from spark_consumer.jvm import cloned
from spark_consumer.mirror import changes, manifest, table_selection, writer_epoch
from spark_consumer.mirror.batch_contents import BatchSize
from spark_consumer.mirror.delta.catalog import Catalog
from spark_consumer.mirror.delta.delta_table import exists
from spark_consumer.mirror.delta.prepare_table import EMPTY
from spark_consumer.mirror.merge_batch import TABLES_AT_ONCE, Mirror
from spark_consumer.mirror.merge_thread import RETENTION_S, MergeThread
from spark_consumer.mirror.paths import APPENDED_FORM, changes_path, manifest_path
from spark_consumer.mirror.progress import Told, task_share, told_every, told_nothing
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.spark_settings import NO_SETTINGS, settings, tasks, tune, use_pool
from spark_consumer.mirror.table_states import TableStates
from spark_consumer.reader.registry import Schema
from spark_consumer.reader.table_marks import KINDS, SNAPSHOT_END
from spark_consumer.tables import TableName

# With this many unmerged changes, merge at once, even while more of a backlog is being read.
MANY_CHANGES = 10_000_000
# A batch of at least this many changes is part of a backlog.
BACKLOG_CHANGES = 250_000
_POOL = "batches"
_LOOK_AGAIN_S = 1.0  # least time between checks whether `walgate merge` has ended


@dataclass(frozen=True, slots=True)
class Taken:
    """State of a mirror: it has all changes up to `commit_lsn`, and those up to `merged_lsn` (0:
    none) are merged into the tables. `stale`, `filling`: numbers of tables."""

    commit_lsn: int
    merged_lsn: int
    commit_time: datetime | None
    stale: int
    filling: int


@dataclass
class AppendingMirror:
    """Mirror that is written batch by batch: `apply` is the function for foreachBatch, and `finish`
    is called after the last batch. Most fields are those of merge_batch.Mirror.

    `merge_every_s`: seconds from one merge to the next; None: see MergeThread; 0: each batch waits
    until it is merged; infinity: only `finish` or another process merges. `retention_s`: seconds
    for which versions of the mirror can be read, at any commit LSN.
    """

    path: str
    schemas: dict[int, Schema]
    report: Callable[[BatchReport], None] = lambda _: None
    tables: Sequence[TableName] = ()
    exclude: Sequence[str] = ()
    on_recreated: str = EMPTY
    deletion_vectors: bool = True
    strict: bool = False
    retention_s: float = RETENTION_S
    catalog: Catalog | None = None
    merge_every_s: float | None = None
    retrying: Callable[[Exception, float], None] = lambda _problem, _pause_s: None  # before a merge is retried
    handed_over: Callable[[], None] = lambda: None  # called when `walgate merge` has taken over the merges
    working: Told = told_nothing  # called during a long batch or merge
    _merger: Mirror = field(init=False)
    _merging: MergeThread = field(init=False)
    _session: SparkSession | None = field(default=None, init=False)  # session of the merges
    _known: set[str] = field(default_factory=set, init=False)  # names of the tables in the mirror
    _appended: int = field(default=-1, init=False)
    _epoch: int = field(default=0, init=False)
    _batch: int = field(default=0, init=False)
    _waiting: int = field(default=0, init=False)  # number of unmerged changes
    _was_large: bool = field(default=False, init=False)  # whether the last batch had BACKLOG_CHANGES
    _has_backlog: bool = field(default=False, init=False)  # whether any unmerged batch was large
    _has_first: bool = field(default=False, init=False)  # whether there is a version, or its merge was requested
    _is_handed_over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._merger = self._new_merger({})
        self._merging = MergeThread(self._merge_beside, self.merge_every_s, self.retrying)

    def _new_merger(self, schemas: dict[int, Schema]) -> Mirror:
        return Mirror(
            self.path,
            schemas,
            self.report,
            self.tables,
            self.exclude,
            self.on_recreated,
            self.deletion_vectors,
            self.strict,
            self.retention_s,
            self.catalog,
            working=self.working,
        )

    def apply(self, raw: DataFrame, batch: int) -> None:
        """Append a batch, in the columns of frames.RAW and of whole transactions. Raise
        MirrorError, also for an error that ended the merges."""
        self.check()
        began = time.monotonic()
        if self._session is None:
            self._open(raw.sparkSession)
            self._start_merges()
        tune(raw.sparkSession, compacts=False)  # compaction is left to the merges, so that batches do not wait for it
        use_pool(raw.sparkSession, _POOL)
        rows = self._new_rows(raw).select(*changes.COLUMNS).persist()
        try:
            with told_every(self.working, f"micro-batch {batch}", task_share(raw.sparkSession), lambda: None):
                found = contents(rows)
                if found[-1]["rows"]:
                    self._append(rows, found, batch, began)
        except writer_epoch.CONFLICTS as problem:
            raise writer_epoch.taken_over(self.path) from problem
        finally:
            rows.unpersist()
        if self.merge_every_s == 0 and self.taken_lsn > self._merger.merged_lsn:
            self._merging.merge_now()

    def check(self) -> None:
        """Raise the error that ended the merges. `apply` does so too, but is not called while
        nothing arrives. May be called from any thread."""
        self._merging.check()

    def _open(self, spark: SparkSession) -> SparkSession:
        """Take over the mirror. Return the session for the merges."""
        session = cloned(spark)  # of its own, since `once` changes settings for all writes of a session
        tune(session, compacts=True)
        writer_epoch.check_form(session, self.path)
        last = manifest.picture(session, self.path)
        self._merger.check_scope(session, last)
        changes.create(session, self.path)
        self._epoch = writer_epoch.claim_appends(session, self.path, changes.nothing(session))
        writer_epoch.note_form(session, self.path, APPENDED_FORM, manifest.nothing(session))
        self._merger.note_options(session)
        if self._merges:
            self._merger.open(session)
            last = self._merger.last
        self._appended = changes.appended_lsn(session, self.path)
        self._merger.schemas.update(changes.kept_schemas(session, self.path))
        self._known = set(last.tables) if last is not None else set()
        self._known |= self._waiting_tables(session, -1 if last is None else last.commit_lsn)
        self._has_first = last is not None
        if last is not None:  # a merge compares the tables' present schemas with those of new changes
            self._keep_schemas(session, sorted({*last.schema_ids.values()}))
        self._session = session
        return session

    def _start_merges(self) -> None:
        if self._merges and self._appended > self._merger.merged_lsn:
            self._merging.want(at_once=True)
        self._merging.start()

    def _waiting_tables(self, spark: SparkSession, behind_lsn: int) -> set[str]:
        """Return the names of the tables that have unmerged changes."""
        if self._appended <= behind_lsn:
            return set()
        rows, _ = changes.waiting(spark, self.path, behind_lsn, self._appended)
        return set() if rows is None else changes.table_names(rows)

    @property
    def _merges(self) -> bool:
        return self.merge_every_s is None or math.isfinite(self.merge_every_s)

    @property
    def taken_lsn(self) -> int:
        """Commit LSN up to which the mirror has all changes, merged or not."""
        return max(self._appended, self._merger.merged_lsn)

    def _new_rows(self, raw: DataFrame) -> DataFrame:
        """Return the rows that the mirror does not have. A new checkpoint may start at an earlier
        offset, so rows up to `taken_lsn` are dropped, except those of tables that are new to the
        mirror: `_append` raises an error for these."""
        is_sign = f.col("op").isin(list(KINDS))
        known = f.col("table").isin(list(self._known)) | is_sign
        raw = raw.where(f.col("table").isNotNull() | is_sign)
        return raw.where(~known | (f.col("commit_lsn") > self.taken_lsn))

    def _append(self, rows: DataFrame, found: list[dict[str, Any]], batch: int, began: float) -> None:
        total, parts = found[-1], [part for part in found[:-1] if part["changes"]]
        late = [part["table"] for part in parts if part["table"] not in self._known and part["first"] <= self.taken_lsn]
        if late:
            raise table_selection.too_late(late[0], self.path, self.taken_lsn)
        spark = rows.sparkSession
        self._keep_schemas(spark, total["schema_ids"])
        writer_epoch.check_appends(spark, self.path, self._epoch, self._appended)
        size = BatchSize(
            total["changes"], total["rows"] - total["changes"], total["value_bytes"], total["first"], total["last"]
        )
        changes.append(rows, self.path, size, writer_epoch.held(self._epoch))
        self._appended, self._batch = total["last"], batch
        self._known.update(part["table"] for part in parts)
        self._waiting += total["changes"]
        tables = {part["table"]: part["changes"] for part in sorted(parts, key=lambda part: -part["changes"])}
        self._report_batch(total, tables, time.monotonic() - began)
        if self._merges and self.merge_every_s != 0:
            self._want_merge(total["changes"], ends_snapshot=bool(total["ends"]))

    def _want_merge(self, changes_now: int, *, ends_snapshot: bool) -> None:
        """Request a merge after a batch of `changes_now` changes.

        A backlog is merged after its last batch: one large merge costs less than several, and
        batches need the cores. The end of a snapshot is merged at once, since only a merge applies
        and reports it. So is the first batch of a new mirror, which can then soon be read by its
        first version.
        """
        was_large, self._was_large = self._was_large, changes_now >= BACKLOG_CHANGES
        self._has_backlog |= self._was_large
        if ends_snapshot or self._waiting >= MANY_CHANGES:
            self._merging.want(at_once=True)
        elif self._was_large:
            self._merging.postpone()
        else:
            self._merging.want(at_once=was_large or not self._has_first)
            self._has_first = True

    def _keep_schemas(self, spark: SparkSession, schema_ids: Sequence[int]) -> None:
        kept = self._merger.schemas
        new = {schema_id: self.schemas[schema_id] for schema_id in schema_ids if schema_id not in kept}
        if new:
            changes.keep_schemas(spark, self.path, new, new)
            kept.update(new)

    def _report_batch(self, total: dict[str, Any], tables: dict[str, int], seconds: float) -> None:
        last = self._merger.last
        standing = None if last is None else TableStates.of(last.standing)
        self.report(
            BatchReport(
                self._batch,
                total["last"],
                total["transactions"],
                total["changes"],
                tables,
                seconds,
                commit_time=total["commit_time"] and total["commit_time"].astimezone(UTC),
                stale=0 if standing is None or last is None else len(standing.stale(last.complete)),
                filling=0 if standing is None else len(standing.filling),
            )
        )

    def _merge_beside(self) -> None:
        """Merge while batches run. Batches need cores too, so merges get half of the cores, and
        write at most one table for each of them, unless a backlog has just been read. The cores are
        counted for each merge, since executors may have been added."""
        assert self._session is not None
        if self._has_backlog or self.merge_every_s == 0:
            self._merge(TABLES_AT_ONCE)
        else:
            half = max(1, self._session.sparkContext.defaultParallelism // 2)
            self._merge(min(TABLES_AT_ONCE, half), tasks(half))

    def _merge(self, tables_at_once: int, own: Mapping[str, str] = NO_SETTINGS) -> None:
        """Merge, then do maintenance. While `walgate merge` has taken over the merges, do nothing.
        `own`: settings for the session of the merges."""
        assert self._session is not None
        self._waiting, self._has_backlog = 0, False
        with settings(self._session, own):
            try:
                self._merger.tables_at_once = tables_at_once
                self._merger.merge_waiting(self._session, self._batch)
            except writer_epoch.WriterSuperseded:
                if not self._merges_again(self._session, tables_at_once):
                    return
        self._merger.keep_up(self._session, self._batch, compacts=True)

    def _merges_again(self, spark: SparkSession, tables_at_once: int) -> bool:
        """Return whether the merges were taken back from a `walgate merge` that has ended. If so,
        everything appended has been merged."""
        while self._is_given_back(spark):
            merger = self._new_merger(self._merger.schemas)
            merger.tables_at_once = tables_at_once
            with suppress(writer_epoch.WriterSuperseded):  # raised if the next `walgate merge` has taken over
                merger.open(spark)
                merger.merge_waiting(spark, self._batch)
                self._merger, self._is_handed_over = merger, False
                return True
        if not self._is_handed_over:
            self._is_handed_over = True
            self.handed_over()
        self._merging.postpone(_LOOK_AGAIN_S)
        return False

    def _is_given_back(self, spark: SparkSession) -> bool:
        """Return whether `walgate merge` has given the merges back. Raise WriterSuperseded if
        another writer has taken over the appends."""
        writer_epoch.check_appends(spark, self.path, self._epoch)
        return writer_epoch.is_given_back(spark, self.path)

    def stop(self) -> None:
        """Wait for the running merge, without raising its error: the caller opens the mirror
        again."""
        self._merging.end()

    def finish(self, spark: SparkSession, *, merge: bool) -> None:
        """Wait for the running merge, then, if `merge`, merge everything that was appended. Raise
        MirrorError."""
        self._merging.end()
        self.check()
        if not merge or (self._session is None and not exists(spark, changes_path(self.path))):
            return
        session = self._session or self._open(spark)
        if not self._merges:
            self._merger.open(session)
        self._merge(TABLES_AT_ONCE)


def contents(rows: DataFrame) -> list[dict[str, Any]]:
    """Summarize the rows of a batch: one dictionary for each table (None: rows of no table) with
    its number of changes and first commit LSN, and last, one for the whole batch with counts, bytes
    of values, first and last commit LSN, last commit time, schema ids and the number of snapshot
    ends."""
    is_sign = f.col("op").isin(list(KINDS))
    found = (
        rows.groupBy("table", "schema_id", "commit_lsn")
        .agg(
            f.count("*").alias("rows"),
            f.count_if(~is_sign).alias("changes"),
            f.count_if(f.col("op") == SNAPSHOT_END).alias("ends"),
            f.sum(f.length("value")).alias("value_bytes"),
            f.max("commit_time").alias("commit_time"),
        )
        .toArrow()
    )
    if not len(found):
        return [{"rows": 0}]
    tables = found.group_by("table").aggregate([("changes", "sum"), ("commit_lsn", "min")])
    parts = tables.rename_columns({"changes_sum": "changes", "commit_lsn_min": "first"}).to_pylist()
    changed = found.filter(pc.greater(found["changes"], 0))
    total = {
        **{name: pc.sum(found[name]).as_py() for name in ("rows", "changes", "ends")},
        "value_bytes": pc.sum(found["value_bytes"]).as_py() or 0,
        "first": pc.min(found["commit_lsn"]).as_py(),
        "last": pc.max(found["commit_lsn"]).as_py(),
        "commit_time": pc.max(found["commit_time"]).as_py(),
        "schema_ids": pc.unique(found["schema_id"].drop_null()).to_pylist(),
        "transactions": pc.count_distinct(changed["commit_lsn"]).as_py(),
    }
    return [*parts, total]


def merge_once(
    spark: SparkSession,
    path: str,
    report: Callable[[BatchReport], None],
    retention_s: float | None = None,
    catalog: Catalog | None = None,
    working: Told = told_nothing,
) -> int | None:
    """Merge everything appended, with the options of the mirror, and remove what is older than the
    retention (None: that of the mirror).

    Return the commit LSN that the tables have reached, or None if nothing was ever appended. Raise
    MirrorError.
    """
    last = manifest.picture(spark, path)
    if last is None and not exists(spark, changes_path(path)):
        raise MirrorError(f"there is no mirror at {path}, or it has no micro-batch yet")
    noted = manifest.noted_options(spark, path)
    tables = noted.get("tables", last.scope if last is not None else [])
    excludes = noted.get("exclude", TableStates.of(last.standing).excludes if last is not None else [])
    merger = Mirror(
        path,
        {},
        report,
        [TableName.parse(name) for name in tables],
        excludes,
        noted.get("on_recreated", EMPTY),
        noted.get("deletion_vectors", True),
        noted.get("strict", False),
        noted.get("retention_s", RETENTION_S) if retention_s is None else retention_s,
        catalog,
        working=working,
    )
    try:
        merger.open(spark)
        merger.merge_waiting(spark, last_lsn=merger.opened_lsn)
        merger.upkeep.compact(spark)
        merger.upkeep.compact_tables(spark)
        merger.upkeep.remove(spark)
    finally:
        merger.give_back(spark)
    return None if merger.last is None else merger.last.commit_lsn


def taken_in(spark: SparkSession, path: str) -> Taken | None:
    """Return what a mirror contains, or None if it has no changes. Raise MirrorError."""
    writer_epoch.check_form(spark, path)
    last = manifest.picture(spark, path) if exists(spark, manifest_path(path)) else None
    appended_lsn = changes.appended_lsn(spark, path)
    merged_lsn = -1 if last is None else last.commit_lsn
    commit_lsn = max(appended_lsn, merged_lsn)
    if commit_lsn == -1:
        return None
    commit_time = None if last is None else last.commit_time
    if appended_lsn > merged_lsn:
        commit_time = changes.last_time(spark, path, merged_lsn) or commit_time
    standing = TableStates.of(None if last is None else last.standing)
    stale = 0 if last is None else len(standing.stale(last.complete))
    time_utc = None if commit_time is None else commit_time.astimezone(UTC)  # a Row has local times
    return Taken(commit_lsn, max(merged_lsn, 0), time_utc, stale, len(standing.filling))
