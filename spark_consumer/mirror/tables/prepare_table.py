"""Preparation of a table for a slice of a merge. The table must have been written by a mirror; the
code does not check by which. Rows of a former relation with its name are dealt with first, as
`on_recreated` requires. Then the table gets the columns and the key of the slice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from schemas.lsn import format_lsn
from spark_consumer.errors import MirrorError
from spark_consumer.mirror import version_manifest
from spark_consumer.mirror.fold import replica_identity
from spark_consumer.mirror.fold.replica_identity import RelationNames
from spark_consumer.mirror.fold.start_fold import NoteLost, ignore_lost
from spark_consumer.mirror.paths import kept_path, table_path
from spark_consumer.mirror.slice_contents import TablePart
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import Superseded
from spark_consumer.mirror.tables.columns import (
    ColumnChange,
    change_of_columns,
    doubts_of,
    is_rewritten,
    missing_values,
)
from spark_consumer.mirror.tables.table_schema import MissingValue, TableSchema
from spark_consumer.mirror.tables.table_schemas import TableSchemas
from spark_consumer.mirror.tables.type_changes import misfits
from spark_consumer.mirror.tables.write_table import NEW, ColumnRewrite, TableWork
from spark_consumer.reader.positions import OF_MIRROR
from spark_consumer.tables import TableName

EMPTY, STOP, KEEP_AS = "empty", "stop", "keep-as"
_NOT_KNOWN = -1


@dataclass
class TablePreparation:
    """Prepare the tables of the mirror at `path`. `shapes`: the schemas of its tables;
    `on_recreated`, `deletion_vectors`, `strict`: as for merger.Merger."""

    path: str
    shapes: TableSchemas
    on_recreated: str
    deletion_vectors: bool
    strict: bool
    lacking_rows: Collection[str] = ()  # tables of the current slice that may lack rows until a snapshot of them ends
    _doubts: list[str] = field(default_factory=list, init=False)  # messages for the report of the current slice
    # Tables recreated in the current slice, and the position before the new relation's first
    # record.
    _emptied: dict[TableName, tuple[int, int]] = field(default_factory=dict, init=False)
    # The commit LSN that each table has reached, and its version then: reading the former
    # costs a job.
    _applied: dict[TableName, tuple[int, int]] = field(default_factory=dict, init=False)

    def take_notes(self) -> list[str]:
        """Return the messages for the report of the slice that was written, and forget them."""
        notes = [
            f"{table} was dropped and recreated: the rows of the old table were removed" for table in self._emptied
        ]
        notes += dict.fromkeys(self._doubts)
        self._emptied.clear()
        self._doubts.clear()
        return notes

    def forget(self) -> None:
        """Forget which commit LSNs the tables have reached, since another writer has written to
        some of them."""
        self._applied.clear()

    def reached_lsn(self, spark: SparkSession, tables: Iterable[TableName]) -> int:
        """Return the last commit LSN that any of these tables has reached, also by a slice that was
        not merged completely; -1 if none exists. Raises MirrorError if another program created
        one."""
        there = [(table, table_path(self.path, table)) for table in tables]
        return max(
            (
                self._applied_commit_lsn(spark, table, location)
                for table, location in there
                if TABLE_FORMAT.exists(spark, location)
            ),
            default=-1,
        )

    def note_applied(self, table: TableName, commit_lsn: int) -> None:
        self._applied[table] = (commit_lsn, _NOT_KNOWN)

    def note_version(self, table: TableName, version: int) -> None:
        """Note the version after a write, which may also be that of a snapshot's end."""
        if table in self._applied:
            self._applied[table] = (self._applied[table][0], version)

    def prepare(
        self,
        spark: SparkSession,
        part: TablePart,
        own: pa.Table | DataFrame,
        commit_lsn: int,
        last: version_manifest.RecordedVersion | None,
        names: RelationNames,
    ) -> TableWork:
        """Prepare a table and return the work to do. `commit_lsn`: the last one of the slice;
        `last`: the last version of the mirror.

        Raises MirrorError if the table was not written by a mirror, is missing or older than in
        `last`, is already past this slice, or cannot follow the changes of its relation. Raises
        Superseded as `_applied_commit_lsn` does.
        """
        shape = self.shapes.of(part.newest)
        texts = self.shapes.texts(part)
        location = table_path(self.path, part.table)
        columns = replica_identity.columns_of(shape)
        replica_identity.check_log_names(part.table, shape)
        replica_identity.check_names(part.table, columns.names)
        self._note_changes_between(part, own)
        recorded = -1 if last is None else last.tables.get(str(part.table), -1)
        if not TABLE_FORMAT.exists(spark, location):
            if recorded >= 0:
                raise OF_MIRROR.lost_table(f"{location} is missing", f"has version {recorded} of it")
            part = self._of_one_relation(spark, location, part, own, NEW, last, names)
            self._note_rename(part.table, shape.oid, last)
            emptied = self._emptied.get(part.table)
            return TableWork(
                location,
                part,
                shape,
                texts,
                NEW,
                emptied,
                self.deletion_vectors,
                note_lost=self._noting_lost(part.table),
            )
        applied = self._applied_commit_lsn(spark, part.table, location)
        self._check_has(spark, location, self._applied[part.table][1], recorded)
        if applied > commit_lsn:
            raise MirrorError(
                f"{location} has reached {format_lsn(applied)}, but the changes to be merged end at {format_lsn(commit_lsn)}: "
                "an earlier merge was interrupted after it had written this table, and since then the mirror's checkpoint "
                "location or its directory changes was lost",
                hint="Run walgate mirror with --merge-every inf until it reports a micro-batch with changes up to "
                f"{format_lsn(applied)} or later, then run walgate merge. After that, run walgate mirror as before.",
            )
        if applied < commit_lsn:
            part = self._of_one_relation(spark, location, part, own, applied, last, names)
            if part.last_truncate is not None and part.last_truncate[0] <= applied:
                part = replace(part, last_truncate=None)
            schema_id = self._schema_id_before(part, own, applied, last)
            refit = self._rewrite(spark, part, schema_id, location, applied, last)
            emptied = self._emptied.get(part.table)
            lost = self._noting_lost(part.table)
            work = TableWork(location, part, shape, texts, applied, emptied, rewrite=refit, note_lost=lost)
            before = self.shapes.find(schema_id)
            if refit is None:
                self._convert(spark, work, before, last)
            if TABLE_FORMAT.known_version(spark, location) != self._applied[part.table][1]:
                self._applied_commit_lsn(spark, part.table, location)  # the commits may be another writer's
            work = replace(work, version=self._applied[part.table][1])
            keys = {} if last is None else last.keys
            has_other_key = tuple(keys.get(str(part.table), ())) != shape.key or shape.has_other_key_types(before)
            if shape.key and part.last_truncate is None and has_other_key:
                base = work.base(spark)
                assert base is not None
                replica_identity.check_key(base, location, part.table, shape)
            return work
        return TableWork(location, part, shape, texts, applied, self._emptied.get(part.table))

    def check_left_alone(
        self, spark: SparkSession, tables: Iterable[TableName], last: version_manifest.RecordedVersion | None
    ) -> None:
        """Raise MirrorError if one of these tables lacks changes that were merged into it."""
        for table in tables:
            location, recorded = table_path(self.path, table), -1 if last is None else last.tables.get(str(table), -1)
            if recorded >= 0 and TABLE_FORMAT.exists(spark, location):
                self._check_has(spark, location, TABLE_FORMAT.version(spark, location), recorded)

    def _check_has(self, spark: SparkSession, location: str, version: int, recorded: int) -> None:
        if version < recorded:
            raise OF_MIRROR.lost_table(f"{location} is at version {version}", f"has version {recorded} of it")
        undone = TABLE_FORMAT.undone_version(spark, location, recorded) if version > recorded else None
        if undone is not None:
            state = "has the rows of an earlier version, which was restored"
            raise OF_MIRROR.lost_table(f"{location} {state}", f"has version {undone} of it")

    def _convert(
        self,
        spark: SparkSession,
        work: TableWork,
        before: TableSchema | None,
        last: version_manifest.RecordedVersion | None,
    ) -> None:
        """Convert a table, and its columns, as the new version of its relation requires. Rows that
        will all be overwritten are not converted. `before`: the version that the table has, if it
        is known."""
        shape, location, applied = work.shape, work.location, work.applied
        # A table that has reached the beginning of the new relation has rows of it already.
        is_emptied = work.emptied is not None and work.emptied[0] > applied
        columns = replica_identity.columns_of(shape)
        if work.needs_merge or not shape.key:
            table = work.part.table
            TABLE_FORMAT.despite_conflicts(partial(replica_identity.convert, spark, location, table, shape, applied))
            # Columns of another relation are other columns, whatever their names are. An operator's
            # copy has the columns of the present one.
            casts = not is_emptied and (
                before is None
                or before.oid == shape.oid
                or self._was_overwritten(spark, location, work.part.table, last)
            )
            TABLE_FORMAT.despite_conflicts(partial(TABLE_FORMAT.align, spark, location, columns, casts=casts))
        else:  # the rows are overwritten, and their columns too
            TABLE_FORMAT.allow_names(spark, location, columns.names)

    def _applied_commit_lsn(self, spark: SparkSession, table: TableName, location: str) -> int:
        """Return the commit LSN that a table has reached. Raises Superseded if another writer has
        changed it."""
        known = self._applied.get(table)
        version = TABLE_FORMAT.version(spark, location)
        if known is not None and known[1] == version:
            return known[0]
        found = TABLE_FORMAT.applied_commit_lsn(spark, location)
        if known is not None and known[0] != found:
            raise Superseded(location)
        self._applied[table] = (found, version)
        return found

    def _rewrite(
        self,
        spark: SparkSession,
        part: TablePart,
        schema_id: int | None,
        location: str,
        applied: int,
        last: version_manifest.RecordedVersion | None,
    ) -> ColumnRewrite | None:
        """Return how to rewrite the columns, if some were renamed, replaced, or added with a
        default. Raises MirrorError if `strict` and the effect on existing rows is unknown.
        `schema_id`: see _schema_id_before."""
        shape = self.shapes.of(part.newest)
        if schema_id == part.newest or (part.last_truncate is not None and shape.key):
            return None
        before = self.shapes.find(schema_id)
        if before is None or before.oid != shape.oid:
            return None
        change = change_of_columns(before, shape, missing_values(map(self.shapes.of, part.schema_ids)))
        self._note_doubts(part.table, before, shape, change)
        if not is_rewritten(before, shape, change):
            return None
        if self._overwritten_by_operator(spark, part.table, location, applied, last):
            return None
        wanted = replica_identity.columns_of(shape)
        TABLE_FORMAT.allow_names(spark, location, wanted.names)
        return ColumnRewrite(before, change, wanted)

    def _schema_id_before(
        self, part: TablePart, own: pa.Table | DataFrame, applied: int, last: version_manifest.RecordedVersion | None
    ) -> int | None:
        """Return the schema id of the relation's version whose columns a table has before this
        write, or None if it is not known."""
        taken = None
        if last is None or applied > last.commit_lsn:
            taken = replica_identity.newest_up_to(own, applied)
        if taken is None and last is not None:
            taken = last.schema_ids.get(str(part.table))
        return taken

    def _overwritten_by_operator(
        self,
        spark: SparkSession,
        table: TableName,
        location: str,
        applied: int,
        last: version_manifest.RecordedVersion | None,
    ) -> bool:
        """Return whether the operator has overwritten the table with the source's current rows, as
        an error message advised: then no columns have to be changed."""
        known = None if last is None else last.tables.get(str(table))
        if last is None or known is None or applied > last.commit_lsn:
            return False
        return TABLE_FORMAT.was_overwritten(spark, location, known)

    def _note_doubts(self, table: TableName, before: TableSchema, shape: TableSchema, change: ColumnChange) -> None:
        if doubts := doubts_of(before, shape, change):
            self._note_doubt(table, doubts)

    def _note_changes_between(self, part: TablePart, own: pa.Table | DataFrame) -> None:
        """Note columns that were changed between the records, if their values in earlier records
        are unknown, or if values from earlier in a transaction may not fit the new type."""
        shape, schema_ids = self.shapes.of(part.newest), part.schema_ids
        missing = missing_values(map(self.shapes.of, schema_ids))
        if not _doubts_between(map(self.shapes.of, schema_ids), shape, missing):
            return
        if shape.key and part.last_truncate is not None:
            schema_ids = replica_identity.schema_ids_after(own, part.last_truncate)
        for doubt in _doubts_between(map(self.shapes.of, schema_ids), shape, missing):
            self._note_doubt(part.table, doubt)

    def _noting_lost(self, table: TableName) -> NoteLost:
        """Return a function that notes columns whose values were not sent with a new key, and whose
        old row is not in the table. If the table lacks rows, a snapshot brings these values."""
        if str(table) in self.lacking_rows:
            return ignore_lost
        return lambda columns: self._note_doubt(
            table,
            "a row got another key, but the table did not have the row before. Values that were not sent with it are null: "
            + ", ".join(sorted(columns)),
        )

    def _note_rename(self, table: TableName, oid: int, last: version_manifest.RecordedVersion | None) -> None:
        """Report a doubt if a table that is new in the mirror was in it under another name, unless
        a snapshot brings its rows. The table of the former name stays in the versions of the
        mirror, gets no more changes, and is not stale."""
        if str(table) in self.lacking_rows:
            return
        before = [name for name, known in ({} if last is None else last.oids).items() if known == oid]
        if before and before != [str(table)]:
            self._note_doubt(table, f"it was {before[0]} before, and the rows from before are only there")

    def _note_doubt(self, table: TableName, doubt: str) -> None:
        if self.strict:
            raise MirrorError(
                f"{table}: {doubt}",
                hint="Run walgate snapshot start for this table, and start the mirror once without --strict.",
            )
        self._doubts.append(f"{table}: {doubt}. A snapshot of the table corrects that")

    def _of_one_relation(
        self,
        spark: SparkSession,
        location: str,
        part: TablePart,
        own: pa.Table | DataFrame,
        applied: int,
        last: version_manifest.RecordedVersion | None,
        names: RelationNames,
    ) -> TablePart:
        """Cut the part where a new relation with the table's name begins, if the rows of the former
        relation were not removed by an event. Return the part.

        Raises MirrorError if the mirror knows the new relation by another name, if the relation had
        this name before, or if `on_recreated` is STOP.
        """
        self._emptied.pop(part.table, None)
        known = None if last is None else last.oids.get(str(part.table))
        begin = replica_identity.beginning_of_relation(
            part,
            location,
            own,
            self.shapes.oid_of,
            known,
            partial(names.is_other, part.table),
            lambda: self._was_emptied(spark, location, part.table, last),
        )
        if begin is None:
            return part
        if self.on_recreated == STOP:
            oids = set(map(self.shapes.oid_of, part.schema_ids))
            raise replica_identity.recreated_error(part.table, location, may_empty=True, may_copy=len(oids) == 1)
        if (
            self.on_recreated == KEEP_AS and known is not None and begin[0] > applied
        ):  # otherwise, its rows are already gone
            replica_identity.keep_copy(spark, location, kept_path(self.path, part.table, known), applied)
            if len(set(map(self.shapes.oid_of, replica_identity.schema_ids_after(own, (applied + 1, -1))))) > 1:
                self._doubts.append(
                    f"{part.table}: the copy of its former rows lacks their changes after {format_lsn(applied)}, "
                    "since these were merged together with changes of the new table"
                )
        self._emptied[part.table] = (begin[0], begin[1] - 1)
        return replace(part, last_truncate=max(self._emptied[part.table], part.last_truncate or (-1, -1)))

    def gives_up_rows(
        self,
        spark: SparkSession,
        table: TableName,
        former: int,
        begin_lsn: int,
        last: version_manifest.RecordedVersion | None,
    ) -> bool:
        """Return whether a table still has the rows of a former relation, to be removed because a
        snapshot that began at `begin_lsn` found the new relation empty. Keep a copy of them if
        `on_recreated` is KEEP_AS. Raises MirrorError if it is STOP."""
        location = table_path(self.path, table)
        if not TABLE_FORMAT.exists(spark, location) or replica_identity.is_empty(TABLE_FORMAT.rows(spark, location)):
            return False
        if self._was_overwritten(spark, location, table, last):
            return False
        if self.on_recreated == STOP:
            raise replica_identity.recreated_error(table, location, may_empty=True)
        if self.on_recreated == KEEP_AS:
            applied = TABLE_FORMAT.applied_commit_lsn(spark, location)
            replica_identity.keep_copy(spark, location, kept_path(self.path, table, former), applied)
        self._emptied[table] = (begin_lsn, -1)
        return True

    def _was_emptied(
        self, spark: SparkSession, location: str, table: TableName, last: version_manifest.RecordedVersion | None
    ) -> bool:
        """Return whether the table is empty, or was overwritten by the operator with the source's
        rows."""
        return replica_identity.is_empty(TABLE_FORMAT.rows(spark, location)) or self._was_overwritten(
            spark, location, table, last
        )

    def _was_overwritten(
        self, spark: SparkSession, location: str, table: TableName, last: version_manifest.RecordedVersion | None
    ) -> bool:
        """Return whether the operator has overwritten the table since the last version."""
        known = None if last is None else last.tables.get(str(table))
        return known is not None and TABLE_FORMAT.was_overwritten(spark, location, known)


def _doubts_between(
    written: Iterable[TableSchema], newest: TableSchema, missing: Mapping[int, MissingValue | None]
) -> list[str]:
    """Describe doubts about records of these versions that get the columns of the newest one.
    `missing`: as for `change_of_columns`."""
    written = [shape for shape in written if shape is not newest]
    found = [doubt for shape in written for doubt in change_of_columns(shape, newest, missing).losses]
    if lost := misfits(written, newest):
        found.append(
            f"the type was changed within a transaction: {', '.join(lost)}. Values that it had written before are "
            "null if they do not fit"
        )
    return found
