"""A changelog: every committed change of every table, appended once.

    <path>/tables/<schema>/<table>    Delta: one table
                                      Parquet: one folder per batch, `batch=<its last commit LSN>`
    <path>/_position                  how far all of them are complete: see output_position.py

Changes are never appended twice, even if the checkpoint is lost: a table takes only changes after
its last commit LSN. A table whose last commit LSN is before the one in `_position` was removed or
restored alone, and is refused. Only the process that opened the changelog last may append to it.

Two processes never share a Parquet folder. Each writes `_writing-<commit LSN>-<writer>`, which
readers ignore, checks that it is still the writer, then renames the folder. A process that comes
later first notes itself as the writer, then takes away such folders, then looks which batches
exist. So a former process either renames before that look, or fails. This needs an atomic rename,
which an object store does not have. A gap is left: a former process that stalls within a write of
`_position`, until the later one has written a batch, is taken for the writer again.

The columns are those of `format("walgate")` with `table`. `old_key` is left out if the relation has
no replica identity, and `before` and `after`, too, if it has no columns. A column that is added to
the source table is added to the changelog from then on (mergeSchema). A column that is dropped or
renamed within a batch keeps its values in that batch. If the type of a column is widened, it is
widened in the changelog, too (Delta's type widening); existing Parquet folders keep their type.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from schemas.lsn import format_lsn
from spark_consumer.arrow import spark_schema, to_frame
from spark_consumer.errors import MirrorError, UnsupportedSchema, told_as
from spark_consumer.jvm import folder_names, move_folder, remove_folder
from spark_consumer.mirror.fold.keyless_log import not_applied
from spark_consumer.mirror.fold.replica_identity import check_names
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.report import BatchReport
from spark_consumer.mirror.slice_contents import TablePart, batch_size, summarize, without_marks
from spark_consumer.mirror.spark_settings import tune
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import CHANGELOG, NO_NUMBERS, NO_PROPERTIES
from spark_consumer.mirror.writer_epoch import one_writer_hint
from spark_consumer.output_position import OutputPosition, read_position, running_query, write_position
from spark_consumer.reader.positions import OF_CHANGELOG
from spark_consumer.reader.registry import SchemaCache
from spark_consumer.reader.topics import check_table
from spark_consumer.source.decode import decode_changes, typed
from spark_consumer.source.frames import TableFrame
from spark_consumer.tables import TableName

_WRITING, _STOPPED = "_writing-", "_stopped-"  # begin the names of folders that no reader sees
_MARKS_SUCCESS = "mapreduce.fileoutputcommitter.marksuccessfuljobs"  # may be disabled in Spark's settings


@dataclass
class Changelog:
    """Append batches; `apply` is the function for foreachBatch."""

    path: str
    format: str  # delta or parquet
    schemas: SchemaCache
    report: Callable[[BatchReport], None] = lambda _: None
    # By location: commit LSN (-1: there is no table), and the version of a Delta table if this process has written it
    _applied: dict[str, tuple[int, int | None]] = field(default_factory=dict, init=False)
    _position: OutputPosition | None = field(default=None, init=False)

    def apply(self, raw: DataFrame, batch: int) -> None:
        """Append a batch of whole transactions. `raw`: a frame of frames.RAW. Raises
        MirrorError."""
        began, spark = time.monotonic(), raw.sparkSession
        tune(spark, TABLE_FORMAT.session_defaults(compacts=True))
        self._check_writer(spark)
        raw = without_marks(raw.where(f.col("table").isNotNull())).persist()
        try:
            found = summarize(raw, batch_size(raw))
            if found is None:
                self._note(spark, batch, -1, ())
                return
            content, records = found
            for part in content.parts:
                own = raw.where(f.col("table") == str(part.table)) if records is None else records[part.table]
                with _told_of_alter(part):
                    self._append(spark, own, part, content.commit_lsn)
        finally:
            raw.unpersist()
        self._note(spark, batch, content.commit_lsn, [str(part.table) for part in content.parts])
        tables = {str(part.table): part.changes for part in content.parts}
        seconds = time.monotonic() - began
        self.report(BatchReport(batch, content.commit_lsn, content.transactions, content.changes, tables, seconds))

    def _check_writer(self, spark: SparkSession) -> None:
        """Raise MirrorError if another process has opened the changelog since this process did. The
        first call opens the changelog."""
        found = read_position(spark, self.path)
        if self._position is None:
            self._position = replace(found or OutputPosition(), writer=uuid4().hex)
            write_position(spark, self.path, self._position)
        elif found is not None and found.writer != self._position.writer:
            raise _taken_over(self.path)

    def _note(self, spark: SparkSession, batch: int, commit_lsn: int, tables: Iterable[str]) -> None:
        """Store the position after a batch that is written, which had changes of these tables."""
        assert self._position is not None
        reached = max(commit_lsn, self._position.commit_lsn)
        noted = self._position.tables
        noted = noted | {name: max(commit_lsn, noted.get(name, -1)) for name in tables}
        query = running_query(spark)
        self._store(spark, replace(self._position, query=query, batch=batch, commit_lsn=reached, tables=noted))

    def _store(self, spark: SparkSession, position: OutputPosition) -> None:
        self._check_writer(spark)
        self._position = position
        write_position(spark, self.path, position)

    def _append(self, spark: SparkSession, records: DataFrame | pa.Table, part: TablePart, commit_lsn: int) -> None:
        """Append the records of one table. Few records are decoded in this process, which saves a
        Spark job."""
        location = table_path(self.path, part.table)
        if location not in self._applied:
            self._applied[location] = self._find_applied(spark, part.table, location, commit_lsn), None
        applied, left = self._applied[location]
        if applied >= commit_lsn:
            return
        for schema_id in part.schema_ids:
            check_table(part.table, schema_id, self.schemas[schema_id])
        older = [self.schemas[schema_id] for schema_id in reversed(part.schema_ids) if schema_id != part.newest]
        frame = TableFrame.of(self.schemas[part.newest], older)
        for row in frame.schema:
            if pa.types.is_struct(row.type):
                check_names(part.table, (column.name for column in row.type))
        texts = {schema_id: json.dumps(self.schemas[schema_id]) for schema_id in part.schema_ids}
        if isinstance(records, DataFrame):
            changes = typed(records, frame, texts)
        else:
            batches = decode_changes(iter(records.combine_chunks().to_batches()), frame, texts)
            changes = to_frame(spark, pa.Table.from_batches(batches, frame.schema), spark_schema(frame.schema))
        rows = [frame.schema.field(name) for name in ("old_key", "before", "after")]
        changes = changes.drop(
            *(row.name for row in rows if not row.type.num_fields)
        )  # no format can write such a struct
        changes = not_applied(changes, applied, "commit_lsn")
        del self._applied[location]  # if the write fails, it is not known what was written
        if self.format == "parquet":
            if applied >= 0 and not folder_names(spark, _batch_folder(location, applied)):
                self._find_applied(spark, part.table, location, commit_lsn)  # raises: the table was removed
            self._write_folder(changes, location, commit_lsn)
        else:
            names = {column.name for row in rows for column in row.type}
            try:
                _append_to_delta(changes, location, part.table, commit_lsn, applied, left, names)
            except TABLE_FORMAT.TAKEN_OVER as problem:
                self._check_writer(spark)
                self._find_applied(spark, part.table, location, commit_lsn)  # the table may have been removed
                raise _taken_over(self.path) from problem
            except MirrorError:  # its hint is to move the table away
                assert self._position is not None
                noted = {name: lsn for name, lsn in self._position.tables.items() if name != str(part.table)}
                self._store(spark, replace(self._position, tables=noted))
                raise
        left = None if self.format == "parquet" else TABLE_FORMAT.known_version(spark, location)
        self._applied[location] = commit_lsn, left

    def _write_folder(self, changes: DataFrame, location: str, commit_lsn: int) -> None:
        assert self._position is not None
        spark, writing = changes.sparkSession, f"{location}/{_WRITING}{commit_lsn}-{self._position.writer}"
        try:
            try:
                changes.write.mode("overwrite").option(_MARKS_SUCCESS, "true").parquet(writing)
            finally:
                self._check_writer(spark)  # a process that came meanwhile makes the write fail
        except MirrorError:
            remove_folder(spark, writing)
            raise
        batch = _batch_folder(location, commit_lsn)
        if not move_folder(spark, writing, batch):  # perhaps in part, which `writing` shows the next start
            self._check_writer(spark)
            raise _not_renamed(writing, batch)

    def _find_applied(self, spark: SparkSession, table: TableName, location: str, commit_lsn: int) -> int:
        """Return the commit LSN up to which a table is complete; -1 if there is no table. Raises
        MirrorError if there is a table of another format, or changes that were written are not
        there any more."""
        assert self._position is not None
        in_folders = self.format == "parquet"
        if TABLE_FORMAT.has_log(spark, location) if in_folders else _folder_lsns(spark, location):
            raise MirrorError(
                f"{location} is not a table of a changelog in the format {self.format}",
                hint="Use another path and checkpoint location for this format, or the --format with which this changelog "
                "was created.",
            )
        applied, noted = -1, self._position.tables.get(str(table), -1)
        if in_folders:
            applied = last_folder(spark, location, commit_lsn, self._position.commit_lsn)
        elif TABLE_FORMAT.exists(spark, location):
            applied = TABLE_FORMAT.applied_commit_lsn(spark, location, CHANGELOG)
            if (undone := TABLE_FORMAT.undone_version(spark, location, -1, CHANGELOG)) is not None:
                state = "has the rows of an earlier version, which was restored"
                raise OF_CHANGELOG.lost_table(f"{location} {state}", f"has written its version {undone}")
        if applied < noted:
            state = "is missing" if applied < 0 else f"ends at {format_lsn(applied)}"
            raise OF_CHANGELOG.lost_table(f"{location} {state}", f"has written it up to {format_lsn(noted)}")
        return applied


@contextmanager
def _told_of_alter(part: TablePart) -> Iterator[None]:
    """Raise MirrorError, with a hint, if the columns before and after an ALTER TABLE cannot be in
    one batch. The batch may be decoded in this process or by Spark."""
    try:
        yield
    except (UnsupportedSchema, PySparkException, Py4JJavaError) as problem:
        told = told_as(UnsupportedSchema, problem)
        if told is None or len(part.schema_ids) == 1:
            raise
        what = told.splitlines()[0]
        raise MirrorError(
            f"the changelog of {part.table} cannot store a micro-batch with changes before and after an ALTER TABLE: {what}",
            hint="Use a new checkpoint location and a smaller --max-changes, so that a micro-batch ends before the ALTER TABLE. "
            "If one transaction has changes before and after it, leave the table out (--exclude).",
        ) from problem


def _taken_over(path: str) -> MirrorError:
    return MirrorError(
        f"another process has opened the changelog at {path}: this one is stopping",
        hint=one_writer_hint("changelog"),
    )


def _not_renamed(folder: str, target: str) -> MirrorError:
    return MirrorError(
        f"{folder} could not be renamed to {target}",
        hint="Make sure that this process may rename directories there, and that no other program writes there. Then "
        "restart the query, which writes the micro-batch again: leave both directories to it.",
    )


def _batch_folder(location: str, commit_lsn: int) -> str:
    return f"{location}/batch={commit_lsn}"


def _folder_lsns(spark: SparkSession, location: str) -> list[int]:
    """Return the commit LSNs of the folders of batches, the highest first."""
    words = [name.removeprefix("batch=") for name in folder_names(spark, location) if name.startswith("batch=")]
    return sorted((int(word) for word in words if word.isdigit()), reverse=True)


def last_folder(spark: SparkSession, location: str, commit_lsn: int, complete_lsn: int = -1) -> int:
    """Return the highest commit LSN of a finished folder; -1 if there is none. The changelog is
    complete up to `complete_lsn`, and so is each folder up to there. From now on, no process that
    was writing a folder can finish it.

    A crash may have left later folders that are not finished: those of an older release, and those
    that an object store has renamed in part. They are removed. Raises MirrorError if such a folder
    has rows, unless the batch up to `commit_lsn` replaces it.
    """
    last, stopped = -1, _stop_writing(spark, location)
    for lsn in _folder_lsns(spark, location):
        folder = _batch_folder(location, lsn)
        files = folder_names(spark, folder)
        if lsn <= complete_lsn or ("_SUCCESS" in files and lsn not in stopped.values()):
            last = lsn
            break
        if lsn != commit_lsn and not all(file.startswith(("_", ".")) for file in files):
            raise MirrorError(
                f"{folder} is not finished: the micro-batch in it was not written completely. The current micro-batch "
                f"ends at {format_lsn(commit_lsn)}, and cannot replace it",
                hint="Remove only the directory named in this message, then restart the query: changes that the changelog "
                "already has are not written twice.",
            )
        remove_folder(spark, folder)
    for name in stopped:  # last: until then, they show which batches an object store has renamed in part
        remove_folder(spark, f"{location}/{name}")
    return last


def _stop_writing(spark: SparkSession, location: str) -> dict[str, int]:
    """Rename the folders that are being written, or were when their process was killed, so that
    none becomes the folder of a batch. Return all folders that were renamed so, now or earlier,
    with the commit LSNs of their batches. Raises MirrorError if one cannot be renamed."""
    stopped = {}
    for name in folder_names(spark, location):
        if name.startswith(_WRITING):
            lsn = name.split("-")[1]
            taken = f"{_STOPPED}{lsn}-{uuid4().hex}"
            if move_folder(spark, f"{location}/{name}", f"{location}/{taken}"):
                stopped[taken] = int(lsn)
            elif name in folder_names(spark, location):  # otherwise, its process has finished it meanwhile
                raise _not_renamed(f"{location}/{name}", f"{location}/{taken}")
        elif name.startswith(_STOPPED):
            lsn = name.split("-")[1]
            stopped[name] = int(lsn) if lsn.isdigit() else -1  # an older release noted no LSN
    return stopped


def _append_to_delta(
    changes: DataFrame,
    location: str,
    table: TableName,
    commit_lsn: int,
    applied: int,
    left: int | None,
    names: set[str],
) -> None:
    """Append to a table that has all changes up to `applied` (-1: there is no table). `left`: see
    TableFormat.write_once; `names`: the names of the source's columns."""
    is_new = applied < 0
    if not is_new:
        TABLE_FORMAT.allow_names(changes.sparkSession, location, names)
    properties = TABLE_FORMAT.changelog_properties(names) if is_new else NO_PROPERTIES
    try:
        TABLE_FORMAT.write_once(
            changes,
            location,
            "append",
            commit_lsn,
            merge_schema=True,
            application=CHANGELOG,
            properties=properties,
            expected=NO_NUMBERS if is_new else {CHANGELOG: applied},
            left=left,
        )
    except AnalysisException as problem:
        raise MirrorError(
            f"the changelog of {table} at {location} cannot store a column in its current type: "
            f"{str(problem).splitlines()[0]}",
            hint="Delta can only widen a type. Move the existing table to another path, then restart the query: it creates "
            "a new table, which begins with this micro-batch.",
        ) from problem
