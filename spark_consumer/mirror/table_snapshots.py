"""Snapshots of tables that are in progress or end in a slice: the rows that they replace or
compare."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_consumer.errors import MirrorError
from spark_consumer.mirror import snapshot_keys, version_manifest
from spark_consumer.mirror.fold import replica_identity
from spark_consumer.mirror.paths import seen_path, table_path
from spark_consumer.mirror.slice_contents import BatchSlice, own_records
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import APPLICATION
from spark_consumer.mirror.table_states import FILL, VERIFY, SnapshotWindow
from spark_consumer.mirror.tables.rewrite_columns import in_columns
from spark_consumer.mirror.tables.table_schema import TableSchema, is_log
from spark_consumer.mirror.tables.table_schemas import TableSchemas
from spark_consumer.mirror.verify import comparison, verdicts
from spark_consumer.reader.table_marks import SNAPSHOT_END
from spark_consumer.tables import TableName


def note_key_change(
    spark: SparkSession, path: str, shapes: TableSchemas, batch_slice: BatchSlice, windows: dict[str, SnapshotWindow]
) -> None:
    """Note in each window whether the key of its table changes, or gets another type. Rows from
    before the window do not count."""
    verified = () if batch_slice.verified is None else batch_slice.verified.content.parts
    read = {str(part.table): part.newest for part in verified}
    for part in batch_slice.parts:
        name, shape = str(part.table), shapes.of(part.newest)
        if name not in windows or part.last_lsn <= windows[name].begin_lsn:
            continue
        window = windows[name].with_key(_key_of(shape))
        if shape.key and window.purpose != FILL and not window.has_two_keys:
            keys = seen_path(path, part.table, window.begin_lsn)
            window = replace(window, has_two_keys=snapshot_keys.have_other_types(spark, keys, shape))
        windows[name] = replace(window, schema_id=read.get(name, window.schema_id))


def _key_of(shape: TableSchema) -> list[Any]:
    """Return the key in the form that SnapshotWindow.key has."""
    return list(shape.key_numbers or shape.key)


def store_seen_keys(
    spark: SparkSession, path: str, shapes: TableSchemas, batch_slice: BatchSlice, windows: Mapping[str, SnapshotWindow]
) -> None:
    """Store the keys of a slice's rows for snapshots that replace or compare rows."""
    written = (batch_slice.changes, batch_slice.records, batch_slice.content)
    verified = batch_slice.verified
    compared = None if verified is None else (verified.changes, verified.records, verified.content)
    for label, found in (("", written), (" verify", compared)):
        for part in () if found is None else found[2].parts:
            window, shape = windows.get(str(part.table)), shapes.of(part.newest)
            if found is None or window is None or window.purpose == FILL or window.has_two_keys or not shape.key:
                continue
            if part.last_lsn <= window.begin_lsn:  # otherwise the keys would get the types of an earlier key
                continue
            own = own_records(found[0], found[1], part.table)
            location = seen_path(path, part.table, window.begin_lsn)
            lsns = (window.begin_lsn, batch_slice.content.commit_lsn)
            snapshot_keys.store_keys(spark, location, own, shape, shapes.texts(part), *lsns, APPLICATION + label)


def compare(
    spark: SparkSession,
    path: str,
    shapes: TableSchemas,
    batch_slice: BatchSlice,
    ended: Mapping[str, SnapshotWindow],
    last: version_manifest.RecordedVersion | None,
) -> tuple[int, list[str]]:
    """Write the differences that the slice shows, once. Return how many there are, and the tables
    whose surplus rows a VERIFY could not determine, since their keys changed."""
    found, unknown = [], []
    merged = {} if last is None else dict(last.schema_ids)
    merged |= {str(part.table): part.newest for part in batch_slice.content.parts}
    lsn, verified = batch_slice.content.commit_lsn, batch_slice.verified
    for part in () if verified is None else verified.content.parts:
        assert verified is not None
        own = own_records(verified.changes, verified.records, part.table)
        shape, before = shapes.of(part.newest), shapes.find(merged.get(str(part.table)))
        rows = _rows_as_now(spark, path, part.table, before, shape, map(shapes.of, part.schema_ids), lsn)
        compare = comparison.row_differences if shape.key else comparison.log_differences
        found.append(
            (str(part.table), compare(spark, rows, own, shape, shapes.texts(part)), batch_slice.snapshot_id(part))
        )
    for name, window in ended.items():
        table = TableName.parse(name)
        schema_id = window.schema_id or merged.get(name)
        if window.purpose != VERIFY or schema_id is None:
            continue
        shape = shapes.of(schema_id)
        rows = _rows_as_now(spark, path, table, shapes.find(merged.get(name)), shape, [shape], lsn)
        if rows is None:
            continue
        if window.has_two_keys:
            unknown.append(name)
        elif shape.key and window.key in (None, _key_of(shape)) and set(shape.key) <= set(rows.columns):
            keys = seen_path(path, table, window.begin_lsn)
            surplus = comparison.surplus_rows(snapshot_keys.surplus(spark, rows, keys, shape), shape)
            found.append((name, surplus, window.snapshot_id))
        elif shape.key:
            unknown.append(name)
        elif not batch_slice.row_count(name):
            found.append((name, comparison.surplus_log_rows(rows, shape, window.begin_lsn), window.snapshot_id))
    return comparison.record(spark, path, found, lsn) if found else 0, unknown


