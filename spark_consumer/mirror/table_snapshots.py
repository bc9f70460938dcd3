"""Snapshots of tables that begin or end in a slice: the rows that they replace or compare."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql import SparkSession

from spark_consumer.mirror import manifest, snapshot_keys
from spark_consumer.mirror.batch_contents import BatchSlice, own_records
from spark_consumer.mirror.paths import seen_path, table_path
from spark_consumer.mirror.storage import TABLES
from spark_consumer.mirror.table_format import APPLICATION
from spark_consumer.mirror.table_schema import is_log
from spark_consumer.mirror.table_schemas import TableSchemas
from spark_consumer.mirror.table_states import FILL, VERIFY, Window
from spark_consumer.mirror.verify import comparison, verification_results
from spark_consumer.reader.table_marks import SNAPSHOT_END
from spark_consumer.tables import TableName


def note_key(shapes: TableSchemas, piece: BatchSlice, windows: dict[str, Window]) -> None:
    """Note in each window whether the key of its table changes."""
    for part in piece.parts:
        name, shape = str(part.table), shapes.of(part.newest)
        if name in windows:
            windows[name] = windows[name].met(list(shape.key_numbers or shape.key))


def note_keys(
    spark: SparkSession, path: str, shapes: TableSchemas, piece: BatchSlice, windows: Mapping[str, Window]
) -> None:
    """Store the keys of a slice's rows for snapshots that replace or compare rows."""
    written = (piece.changes, piece.records, piece.content)
    verified = piece.verified
    compared = None if verified is None else (verified.changes, verified.records, verified.content)
    for label, found in (("", written), (" verify", compared)):
        for part in () if found is None else found[2].parts:
            window, shape = windows.get(str(part.table)), shapes.of(part.newest)
            if found is None or window is None or window.purpose == FILL or window.has_two_keys or not shape.key:
                continue
            own = own_records(found[0], found[1], part.table)
            location = seen_path(path, part.table, window.begin_lsn)
            lsns = (window.begin_lsn, piece.content.commit_lsn)
            snapshot_keys.note_keys(spark, location, own, shape, shapes.texts(part), *lsns, APPLICATION + label)


def compare(
    spark: SparkSession,
    path: str,
    shapes: TableSchemas,
    piece: BatchSlice,
    ended: Mapping[str, Window],
    last: manifest.RecordedVersion | None,
) -> int:
    """Write the differences that the slice shows, once, and return how many there are."""
    found = []
    verified = piece.verified
    for part in () if verified is None else verified.content.parts:
        assert verified is not None
        own = own_records(verified.changes, verified.records, part.table)
        location, shape = table_path(path, part.table), shapes.of(part.newest)
        compare = comparison.compared if shape.key else comparison.compared_log
        found.append(
            (str(part.table), compare(spark, location, own, shape, shapes.texts(part)), piece.snapshot_id(part))
        )
    for name, window in ended.items():
        location, schema_id = table_path(path, TableName.parse(name)), _newest(piece, name, last)
        if window.purpose != VERIFY or window.has_two_keys:  # with two keys, surplus rows cannot be determined
            continue
        if schema_id is None or not TABLES.exists(spark, location):
            continue
        shape = shapes.of(schema_id)
        if shape.key and set(shape.key) <= set(TABLES.rows(spark, location).columns):
            keys = seen_path(path, TableName.parse(name), window.begin_lsn)
            found.append(
                (
                    name,
                    comparison.too_many(snapshot_keys.surplus(spark, location, keys, shape), shape),
                    window.snapshot_id,
                )
            )
        elif not shape.key and not piece.row_count(name):
            found.append((name, comparison.left_over(spark, location, shape, window.begin_lsn), window.snapshot_id))
    return comparison.record(spark, path, found, piece.content.commit_lsn) if found else 0


def end_replace(
    spark: SparkSession,
    path: str,
    shapes: TableSchemas,
    piece: BatchSlice,
    name: str,
    window: Window,
    last: manifest.RecordedVersion | None,
) -> str | None:
    """Delete the rows whose keys had no change during the snapshot: they are no longer in the
    source. These are all rows if the snapshot read none. Return a message for the report if it read
    rows, but their keys are not known; then all rows stay."""
    table = TableName.parse(name)
    location, keys = table_path(path, table), seen_path(path, table, window.begin_lsn)
    if not TABLES.exists(spark, location):
        return None
    if is_log(TABLES.rows(spark, location).columns):
        if not piece.row_count(name):
            TABLES.despite_conflicts(partial(snapshot_keys.end_log, spark, location, window.begin_lsn))
        return None
    if window.has_two_keys:
        return _all_stay(name, "its key changed while its snapshot was read")
    if piece.row_count(name) and not TABLES.exists(spark, keys):
        return _all_stay(name, f"{keys}, with the keys that its snapshot read, does not exist")
    schema_id = _newest(piece, name, last)
    shape = shapes.of(schema_id) if schema_id is not None else None
    TABLES.despite_conflicts(partial(snapshot_keys.delete_surplus, spark, location, keys, shape))
    return None


def _all_stay(name: str, reason: str) -> str:
    return f"{name}: {reason}, so rows that are no longer in the source may remain. Run walgate snapshot start for this table"


def _newest(piece: BatchSlice, name: str, last: manifest.RecordedVersion | None) -> int | None:
    """Return the schema id of the newest record of a table, or None if it has none."""
    parts = [*(piece.verified.content.parts if piece.verified else ()), *piece.content.parts]
    here = {str(part.table): part.newest for part in parts}
    return here.get(name, None if last is None else last.schema_ids.get(name))


def conclude(spark: SparkSession, path: str, piece: BatchSlice, ended: Mapping[str, Window]) -> None:
    """Write the results that `walgate verify` waits for."""
    if ended:
        rows = {name: piece.row_count(name) for name in ended}
        verification_results.conclude(spark, path, ended, rows, piece.content.commit_lsn)
    if any(mark.kind == SNAPSHOT_END and mark.table is None for mark in piece.marks):
        verification_results.note_end(spark, path, piece.content.commit_lsn)
    if piece.verified is not None:
        verification_results.note_reached(spark, path, piece.content.commit_lsn)
