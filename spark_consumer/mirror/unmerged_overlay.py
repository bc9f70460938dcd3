"""Tables of a mirror as they are after its unmerged changes: the tables as of the last merge, with
these changes applied.

The changes are folded by the same code that a merge uses (fold/start_fold.py, fold/keyless_log.py,
fold/replica_identity.py). The rows that a merge would write are returned as a DataFrame. The
overlay ends before a change that only a merge can apply: see table_states.first_unreadable and
slice_contents.empty_relations.

If there are more than READ_HERE unmerged changes, those of each table are read when it is
requested. Spark's workers fold them if this table alone has more than READ_HERE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_consumer.arrow import to_frame
from spark_consumer.mirror import changes
from spark_consumer.mirror.fold import replica_identity
from spark_consumer.mirror.fold.keyless_log import large_log, small_log
from spark_consumer.mirror.fold.merge_source import merge_input, merged_rows, rows
from spark_consumer.mirror.fold.replica_identity import RelationNames
from spark_consumer.mirror.fold.start_fold import (
    arrow_merge_input,
    living_rows,
    small_states,
    spark_states,
    table_schema,
    unsent_columns,
)
from spark_consumer.mirror.paths import table_path
from spark_consumer.mirror.slice_contents import (
    BatchContent,
    BatchSize,
    TablePart,
    as_arrow_if_small,
    batch_content,
    batch_size,
    earliest,
    empty_relations,
    marks_in,
    own_records,
    part_of,
    split_at_lsn,
    split_by_chunks,
    summarize,
    without_marks,
)
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_states import StoredMark, TableStates, advance, first_unreadable, verified_chunks
from spark_consumer.mirror.tables.columns import texts_of
from spark_consumer.mirror.tables.rewrite_columns import in_columns
from spark_consumer.mirror.tables.table_schema import TableSchema
from spark_consumer.mirror.tables.type_changes import change_of_types, misfits
from spark_consumer.reader.registry import Schema
from spark_consumer.reader.table_marks import EXCLUDED, SNAPSHOT_END
from spark_consumer.tables import TableName

if TYPE_CHECKING:
    from spark_consumer.mirror.version_manifest import RecordedVersion


READ_HERE = 50_000
"""Maximum number of changes that a reading process collects, decodes and folds itself. It is
compared with the changes of all tables, which are collected together if they are few. Otherwise, it
is compared with those of each table when that table is requested. A reader may need one table of
many, or be a notebook on a cluster, and would wait for its single core. A merge folds more in its
own process, since it needs all tables at once."""


def overlay(
    spark: SparkSession, path: str, base: RecordedVersion, waiting: DataFrame
) -> tuple[RecordedVersion, dict[str, Callable[[], DataFrame]]]:
    """Return the version after `waiting` (changes.COLUMNS, all after `base`) and, for each table
    with changes, a function that returns its rows."""
    size = batch_size(waiting)
    marks = marks_in(waiting) if size.marks else []
    states = TableStates.of(base.table_states)
    end = first_unreadable(states, marks)
    if end is not None:
        return overlay(spark, path, base, waiting.where(f.col("commit_lsn") < end))
    schemas = changes.kept_schemas(spark, path)
    to_apply = _changes_to_apply(waiting, states, marks, schemas)
    found = _content(to_apply, size if to_apply is waiting else batch_size(to_apply))
    if found is None and not marks:
        return base, {}
    parts, records = (found[0].parts, found[1]) if found else ([], None)
    first_rows = found[0].first_rows(base.tables, partial(_oid_of, schemas)) if found else {}
    states_after, ended = advance(states, marks, first_rows)
    for part in parts:
        states_after.thaw_former(str(part.table), _oid_of(schemas, part.newest), part.last_lsn)
    if emptied := empty_relations(marks, ended, parts, base.oids, partial(_oid_of, schemas)):
        end = min(mark.commit_lsn for mark in marks if mark.kind == SNAPSHOT_END and mark.table in emptied)
        return overlay(spark, path, base, waiting.where(f.col("commit_lsn") < end))
    times = [found[0].commit_time if found else None, *(mark.commit_time for mark in marks)]
    made = replace(
        base,
        commit_lsn=size.last_lsn,
        commit_time=max(filter(None, times), default=base.commit_time),
        tables={name: version for name, version in base.tables.items() if name not in states_after.renamed},
        table_states=states_after.text(),
    )
    names = RelationNames(base.oids, states.former, parts, partial(_oid_of, schemas))
    frames: dict[str, Callable[[], DataFrame]] = {}
    for part in parts:
        if str(part.table) in states_after.renamed:
            continue
        known = _known(spark, path, base, part.table, schemas, names)
        own = own_records(to_apply, records, part.table)
        frames[str(part.table)] = partial(_overlaid, spark, known, own, part, schemas)
    return made, frames


def _oid_of(schemas: Mapping[int, Schema], schema_id: int) -> int:
    return int(schemas[schema_id]["pg.relation"]["oid"])


def _content(to_apply: DataFrame, size: BatchSize) -> tuple[BatchContent, dict[TableName, pa.Table] | None] | None:
    """Return what slice_contents.summarize returns, but no records if there are more than READ_HERE
    changes."""
    if size.changes <= READ_HERE:
        return summarize(to_apply, size)
    content = batch_content(to_apply)
    return None if content is None else (content, None)


def _changes_to_apply(
    waiting: DataFrame, states: TableStates, marks: list[StoredMark], schemas: Mapping[int, Schema]
) -> DataFrame:
    """Return the changes to be applied: without table marks, rows that a VERIFY only compares, and
    changes of tables in quarantine."""
    to_apply = without_marks(waiting) if marks else waiting
    frozen = {(name, states.frozen_oids.get(name)): -1 for name in states.frozen}
    for mark in marks:
        if mark.kind == EXCLUDED and mark.table is not None:
            frozen.setdefault((mark.table, mark.facts.get("relation_oid")), mark.commit_lsn)
    if chunks := verified_chunks(marks):
        _, to_apply = split_by_chunks(to_apply, chunks)
    for (name, oid), commit_lsn in frozen.items():
        is_kept = (f.col("table") != name) | (f.col("commit_lsn") < commit_lsn)
        if oid is not None:
            is_kept |= ~f.col("schema_id").isin([number for number in schemas if _oid_of(schemas, number) == oid])
        to_apply = to_apply.where(is_kept)
    return to_apply


@dataclass(frozen=True, slots=True)
class Known:
    """A table as of the last merge, or with a part of its later changes. `rows`: None if it did not
    exist. `oid`, `key`: those of its relation; `is_other`: RelationNames.is_other for the table.

    `shape`: version of the relation whose columns the rows have, if it is known; `copied_in`:
    returns the rows with which the operator has overwritten the table since, or None.
    """

    table: TableName
    location: str
    rows: DataFrame | None
    commit_lsn: int
    oid: int | None
    key: tuple[str, ...]
    is_other: Callable[[int], bool]
    shape: TableSchema | None
    copied_in: Callable[[], DataFrame | None] = lambda: None


def _known(
    spark: SparkSession,
    path: str,
    base: RecordedVersion,
    table: TableName,
    schemas: Mapping[int, Schema],
    names: RelationNames,
) -> Known:
    name, location = str(table), table_path(path, table)
    rows = TABLE_FORMAT.at_version(spark, location, base.tables[name]) if name in base.tables else None
    is_other = partial(names.is_other, table)
    schema = schemas.get(base.schema_ids.get(name, -1))
    shape = None if schema is None else TableSchema.of(schema)
    key = tuple(base.keys.get(name, ()))
    copied_in = partial(_copied_in, spark, location, base.tables.get(name))
    return Known(table, location, rows, base.commit_lsn, base.oids.get(name), key, is_other, shape, copied_in)


def _copied_in(spark: SparkSession, location: str, since: int | None) -> DataFrame | None:
    copied = None if since is None else TABLE_FORMAT.copied_version(spark, location, since)
    return None if copied is None else TABLE_FORMAT.at_version(spark, location, copied)


def _overlaid(
    spark: SparkSession,
    known: Known,
    own: pa.Table | DataFrame,
    part: TablePart,
    schemas: Mapping[int, Schema],
) -> DataFrame:
    """Return the table with its changes applied, in pieces if its key or the type of a column
    changes. Raises MirrorError where a merge would, except for conditions that are errors only
    because of `strict` or `on_recreated` = STOP."""
    shapes = {schema_id: TableSchema.of(schemas[schema_id]) for schema_id in part.schema_ids}
    if isinstance(own, pa.Table) or part.changes <= READ_HERE:
        own = as_arrow_if_small(spark, own, part, len(shapes[part.newest].columns))
    key_of = replica_identity.keys_of(shapes)
    rest: pa.Table | DataFrame | None = own
    while rest is not None:
        piece, cut = rest, None
        versions = {schema_id: shapes[schema_id] for schema_id in part.schema_ids}
        if len(set(map(key_of, versions))) > 1 or misfits(versions.values(), versions[part.newest]):
            first = replica_identity.first_positions(rest)
            by_key = replica_identity.change_of_key(known.table, rest, first, key_of, partial(_oid_of, schemas))
            cut = earliest([by_key, change_of_types(part, first, versions)])
        if cut is not None:
            piece, rest = split_at_lsn(rest, cut)
            part = part_of(piece, known.table)
        else:
            rest = None
        known = _after_piece(spark, known, piece, part, shapes, schemas)
        part = part if rest is None else part_of(rest, known.table)
    assert known.rows is not None
    return known.rows


def _after_piece(
    spark: SparkSession,
    known: Known,
    own: pa.Table | DataFrame,
    part: TablePart,
    shapes: Mapping[int, TableSchema],
    schemas: Mapping[int, Schema],
) -> Known:
    shape = shapes[part.newest]
    copy = known.copied_in() if known.oid not in (None, shape.oid) else None
    if copy is not None:
        known = replace(known, rows=copy)
    texts = texts_of({schema_id: (schemas[schema_id], shapes[schema_id]) for schema_id in part.schema_ids}, part.newest)
    begin = replica_identity.beginning_of_relation(
        part,
        known.location,
        own,
        lambda schema_id: shapes[schema_id].oid,
        known.oid,
        known.is_other,
        lambda: copy is not None or known.rows is None or replica_identity.is_empty(known.rows),
    )
    emptied = None if begin is None else (begin[0], begin[1] - 1)
    if emptied is not None:
        part = replace(part, last_truncate=max(emptied, part.last_truncate or (-1, -1)))
    columns = replica_identity.columns_of(shape)
    replica_identity.check_log_names(known.table, shape)
    replica_identity.check_names(known.table, columns.names)
    base = None
    if known.rows is not None and not (shape.key and part.last_truncate is not None):
        as_now = replica_identity.converted(known.rows, known.table, known.location, shape, known.commit_lsn)
        there = [shapes[number] for number in part.schema_ids]
        casts = emptied is None and (copy is not None or known.oid in (None, shape.oid))
        base = in_columns(spark, as_now, known.shape, shape, columns, there, casts=casts)
        if shape.key and (known.key != shape.key or shape.has_other_key_types(known.shape)):
            replica_identity.check_key(base, known.location, known.table, shape)
    if shape.key:
        made = _keyed(spark, base, own, part, shape, texts)
    else:
        log = (
            to_frame(spark, small_log(own, shape, texts, emptied), columns)
            if isinstance(own, pa.Table)
            else large_log(spark, own, shape, texts, emptied)
        )
        made = log if base is None else base.unionByName(log)
    return replace(known, rows=made, oid=shape.oid, key=shape.key, shape=shape, copied_in=lambda: None)


def _keyed(
    spark: SparkSession,
    base: DataFrame | None,
    own: pa.Table | DataFrame,
    part: TablePart,
    shape: TableSchema,
    texts: dict[int, str],
) -> DataFrame:
    if isinstance(own, pa.Table):
        few = small_states(spark, lambda: base, own, part, shape, texts)
        if base is None:
            return to_frame(spark, living_rows(few, shape), table_schema(shape))
        unsent = unsent_columns(few)
        return merged_rows(base, arrow_merge_input(spark, few, unsent), shape, unsent)
    many, unsent, _ = spark_states(spark, lambda: base, own, part, shape, texts, persist=False)
    return rows(many, shape) if base is None else merged_rows(base, merge_input(many, shape, unsent), shape, unsent)
