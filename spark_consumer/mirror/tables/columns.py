"""Mapping of a table's columns from one version of its relation to another, by attnum, which
PostgreSQL never reuses within a relation. The values are those in the columns, and the texts in
`_special` (tables/table_schema.py).

same attnum, other name      the column was renamed: its values stay, in rows and in `_special`
other attnum, same name      another column: the values of the former one are removed
a new attnum                 existing rows have its attmissingval, or null

Columns of a schema without attnums (from an older gateway, or one that could not know them) are
matched by name.

The mapping is applied to the rows of a table (tables/rewrite_columns.py), and to records of older
versions. The schema that they were written with gets the column names of the newest version
(`pg.name`), and the values to be filled in (FILL).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumer.columnar.arrays import binaries, booleans, numbers
from spark_consumer.columnar.schema import RecordDecoder
from spark_consumer.mirror.tables.table_schema import MissingValue, TableSchema
from spark_consumer.reader.registry import Schema
from spark_consumer.source.frames import STRINGS, TEXTS, carried_over

FILL = "walgate.fill"
# Prefix of the name of a column that the newest version does not have. PostgreSQL does not allow
# this character in a name.
FORMER = "\0"
# Prefix of the entries of `unchanged` and `special` that belong to the old row: a column may be
# named "before.x". Nor does the name of a former column begin so.
OLD_ROW = "before\0"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """Change of columns from one version to another. `sources`: for each new column, the old column
    whose values it has, or None.

    `fills`: values of new columns in old rows. `by_name`: new or former columns of which it is not
    known what became of them, since attnums are missing. `unfilled`: new columns whose values in
    old rows are too large to be in the schema, or not values of the column's present type.
    """

    sources: Mapping[str, str | None]
    fills: Mapping[str, MissingValue] = field(default_factory=dict)
    by_name: tuple[str, ...] = ()
    unfilled: tuple[str, ...] = ()

    def is_plain(self, there: Iterable[str]) -> bool:
        """Return whether columns are only added, as null, or dropped. `there`: the columns before
        the change."""
        names = set(there)
        renamed = any(source not in (name, None) for name, source in self.sources.items())
        replaced = any(source is None and name in names for name, source in self.sources.items())
        return not (renamed or replaced or self.fills)

    @property
    def losses(self) -> list[str]:
        """Descriptions of the columns whose values in old rows the stream does not report."""
        found = []
        if self.by_name:
            found.append(
                "columns were added or dropped, and their attribute numbers are unknown: "
                f"{', '.join(self.by_name)}. In existing rows, columns were matched by name"
            )
        if self.unfilled:
            found.append(
                "columns were added with a default of another type, or one that is too large to be in the schema: "
                f"{', '.join(self.unfilled)}. Existing rows have null there"
            )
        return found


def is_rewritten(before: TableSchema, after: TableSchema, change: ColumnChange) -> bool:
    """Return whether the existing rows have to be rewritten for a change of columns. They also have
    to be if the column with special texts gets another name."""
    return not change.is_plain(before.columns) or before.special_column != after.special_column


def change_of_columns(
    before: TableSchema, after: TableSchema, missing: Mapping[int, MissingValue | None]
) -> ColumnChange:
    """Compare two versions of a table. `missing`: attmissingval by attnum, from any version."""
    if before.oid != after.oid:  # the table was recreated: a column of another type is another column
        same = {
            name
            for name in after.columns
            if name in before.columns and before.row.field(name).type.equals(after.row.field(name).type)
        }
        return ColumnChange({name: name if name in same else None for name in after.columns})
    by_number = {number: name for name, number in before.numbers.items()}
    is_numbered = len(before.numbers) == len(before.columns)
    sources: dict[str, str | None] = {}
    fills: dict[str, MissingValue] = {}
    unfilled = []
    for name in after.columns:
        number = after.numbers.get(name)
        if number in by_number:
            sources[name] = by_number[number]
        elif name in before.columns and (number is None or name not in before.numbers):
            sources[name] = name
        else:
            sources[name] = None
            if is_numbered and number is not None and number in missing:
                value = missing[number]
                if value is None or not _has_value(value, after.row.field(name).type):
                    unfilled.append(name)
                else:
                    fills[name] = value
    doubtful = [
        name for name, source in sources.items() if source is None and not (is_numbered and name in after.numbers)
    ]
    left = set(before.columns) - set(sources.values())
    doubtful += sorted(name for name in left if name not in before.numbers or len(after.numbers) < len(after.columns))
    return ColumnChange(sources, fills, tuple(doubtful), tuple(unfilled))


def missing_values(shapes: Iterable[TableSchema]) -> dict[int, MissingValue | None]:
    """Return attmissingval by attnum. Only some versions may have it, since the server forgets it
    when it rewrites the table."""
    found: dict[int, MissingValue | None] = {}
    for shape in shapes:
        found = {**shape.missing, **found}
    return found


def doubts_of(before: TableSchema, after: TableSchema, change: ColumnChange) -> str:
    """Describe the effects of an ALTER TABLE on existing rows that the stream does not report; ""
    if there are none. A changed type is one of them, even if all values fit into it."""
    types = {name: after.row.field(name).type for name in after.columns}
    cast = [
        name
        for name, source in change.sources.items()
        if source is not None and not before.row.field(source).type.equals(types[name])
    ]
    found = change.losses
    if cast:
        found.append(f"the type was changed: {', '.join(cast)}. Values of existing rows were cast, or are null")
    return "; ".join(found)


def texts_of(schemas: Mapping[int, tuple[Schema, TableSchema]], newest_id: int) -> dict[int, str]:
    """Return the JSON text of each of these schemas, adapted to the columns of the newest one."""
    newest = schemas[newest_id][1]
    missing = missing_values(shape for _, shape in schemas.values())
    return {
        schema_id: json.dumps(schema)
        if schema_id == newest_id
        else adapted(schema, change_of_columns(shape, newest, missing), shape)
        for schema_id, (schema, shape) in schemas.items()
    }


def adapted(schema: Schema, change: ColumnChange, written: TableSchema) -> str:
    """Return the JSON text of a writer's schema with the column names after the change, and the
    values to be filled in."""
    names = {source: name for name, source in change.sources.items() if source is not None}
    gone = {name: f"{FORMER}{name}" for name in written.columns if name not in names and name in change.sources}
    renames = {**gone, **{source: name for source, name in names.items() if source != name}}
    made: Schema = copy.deepcopy(schema) if renames else dict(schema)
    if renames:
        escaped = {name: avro for avro, name in written.frame.names.items()}
        _rename(made, {escaped.get(name, name): to for name, to in renames.items()})
    if change.fills:
        made[FILL] = {name: value.as_json() for name, value in change.fills.items()}
    return json.dumps(made)


def _rename(schema: Schema, names: Mapping[str, str]) -> None:
    """Rename fields of the records Row and Key."""
    for envelope in schema["fields"]:
        for branch in envelope["type"] if isinstance(envelope["type"], list) else ():
            if isinstance(branch, dict) and branch.get("type") == "record":
                for found in branch["fields"]:
                    if found["name"] in names:
                        found["pg.name"] = names[found["name"]]


def decode_records(shape: TableSchema, values: pa.Array, schema_text: str) -> list[pa.Array]:
    """Decode records into the columns of `shape`: old_key, before, after, unchanged and special, of
    which the last two also cover the old row (OLD_ROW). `schema_text` may come from `adapted`. A
    value that does not fit the type in `shape` is null: see type_changes.py."""
    old_key, before, after, unchanged, special = shape.frame.decode(values, schema_text, OLD_ROW, drops_misfits=True)
    unchanged, special = _of_columns(unchanged, special, set(shape.columns))
    fills = _fills(schema_text)
    if not fills:
        return [old_key, before, after, unchanged, special]
    texts = {name: value.special for name, value in fills.items() if value.special is not None}
    if texts:
        special = _with_texts(special, texts, _mask(before), _mask(after))
    return [old_key, _filled(before, fills), _filled(after, fills), unchanged, special]


def _of_columns(unchanged: pa.Array, special: pa.Array, columns: Set[str]) -> tuple[pa.Array, pa.Array]:
    """Drop the entries of columns that no longer exist, so that a later column of the same name
    does not get them."""

    def is_there(name: str) -> bool:
        return name in columns or name.removeprefix(OLD_ROW) in columns

    def are_there(names: pa.Array) -> bool:
        return not len(names) or all(map(is_there, pc.unique(names).to_pylist()))

    if not are_there(pc.list_flatten(unchanged)):
        unchanged = pa.array([list(filter(is_there, names)) for names in unchanged.to_pylist()], STRINGS)
    if not are_there(special.keys):
        rows = special.to_pylist()
        special = pa.array([[(name, text) for name, text in texts if is_there(name)] for texts in rows], TEXTS)
    return unchanged, special


@lru_cache(256)
def _fills(schema_text: str) -> dict[str, MissingValue]:
    if f'"{FILL}"' not in schema_text:
        return {}
    found = json.loads(schema_text)[FILL]
    return {name: MissingValue.from_json(value) for name, value in found.items()}


def _mask(row: pa.Array) -> np.ndarray:
    mask: np.ndarray = row.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _filled(row: pa.Array, fills: Mapping[str, MissingValue]) -> pa.Array:
    children = []
    for place, item in enumerate(row.type):
        if item.name in fills:
            value = fill_value(fills[item.name], item.type)
            children.append(value.take(numbers(np.zeros(len(row), np.int64))))
        else:
            children.append(pc.struct_field(row, [place]))
    return pa.StructArray.from_arrays(children, fields=list(row.type), mask=booleans(~_mask(row)))


def _with_texts(special: pa.Array, texts: Mapping[str, str], before: np.ndarray, after: np.ndarray) -> pa.Array:
    rows = []
    for place, entries in enumerate(special.to_pylist()):
        old = [(OLD_ROW + name, text) for name, text in texts.items()] if before[place] else []
        rows.append([*entries, *(texts.items() if after[place] else ()), *old])
    return pa.array(rows, TEXTS)


def _has_value(value: MissingValue, wanted: pa.DataType) -> bool:
    try:
        fill_value(value, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def fill_value(value: MissingValue, wanted: pa.DataType) -> pa.Array:
    """Return an array with this one value. Raises ArrowInvalid if the column's present type cannot
    hold it."""
    record = {"type": "record", "name": "Missing", "fields": [{"name": "value", "type": value.avro_type}]}
    found = RecordDecoder(record).decode(binaries([value.encoded]), skip=0)["value"]
    return found if found.type.equals(wanted) else carried_over(found, wanted)
