"""A relation's description -> the Avro schemas of its records in Debezium's dialect, equal to
Debezium's in every attribute.

The record `Envelope` has the fields `before` and `after`, whose type is the record `Value`, and
`source`. The record `Key` is the type of keys. All are in the namespace
`<prefix>.<schema>.<table>`, and carry Connect's names, versions and parameters, which Debezium's
consumers read. Source: the schemas that Debezium 3.6 registers with Confluent's Avro converter,
with which tests/debezium compares the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.config.debezium import DebeziumSettings
from gateway.debezium.connect_type import ConnectType, Form, binary_avro, connect_type
from schemas.change_schema import protected_columns
from schemas.compatibility import find_record
from schemas.relation import ColumnDescription, Kind, Protect, Protection, RelationDescription, ReplicaIdentity
from schemas.topic_names import DEBEZIUM_TRANSACTION_RECORD, underscores

Schema = dict[str, Any]

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """The properties of a column that the replication stream does not contain. `default` is the
    expression of its default as pg_get_expr writes it, or "" if there is none."""

    name: str
    not_null: bool
    default: str = ""


@dataclass(frozen=True, slots=True)
class ConnectColumn:
    """A column of the replication stream as a field. `default` is in Avro's JSON form;
    `encoded_default` is the same value in Avro's binary form, without a union."""

    name: str
    field: str
    type: ConnectType
    is_optional: bool
    has_default: bool = False
    default: Any = None
    encoded_default: bytes | None = None
    protection: Protection | None = None


@dataclass(frozen=True, slots=True)
class ConnectRelation:
    """A relation in Kafka Connect. `columns` are in the order of the replication stream, with None
    for each column that is left out. `key` has the indexes of the key's columns, in the key's
    order."""

    description: RelationDescription
    columns: tuple[ConnectColumn | None, ...]
    key: tuple[int, ...]

    @property
    def without_values(self) -> frozenset[int]:
        """The indexes of the columns of whose values nothing is sent."""
        return frozenset(
            at
            for at, column in enumerate(self.columns)
            if column is None or (column.protection is not None and column.protection.is_hidden)
        )


class NameCollision(ValueError):
    """Two columns have the same field name."""


class UnsupportedKey(ValueError):
    """A column of the replica identity has no Connect type. Without it, different rows would have
    the same key."""


def connect_relation(
    description: RelationDescription,
    catalog: Sequence[CatalogColumn],
    key: Sequence[str],
    options: DebeziumSettings,
) -> ConnectRelation:
    """Describe the relation without column defaults, which need an encoder
    (gateway/debezium/column_defaults.py). A column that is no longer in the catalog may be null.
    Raises NameCollision and UnsupportedKey."""
    known = {column.name: column for column in catalog}
    columns: list[ConnectColumn | None] = []
    fields: dict[str, str] = {}
    for column in description.columns:
        type_ = _type_of(column, options)
        if type_ is None:
            columns.append(None)
            continue
        field = field_name(column.name, options)
        if field in fields:
            raise NameCollision(f"columns {fields[field]} and {column.name} both become the field {field}")
        fields[field] = column.name
        not_null = column.name in known and known[column.name].not_null
        if column.protection is not None and column.protection.is_hidden:
            not_null = False
        columns.append(ConnectColumn(column.name, field, type_, not not_null, protection=column.protection))
    places = {column.name: at for at, column in enumerate(description.columns)}
    return ConnectRelation(description, tuple(columns), _key_places(description, key, places, columns))


def _type_of(column: ColumnDescription, options: DebeziumSettings) -> ConnectType | None:
    """Return the column's type, or None for a column that is left out. The type is a string if a
    column rule replaces the values."""
    rule = column.protection
    if rule is None or rule.action is Protect.NULL:
        return connect_type(column.facts, column.typmod, options)
    if rule.action is Protect.DROP:
        return None
    facts = column.facts
    while facts.kind is Kind.DOMAIN and facts.base is not None:
        facts = facts.base
    return ConnectType(Form.TEXT, "string", facts)


def _key_places(
    description: RelationDescription,
    key: Sequence[str],
    places: dict[str, int],
    columns: Sequence[ConnectColumn | None],
) -> tuple[int, ...]:
    """Return the indexes of the columns of `key` if the stream sends them with every old tuple;
    otherwise those of the replica identity.

    With REPLICA IDENTITY DEFAULT, the stream marks the columns that were the primary key at the
    change. If the catalog has a different primary key by now, rows from that time may not be unique
    in its columns. Raises UnsupportedKey.
    """
    identity = {column.name for column in description.identity_columns}
    if not identity or description.replica_identity is not ReplicaIdentity.DEFAULT:
        is_sent = not identity or identity.issuperset(key)
    else:
        is_sent = identity == set(key)
    if key and is_sent and all(name in places and columns[places[name]] is not None for name in key):
        return tuple(places[name] for name in key)
    for column in description.identity_columns:
        if columns[places[column.name]] is None:
            raise UnsupportedKey(f"column {column.name} is part of the key, and Debezium does not support its type")
    return tuple(places[column.name] for column in description.identity_columns)


