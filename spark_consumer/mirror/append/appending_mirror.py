"""Mirror that appends each batch at once and merges it into the tables later, in another thread.

A batch with new rows is one commit to `changes`, however many tables it has; nothing is decoded or
folded for it. Every `merge_every_s` seconds the merges beside the batches (background_merges.py)
apply the appended changes to the tables, reading them from `changes` instead of Kafka.
`versions.read` combines the tables with the changes that are not merged yet. The merges also apply
the changes that an earlier run has left, so that the first batch does not wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.jvm import cloned
from spark_consumer.mirror import changes, table_selection, version_manifest, writer_epoch
from spark_consumer.mirror.append.appended_batch import AppendedBatch, summary_of
from spark_consumer.mirror.merge.background_merges import BackgroundMerges
from spark_consumer.mirror.merge.merger import Merger
from spark_consumer.mirror.paths import APPENDED_FORMAT, changes_path
from spark_consumer.mirror.progress_lines import ProgressListener, ignore_progress, report_progress, task_share
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.retention import RETENTION_S
from spark_consumer.mirror.slice_contents import is_mark, marks_in, split_by_chunks
from spark_consumer.mirror.spark_settings import tune, use_pool
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_states import TableStates, verified_chunks
from spark_consumer.mirror.tables.catalog import Catalog
from spark_consumer.mirror.tables.prepare_table import EMPTY
from spark_consumer.output_position import OutputPosition, running_query, write_position
from spark_consumer.reader.registry import Schema
from spark_consumer.reader.topics import check_table
from spark_consumer.tables import TableName

_POOL = "batches"


@dataclass
class AppendingMirror:
    """Mirror that is written batch by batch: `open` is called before the first batch, `apply` is
    the function for foreachBatch, and `finish` is called after the last batch. `path`, `schemas`,
    `report`, `tables`, `exclude`, `on_recreated`, `deletion_vectors`, `strict` and `catalog`: as
    for merger.Merger.

    `merge_every_s`: seconds from one merge to the next; None: see MergeThread; 0: each batch waits
    until it is merged, unless `walgate merge` has the merges; infinity: only `finish` or another
    process merges. `retention_s`: seconds for which versions of the mirror can be read, at any
    commit LSN.
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
    working: ProgressListener = ignore_progress  # called during a long batch or merge
    merged: Callable[[], None] = lambda: None  # called after each background merge: see MergeThread
    _merges: BackgroundMerges = field(init=False)
    _known: set[str] = field(default_factory=set, init=False)  # names of the tables in the mirror
    _appended: int = field(default=-1, init=False)
    _epoch: int = field(default=0, init=False)
    _is_unsure: bool = field(default=False, init=False)  # whether the last batch failed, and may have been appended

    def __post_init__(self) -> None:
        self._merges = BackgroundMerges(
            self._new_merger, self.merge_every_s, self.retrying, self.handed_over, self.merged
        )

    def _new_merger(self, schemas: dict[int, Schema]) -> Merger:
        return Merger(
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
        """Append a batch, which has the columns of frames.RAW and consists of whole transactions.
        Raises MirrorError, or the error that ended the merges.

        After a batch that failed, a new query may continue with the same mirror. A running merge
        continues meanwhile.
        """
        self.check()
        began = time.monotonic()
        spark = raw.sparkSession
        if self._merges.session is None:
            self._open(spark)
        elif self._is_unsure:
            self._look_again(spark)
        self._is_unsure = True  # until this batch has ended
        # Compaction is left to the merges, so that batches do not wait for it.
        tune(spark, TABLE_FORMAT.session_defaults(compacts=False))
        use_pool(spark, _POOL)
        rows = raw.where(f.col("table").isNotNull() | is_mark()).select(*changes.COLUMNS).persist()
        try:
            with report_progress(self.working, f"micro-batch {batch}", task_share(spark), lambda: None):
                new, found = rows, summary_of(rows)
                if found is not None and found.size.first_lsn <= self.reached_lsn:
                    new = self._new_rows(rows, found)
                    found = summary_of(new)
                if found is not None and self._late(found):
                    new = self._without_compared(new, raw)
                    found = summary_of(new)
                if found is not None:
                    self._append(new, found, batch, began)
                else:
                    write_position(spark, self.path, OutputPosition(running_query(spark), batch))
        except TABLE_FORMAT.TAKEN_OVER as problem:
            raise writer_epoch.taken_over(self.path) from problem
        finally:
            rows.unpersist()
        self._is_unsure = False
        if self.merge_every_s == 0 and self.reached_lsn > self._merges.merger.merged_lsn:
            self._merges.thread.merge_now()

    def check(self) -> None:
        """Raise the error that ended the merges. `apply` does so too, but it is not called while
        nothing arrives. This may be called from any thread."""
        self._merges.thread.check()

    def open(self, spark: SparkSession) -> None:
        """Take over the mirror, and start the merges, of which the first applies at once what an
        earlier run has left. Do nothing if there is no mirror yet, or this has been done. Without
        this call, the first batch does it, which Spark starts only when the source commits. Raises
        MirrorError."""
        if self._merges.session is None and TABLE_FORMAT.exists(spark, changes_path(self.path)):
            self._open(spark)

    def _open(self, spark: SparkSession) -> None:
        """Take over the mirror, and start the merges."""
        session = self._take_over(spark)
        self._merges.start(session, self._epoch, self._appended)

    def _take_over(self, spark: SparkSession) -> SparkSession:
        """Take over the mirror. Return the session for the merges."""
        session = cloned(spark)  # of its own, since `once` changes settings for all writes of a session
        tune(session, TABLE_FORMAT.session_defaults(compacts=True))
        writer_epoch.check_format_version(session, self.path)
        merger = self._merges.merger
        last = merger.newest.read(session)
        merger.check_scope(session, last)
        changes.create(session, self.path)
        self._epoch = writer_epoch.claim_appends(session, self.path, changes.no_rows(session))
        writer_epoch.note_format_version(session, self.path, APPENDED_FORMAT, version_manifest.no_rows(session))
        merger.note_options(session)
        merger.schemas.update(changes.kept_schemas(session, self.path))
        self._merges.open(session)
        last = last if merger.last is None else merger.last
        self._appended = changes.appended_lsn(session, self.path)
        self._known = {*last.tables, *last.oids} if last is not None else set()  # `tables` lacks former names
        self._known |= self._waiting_tables(session, -1 if last is None else last.commit_lsn)
        self._merges.has_first = last is not None
        if last is not None:  # a merge compares the tables' present schemas with those of new changes
            self._keep_schemas(session, sorted({*last.schema_ids.values()}))
        return session

    def _look_again(self, spark: SparkSession) -> None:
        """Read what was appended: the last batch may have failed after its commit."""
        writer_epoch.check_appends(spark, self.path, self._epoch)
        before_lsn, self._appended = self._appended, changes.appended_lsn(spark, self.path)
        self._known |= self._waiting_tables(spark, before_lsn)
        if self._appended > before_lsn and self._merges.merges_here:
            self._merges.thread.want(at_once=True)

    def _waiting_tables(self, spark: SparkSession, after_lsn: int) -> set[str]:
        """Return the names of the tables that have changes after `after_lsn`."""
        if self._appended <= after_lsn:
            return set()
        rows, _ = changes.unmerged(spark, self.path, after_lsn, self._appended)
        return set() if rows is None else changes.table_names(rows)

    @property
    def reached_lsn(self) -> int:
        """Commit LSN up to which the mirror has all changes, merged or not."""
        return max(self._appended, self._merges.merger.merged_lsn)

    def _new_rows(self, rows: DataFrame, found: AppendedBatch) -> DataFrame:
        """Return the rows that the mirror does not have. A new checkpoint may start at an earlier
        offset, so rows up to `reached_lsn` are dropped. Those of tables that are new to the mirror
        stay: `_append` raises an error for these."""
        known = f.col("table").isin([name for name in found.tables if name in self._known])
        return rows.where((f.col("commit_lsn") > self.reached_lsn) | ~(known | is_mark()))

    def _late(self, found: AppendedBatch) -> list[str]:
        """Return the tables that are new to the mirror although it is already past their first
        rows."""
        return [name for name, lsn in found.first_lsns.items() if name not in self._known and lsn <= self.reached_lsn]

    def _without_compared(self, rows: DataFrame, raw: DataFrame) -> DataFrame:
        """Return the rows without those up to `reached_lsn` that a VERIFY has read. A batch that is
        repeated has these rows again, and a table that has no other rows is not in the mirror.
        `raw`: the batch with all its table marks."""
        passed = [mark for mark in verified_chunks(marks_in(raw)) if mark.commit_lsn <= self.reached_lsn]
        return split_by_chunks(rows, passed)[1] if passed else rows

    def _append(self, rows: DataFrame, found: AppendedBatch, batch: int, began: float) -> None:
        if late := self._late(found):
            raise table_selection.too_late_error(late[0], self.path, self.reached_lsn)
        spark = rows.sparkSession
        for table, schema_id in found.versions:
            kept = self._merges.merger.schemas.get(schema_id)
            check_table(TableName.parse(table), schema_id, self.schemas[schema_id] if kept is None else kept)
        self._keep_schemas(spark, [schema_id for _, schema_id in found.versions])
        writer_epoch.check_appends(spark, self.path, self._epoch, self._appended)
        changes.append(rows, self.path, found.size, writer_epoch.expected_epoch(self._epoch))
        self._appended = found.last_lsn
        self._known.update(found.tables)
        self._report_batch(found, batch, time.monotonic() - began)
        self._merges.note_batch(batch, found.size.changes, ends_snapshot=bool(found.ends))

    def _keep_schemas(self, spark: SparkSession, schema_ids: Sequence[int]) -> None:
        kept = self._merges.merger.schemas
        new = {schema_id: self.schemas[schema_id] for schema_id in schema_ids if schema_id not in kept}
        if new:
            changes.keep_schemas(spark, self.path, new, new)
            kept.update(new)

    def _report_batch(self, found: AppendedBatch, batch: int, seconds: float) -> None:
        last = self._merges.last
        states = None if last is None else TableStates.of(last.table_states)
        self.report(
            BatchReport(
                batch,
                found.last_lsn,
                found.transactions,
                found.size.changes,
                dict(found.tables),
                seconds,
                commit_time=found.commit_time,
                stale=0 if states is None or last is None else len(states.stale(last.complete)),
                filling=0 if states is None else len(states.filling),
            )
        )

    def stop(self) -> None:
        """Wait for the running merge, without raising its error."""
        self._merges.thread.end()

    def finish(self, spark: SparkSession, *, merge: bool) -> None:
        """Wait for the running merge, then, if `merge`, merge everything that was appended, unless
        `walgate merge` has the merges (BackgroundMerges.finish). Without `merge`, as after a
        signal, the next run or `walgate merge` merges the rest. Raises MirrorError."""
        self._merges.thread.end()
        self.check()
        if not merge or (self._merges.session is None and not TABLE_FORMAT.exists(spark, changes_path(self.path))):
            return
        self._merges.finish(self._merges.session or self._take_over(spark))
