"""Detect changes of a relation after which a reader with the new schema would fail on old events,
or read them wrongly.

Registries check Avro's own rules (BACKWARD). These ignore logical types: a decimal of another
scale, a date that becomes an int, and text that becomes a uuid all pass and are then read wrongly.
They also allow promotions that round (long to double). This check is stricter, and names the
column.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Final

Schema = dict[str, Any]

_EXACT_PROMOTIONS: Final = frozenset({("int", "long"), ("int", "double"), ("float", "double")})


@dataclass(frozen=True, slots=True)
class TypeChange:
    """A column whose new type cannot hold its old values. The types are described for error
    messages."""

    column: str
    old_type: str
    new_type: str


Place = tuple[str, str]
"""A column's place in a schema: the record (Row or Key) and the field's name."""


def incompatible_columns(old: Schema, new: Schema, among: Set[Place] | None = None) -> list[TypeChange]:
    """Return the columns of Row and Key, present in both schemas, whose new type cannot read the
    old type's values exactly. The list is empty for other records."""
    changes: dict[str, TypeChange] = {}
    old_fields = _fields(old)
    for place, field in _fields(new).items():
        known = old_fields.get(place)
        if known is not None and (among is None or place in among) and not _reads(known["type"], field["type"]):
            column = field.get("pg.name", place[1])
            changes.setdefault(column, TypeChange(column, *_both_described(known, field)))
    return list(changes.values())


def added_columns(old: Schema, new: Schema) -> frozenset[Place]:
    """Return the columns that only `new` has. A version before `old` may have had them, with
    another type."""
    return frozenset(_fields(new).keys() - _fields(old).keys())


def _fields(schema: Schema) -> dict[Place, Schema]:
    records = ((name, find_record(schema, name)) for name in ("Row", "Key"))
    return {(name, field["name"]): field for name, found in records if found is not None for field in found["fields"]}


def find_record(schema: Any, name: str) -> Schema | None:
    """Return the definition of a record, either the top-level one or one in a union of its
    fields."""
    if schema.get("name") == name:
        return dict(schema)
    for field in schema.get("fields", ()):
        branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
        for branch in branches:
            if isinstance(branch, dict) and branch.get("type") == "record" and branch.get("name") == name:
                return branch
    return None


def _reads(old: Any, new: Any) -> bool:
    """Return whether the new type reads every value of the old type with its meaning unchanged."""
    if _is_optional(old) and not _is_optional(new):
        return False
    old_type, new_type = _parts(_not_null(old)), _parts(_not_null(new))
    if old_type["type"] == "array" == new_type["type"]:
        return _reads(old_type["items"], new_type["items"])
    old_logical, new_logical = old_type.get("logicalType"), new_type.get("logicalType")
    if old_logical == "decimal" == new_logical:
        return bool(old_type["scale"] == new_type["scale"] and old_type["precision"] <= new_type["precision"])
    if old_logical == "uuid" and new_logical is None:
        return bool(new_type["type"] == "string")
    if old_logical != new_logical:
        return False
    return old_type["type"] == new_type["type"] or (old_type["type"], new_type["type"]) in _EXACT_PROMOTIONS


def _is_optional(avro: Any) -> bool:
    return isinstance(avro, list)


def _not_null(avro: Any) -> Any:
    """Return the type of an optional field without null, and any other type as it is. In a union,
    null comes second if the field's default is not null."""
    return next(branch for branch in avro if branch != "null") if isinstance(avro, list) else avro


def _parts(avro: Any) -> Schema:
    return avro if isinstance(avro, dict) else {"type": avro}


def _both_described(old: Schema, new: Schema) -> tuple[str, str]:
    """Describe the old and the new type of a field, with their nullability if only the old type
    accepts NULL."""
    described = _described(old), _described(new)
    if _is_optional(old["type"]) == _is_optional(new["type"]):
        return described
    return (f"{described[0]} or null", f"{described[1]}, not null")


def _described(field: Schema) -> str:
    """Return, for example, `numeric (decimal(12,2))`: PostgreSQL's name where the schema has it,
    and the Avro type."""
    avro = _avro_name(field["type"])
    pg_type = field.get("pg.type")
    return f"{pg_type['name']} ({avro})" if pg_type and pg_type["name"] else avro


def _avro_name(avro: Any) -> str:
    parts = _parts(_not_null(avro))
    if parts["type"] == "array":
        return f"array of {_avro_name(parts['items'])}"
    logical = parts.get("logicalType")
    if logical == "decimal":
        return f"decimal({parts['precision']},{parts['scale']})"
    return str(logical or parts["type"])
