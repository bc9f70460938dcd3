"""Changes of the types of a table's columns, and where a set of changes is cut because of them.

Records are decoded in the columns of the newest version among them. If the values of an older
version may not fit in them, the records before the change are merged first. The values in the table
are then cast with all other rows (tables/rewrite_columns.py). Within one transaction, that is an
error in a column of the key. Elsewhere, values that do not fit are null, reported as a doubt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from schemas.lsn import format_lsn
from spark_consumer.errors import MirrorError
from spark_consumer.mirror.slice_contents import TablePart
from spark_consumer.mirror.tables.columns import change_of_columns
from spark_consumer.mirror.tables.table_schema import TableSchema

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""Number of decimal digits of an integer of this many bits."""


def misfits(written: Iterable[TableSchema], newest: TableSchema) -> list[str]:
    """Return the columns of the newest version whose type may not hold the values of records of
    these versions. Columns of another relation are not concerned."""
    found = {
        name
        for shape in written
        if shape is not newest
        for name, source in change_of_columns(shape, newest, {}).sources.items()
        if source is not None and not _holds(newest.row.field(name).type, shape.row.field(source).type)
    }
    return [name for name in newest.columns if name in found]


def change_of_types(
    part: TablePart, first: Mapping[int, tuple[int, int]], shapes: Mapping[int, TableSchema]
) -> int | None:
    """Return the commit LSN of the first transaction in which a column has another type than in the
    first record of the newest relation. Return None if all values fit into the newest types.
    `first`: replica_identity.first_positions; `shapes`: versions of the table, by schema id.

    Return None, too, if that is the transaction of the first record, which a mirror applies as a
    whole. In that case, raise MirrorError if a column of the key is concerned.
    """
    newest = shapes[part.newest]
    lost = misfits(shapes.values(), newest)
    if not lost:
        return None
    own = {schema_id: at for schema_id, at in first.items() if shapes[schema_id].oid == newest.oid}
    oldest = min(own, key=lambda schema_id: own[schema_id])
    begin_lsn = own[oldest][0]
    later = [
        commit_lsn
        for schema_id, (commit_lsn, _) in own.items()
        if commit_lsn > begin_lsn and _types_differ(shapes[oldest], shapes[schema_id])
    ]
    keys = [name for name in lost if name in newest.key]
    if keys and not later and part.last_truncate is None:
        raise MirrorError(
            f"{part.table} has changes before and after a change of the type of {keys[0]!r}, a column of its key, within one "
            f"transaction, at {format_lsn(begin_lsn)}: the mirror applies a transaction as a whole, under one key",
            hint="Continue without the table: restart the mirror with --exclude and the table's name.",
        )
    return min(later, default=None)


def _types_differ(one: TableSchema, other: TableSchema) -> bool:
    sources = change_of_columns(one, other, {}).sources.items()
    return any(
        source is not None and not one.row.field(source).type.equals(other.row.field(name).type)
        for name, source in sources
    )


def _holds(wider: pa.DataType, other: pa.DataType) -> bool:
    """Return whether a type holds every value of another one."""
    if wider.equals(other):
        return True
    if pa.types.is_list(wider) and pa.types.is_list(other):
        return _holds(wider.value_type, other.value_type)
    if pa.types.is_string(wider):  # PostgreSQL's text of these has one form
        return bool(pa.types.is_integer(other) or pa.types.is_boolean(other))
    if pa.types.is_integer(other):
        digits = _DIGITS[other.bit_width]
        if pa.types.is_decimal(wider):
            return bool(wider.precision - wider.scale >= digits)
        return bool(pa.types.is_integer(wider) and wider.bit_width > other.bit_width)
    if pa.types.is_decimal(other) and pa.types.is_decimal(wider):
        return bool(wider.scale >= other.scale and wider.precision - wider.scale >= other.precision - other.scale)
    return bool(pa.types.is_floating(other) and pa.types.is_floating(wider) and wider.bit_width > other.bit_width)
