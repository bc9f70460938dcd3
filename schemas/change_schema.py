"""Build the Avro schemas of a relation's record values (the envelope) and keys.

PostgreSQL's metadata is kept in attributes, which Avro readers and registries preserve:
`pg.relation` on the envelope; `pg.type` on each field of Row (with attnum where it is known, and
attmissingval where there is one); `pg.catalog` on the same fields for facts that are not in the
stream and were read from the catalog when the Relation message arrived; `pg.protected` where a rule
of the settings replaces the column's values; and `pg.name` wherever the Avro name differs from the
name in PostgreSQL.

The labels of an enum are written at the first occurrence of its type. Labels are left out if their
size exceeds MOST_LABEL_BYTES, and an attmissingval if its size exceeds MOST_DEFAULT_BYTES: the
registry refuses schemas that are too large for its storage. The schema then has only the number of
labels or the size of the value.

Every field of Row and Key is a union with null, default null. A column may be added or dropped, or
enter or leave the replica identity, and old events remain readable with the new schema. Key schemas
have no attribute but `pg.name`, so that a key's bytes (which choose the partition) change only when
the column's value does.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

from schemas.avro_types import ColumnType, avro_type, key_type, value_type
from schemas.relation import ColumnDescription, Kind, MissingValue, Protect, RelationDescription, TypeFacts
from schemas.topic_names import avro_name, avro_namespace

OPERATIONS = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "READ")
BEFORE_PREFIX = "before."
"""The mark of a field of the `before` row in `unchanged` and `special`. No Avro name holds a
dot."""

MOST_LABEL_BYTES: Final = 64 << 10
"""The limit for all labels of one type. A registry takes schemas of up to 1 MB by default
(`max.message.bytes` of its topic)."""
MOST_DEFAULT_BYTES: Final = 64 << 10
"""The limit for the missing value (attmissingval) of one column."""
_MOST_HEX_BYTES: Final = 64
"""The size up to which a missing value is written in hexadecimal, which older readers know; larger
values are written in Base64."""

Schema = dict[str, Any]


def change_schema(description: RelationDescription, prefix: str) -> Schema:
    """Return the schema of the envelope, the record `Change` (docs/topics.md). The fields up to
    `ordinal` come first and are not nullable."""
    namespace = avro_namespace(prefix, description.namespace, description.name)
    columns = [column for column in description.columns if not _is_dropped(column)]
    labelled: set[int] = set()
    row = {"type": "record", "name": "Row", "fields": [_row_field(column, labelled) for column in columns]}
    return {
        "type": "record",
        "name": "Change",
        "namespace": namespace,
        "pg.relation": {
            "oid": description.oid,
            "schema": description.namespace,
            "name": description.name,
            "replica_identity": description.replica_identity.name,
            **protected_columns(description),
        },
        "fields": [
            {"name": "op", "type": {"type": "enum", "name": "Operation", "symbols": list(OPERATIONS)}},
            {"name": "xid", "type": "long", "doc": "Top-level transaction id."},
            {"name": "subxid", "type": "long", "doc": "The subtransaction of an in-progress row; -1 else."},
            {"name": "epoch", "type": "long", "doc": "Incarnation of the gateway."},
            {"name": "change_lsn", "type": "long"},
            {"name": "ordinal", "type": "long", "doc": "Zero-based place in the transaction, over all tables."},
            {**_optional("commit_lsn", "long"), "doc": "null: in progress, not known to be committed."},
            _optional("commit_time", {"type": "long", "logicalType": "timestamp-micros"}),
            _optional("origin", "string"),
            {
                "name": "key_change",
                "type": "boolean",
                "doc": "true: the DELETE of the old key that goes with an UPDATE.",
            },
            {**_optional("old_key", _key_record(description)), "doc": "The key tuple of the wire."},
            {**_optional("before", row), "doc": "The old tuple of the wire (REPLICA IDENTITY FULL)."},
            {**_optional("after", f"{namespace}.Row"), "doc": "The new tuple."},
            {
                "name": "unchanged",
                "type": {"type": "array", "items": "string"},
                "doc": "Fields whose TOASTed value was not sent: null in the row and named here.",
            },
            {
                "name": "special",
                "type": {"type": "map", "values": "string"},
                "doc": "Field -> PostgreSQL text of a value that its Avro type can not hold: null in the row. "
                f"Fields of the row `before` are named {BEFORE_PREFIX}<field>.",
            },
        ],
    }


def protected_columns(description: RelationDescription) -> Schema:
    """Return the part of `pg.relation` that names the columns under a rule, each with its attnum: a
    column under `drop` has no field."""
    names = {column.name: column.attnum for column in description.columns if column.protection is not None}
    return {"protected": names} if names else {}


def key_schema(description: RelationDescription, prefix: str) -> Schema | None:
    """Return the schema of the key, the record `Key` of the identity columns; None for a relation
    without identity."""
    if not description.identity_columns:
        return None
    namespace = avro_namespace(prefix, description.namespace, description.name)
    return {**_key_record(description), "namespace": namespace}


def field_names(description: RelationDescription) -> tuple[str, ...]:
    """Return the Avro names of the columns, in the order of the Relation message."""
    return tuple(avro_name(column.name) for column in description.columns)


def _key_record(description: RelationDescription) -> Schema:
    fields = [
        {**_named(column.name), **_nullable(key_type(value_type(column)))} for column in description.identity_columns
    ]
    return {"type": "record", "name": "Key", "fields": fields}


def _row_field(column: ColumnDescription, labelled: set[int]) -> Schema:
    """Return a column's field of Row. `labelled` has the oids of the enums whose labels the schema
    already contains."""
    described: Schema = {
        **_named(column.name),
        **_nullable(value_type(column)),
        "pg.type": {
            **_type_name(column.facts),
            "typmod": column.typmod,
            "key": column.identity,
            **_attribute(column),
        },
    }
    catalog = _catalog_facts(column.facts, labelled)
    if catalog:
        described["pg.catalog"] = catalog
    if column.protection is not None:
        described["pg.protected"] = column.protection.action.value
    return described


def _attribute(column: ColumnDescription) -> Schema:
    if column.attnum is None:
        return {}
    if column.missing is None:
        return {"attnum": column.attnum}
    encoded = column.missing.encoded
    if _is_too_large(column.missing):
        return {"attnum": column.attnum, "attmissingval_size": _size(column.missing)}
    if len(encoded) <= _MOST_HEX_BYTES:
        missing = {"avro": encoded.hex()}
    else:
        missing = {"avro_base64": b64encode(encoded).decode()}
    if column.missing.special is not None:
        missing["special"] = column.missing.special
    return {"attnum": column.attnum, "attmissingval": missing}


def _is_too_large(missing: MissingValue) -> bool:
    return _size(missing) > MOST_DEFAULT_BYTES


def _size(missing: MissingValue) -> int:
    return len(missing.encoded) + len((missing.special or "").encode())


def columns_without_default(description: RelationDescription) -> list[str]:
    """Return the names of the columns whose attmissingval is too large to be in the schema."""
    return [
        column.name for column in description.columns if column.missing is not None and _is_too_large(column.missing)
    ]


def _is_dropped(column: ColumnDescription) -> bool:
    return column.protection is not None and column.protection.action is Protect.DROP


def _nullable(column: ColumnType) -> Schema:
    return {"type": ["null", avro_type(column)], "default": None}


def _optional(name: str, avro: Any) -> Schema:
    return {"name": name, "type": ["null", avro], "default": None}


def _named(name: str) -> Schema:
    escaped = avro_name(name)
    return {"name": escaped} if escaped == name else {"name": escaped, "pg.name": name}


def _type_name(facts: TypeFacts) -> Schema:
    return {"oid": facts.oid, "schema": facts.namespace, "name": facts.name}


def _catalog_facts(facts: TypeFacts, labelled: set[int]) -> Schema:
    """Return what is known from the catalog alone; {} for a base type."""
    if facts.kind is Kind.BASE:
        return {}
    told: Schema = {"kind": facts.kind.value}
    if facts.base is not None:
        told["base"] = {**_nested(facts.base, labelled), "typmod": facts.base_typmod}
    if facts.element is not None:
        told["element"] = _nested(facts.element, labelled)
    if facts.labels and facts.oid not in labelled:
        labelled.add(facts.oid)
        if _are_too_many(facts.labels):
            told["label_count"] = len(facts.labels)
        else:
            told["labels"] = list(facts.labels)
    if facts.attributes:
        told["attributes"] = [
            {"attribute": attribute.name, **_nested(attribute.facts, labelled), "typmod": attribute.typmod}
            for attribute in facts.attributes
        ]
    return told


def _nested(facts: TypeFacts, labelled: set[int]) -> Schema:
    return {**_type_name(facts), **_catalog_facts(facts, labelled)}


def _are_too_many(labels: tuple[str, ...]) -> bool:
    return sum(len(label.encode()) for label in labels) > MOST_LABEL_BYTES


def enums_without_labels(description: RelationDescription) -> list[str]:
    """Return the names of the enums whose labels are too many to be in the schema."""
    enums = {facts for column in description.columns for facts in _enums(column.facts)}
    return sorted(f"{facts.namespace}.{facts.name}" for facts in enums if _are_too_many(facts.labels))


def _enums(facts: TypeFacts) -> Iterator[TypeFacts]:
    if facts.labels:
        yield facts
    for part in (facts.base, facts.element, *(attribute.facts for attribute in facts.attributes)):
        if part is not None:
            yield from _enums(part)