def field_name(column: str, options: DebeziumSettings) -> str:
    """Return the name of a column's field."""
    return adjusted_name(column) if options.adjusts_names else column


def adjusted_name(name: str) -> str:
    """Return the name under Debezium's `schema.name.adjustment.mode` and
    `field.name.adjustment.mode` = avro."""
    adjusted = _UNSAFE.sub(underscores, name)
    return f"_{adjusted}" if adjusted[:1].isdigit() else adjusted


def _namespace(topic: str) -> str:
    """Return the namespace of the topic's schemas. An underscore replaces each part that is empty,
    which Avro forbids: the name of a table can be `.` or have two dots in a row."""
    return ".".join(adjusted_name(part) or "_" for part in topic.split("."))


def envelope_schema(relation: ConnectRelation, topic: str, *, adjusts_names: bool = True) -> Schema:
    namespace = _namespace(topic) if adjusts_names else topic
    value = {
        "type": "record",
        "name": "Value",
        "fields": _fields([column for column in relation.columns if column is not None]),
        "connect.name": f"{namespace}.Value",
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": namespace,
        "fields": [
            _optional("before", value),
            _optional("after", "Value"),
            {"name": "source", "type": SOURCE},
            _optional("transaction", BLOCK),
            {"name": "op", "type": "string"},
            *(_optional(name, "long") for name in ("ts_ms", "ts_us", "ts_ns")),
        ],
        "connect.version": 2,
        "connect.name": f"{namespace}.Envelope",
        **_relation(relation.description),
    }


def _relation(description: RelationDescription) -> Schema:
    """Return `pg.relation` for a relation with columns under a rule, for an error if one of them
    is renamed. Other schemas are Debezium's."""
    protected = protected_columns(description)
    if not protected:
        return {}
    return {
        "pg.relation": {"oid": description.oid, "schema": description.namespace, "name": description.name, **protected}
    }


def key_schema(relation: ConnectRelation, topic: str, *, adjusts_names: bool = True) -> Schema | None:
    """Return the schema of the key; None for a relation without a key."""
    columns = [relation.columns[at] for at in relation.key]
    if not columns:
        return None
    namespace = _namespace(topic) if adjusts_names else topic
    return {
        "type": "record",
        "name": "Key",
        "namespace": namespace,
        "fields": _fields([column for column in columns if column is not None]),
        "connect.name": f"{namespace}.Key",
    }


def made_optional(relation: ConnectRelation, newest: Schema, newest_key: Schema | None) -> ConnectRelation:
    """Return the relation with an optional field for each required column that is optional in
    `newest`, the topic's newest schema, or is missing there and has no default. A registry with the
    level BACKWARD then accepts the schema. The same applies to the key and `newest_key`. A field
    that is required in `newest_key` stays so: otherwise the bytes of its keys would change."""
    in_row, in_key = _optional_fields(find_record(newest, "Value")), _optional_fields(newest_key)

    def is_wanted(column: ConnectColumn, *, is_key: bool) -> bool:
        if column.is_optional or (is_key and not in_key.get(column.field, True)):
            return False
        is_new_in_key = is_key and newest_key is not None and column.field not in in_key
        return in_row.get(column.field, not column.has_default) or (is_new_in_key and not column.has_default)

    columns = [
        replace(column, is_optional=True)
        if column is not None and is_wanted(column, is_key=at in relation.key)
        else column
        for at, column in enumerate(relation.columns)
    ]
    return replace(relation, columns=tuple(columns))


def _optional_fields(record: Schema | None) -> dict[str, bool]:
    """Return, for each field of a record, whether it is optional."""
    return {field["name"]: isinstance(field["type"], list) for field in (record or {}).get("fields", ())}


def _fields(columns: Sequence[ConnectColumn]) -> list[Schema]:
    defined: set[str] = set()
    return [_field(column, defined) for column in columns]


def _field(column: ConnectColumn, defined: set[str]) -> Schema:
    """Return the field. As in Walgate's own dialect, `pg.protected` is the action of the column
    rule that changes the values."""
    described = _plain_field(column, defined)
    if column.protection is not None:
        described["pg.protected"] = column.protection.action.value
    return described