def _rows_as_now(
    spark: SparkSession,
    path: str,
    table: TableName,
    before: TableSchema | None,
    shape: TableSchema,
    shapes: Iterable[TableSchema],
    commit_lsn: int,
) -> DataFrame | None:
    """Return the rows that a table has at `commit_lsn`, or None if it does not exist. They have the
    columns and the key of `shape`, although the table gets these only with its next change.
    `before`: version of the relation whose columns it has, if known; `shapes`: as for
    `in_columns`."""
    location = table_path(path, table)
    if not TABLE_FORMAT.exists(spark, location):
        return None
    rows = TABLE_FORMAT.rows(spark, location)
    if before is None or before == shape:
        return rows
    try:
        rows = replica_identity.converted(rows, table, location, shape, commit_lsn)
    except MirrorError:  # the log does not add up to rows: the table's next change raises this error
        return rows
    casts = before.oid == shape.oid
    return in_columns(spark, rows, before, shape, replica_identity.columns_of(shape), shapes, casts=casts)


def end_replace(
    spark: SparkSession,
    path: str,
    shapes: TableSchemas,
    batch_slice: BatchSlice,
    name: str,
    window: SnapshotWindow,
    last: version_manifest.RecordedVersion | None,
    check: Callable[[], None],
) -> str | None:
    """Delete the rows whose keys had no change during the snapshot: they are no longer in the
    source. These are all rows if the snapshot read none. Return a message for the report if it read
    rows, but their keys are not known; then all rows stay.

    `check` raises an error if another writer has taken over. It is called before each attempt: that
    writer may have removed the keys and merged later rows.
    """
    table = TableName.parse(name)
    location, keys = table_path(path, table), seen_path(path, table, window.begin_lsn)
    if not TABLE_FORMAT.exists(spark, location):
        return None
    if is_log(TABLE_FORMAT.rows(spark, location).columns):
        if not batch_slice.row_count(name):
            remove_rows(spark, location, window, check)
        return None
    if window.has_two_keys:
        return _all_stay(name, "its key changed while its snapshot was read")
    schema_id = _newest(batch_slice, name, last)
    if schema_id is not None and TABLE_FORMAT.exists(spark, keys):
        _delete(check, partial(snapshot_keys.delete_surplus, spark, location, keys, shapes.of(schema_id)))
        return None
    if batch_slice.row_count(name):
        return _all_stay(name, f"{keys}, with the keys that its snapshot read, does not exist")
    remove_rows(spark, location, window, check)
    return None


def remove_rows(spark: SparkSession, location: str, window: SnapshotWindow, check: Callable[[], None]) -> None:
    """Remove all rows of a table, or append a TRUNCATE to its log, since a snapshot read none.
    `check`: see end_replace."""
    if is_log(TABLE_FORMAT.rows(spark, location).columns):
        _delete(check, partial(snapshot_keys.truncate_log, spark, location, window.begin_lsn))
    else:
        _delete(check, partial(TABLE_FORMAT.delete, spark, location))


def _delete(check: Callable[[], None], delete: Callable[[], None]) -> None:
    def attempt() -> None:
        check()
        delete()

    TABLE_FORMAT.despite_conflicts(attempt)


def _all_stay(name: str, reason: str) -> str:
    return f"{name}: {reason}, so rows that are no longer in the source may remain. Run walgate snapshot start for this table"


def _newest(batch_slice: BatchSlice, name: str, last: version_manifest.RecordedVersion | None) -> int | None:
    """Return the schema id of the newest record of a table, or None if it has none."""
    parts = [*(batch_slice.verified.content.parts if batch_slice.verified else ()), *batch_slice.content.parts]
    here = {str(part.table): part.newest for part in parts}
    return here.get(name, None if last is None else last.schema_ids.get(name))


def write_verdicts(
    spark: SparkSession,
    path: str,
    batch_slice: BatchSlice,
    ended: Mapping[str, SnapshotWindow],
    unknown: Collection[str],
) -> None:
    """Write the results that `walgate verify` waits for. `unknown`: see `compare`."""
    if ended:
        rows = {name: batch_slice.row_count(name) for name in ended}
        verdicts.write_verdicts(spark, path, ended, rows, unknown, batch_slice.content.commit_lsn)
    if any(mark.kind == SNAPSHOT_END and mark.table is None for mark in batch_slice.marks):
        verdicts.write_ended(spark, path, batch_slice.content.commit_lsn)
    if batch_slice.verified is not None:
        verdicts.write_reached(spark, path, batch_slice.content.commit_lsn)
