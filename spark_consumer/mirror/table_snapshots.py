"""Snapshots of tables that begin or end in a slice: the rows that they replace or compare."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql import SparkSession

from spark_consumer.mirror import snapshot_keys, version_manifest
from spark_consumer.mirror.paths import seen_path, table_path
from spark_consumer.mirror.slice_contents import BatchSlice, own_records
from spark_consumer.mirror.storage import TABLE_FORMAT
from spark_consumer.mirror.table_format import APPLICATION
from spark_consumer.mirror.table_states import FILL, VERIFY, SnapshotWindow
from spark_consumer.mirror.tables.table_schema import is_log
from spark_consumer.mirror.tables.table_schemas import TableSchemas
from spark_consumer.mirror.verify import comparison, verdicts
from spark_consumer.reader.table_marks import SNAPSHOT_END
from spark_consumer.tables import TableName


def note_key_change(shapes: TableSchemas, batch_slice: BatchSlice, windows: dict[str, SnapshotWindow]) -> None:
    """Note in each window whether the key of its table changes."""
    for part in batch_slice.parts:
        name, shape = str(part.table), shapes.of(part.newest)
        if name in windows:
            windows[name] = windows[name].with_key(list(shape.key_numbers or shape.key))


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
) -> int:
    """Write the differences that the slice shows, once, and return how many there are."""
    found = []
    verified = batch_slice.verified
    for part in () if verified is None else verified.content.parts:
        assert verified is not None
        own = own_records(verified.changes, verified.records, part.table)
        location, shape = table_path(path, part.table), shapes.of(part.newest)
        compare = comparison.row_differences if shape.key else comparison.log_differences
        found.append(
            (str(part.table), compare(spark, location, own, shape, shapes.texts(part)), batch_slice.snapshot_id(part))
        )
    for name, window in ended.items():
        location, schema_id = table_path(path, TableName.parse(name)), _newest(batch_slice, name, last)
        if window.purpose != VERIFY or window.has_two_keys:  # with two keys, surplus rows cannot be determined
            continue
        if schema_id is None or not TABLE_FORMAT.exists(spark, location):
            continue
        shape = shapes.of(schema_id)
        if shape.key and set(shape.key) <= set(TABLE_FORMAT.rows(spark, location).columns):
            keys = seen_path(path, TableName.parse(name), window.begin_lsn)
            found.append(
                (
                    name,
                    comparison.surplus_rows(snapshot_keys.surplus(spark, location, keys, shape), shape),
                    window.snapshot_id,
                )
            )
        elif not shape.key and not batch_slice.row_count(name):
            found.append(
                (name, comparison.surplus_log_rows(spark, location, shape, window.begin_lsn), window.snapshot_id)
            )
    return comparison.record(spark, path, found, batch_slice.content.commit_lsn) if found else 0


def end_replace(
    spark: SparkSession,
    path: str,
    shapes: TableSchemas,
    batch_slice: BatchSlice,
    name: str,
    window: SnapshotWindow,
    last: version_manifest.RecordedVersion | None,
) -> str | None:
    """Delete the rows whose keys had no change during the snapshot: they are no longer in the
    source. These are all rows if the snapshot read none. Return a message for the report if it read
    rows, but their keys are not known; then all rows stay."""
    table = TableName.parse(name)
    location, keys = table_path(path, table), seen_path(path, table, window.begin_lsn)
    if not TABLE_FORMAT.exists(spark, location):
        return None
    if is_log(TABLE_FORMAT.rows(spark, location).columns):
        if not batch_slice.row_count(name):
            TABLE_FORMAT.despite_conflicts(partial(snapshot_keys.truncate_log, spark, location, window.begin_lsn))
        return None
    if window.has_two_keys:
        return _all_stay(name, "its key changed while its snapshot was read")
    if batch_slice.row_count(name) and not TABLE_FORMAT.exists(spark, keys):
        return _all_stay(name, f"{keys}, with the keys that its snapshot read, does not exist")
    schema_id = _newest(batch_slice, name, last)
    shape = shapes.of(schema_id) if schema_id is not None else None
    TABLE_FORMAT.despite_conflicts(partial(snapshot_keys.delete_surplus, spark, location, keys, shape))
    return None


def _all_stay(name: str, reason: str) -> str:
    return f"{name}: {reason}, so rows that are no longer in the source may remain. Run walgate snapshot start for this table"


def _newest(batch_slice: BatchSlice, name: str, last: version_manifest.RecordedVersion | None) -> int | None:
    """Return the schema id of the newest record of a table, or None if it has none."""
    parts = [*(batch_slice.verified.content.parts if batch_slice.verified else ()), *batch_slice.content.parts]
    here = {str(part.table): part.newest for part in parts}
    return here.get(name, None if last is None else last.schema_ids.get(name))


def write_verdicts(
    spark: SparkSession, path: str, batch_slice: BatchSlice, ended: Mapping[str, SnapshotWindow]
) -> None:
    """Write the results that `walgate verify` waits for."""
    if ended:
        rows = {name: batch_slice.row_count(name) for name in ended}
        verdicts.write_verdicts(spark, path, ended, rows, batch_slice.content.commit_lsn)
    if any(mark.kind == SNAPSHOT_END and mark.table is None for mark in batch_slice.marks):
        verdicts.write_ended(spark, path, batch_slice.content.commit_lsn)
    if batch_slice.verified is not None:
        verdicts.write_reached(spark, path, batch_slice.content.commit_lsn)
