"""Read back what an earlier schema of a relation recorded about its types and its key, for types
that the catalog no longer has.

This module is the inverse of `schemas.change_schema`, which writes `pg.type` and `pg.catalog`.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.relation import Attribute, Kind, MissingValue, TypeFacts

Schema = dict[str, Any]

_BOX_OID = 603
"""The one built-in type whose array delimiter is not a comma. Its arrays and domains inherit it."""


def recorded_types(schema: Schema) -> dict[int, TypeFacts]:
    """Return, by oid, the types of the columns and the types they are composed of. Types that were
    unknown when the schema was written have the kind UNKNOWN."""
    found: dict[int, TypeFacts] = {}
    labels: dict[int, tuple[str, ...]] = {}
    for field in _row_fields(schema):
        if "pg.type" in field:
            _remember(_facts({**field["pg.type"], **field.get("pg.catalog", {})}, labels), found)
    return found


def recorded_key(schema: Schema) -> list[str]:
    """Return the PostgreSQL names of the columns that were part of the key."""
    keys = [field for field in _row_fields(schema) if field.get("pg.type", {}).get("key")]
    return [str(field.get("pg.name", field["name"])) for field in keys]


def recorded_attributes(schema: Schema) -> dict[str, tuple[int, MissingValue | None]]:
    """Return attnum and attmissingval by the PostgreSQL names of the columns, for the columns whose
    attnum was known."""
    numbered = [field for field in _row_fields(schema) if "attnum" in field.get("pg.type", {})]
    return {
        str(field.get("pg.name", field["name"])): (
            field["pg.type"]["attnum"],
            _missing(field["pg.type"].get("attmissingval")),
        )
        for field in numbered
    }


def recorded_column_types(schema: Schema) -> dict[int, tuple[int, int]]:
    """Return the oid and the modifier of each column's type by attnum, for the columns whose attnum
    was known."""
    types = [field["pg.type"] for field in _row_fields(schema) if "attnum" in field.get("pg.type", {})]
    return {told["attnum"]: (told["oid"], told["typmod"]) for told in types}


def _missing(told: Schema | None) -> MissingValue | None:
    return None if told is None else MissingValue(missing_bytes(told), told.get("special"))


def missing_bytes(told: Mapping[str, Any]) -> bytes:
    """Return the bytes of a field's `attmissingval`, which is written in one of two forms."""
    return b64decode(told["avro_base64"]) if "avro_base64" in told else bytes.fromhex(told["avro"])


def recorded_oid(schema: Schema) -> int | None:
    """Return the oid of the relation."""
    oid: int | None = schema.get("pg.relation", {}).get("oid")
    return oid


def recorded_relation(schema: Schema) -> tuple[str, str] | None:
    """Return the schema and the name of the relation."""
    relation = schema.get("pg.relation")
    return None if relation is None else (relation["schema"], relation["name"])


@dataclass(frozen=True, slots=True)
class FormerRelation:
    """A relation as an earlier version describes it. `columns` has attnum by name, or None where it
    is not known."""

    namespace: str
    name: str
    columns: Mapping[str, int | None]


def recorded_relation_and_columns(schema: Schema, namespace: str, name: str) -> FormerRelation:
    """Return the relation with all of its columns, also those that a rule leaves out of the rows.
    `namespace` and `name` are for a schema that does not name its relation, as Debezium's."""
    columns: dict[str, int | None] = {
        str(field.get("pg.name", field["name"])): field.get("pg.type", {}).get("attnum")
        for field in _row_fields(schema)
    }
    columns |= schema.get("pg.relation", {}).get("protected", {})
    return FormerRelation(*(recorded_relation(schema) or (namespace, name)), columns)


def _row_fields(schema: Schema) -> list[Schema]:
    for field in schema.get("fields", ()):
        if field["name"] == "before":
            return list(field["type"][1]["fields"])
    return []


def _facts(told: Schema, labels: dict[int, tuple[str, ...]]) -> TypeFacts:
    """Return the facts about a type. `labels` has the labels of the enums that came before, since a
    schema contains them only once."""
    base, element = (_facts(told[part], labels) if part in told else None for part in ("base", "element"))
    inner = base or element
    return TypeFacts(
        oid=told["oid"],
        namespace=told["schema"],
        name=told["name"],
        kind=Kind(told.get("kind", Kind.BASE.value)),
        delimiter=";" if told["oid"] == _BOX_OID else "," if inner is None else inner.delimiter,
        base=base,
        element=element,
        base_typmod=-1 if base is None else told["base"]["typmod"],
        labels=labels.setdefault(told["oid"], tuple(told["labels"]))
        if "labels" in told
        else labels.get(told["oid"], ()),
        attributes=tuple(Attribute(a["attribute"], _facts(a, labels), a["typmod"]) for a in told.get("attributes", ())),
    )


def _remember(facts: TypeFacts, found: dict[int, TypeFacts]) -> None:
    found.setdefault(facts.oid, facts)
    for part in (facts.base, facts.element, *(attribute.facts for attribute in facts.attributes)):
        if part is not None:
            _remember(part, found)
