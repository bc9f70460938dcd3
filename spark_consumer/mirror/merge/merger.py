"""Merge what was appended to a mirror's `changes` into its tables: whole transactions, in slices
(merge_slices.py). The changes of a slice are one commit of each table, then one version of the
mirror. A change of a table's columns or key may be a commit of its own before that of the table.
Surplus rows of a REPLACE are deleted in a commit after it, as are the rows of a former relation if
a FILL has found the new one empty.

A merge can be repeated after a crash: each table notes the commit LSN up to which it has changes,
and takes only later ones (tables/prepare_table.py, delta/delta_write.py). If a table was written,
the slice ends where it ended before; otherwise it is cut anew (merge_slices.py).
tables/write_table.py does the writes; version_manifest.py defines what readers see meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from schemas.lsn import format_lsn
from schemas.topic_names import counted
from spark_consumer.errors import MirrorError
from spark_consumer.jvm import remove_folder
from spark_consumer.mirror import (
    changes,
    snapshot_keys,
    table_selection,
    table_snapshots,
    version_manifest,
    writer_epoch,
)
from spark_consumer.mirror.changes import COLUMNS
from spark_consumer.mirror.fold.replica_identity import RelationNames
from spark_consumer.mirror.maintenance import Maintenance
from spark_consumer.mirror.merge.merge_slices import persisted, slices
from spark_consumer.mirror.paths import changes_path, seen_path, table_path
from spark_consumer.mirror.progress_lines import ChangeCount, ProgressListener, ignore_progress, report_progress
from spark_consumer.mirror.report import BatchReport, notes_of
from spark_consumer.mirror.retention import RETENTION_S
from spark_consumer.mirror.slice_contents import (
    BatchContent,
    BatchSize,
    BatchSlice,
    TablePart,
    as_arrow_if_small,
    batch_size,
    empty_relations,
    own_records,
)
from spark_consumer.mirror.spark_settings import settings, tune
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_states import REPLACE, SnapshotWindow, TableStates, advance, unfinished
from spark_consumer.mirror.tables.catalog import Catalog
from spark_consumer.mirror.tables.prepare_table import EMPTY, TablePreparation
from spark_consumer.mirror.tables.table_schemas import TableSchemas
from spark_consumer.mirror.tables.write_table import TableWork, write
from spark_consumer.reader.registry import Schema
from spark_consumer.tables import TableName

TABLES_AT_ONCE = 2
_ATTEMPTS = 3
_CHECK_EVERY_S = 1.0


@dataclass
class Merger:
    """Merge what AppendingMirror, in this process or another one, has appended. Only one process
    merges at a time (writer_epoch.py).

    `schemas`: value schemas of all changes appended so far; if it is empty, `open` reads them.
    `tables`, `exclude`: the same as the options of the reader, a selection that cannot be widened
    later. `on_recreated`: what to do with the old rows of a table that was dropped and recreated,
    if no event has removed them: EMPTY removes them, KEEP_AS also keeps a copy, STOP is an error.
    Such rows are an error under every option if the mirror knows the new relation by another name,
    or the relation had this name before. `deletion_vectors`: whether new tables get them. `strict`:
    whether doubts are errors, and not only reported. Doubts are a changed type of a column, unknown
    values of a column in old rows, a renamed table, and values that a row with a new key lacks.
    `retention_s`: seconds for which versions of the mirror can be read. `catalog`: registers the
    tables under names. `tables_at_once`: number of tables that are written at the same time.
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
    tables_at_once: int = TABLES_AT_ONCE
    working: ProgressListener = ignore_progress  # called during a long merge
    last: version_manifest.RecordedVersion | None = field(default=None, init=False)
    opened_lsn: int = field(default=-1, init=False)  # commit LSN up to which changes had been appended at `open`
    maintenance: Maintenance = field(init=False)
    newest: version_manifest.NewestVersion = field(init=False)
    _states: TableStates = field(default_factory=TableStates, init=False)
    _shapes: TableSchemas = field(init=False)
    _preparation: TablePreparation = field(init=False)
    _epoch: int = field(default=0, init=False)
    _checked_at: float = field(default=0.0, init=False)  # when the epoch was last checked; monotonic clock
    _notes: list[str] = field(default_factory=list, init=False)  # for the next report
    _may_be_interrupted: bool = field(default=True, init=False)  # whether the last slice may be merged in part
    _count: ChangeCount = field(default_factory=ChangeCount, init=False)  # progress of the running merge

    def __post_init__(self) -> None:
        self.maintenance = Maintenance(self.path, self.retention_s)
        self.newest = version_manifest.NewestVersion(self.path)
        self._shapes = TableSchemas(self.schemas)
        self._preparation = TablePreparation(
            self.path, self._shapes, self.on_recreated, self.deletion_vectors, self.strict
        )

    def maintain(self, spark: SparkSession, batch: int, *, compacts: bool = False) -> None:
        """Remove what is older than the retention, if that is due; if `compacts`, also compact
        `changes`. Errors are only reported: see Maintenance.run_if_due."""
        if self.last is not None:
            self._report_notes(self.maintenance.run_if_due(spark, self.last.tables, compacts=compacts), batch)

    def _report_notes(self, notes: Sequence[str], batch: int = 0) -> None:
        """Report notes outside the report of a merge."""
        if notes and self.last is not None:
            states, stale = self._states, len(self._states.stale(self.last.complete))
            self.report(
                BatchReport(
                    *(batch, self.last.commit_lsn, 0, 0, {}, 0.0),
                    notes=tuple(notes),
                    stale=stale,
                    filling=len(states.filling),
                    is_merge=True,
                )
            )

    def merge_waiting(self, spark: SparkSession, batch: int = 0, last_lsn: int | None = None) -> None:
        """Merge what was appended to `changes` since the last merge, up to `last_lsn` (None:
        everything). Raises MirrorError."""
        after_lsn = self.merged_lsn
        if last_lsn is None:
            last_lsn = changes.appended_lsn(spark, self.path)
        rows, size = changes.unmerged(spark, self.path, after_lsn, last_lsn) if last_lsn > after_lsn else (None, None)
        if rows is None:
            return
        writer_epoch.check(spark, self.path, self._epoch)  # before anything is read
        is_earlier = after_lsn < self.opened_lsn  # appended by a run that may have had tables that this one leaves out
        out = self._left_out(rows) if is_earlier and (self.tables or self.exclude) else []
        try:
            if out:
                wanted = rows.where(f.col("table").isNull() | ~f.col("table").isin(out))
                self._merge_rows(wanted.select(*COLUMNS), batch, None, last_lsn)
                self._pass_left_out(spark, rows, batch, last_lsn)
            else:
                self._merge_rows(rows.select(*COLUMNS), batch, size, last_lsn)
        except TABLE_FORMAT.TAKEN_OVER as problem:
            raise writer_epoch.taken_over(self.path) from problem
        if self.merged_lsn < last_lsn:
            reached = "nothing" if self.last is None else format_lsn(self.last.commit_lsn)
            raise MirrorError(
                f"changes up to {format_lsn(last_lsn)} were appended to {changes_path(self.path)}, but reading it gave "
                f"{reached}: the tables were not changed any further"
            )

    @property
    def merged_lsn(self) -> int:
        """Commit LSN of the last version; -1 if there is none."""
        return -1 if self.last is None else self.last.commit_lsn

    def _left_out(self, rows: DataFrame) -> list[str]:
        """Return the tables in these rows that are not in the selection (any more)."""
        names = changes.table_names(rows)
        out = sorted(name for name in names if not table_selection.is_selected(name, self.tables, self.exclude))
        notes = [f"{name} is left out: its changes that were waiting to be merged are not merged" for name in out]
        self._notes += [note for note in notes if note not in self._notes]  # a retry after an error finds the same ones
        return out

    def _pass_left_out(self, spark: SparkSession, rows: DataFrame, batch: int, last_lsn: int) -> None:
        """Record a version at `last_lsn` if the last rows belong to unwanted tables; all other rows
        are merged already."""
        found = rows.agg(f.max("commit_lsn").alias("lsn"), f.max("commit_time").alias("time")).head()
        reached = -1 if self.last is None else self.last.commit_lsn
        if found is not None and found["lsn"] == last_lsn > reached:
            time_utc = None if found["time"] is None else found["time"].astimezone(UTC)  # a Row has local times
            content = BatchContent(last_lsn, time_utc, 0, 0, [])
            self._apply_slice(spark, BatchSlice(batch, changes.no_rows(spark), {}, content, []), time.monotonic())

    def _merge_rows(self, rows: DataFrame, batch: int, size: BatchSize | None, last_lsn: int) -> None:
        """Merge `rows`, the wanted changes up to `last_lsn`, in slices that are cut before each is
        merged. `size`: None if it is not known.

        The rows are in files, and reading these again costs less than caching the rows, unless
        there may be many slices.
        """
        spark = rows.sparkSession
        tune(spark, TABLE_FORMAT.session_defaults())
        self._count = ChangeCount()
        if self._may_be_interrupted:
            self._preparation.forget()
        with report_progress(self.working, "merge", self._count.share, lambda: self._count.total or None):
            size = size or batch_size(rows)
            self._count.total = size.changes
            began = time.monotonic()
            with persisted(rows) if size.marks else nullcontext():
                for batch_slice in slices(
                    rows,
                    batch,
                    size,
                    last_lsn,
                    self._shapes,
                    lambda: (self._states, self.last, self.path),
                    partial(self._reached_lsn, spark),
                    keeps_former=self.on_recreated != EMPTY,
                ):
                    self._apply_slice(spark, batch_slice, began)
                    began = time.monotonic()

    def _reached_lsn(self, spark: SparkSession, parts: Iterable[TablePart]) -> int:
        """Return the last commit LSN that a table has reached, if the last slice may have been
        interrupted; otherwise -1."""
        if not self._may_be_interrupted:
            return -1
        tables = [part.table for part in parts]
        try:
            return self._preparation.reached_lsn(spark, tables)
        except TABLE_FORMAT.TAKEN_OVER:  # the former writer has written a table since the last look
            writer_epoch.check(spark, self.path, self._epoch)
            self._preparation.forget()
            return self._preparation.reached_lsn(spark, tables)

    def open(self, spark: SparkSession) -> None:
        """Take over the merges. Raises MirrorError if the mirror was created for other tables."""
        if self.catalog is not None:
            self.catalog.check(spark)
        tune(spark, TABLE_FORMAT.session_defaults(compacts=True))
        writer_epoch.check_format_version(spark, self.path)
        self.check_scope(spark, self.newest.read(spark))
        writer_epoch.claim(spark, self.path, version_manifest.no_rows(spark), self._note_epoch)
        # From here on, no other writer records a version.
        last = self.newest.read(spark)
        self.last = None if last is None else table_selection.without_left_out(last, self.tables, self.exclude)
        states = TableStates.of(None if last is None else last.table_states)
        self._states = table_selection.states_without_left_out(states, self.tables, self.exclude)
        snapshot_keys.remove_ended(
            spark, self.path, {name: each.begin_lsn for name, each in self._states.windows.items()}
        )
        self.opened_lsn = changes.appended_lsn(spark, self.path)
        self._may_be_interrupted = True
        if not self.schemas:
            self.schemas.update(changes.kept_schemas(spark, self.path))
        self._register(spark)
        self._report_notes(self._notes)
        self._notes.clear()

    def _note_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def check_writer(self, spark: SparkSession) -> None:
        """Raise WriterSuperseded if the merges do not belong to this writer."""
        writer_epoch.check(spark, self.path, self._epoch)

    def give_back(self, spark: SparkSession) -> None:
        """Return the merges to the mirror from which they were taken over."""
        if self._epoch:
            writer_epoch.give_back(spark, self.path, self._epoch, version_manifest.no_rows(spark))

    def check_scope(self, spark: SparkSession, last: version_manifest.RecordedVersion | None) -> None:
        """Raise MirrorError if the mirror was run for other tables before: see
        table_selection.check."""
        table_selection.check(
            last, version_manifest.noted_options(spark, self.path), self.path, self.tables, self.exclude
        )

    def note_options(self, spark: SparkSession) -> None:
        """Store the options in the manifest, before anything is appended: the next run cannot have
        more tables, and `walgate merge` has to merge as this mirror does."""
        options = {name: getattr(self, name) for name in ("on_recreated", "deletion_vectors", "strict", "retention_s")}
        options |= {"tables": [str(table) for table in self.tables], "exclude": list(self.exclude)}
        version_manifest.note_options(spark, self.path, options)

    def _apply_slice(self, spark: SparkSession, batch_slice: BatchSlice, began: float) -> None:
        """Apply a slice: note keys, write tables, and compare rows of a VERIFY. Delete surplus rows
        of an ended REPLACE, and those of a former relation after a FILL without rows. Write
        verdicts and, last, the version. A crash before that shows readers nothing of the slice; all
        steps can be repeated."""
        writer_epoch.check(spark, self.path, self._epoch)
        self._may_be_interrupted = True
        content = batch_slice.content
        known = {} if self.last is None else self.last.tables
        first_rows = content.first_rows(known, self._shapes.oid_of)
        states, ended = advance(self._states, batch_slice.marks, first_rows)
        for part in content.parts:
            states.thaw_former(str(part.table), self._shapes.oid_of(part.newest), part.last_lsn)
        over = unfinished(self._states, batch_slice.marks, first_rows)
        for snapshots in (states.windows, ended):
            table_snapshots.note_key_change(spark, self.path, self._shapes, batch_slice, snapshots)
        table_snapshots.store_seen_keys(spark, self.path, self._shapes, batch_slice, {**states.windows, **ended})
        self._preparation.check_left_alone(spark, map(TableName.parse, ended), self.last)
        if content.parts:
            self._preparation.lacking_rows = states.lacking_rows(str(part.table) for part in content.parts)
            self._write_tables(spark, batch_slice.changes, batch_slice.records, content)
        differences, unknown = table_snapshots.compare(spark, self.path, self._shapes, batch_slice, ended, self.last)
        check = partial(writer_epoch.check, spark, self.path, self._epoch)
        kept = [
            table_snapshots.end_replace(spark, self.path, self._shapes, batch_slice, name, window, self.last, check)
            for name, window in ended.items()
            if window.purpose == REPLACE
        ]
        oids = self._remove_former_rows(spark, batch_slice, ended, check)
        writer_epoch.check(spark, self.path, self._epoch)
        table_snapshots.write_verdicts(spark, self.path, batch_slice, ended, unknown)
        self._record(spark, batch_slice, states, ended, oids)
        self._register(spark)
        for name, window in ended.items():
            remove_folder(spark, seen_path(self.path, TableName.parse(name), window.begin_lsn))
        tables = Counter[str]()
        for part in batch_slice.parts:
            tables[str(part.table)] += part.changes
        notes = [*self._preparation.take_notes(), *self._notes, *filter(None, kept)]
        self._notes.clear()
        notes += notes_of(batch_slice.marks, ended, over, states.incomplete, unknown) + (
            [counted(differences, "difference")] if differences else []
        )
        report = BatchReport(
            batch_slice.batch,
            content.commit_lsn,
            batch_slice.transactions,
            tables.total(),
            dict(tables),
            time.monotonic() - began,
            tuple(notes),
            differences,
            content.commit_time,
            len(states.stale(self.last.complete)) if self.last is not None else 0,
            len(states.filling),
            is_merge=True,
        )
        self.report(report)

    def _write_tables(
        self, spark: SparkSession, raw: DataFrame, records: dict[TableName, pa.Table] | None, content: BatchContent
    ) -> None:
        """Write the tables of a slice. They are altered before `once` applies, which affects every
        write of the session: otherwise an ALTER TABLE would be taken for the commit of the
        slice."""
        own = {part.table: own_records(raw, records, part.table) for part in content.parts}
        for attempt in range(_ATTEMPTS):
            try:
                self._prepare_and_write(spark, own, content)
                return
            except TABLE_FORMAT.TAKEN_OVER:
                writer_epoch.check(spark, self.path, self._epoch)
                if attempt == _ATTEMPTS - 1:
                    raise
                self._preparation.forget()  # the former writer has written a table since it was prepared
            except MirrorError:
                writer_epoch.check(spark, self.path, self._epoch)  # another writer is the cause of what was found
                raise

    def _prepare_and_write(
        self, spark: SparkSession, own: Mapping[TableName, pa.Table | DataFrame], content: BatchContent
    ) -> None:
        oids = {} if self.last is None else self.last.oids
        names = RelationNames(oids, self._states.former, content.parts, self._shapes.oid_of)
        work = []
        for part in content.parts:
            with _naming(part.table):
                item = self._preparation.prepare(spark, part, own[part.table], content.commit_lsn, self.last, names)
            if item.applied < content.commit_lsn:
                work.append(item)
        are_here = all(item.part.is_small(len(item.shape.columns)) for item in work)
        with (
            settings(spark, TABLE_FORMAT.without_compaction()),  # Maintenance compacts
            TABLE_FORMAT.once(spark, content.commit_lsn, content.changes if are_here else None),
            ThreadPoolExecutor(self.tables_at_once) as threads,
        ):
            for future in [
                threads.submit(self._write_table, spark, item, own[item.part.table], content.commit_lsn)
                for item in work
            ]:
                future.result()

    def _write_table(self, spark: SparkSession, work: TableWork, own: pa.Table | DataFrame, commit_lsn: int) -> None:
        if time.monotonic() > self._checked_at + _CHECK_EVERY_S:
            writer_epoch.check(spark, self.path, self._epoch)
            self._checked_at = time.monotonic()
        with _naming(work.part.table):
            own = as_arrow_if_small(spark, own, work.part, len(work.shape.columns))
            TABLE_FORMAT.despite_conflicts(partial(write, spark, work, own, commit_lsn))
        self._count.done += work.part.changes

    def _remove_former_rows(
        self,
        spark: SparkSession,
        batch_slice: BatchSlice,
        ended: Mapping[str, SnapshotWindow],
        check: Callable[[], None],
    ) -> dict[str, int]:
        """Remove the rows of former relations whose successors were found empty when they were
        filled. Return the relations of all tables after the slice. Raises MirrorError if
        `on_recreated` is STOP."""
        oids, parts = {} if self.last is None else dict(self.last.oids), batch_slice.content.parts
        found = empty_relations(batch_slice.marks, ended, parts, oids, self._shapes.oid_of)
        oids |= {str(part.table): self._shapes.oid_of(part.newest) for part in parts}
        for name in found:
            table, window = TableName.parse(name), ended[name]
            if self._preparation.gives_up_rows(spark, table, oids[name], window.begin_lsn, self.last):
                table_snapshots.remove_rows(spark, table_path(self.path, table), window, check)
        return oids | found

    def _record(
        self,
        spark: SparkSession,
        batch_slice: BatchSlice,
        states: TableStates,
        ended: Iterable[str],
        oids: dict[str, int],
    ) -> None:
        """Record the version after a slice. `oids`: the relations of all tables after it."""
        versions = {} if self.last is None else dict(self.last.tables)
        keys = {} if self.last is None else dict(self.last.keys)
        schema_ids = {} if self.last is None else dict(self.last.schema_ids)
        content, written = batch_slice.content, set(ended)
        compacts = TABLE_FORMAT.compacts(spark)
        for part in content.parts:
            name, shape = str(part.table), self._shapes.of(part.newest)
            self._preparation.note_applied(part.table, content.commit_lsn)
            written.add(name)
            keys[name], schema_ids[name] = shape.key, part.newest
        for name, oid in ({} if self.last is None else self.last.oids).items():
            if oids[name] != oid:
                states.note_former(name, oid)
        for name in written:
            location = table_path(self.path, TableName.parse(name))
            if name in states.frozen and name not in versions:
                states.note_incomplete(name)
            if (name not in states.frozen or name not in versions) and TABLE_FORMAT.exists(spark, location):
                before, versions[name] = versions.get(name, 0), TABLE_FORMAT.version(spark, location)
                if compacts:
                    self.maintenance.note_version(location, before, versions[name])
                self._preparation.note_version(TableName.parse(name), versions[name])
        for name in states.renamed:
            versions.pop(name, None)
        states.empty.difference_update(oids.values())  # these have tables now
        states.forget_renamed(versions)
        wanted = [str(table) for table in self.tables]
        states.excludes = list(self.exclude)
        version = version_manifest.RecordedVersion(
            batch_slice.batch,
            content.commit_lsn,
            content.commit_time,
            versions,
            keys,
            wanted,
            oids,
            schema_ids,
            states.text(),
        )
        version_manifest.record(spark, self.path, version, writer_epoch.expected_epoch(self._epoch))
        self.last, self._states, self._may_be_interrupted = version, states, False

    def _register(self, spark: SparkSession) -> None:
        if self.catalog is not None and self.last is not None:
            self._notes += self.catalog.register(spark, self.last.complete)


@contextmanager
def _naming(table: TableName) -> Iterator[None]:
    """Add the name of a table to exceptions, which Spark's own do not contain."""
    try:
        yield
    except Exception as problem:
        problem.add_note(f"while the changes of {table} were merged")
        raise
