"""Conversion of a table's typed changes to keyed events, each of which affects one key.

An event either deletes its key or puts a whole row under it. A change of key yields two events: the
old key is deleted, and the new key is put. The latter event has the old key as `origin`, under
which the columns that the change did not send are found.

Columns that were not sent (UNCHANGED: a TOASTed value that the update did not change) are taken
from `before` if it has them (REPLICA IDENTITY FULL). Columns of the key are taken from `old_key`.
Other unsent columns are null in `row` and named in `unchanged`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from schemas.lsn import format_lsn
from spark_consumer.columnar.arrays import booleans, numbers
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.fold.key_text import parse_keys
from spark_consumer.mirror.tables.columns import OLD_ROW, decode_records
from spark_consumer.mirror.tables.table_schema import TableSchema, special_key
from spark_consumer.source.frames import STRINGS, TEXTS

Mask = npt.NDArray[np.bool_]


def decode_events(
    batches: Iterator[pa.RecordBatch], shape: TableSchema, schemas: Mapping[int, str]
) -> Iterator[pa.RecordBatch]:
    """Convert raw records of one table, without TRUNCATE, to keyed events; for mapInArrow. Columns:
    op, commit_lsn, ordinal, schema_id, value."""
    for batch in batches:
        ids = batch.column("schema_id").to_numpy()
        for schema_id in np.unique(ids).tolist():
            part = batch.filter(booleans(ids == schema_id))
            values = part.column("value").cast(pa.binary())
            yield keyed_events(part, decode_records(shape, values, schemas[schema_id]), shape)


def keyed_events(raw: pa.RecordBatch, decoded: list[pa.Array], shape: TableSchema) -> pa.RecordBatch:
    """Return the keyed events of records. `decoded`: their old_key, before, after, unchanged and
    special."""
    old_key, before, after, unchanged, special = decoded
    operation = raw.column("op").cast(pa.string())
    deleted = _mask(pc.equal(operation, "DELETE"))
    row, unchanged, special = fill_from_before(before, after, unchanged, special)
    new_key = _row_key(row, special, shape, "")
    had_key = _old_keys(old_key, before, special, shape)
    has_key_tuple = _mask(old_key.is_valid())
    if len(unchanged.values) and has_key_tuple.any():
        new_key, row, unchanged = _fill_from_key_tuple(new_key, row, unchanged, had_key, has_key_tuple, shape)
    has_old = has_key_tuple | _mask(before.is_valid())
    moved = np.flatnonzero(~deleted & has_old & _differ(had_key, new_key, shape))
    key = _choose(deleted, had_key, new_key)
    _refuse_nulls(key, raw, shape)
    nulls = pa.nulls(len(raw), shape.key_struct)
    moved_mask = np.zeros(len(raw), bool)
    moved_mask[moved] = True
    events = pa.RecordBatch.from_arrays(
        [
            key,
            _choose(moved_mask, had_key, nulls),
            booleans(deleted),
            row,
            unchanged,
            special_of_row(special),
            raw.column("commit_lsn"),
            raw.column("ordinal"),
        ],
        schema=shape.events,
    )
    if not len(moved):
        return events
    return pa.concat_batches([events, _removals(events, had_key, numbers(moved), shape)])


def _refuse_nulls(key: pa.Array, raw: pa.RecordBatch, shape: TableSchema) -> None:
    """Raise MirrorError if a change lacks the value of a key column: it would match no row."""
    for name in shape.key:
        missing = _mask(_child(key, name).is_null())
        if name not in shape.uncertain_key and missing.any():
            commit_lsn = raw.column("commit_lsn")[int(missing.argmax())].as_py()
            raise MirrorError(
                f"a change at {format_lsn(commit_lsn)} has no value for {name!r}, a key column of its table",
                hint="Continue without the table: restart the mirror with --exclude and the table's name. The value may be text "
                "that is not UTF-8 (column `special` of the source), which a mirror cannot use as a key.",
            )


def _removals(events: pa.RecordBatch, had_key: pa.Array, moved: pa.Array, shape: TableSchema) -> pa.RecordBatch:
    """Return the deletion of the old key for each change of key."""
    count = len(moved)
    columns = [
        had_key.take(moved),
        pa.nulls(count, shape.key_struct),
        booleans(np.ones(count, bool)),
        pa.nulls(count, shape.row),
        pa.array([[]] * count, STRINGS),
        pa.array([[]] * count, TEXTS),
        events.column("commit_lsn").take(moved),
        events.column("ordinal").take(moved),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=shape.events)


def _mask(array: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return mask


def _choose(mask: Mask, yes: pa.Array, no: pa.Array) -> pa.Array:
    if mask.all():
        return yes
    return pc.if_else(booleans(mask), yes, no) if mask.any() else no


def _struct(arrow_type: pa.DataType, children: list[pa.Array]) -> pa.Array:
    return pa.StructArray.from_arrays(children, fields=list(arrow_type))


def _child(row: pa.Array, name: str) -> pa.Array:
    """Return a field of a struct, null where the struct is null."""
    return pc.struct_field(row, [name])  # a list, since a plain name that begins with a dot would be parsed as a path


def _row_key(row: pa.Array, special: pa.Array, shape: TableSchema, prefix: str) -> pa.Array:
    children = [_child(row, name) for name in shape.key]
    children += [_special_text(special, prefix + name) for name in shape.key if name in shape.uncertain_key]
    return _struct(shape.key_struct, children)


def _special_text(special: pa.Array, name: str) -> pa.Array:
    if not len(special.keys):
        return pa.nulls(len(special), pa.string())
    return pc.map_lookup(special, name, "first")


def _old_keys(old_key: pa.Array, before: pa.Array, special: pa.Array, shape: TableSchema) -> pa.Array:
    """Return the keys before the changes: from the key tuple, or else the old tuple; null fields if
    there is neither."""
    from_before = _row_key(before, special, shape, OLD_ROW)
    has_key = _mask(old_key.is_valid())
    if not has_key.any():
        return from_before
    values, texts = [], []
    for name in shape.key:
        value = _child(old_key, name)
        if name in shape.uncertain_key:
            value, text = parse_keys(value, shape.row.field(name).type)
            texts.append(text)
        values.append(value)
    return _choose(has_key, _struct(shape.key_struct, values + texts), from_before)


def _fill_from_key_tuple(
    new_key: pa.Array, row: pa.Array, unchanged: pa.Array, had_key: pa.Array, has_key_tuple: Mask, shape: TableSchema
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return new_key, row and unchanged after filling in every key column that was not sent but is
    in the key tuple. PostgreSQL sends the key tuple whenever such a column is stored out of line,
    and any other column of the key may have changed.

    A special value is filled in only in the key. In the row, the column remains unsent.
    """
    keys = {field.name: _child(new_key, field.name) for field in shape.key_struct}
    columns = {field.name: _child(row, field.name) for field in row.type}
    for name in shape.key:
        unsent = _names(unchanged, name) & has_key_tuple
        if not unsent.any():
            continue
        for part in (name, special_key(name)) if name in shape.uncertain_key else (name,):
            keys[part] = _choose(unsent, _child(had_key, part), keys[part])
        known = unsent & _mask(keys[name].is_valid())
        columns[name] = _choose(known, keys[name], columns[name])
        unchanged = _without(unchanged, name, known)
    filled = pa.StructArray.from_arrays(list(columns.values()), fields=list(row.type), mask=pc.is_null(row))
    return _struct(shape.key_struct, list(keys.values())), filled, unchanged


