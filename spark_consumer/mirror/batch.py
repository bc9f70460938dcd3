"""One micro-batch of all tables into the mirror: whole transactions, each table one Delta commit, then one version of all.

Idempotent: a batch that is run again (Spark repeats the last one after a crash) skips what it has written, table by table. See
merge.py for how, and manifest.py for what readers see meanwhile.

A small batch is folded in this process (replay.py), a large one in Spark (fold.py): a Spark job costs 50-200 ms whatever it does,
and seconds where the JVM sees it for the first time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from schemas.names import counted
from spark_consumer.arrow import to_frame
from spark_consumer.errors import MirrorError
from spark_consumer.lsn import format_lsn
from spark_consumer.mirror import changes, fence, identity, manifest, seen, target, verdicts, verify
from spark_consumer.mirror.catalog import Catalog
from spark_consumer.mirror.changes import COLUMNS
from spark_consumer.mirror.columns import ColumnChange, change_of_columns, doubts_of, missing_values, texts_of
from spark_consumer.mirror.layout import changes_path, kept_path, seen_path, table_path
from spark_consumer.mirror.log import large_log, log_table_schema, not_yet, small_log
from spark_consumer.mirror.merge import despite_conflicts, flat, laid_over, merge, once, rows, write_once
from spark_consumer.mirror.merging import RETENTION_S
from spark_consumer.mirror.parts import (
    BatchContent,
    TablePart,
    batch_size,
    divided,
    look_at,
    marks_in,
    own_records,
    without_signs,
)
from spark_consumer.mirror.refit import fitted
from spark_consumer.mirror.shape import TableShape, is_log
from spark_consumer.mirror.standing import (
    FILL,
    REPLACE,
    VERIFY,
    Mark,
    Standing,
    Window,
    advance,
    first_cut,
    verified_chunks,
)
from spark_consumer.mirror.states import (
    flat_states,
    key_bounds,
    living_rows,
    small_states,
    spark_states,
    table_schema,
    unsent_columns,
)
from spark_consumer.mirror.tuning import tune
from spark_consumer.mirror.upkeep import Upkeep
from spark_consumer.reader.registry import Schema
from spark_consumer.reader.signs import EXCLUDED, GAP, KINDS, SKIP, SNAPSHOT_END
from spark_consumer.tables import TableName, is_one_of

TABLES_AT_ONCE = 2
# Sources of merges with no more rows in all are not copied by Delta first. That copy is a job, but without it every step of
# Spark's planning carries the rows: with 10,000 of them some tenths of a second of CPU time.
FEW_CHANGES = 1000
NEW = -1
EMPTY, STOP, KEEP_AS = "empty", "stop", "keep-as"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one batch did. `tables`: changes of each."""

    batch: int
    commit_lsn: int
    transactions: int
    changes: int
    tables: dict[str, int]
    seconds: float
    notes: tuple[str, ...] = ()  # what a person should know
    differences: int = 0  # that a VERIFY has found
    commit_time: datetime | None = None  # of the last transaction
    stale: int = 0  # tables
    filling: int = 0
    is_append: bool = False  # and merged later
    is_merge: bool = False  # of changes that were reported when they were appended


@dataclass(frozen=True, slots=True)
class Refit:
    """`before`: the version of the relation whose columns a table has; `wanted`: those that it gets."""

    before: TableShape
    change: ColumnChange
    wanted: StructType


@dataclass(frozen=True, slots=True)
class TableWork:
    """One table in one batch. `applied`: commit LSN that the table has taken in before; NEW: there is no table yet."""

    location: str
    part: TablePart
    shape: TableShape
    texts: dict[int, str]  # schema id -> JSON text
    applied: int
    emptied: tuple[int, int] | None = None  # where a relation that was made anew begins
    deletion_vectors: bool = True  # of a new table
    refit: Refit | None = None  # where the rows that are there take other columns: the table is then written as a whole

    def base(self, spark: SparkSession) -> DataFrame | None:
        """The rows that are there."""
        if self.applied == NEW:
            return None
        there = _rows_of(spark, self.location)
        if self.refit is None:
            return there
        as_now = identity.converted(there, self.part.table, self.location, self.shape, self.applied)
        return fitted(spark, as_now, self.refit.change, self.refit.before, self.shape, self.refit.wanted)

    @property
    def needs_merge(self) -> bool:
        """Something of what the table holds stays."""
        return self.applied != NEW and self.part.cut is None

    @property
    def mode(self) -> str:
        """Of a write that is no merge."""
        return "append" if self.part.cut is None else "overwrite"

    def properties(self, columns: Sequence[str]) -> dict[str, str]:
        """Of a new table; nothing is ever deleted from a log."""
        return target.properties(columns, deletion_vectors=self.deletion_vectors and bool(self.shape.key))