def _plain_field(column: ConnectColumn, defined: set[str]) -> Schema:
    avro = _defined_once(column.type.avro, defined)
    if column.has_default:
        plain = avro if isinstance(avro, dict) else {"type": avro}
        avro = {**plain, "connect.default": column.default}
    if not column.is_optional:
        described: Schema = {"name": column.field, "type": avro}
        return {**described, "default": column.default} if column.has_default else described
    if column.has_default:
        return {"name": column.field, "type": [avro, "null"], "default": column.default}
    return _optional(column.field, avro)


def _defined_once(avro: Any, defined: set[str]) -> Any:
    """Return the schema with a record written out where it occurs first, and replaced by its name
    after that."""
    if not isinstance(avro, dict):
        return avro
    if avro["type"] == "array":
        null, items = avro["items"]
        return {**avro, "items": [null, _defined_once(items, defined)]}
    if avro["type"] != "record":
        return avro
    name = f"{avro['namespace']}.{avro['name']}"
    if name in defined:
        return name
    defined.add(name)
    return avro


def _optional(name: str, avro: Any) -> Schema:
    return {"name": name, "type": ["null", avro], "default": None}


_CONNECTOR: Final = "io.debezium.connector.postgresql"
_SNAPSHOT: Final = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}
SOURCE: Final[Schema] = {
    "type": "record",
    "name": "Source",
    "namespace": _CONNECTOR,
    "fields": [
        {"name": "version", "type": "string"},
        {"name": "connector", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "snapshot", "type": [_SNAPSHOT, "null"], "default": "false"},
        {"name": "db", "type": "string"},
        _optional("sequence", "string"),
        _optional("ts_us", "long"),
        _optional("ts_ns", "long"),
        {"name": "schema", "type": "string"},
        {"name": "table", "type": "string"},
        _optional("txId", "long"),
        _optional("lsn", "long"),
        _optional("xmin", "long"),
        _optional("origin", "string"),
        _optional("origin_lsn", "long"),
    ],
    "connect.version": 1,
    "connect.name": f"{_CONNECTOR}.Source",
}
BLOCK: Final[Schema] = {
    "type": "record",
    "name": "block",
    "namespace": "event",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total_order", "type": "long"},
        {"name": "data_collection_order", "type": "long"},
    ],
    "connect.version": 1,
    "connect.name": "event.block",
}
_COLLECTION: Final[Schema] = {
    "type": "record",
    "name": "collection",
    "namespace": "event",
    "fields": [{"name": "data_collection", "type": "string"}, {"name": "event_count", "type": "long"}],
    "connect.version": 1,
    "connect.name": "event.collection",
}
_COMMON: Final = "io.debezium.connector.common"
TRANSACTION_KEY: Final[Schema] = {
    "type": "record",
    "name": "TransactionMetadataKey",
    "namespace": _COMMON,
    "fields": [{"name": "id", "type": "string"}],
    "connect.version": 1,
    "connect.name": f"{_COMMON}.TransactionMetadataKey",
}
TRANSACTION_VALUE: Final[Schema] = {
    "type": "record",
    "name": DEBEZIUM_TRANSACTION_RECORD,
    "namespace": _COMMON,
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        _optional("event_count", "long"),
        _optional("data_collections", {"type": "array", "items": ["null", _COLLECTION]}),
        {"name": "ts_ms", "type": "long"},
    ],
    "connect.version": 1,
    "connect.name": f"{_COMMON}.{DEBEZIUM_TRANSACTION_RECORD}",
}
MESSAGE_KEY: Final[Schema] = {
    "type": "record",
    "name": "MessageKey",
    "namespace": _CONNECTOR,
    "fields": [_optional("prefix", "string")],
    "connect.version": 1,
    "connect.name": f"{_CONNECTOR}.MessageKey",
}


def message_schema(options: DebeziumSettings) -> Schema:
    """Return the schema of a logical decoding message."""
    content = binary_avro(options.binary_handling_mode)
    return {
        "type": "record",
        "name": "MessageValue",
        "namespace": _CONNECTOR,
        "fields": [
            {"name": "op", "type": "string"},
            _optional("ts_ms", "long"),
            {"name": "source", "type": {name: part for name, part in SOURCE.items() if name != "namespace"}},
            _optional("transaction", BLOCK),
            {
                "name": "message",
                "type": {
                    "type": "record",
                    "name": "Message",
                    "fields": [_optional("prefix", "string"), _optional("content", content)],
                    "connect.version": 1,
                    "connect.name": f"{_CONNECTOR}.Message",
                },
            },
        ],
        "connect.version": 1,
        "connect.name": f"{_CONNECTOR}.MessageValue",
    }