def _without(unchanged: pa.Array, name: str, rows: Mask) -> pa.Array:
    """Return `unchanged` without `name` in these rows."""
    flat, places = pc.list_flatten(unchanged), pc.list_parent_indices(unchanged).to_numpy()
    stays = ~(_mask(pc.equal(flat, name)) & rows[places])
    ends = np.cumsum(np.bincount(places[stays], minlength=len(unchanged)))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, flat.filter(booleans(stays)), type=unchanged.type)


def _names(unchanged: pa.Array, name: str) -> Mask:
    """Return a mask of the rows whose `unchanged` contains `name`."""
    mask = np.zeros(len(unchanged), bool)
    flat = pc.list_flatten(unchanged)
    mask[pc.list_parent_indices(unchanged).to_numpy()[_mask(pc.equal(flat, name))]] = True
    return mask


def _differ(left: pa.Array, right: pa.Array, shape: TableSchema) -> Mask:
    mask = np.zeros(len(left), bool)
    for field in shape.key_struct:
        one, other = _child(left, field.name), _child(right, field.name)
        unequal = pc.not_equal(one, other)
        if pa.types.is_floating(field.type):  # in PostgreSQL and Spark, NaN equals NaN
            unequal = pc.and_not(unequal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
        mask |= _mask(unequal) | (_mask(one.is_valid()) != _mask(other.is_valid()))
    return mask


def fill_from_before(
    before: pa.Array, after: pa.Array, unchanged: pa.Array, special: pa.Array
) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return row, unchanged and special after filling in every column that the old tuple has."""
    flat = pc.list_flatten(unchanged)
    if not len(flat):
        return after, unchanged, special
    has_before = _mask(before.is_valid())
    missing = {name for name in pc.unique(flat).to_pylist() if not name.startswith(OLD_ROW)}
    columns, filled = [], {}
    for field in after.type:
        column = _child(after, field.name)
        if field.name in missing:
            fill = _names(unchanged, field.name) & has_before & ~_names(unchanged, OLD_ROW + field.name)
            column = _choose(fill, _child(before, field.name), column)
            filled[field.name] = fill
        columns.append(column)
    lists, maps = unchanged.to_pylist(), special.to_pylist()
    for place, (names, texts) in enumerate(zip(lists, maps, strict=True)):
        now = [name for name in names if name in filled and filled[name][place]]
        lists[place] = [name for name in names if name not in now and not name.startswith(OLD_ROW)]
        known = dict(texts)
        maps[place] = texts + [(name, known[OLD_ROW + name]) for name in now if OLD_ROW + name in known]
    row = pa.StructArray.from_arrays(columns, fields=list(after.type), mask=pc.is_null(after))
    return row, pa.array(lists, STRINGS), pa.array(maps, TEXTS)


def special_of_row(special: pa.Array) -> pa.Array:
    """Return special without the entries that belong to `before`."""
    if not len(special.keys):
        return special
    kept = [[(name, text) for name, text in entries if not name.startswith(OLD_ROW)] for entries in special.to_pylist()]
    return pa.array(kept, TEXTS)