@dataclass
class Mirror:
    """Applies batches; `apply` is the function for foreachBatch. One writer a mirror.

    `tables`, `exclude`: the same as the options of the reader; a mirror cannot be given more tables later. `on_recreated`: what
    to do where a table was dropped and recreated, EMPTY, STOP or KEEP_AS (a copy of the old rows is kept).
    `deletion_vectors`: whether new tables get them. `strict`: an ALTER TABLE of which the stream does not tell what it did to the
    rows is an error, else it is reported. `retention_s`: for how long versions of the mirror can be read. `catalog`: gives the
    tables names. `tables_at_once`: how many tables are written at the same time.
    """

    path: str
    schemas: dict[int, Schema]  # a SchemaCache, where they are to be had from a registry
    report: Callable[[BatchReport], None] = lambda _: None
    tables: Sequence[TableName] = ()
    exclude: Sequence[str] = ()
    on_recreated: str = EMPTY
    deletion_vectors: bool = True
    strict: bool = False
    retention_s: float = RETENTION_S
    catalog: Catalog | None = None
    tables_at_once: int = TABLES_AT_ONCE
    last: manifest.Picture | None = field(default=None, init=False)
    upkeep: Upkeep = field(init=False)
    _standing: Standing = field(default_factory=Standing, init=False)
    _opened: bool = field(default=False, init=False)
    _shapes: dict[int, TableShape] = field(default_factory=dict, init=False)
    _epoch: int = field(default=0, init=False)
    _doubts: list[str] = field(default_factory=list, init=False)  # what to report of the piece under way
    # Of each table, the commit LSN that it has taken in and its version then: asking for the first costs a job.
    _emptied: dict[TableName, tuple[int, int]] = field(default_factory=dict, init=False)  # in the piece under way
    _applied: dict[TableName, tuple[int, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.upkeep = Upkeep(self.path, self.retention_s)

    def apply(self, raw: DataFrame, batch: int) -> None:
        """`raw`: frames.RAW, whole transactions. Raises MirrorError."""
        try:
            if not self._opened:
                self.open(raw.sparkSession)
                self.note_options(raw.sparkSession)
            self._apply_all(raw, batch)
        except fence.CONFLICTS as problem:
            raise fence.taken_over(self.path) from problem
        self.keep_up(raw.sparkSession, batch)

    def keep_up(self, spark: SparkSession, batch: int, *, compacts: bool = False) -> None:
        """Removes what is too old, where that is due; `compacts`: and compacts `changes`. What failed is only reported."""
        if self.last is not None:
            self._report_notes(self.upkeep.run_if_due(spark, compacts=compacts), batch)

    def _report_notes(self, notes: Sequence[str], batch: int = 0) -> None:
        """Those that no version of the mirror is recorded with."""
        if notes and self.last is not None:
            standing, stale = self._standing, len(self._standing.stale(self.last.complete))
            self.report(
                BatchReport(
                    *(batch, self.last.commit_lsn, 0, 0, {}, 0.0),
                    notes=tuple(notes),
                    stale=stale,
                    filling=len(standing.filling),
                )
            )

    def merge_waiting(self, spark: SparkSession, batch: int = 0, last_lsn: int | None = None) -> None:
        """Takes in what was appended to `changes` since the last merge, up to `last_lsn` (None: all). Raises MirrorError."""
        behind_lsn = -1 if self.last is None else self.last.commit_lsn
        if last_lsn is None:
            last_lsn = changes.appended_lsn(spark, self.path)
        rows = changes.waiting(spark, self.path, behind_lsn, last_lsn) if last_lsn > behind_lsn else None
        if rows is None:
            return
        try:
            self._apply_all(rows, batch)
        except fence.CONFLICTS as problem:
            raise fence.taken_over(self.path) from problem
        if self.last is None or self.last.commit_lsn < last_lsn:
            reached = "nothing" if self.last is None else format_lsn(self.last.commit_lsn)
            raise MirrorError(
                f"changes up to {format_lsn(last_lsn)} were appended to {changes_path(self.path)}, but reading it gave "
                f"{reached}: the tables were not changed any further"
            )

    def _apply_all(self, raw: DataFrame, batch: int) -> None:
        tune(raw.sparkSession)
        is_sign = f.col("op").isin(list(KINDS))
        raw = raw.where(f.col("table").isNotNull() | is_sign)
        if self.last is not None:  # a new checkpoint begins early: those transactions are in the mirror
            known = f.col("table").isin(list(self.last.tables)) | is_sign
            raw = raw.where(~known | (f.col("commit_lsn") > self.last.commit_lsn))
        raw = raw.select(*COLUMNS).persist()
        try:
            self._apply(raw, batch)
        finally:
            raw.unpersist()

    def open(self, spark: SparkSession, *, appends: bool = True) -> None:
        """Takes the mirror over, and merges what waits. `appends`: also from who appends to `changes`.

        Raises MirrorError where the tables are not those that it was made for.
        """
        if self.catalog is not None:
            self.catalog.check(spark)
        tune(spark, compacts=True)
        fence.check_form(spark, self.path)
        self.refuse_other_tables(manifest.picture(spark, self.path))
        self._epoch = fence.claim(spark, self.path, manifest.nothing(spark))
        # From now on no other writer records a version.
        last = manifest.picture(spark, self.path)
        self.last, self._opened = last, True
        self._standing = Standing.of(None if last is None else last.standing)
        if target.exists(spark, changes_path(self.path)):
            if appends:
                fence.claim_appends(spark, self.path, changes.nothing(spark))
            last_lsn = changes.appended_lsn(spark, self.path)
            self.schemas.update(changes.kept_schemas(spark, self.path))  # of all that is appended up to there
            self.merge_waiting(spark, last_lsn=last_lsn)
        self._leave_out()
        self._register(spark)
        self._report_notes(self._doubts)
        self._doubts.clear()

    def refuse_other_tables(self, last: manifest.Picture | None) -> None:
        """Raises MirrorError where the mirror was made for other tables, whose earlier changes it does not have."""
        if last is not None:
            tables = {str(table) for table in self.tables}
            new = sorted(tables.difference(last.scope)) if tables else ["every other table"]
            if last.scope and new:
                raise MirrorError(
                    f"{new[0]} is new to the mirror at {self.path}, which was created for {', '.join(last.scope)} "
                    "only: earlier changes are missing",
                    hint="Use another path and checkpoint location for these tables, or specify the same tables as before.",
                )
            no_more = [pattern for pattern in Standing.of(last.standing).excludes if pattern not in self.exclude]
            if no_more:
                raise MirrorError(
                    f"tables matching {no_more[0]} are not in the mirror at {self.path}: their earlier changes "
                    "are missing",
                    hint=f"Use another path and checkpoint location for these tables, or keep --exclude {no_more[0]}.",
                )

    def note_options(self, spark: SparkSession) -> None:
        """For `walgate merge`, whose merges are those of this mirror."""
        options = {name: getattr(self, name) for name in ("on_recreated", "deletion_vectors", "strict", "retention_s")}
        options |= {"tables": [str(table) for table in self.tables], "exclude": list(self.exclude)}
        manifest.note_options(spark, self.path, options)

    def _leave_out(self) -> None:
        """Tables that are no longer wanted are in no new version of the mirror."""
        if self.last is not None:
            stay = [name for name in self.last.tables if not is_one_of(TableName.parse(name), self.exclude)]
            stay = [name for name in stay if not self.tables or TableName.parse(name) in self.tables]
            self.last = replace(self.last, tables={name: self.last.tables[name] for name in stay})

    def _apply(self, raw: DataFrame, batch: int) -> None:
        """Whole, or in pieces where the key of a table changes, or a table comes to stand otherwise than before."""
        cut = self._apply_piece(raw, batch)
        while cut is not None:
            cut = self._apply_piece(raw.where(f.col("commit_lsn") >= cut), batch)

    def _apply_piece(self, raw: DataFrame, batch: int) -> int | None:
        """All of it, or what is below a commit LSN, from which on it is to be applied by itself."""
        began = time.monotonic()
        spark = raw.sparkSession
        found = read = None
        size = batch_size(raw)
        marks = marks_in(raw) if size.signs else []
        cut = first_cut(self._standing, marks, size.first_lsn, size.last_lsn)
        told = without_signs(raw) if marks else raw
        chunks = verified_chunks(marks)
        if chunks:
            later = verify.first_later_change(told, chunks)
            cut = min((lsn for lsn in (cut, later) if lsn is not None), default=None)
        if cut is None and chunks:
            compared, told = divided(told, chunks)
            read = look_at(compared, batch_size(compared))
            found = look_at(told, batch_size(told))
        elif cut is None:
            found = look_at(told, size)
        if cut is None and found is None and not marks:
            return None
        content, records = found or (BatchContent(size.last_lsn, None, 0, 0, []), {})
        cut = cut or self._first_change_of_key(told, records, content)
        if cut is not None:
            self._apply(raw.where(f.col("commit_lsn") < cut), batch)
            return cut
        times = [content.commit_time, *(mark.commit_time for mark in marks)]
        content = replace(content, commit_lsn=size.last_lsn, commit_time=max(filter(None, times), default=None))
        verified = None if read is None else Verified(compared, read[1], read[0])
        self._take_in(spark, Piece(batch, told, records, content, marks, verified), began)
        return None

    def _take_in(self, spark: SparkSession, piece: Piece, began: float) -> None:
        fence.check(spark, self.path, self._epoch)
        content = piece.content
        standing, ended = advance(self._standing, piece.marks)
        known = {} if self.last is None else self.last.tables
        standing.meet(str(part.table) for part in content.parts if str(part.table) not in known)
        self._note_keys(spark, piece, {**standing.open, **ended})
        if content.parts:
            self._write_tables(spark, piece.changes, piece.records, content)
        differences = self._compare(spark, piece, ended)
        for name, window in ended.items():
            if window.purpose == REPLACE:
                self._end_replace(spark, name, window, piece)
        fence.check(spark, self.path, self._epoch)
        self._conclude(spark, piece, ended)
        self._record(spark, piece, standing, ended)
        self._register(spark)
        for name, window in ended.items():
            target.remove(spark, seen_path(self.path, TableName.parse(name), window.begin_lsn))
        tables = Counter({str(part.table): part.changes for part in content.parts})
        tables.update(
            {str(part.table): part.changes for part in piece.verified.content.parts} if piece.verified else {}
        )
        notes = [
            f"{table} was dropped and recreated: the rows of the old table were removed" for table in self._emptied
        ]
        self._emptied.clear()
        notes += self._doubts
        self._doubts.clear()
        notes += notes_of(piece.marks, ended) + ([counted(differences, "difference")] if differences else [])
        seconds = time.monotonic() - began
        report = BatchReport(
            piece.batch,
            content.commit_lsn,
            content.transactions + (piece.verified.content.transactions if piece.verified else 0),
            tables.total(),
            dict(tables),
            seconds,
            tuple(notes),
            differences,
            content.commit_time,
            len(standing.stale(self.last.complete)) if self.last is not None else 0,
            len(standing.filling),
        )
        self.report(report)

    def _conclude(self, spark: SparkSession, piece: Piece, ended: Mapping[str, Window]) -> None:
        """What `walgate verify` waits for."""
        if ended:
            rows = {name: piece.row_count(name) for name in ended}
            verdicts.conclude(spark, self.path, ended, rows, piece.content.commit_lsn)
        if any(mark.kind == SNAPSHOT_END and mark.table is None for mark in piece.marks):
            verdicts.note_end(spark, self.path, piece.content.commit_lsn)
        if piece.verified is not None:
            verdicts.note_reached(spark, self.path, piece.content.commit_lsn)

    def _note_keys(self, spark: SparkSession, piece: Piece, windows: Mapping[str, Window]) -> None:
        written = (piece.changes, piece.records, piece.content)
        verified = piece.verified
        compared = None if verified is None else (verified.changes, verified.records, verified.content)
        for label, found in (("", written), (" verify", compared)):
            for part in () if found is None else found[2].parts:
                window, shape = windows.get(str(part.table)), self._shape(part.newest)
                if found is None or window is None or window.purpose == FILL or not shape.key:
                    continue
                own = own_records(found[0], found[1], part.table)
                location = seen_path(self.path, part.table, window.begin_lsn)
                lsns = (window.begin_lsn, piece.content.commit_lsn)
                seen.note_keys(spark, location, own, shape, self._texts(part), *lsns, target.APPLICATION + label)

    def _compare(self, spark: SparkSession, piece: Piece, ended: Mapping[str, Window]) -> int:
        """Writes what differs, once for the piece; how many."""
        found = []
        verified = piece.verified
        for part in () if verified is None else verified.content.parts:
            assert verified is not None
            own = own_records(verified.changes, verified.records, part.table)
            location, shape = table_path(self.path, part.table), self._shape(part.newest)
            compare = verify.compared if shape.key else verify.compared_log
            found.append(
                (str(part.table), compare(spark, location, own, shape, self._texts(part)), piece.snapshot_id(part))
            )
        for name, window in ended.items():
            location, schema_id = table_path(self.path, TableName.parse(name)), self._newest(piece, name)
            if window.purpose != VERIFY or schema_id is None or not target.exists(spark, location):
                continue
            shape = self._shape(schema_id)
            if shape.key and set(shape.key) <= set(_rows_of(spark, location).columns):
                keys = seen_path(self.path, TableName.parse(name), window.begin_lsn)
                found.append(
                    (name, verify.too_many(seen.surplus(spark, location, keys, shape), shape), window.snapshot_id)
                )
            elif not shape.key and not piece.row_count(name):
                found.append((name, verify.left_over(spark, location, shape, window.begin_lsn), window.snapshot_id))
        return verify.record(spark, self.path, found, piece.content.commit_lsn) if found else 0

    def _newest(self, piece: Piece, name: str) -> int | None:
        """Schema id of the newest record of a table."""
        parts = [*(piece.verified.content.parts if piece.verified else ()), *piece.content.parts]
        here = {str(part.table): part.newest for part in parts}
        return here.get(name, None if self.last is None else self.last.schema_ids.get(name))

    def _end_replace(self, spark: SparkSession, name: str, window: Window, piece: Piece) -> None:
        """The rows whose keys did not come are not in the source any more."""
        table = TableName.parse(name)
        location = table_path(self.path, table)
        if not target.exists(spark, location):
            return
        if is_log(spark.read.format("delta").load(location).columns):
            if not piece.row_count(name):
                seen.end_log(spark, location, window.begin_lsn)
            return
        schema_id = self._newest(piece, name)
        shape = self._shape(schema_id) if schema_id is not None else None
        seen.delete_surplus(spark, location, seen_path(self.path, table, window.begin_lsn), shape)

    def _first_change_of_key(
        self, raw: DataFrame, records: dict[TableName, pa.Table] | None, content: BatchContent
    ) -> int | None:
        """Commit LSN of the first transaction that has one. Raises MirrorError also where a table comes too late."""
        found = []
        for part in content.parts:
            is_new = self.last is not None and str(part.table) not in self.last.tables
            key_of = identity.keys_of({schema_id: self._shape(schema_id) for schema_id in part.schema_ids})
            if not is_new and len({key_of(schema_id) for schema_id in part.schema_ids}) == 1:
                continue
            first = identity.first_positions(own_records(raw, records, part.table))
            if self.last is not None and min(first.values())[0] <= self.last.commit_lsn:
                raise too_late(str(part.table), self.path, self.last.commit_lsn)
            found.append(identity.change_of_key(part.table, first, key_of))
        return min((cut for cut in found if cut is not None), default=None)

    def _shape(self, schema_id: int) -> TableShape:
        if schema_id not in self._shapes:
            self._shapes[schema_id] = TableShape.of(self.schemas[schema_id])
        return self._shapes[schema_id]

    def _texts(self, part: TablePart) -> dict[int, str]:
        """Schemas of the part's records, which are read in the columns of the newest one."""
        schemas = {schema_id: (self.schemas[schema_id], self._shape(schema_id)) for schema_id in part.schema_ids}
        return texts_of(schemas, part.newest)

    def _version_before(self, part: TablePart, own: pa.Table | DataFrame, applied: int) -> int | None:
        """Schema id of the version of its relation whose columns a table has. None: it is not known."""
        taken = None
        if self.last is None or applied > self.last.commit_lsn:
            taken = identity.newest_up_to(own, applied)
        if taken is None and self.last is not None:
            taken = self.last.schema_ids.get(str(part.table))
        return taken

    def _refit(
        self, spark: SparkSession, part: TablePart, own: pa.Table | DataFrame, location: str, applied: int
    ) -> Refit | None:
        """Where columns were renamed, replaced, or added with a default. Raises MirrorError if `strict`."""
        shape = self._shape(part.newest)
        version = self._version_before(part, own, applied)
        if version in (None, part.newest) or (part.cut is not None and shape.key):
            return None
        try:
            before = self._shape(version)
        except KeyError:  # it was merged before schemas were kept in the mirror
            return None
        if before.oid != shape.oid:
            return None
        change = change_of_columns(before, shape, missing_values(map(self._shape, part.schema_ids)))
        self._note_doubts(part.table, before, shape, change)
        if change.is_plain(before.columns) or self._is_of_a_person(spark, part.table, location, applied):
            return None
        wanted = table_schema(shape) if shape.key else log_table_schema(shape)
        if target.needs_mapping(wanted.names):
            target.map_columns(spark, location)
        return Refit(before, change, wanted)

    def _is_of_a_person(self, spark: SparkSession, table: TableName, location: str, applied: int) -> bool:
        """Who has overwritten the table with what the source has now, as an error said: there is nothing to be changed then."""
        known = None if self.last is None else self.last.tables.get(str(table))
        if self.last is None or known is None or applied > self.last.commit_lsn:
            return False
        return target.was_overwritten(spark, location, known)

    def _note_doubts(self, table: TableName, before: TableShape, shape: TableShape, change: ColumnChange) -> None:
        doubts = doubts_of(before, shape, change)
        if doubts and self.strict:
            raise MirrorError(
                f"{table}: {doubts}",
                hint="Run walgate snapshot start for this table, and start the mirror once without --strict.",
            )
        if doubts:
            self._doubts.append(f"{table}: {doubts}. A snapshot of the table corrects that")

    def _write_tables(
        self, spark: SparkSession, raw: DataFrame, records: dict[TableName, pa.Table] | None, content: BatchContent
    ) -> None:
        """Tables are altered before `once`, which holds for every write of the session: Delta would take such a commit for the
        batch's own."""
        own = {part.table: own_records(raw, records, part.table) for part in content.parts}
        work = [self._prepare(spark, part, own[part.table], content.commit_lsn) for part in content.parts]
        work = [item for item in work if item.applied < content.commit_lsn]
        with (
            once(spark, content.commit_lsn, has_few=records is not None and content.changes <= FEW_CHANGES),
            ThreadPoolExecutor(self.tables_at_once) as threads,
        ):
            for future in [
                threads.submit(
                    despite_conflicts, partial(_write, spark, item, own[item.part.table], content.commit_lsn)
                )
                for item in work
            ]:
                future.result()

    def _prepare(self, spark: SparkSession, part: TablePart, own: pa.Table | DataFrame, commit_lsn: int) -> TableWork:
        """Raises MirrorError when a table is another writer's, or holds more than this batch."""
        shape = self._shape(part.newest)
        texts = self._texts(part)
        location = table_path(self.path, part.table)
        columns = table_schema(shape) if shape.key else log_table_schema(shape)
        identity.check_log_names(part.table, shape)
        identity.check_names(part.table, columns.names)
        if not target.exists(spark, location):
            part = self._of_one_relation(spark, location, part, own)
            emptied = self._emptied.get(part.table)
            return TableWork(location, part, shape, texts, NEW, emptied, self.deletion_vectors)
        applied = self._applied_commit_lsn(spark, part.table, location)
        if applied > commit_lsn:
            raise MirrorError(
                f"{location} has reached {format_lsn(applied)}, but this micro-batch ends at {format_lsn(commit_lsn)}: "
                "the mirror was killed during a micro-batch, its checkpoint location was lost, and micro-batches now end at "
                "other LSNs",
                hint="Remove the query's checkpoint location (--checkpoint, by default <path>/checkpoint) and restart the query "
                "so that it begins after the last complete micro-batch (walgate mirror does so automatically), with "
                "micro-batches at least as large as before (--max-changes).",
            )
        if applied < commit_lsn:
            part = self._of_one_relation(spark, location, part, own)
            if part.cut is not None and part.cut[0] <= applied:
                part = replace(part, cut=None)
            refit = self._refit(spark, part, own, location, applied)
            work = TableWork(location, part, shape, texts, applied, self._emptied.get(part.table), refit=refit)
            if refit is None:
                if not (shape.key and part.table in self._emptied):  # all that is there goes
                    identity.convert(spark, location, part.table, shape, applied)
                target.align(spark, location, columns)
            keys = {} if self.last is None else self.last.keys
            if shape.key and part.cut is None and tuple(keys.get(str(part.table), ())) != shape.key:
                base = work.base(spark)
                assert base is not None
                identity.check_key(base, location, part.table, shape)
            return work
        return TableWork(location, part, shape, texts, applied, self._emptied.get(part.table))

    def _applied_commit_lsn(self, spark: SparkSession, table: TableName, location: str) -> int:
        """What a table has taken in. Raises MirrorError where that is not what this writer has left there."""
        known = self._applied.get(table)
        version = target.version(spark, location)
        if known is not None and known[1] == version:
            return known[0]
        found = target.applied_commit_lsn(spark, location)
        if known is not None and known[0] != found:
            raise fence.taken_over(self.path)
        self._applied[table] = (found, version)
        return found

    def _of_one_relation(
        self, spark: SparkSession, location: str, part: TablePart, own: pa.Table | DataFrame
    ) -> TablePart:
        """Where the table is of another relation than before, whose rows went without a word: cut where that begins.

        Raises MirrorError where it is a relation that was known by another name, or `on_recreated` says so.
        """
        self._emptied.pop(part.table, None)
        oids = {} if self.last is None else dict(self.last.oids)
        known = oids.pop(str(part.table), None)
        begin = identity.beginning_of_relation(
            part,
            location,
            own,
            lambda schema_id: self._shape(schema_id).oid,
            known,
            oids.values(),
            lambda: self._was_emptied(spark, location, part.table),
        )
        if begin is None:
            return part
        if self.on_recreated == STOP:
            raise identity.recreated(part.table, location)
        if self.on_recreated == KEEP_AS and known is not None:
            identity.keep(spark, location, kept_path(self.path, part.table, known))
        self._emptied[part.table] = (begin[0], begin[1] - 1)
        return replace(part, cut=max(self._emptied[part.table], part.cut or (-1, -1)))

    def _was_emptied(self, spark: SparkSession, location: str, table: TableName) -> bool:
        """Or filled anew by a person, who knows what is in the source."""
        assert self.last is not None
        return identity.is_empty(_rows_of(spark, location)) or target.was_overwritten(
            spark, location, self.last.tables[str(table)]
        )

    def _record(self, spark: SparkSession, piece: Piece, standing: Standing, ended: Iterable[str]) -> None:
        versions = {} if self.last is None else dict(self.last.tables)
        keys = {} if self.last is None else dict(self.last.keys)
        oids = {} if self.last is None else dict(self.last.oids)
        schema_ids = {} if self.last is None else dict(self.last.schema_ids)
        content, written = piece.content, set(ended)
        for part in content.parts:
            name, shape = str(part.table), self._shape(part.newest)
            self._applied[part.table] = (content.commit_lsn, -1)
            written.add(name)
            keys[name], oids[name], schema_ids[name] = shape.key, shape.oid, part.newest
        for name in written:
            location = table_path(self.path, TableName.parse(name))
            if name in standing.frozen and name not in versions:
                standing.filling.add(name)
            if (name not in standing.frozen or name not in versions) and target.exists(spark, location):
                versions[name] = target.version(spark, location)
                if TableName.parse(name) in self._applied:
                    lsn = self._applied[TableName.parse(name)][0]
                    self._applied[TableName.parse(name)] = (lsn, versions[name])
        scope = [str(table) for table in self.tables]
        standing.excludes = list(self.exclude)
        picture = manifest.Picture(
            piece.batch,
            content.commit_lsn,
            content.commit_time,
            versions,
            keys,
            scope,
            oids,
            schema_ids,
            standing.text(),
        )
        manifest.record(spark, self.path, picture, fence.held(self._epoch))
        self.last, self._standing = picture, standing

    def _register(self, spark: SparkSession) -> None:
        if self.catalog is not None and self.last is not None:
            self._doubts += self.catalog.register(spark, self.last.complete)


@dataclass(frozen=True, slots=True)
class Verified:
    """The chunks of a VERIFY. `records`: those of each table, where they are few; else they are in `changes`."""

    changes: DataFrame
    records: dict[TableName, pa.Table] | None
    content: BatchContent


@dataclass(frozen=True, slots=True)
class Piece:
    """What is applied at once. `records`: those of each table, where they are few; else they are in `changes`.

    `verified`: what is compared with the tables behind all that, and written nowhere.
    """

    batch: int
    changes: DataFrame
    records: dict[TableName, pa.Table] | None
    content: BatchContent
    marks: list[Mark]
    verified: Verified | None = None

    def snapshot_id(self, part: TablePart) -> str:
        """Of the chunks that are compared."""
        chunks = verified_chunks(self.marks)
        return str(next(mark.facts["snapshot_id"] for mark in chunks if mark.table == str(part.table)))

    def row_count(self, name: str) -> int:
        """Rows of the snapshot of a table that ended here."""
        ends = [mark.facts for mark in self.marks if mark.kind == SNAPSHOT_END and mark.table == name]
        return int(ends[-1]["row_count"])


def too_late(table: str, path: str, commit_lsn: int) -> MirrorError:
    """A table is met whose changes up to `commit_lsn`, where the mirror stands, are not in it."""
    return MirrorError(
        f"{table} is new to the mirror at {path}, which has already reached {format_lsn(commit_lsn)}",
        hint="Use another path for it, or start after the mirror's last complete micro-batch "
        f"(startingPosition lsn:{format_lsn(commit_lsn)}) to read only later changes.",
    )


def notes_of(marks: Sequence[Mark], ended: Mapping[str, Window]) -> list[str]:
    """What of the signs a person should read."""
    notes = [f"the snapshot of {name} ended ({window.purpose})" for name, window in ended.items()]
    excluded = {mark.table: mark.facts["reason"] for mark in marks if mark.kind == EXCLUDED}
    notes += [f"{name} is not updated until it is loaded again: {reason}" for name, reason in excluded.items()]
    for mark in marks:
        if mark.kind == GAP:
            notes.append(
                f"changes in the gap that ends at {format_lsn(mark.commit_lsn)} are lost: no table is up to date until it is "
                "loaded again"
            )
        if mark.kind == SKIP:
            notes.append(f"the transaction at {format_lsn(mark.commit_lsn)} was skipped: {mark.facts.get('detail')}")
    return notes


def _rows_of(spark: SparkSession, location: str) -> DataFrame:
    return spark.read.format("delta").load(location)


def _write(spark: SparkSession, work: TableWork, own: pa.Table | DataFrame, commit_lsn: int) -> None:
    if isinstance(own, DataFrame):
        write_large(spark, work, own, commit_lsn)
    else:
        write_small(spark, work, own, commit_lsn)


def write_small(spark: SparkSession, work: TableWork, records: pa.Table, commit_lsn: int) -> None:
    """One table's part of a small batch, folded here: what goes to Spark is what is to be written."""
    shape = work.shape
    if not shape.key:
        log = small_log(records, shape, work.texts, work.emptied)
        log = log.filter(pc.greater(log["_commit_lsn"], work.applied))
        _write_log(spark, work, to_frame(spark, log, log_table_schema(shape)), commit_lsn)
        return
    # What the table has is not folded again: a column that was not sent may have been taken from a row that is gone.
    records = records.filter(pc.greater(records["commit_lsn"], work.applied))
    states = small_states(spark, work.base(spark), records, work.part, shape, work.texts)
    if not work.needs_merge:
        _write_rows(to_frame(spark, living_rows(states, shape), table_schema(shape)), work, work.mode, commit_lsn)
        return
    unsent = unsent_columns(states)
    if work.refit is not None:
        _write_refitted(spark, flat_states(spark, states, unsent), work, commit_lsn, unsent)
    else:
        merge(spark, work.location, flat_states(spark, states, unsent), shape, unsent, key_bounds(states, shape))


def write_large(spark: SparkSession, work: TableWork, records: DataFrame, commit_lsn: int) -> None:
    """One table's part of a large batch, decoded and folded by Spark's workers."""
    shape = work.shape
    if not shape.key:
        log = large_log(spark, records, shape, work.texts, work.emptied)
        _write_log(spark, work, not_yet(log, work.applied), commit_lsn)
        return
    records = not_yet(records, work.applied, "commit_lsn")
    states, unsent, events = spark_states(spark, work.base(spark), records, work.part, shape, work.texts)
    try:
        if not work.needs_merge:
            _write_rows(rows(states, shape), work, work.mode, commit_lsn)
        elif work.refit is not None:
            _write_refitted(spark, flat(states, shape, unsent), work, commit_lsn, unsent)
        else:
            merge(spark, work.location, flat(states, shape, unsent), shape, unsent)
    finally:
        events.unpersist()


def _write_rows(frame: DataFrame, work: TableWork, mode: str, commit_lsn: int) -> None:
    write_once(
        frame,
        work.location,
        mode,
        commit_lsn,
        properties=work.properties(frame.columns) if work.applied == NEW else {},
    )


def _write_log(spark: SparkSession, work: TableWork, log: DataFrame, commit_lsn: int) -> None:
    base = work.base(spark) if work.refit is not None else None
    if base is None:
        _write_rows(log, work, "append", commit_lsn)
    else:
        write_once(base.unionByName(log), work.location, "overwrite", commit_lsn, overwrite_schema=True)


def _write_refitted(spark: SparkSession, source: DataFrame, work: TableWork, commit_lsn: int, unsent: set[str]) -> None:
    """The rows that are there in their new columns, and the states `source` (as `flat` makes them): one commit, so that columns
    are never changed twice."""
    base = work.base(spark)
    assert base is not None
    made = laid_over(base, source, work.shape, unsent)
    write_once(made, work.location, "overwrite", commit_lsn, overwrite_schema=True)
