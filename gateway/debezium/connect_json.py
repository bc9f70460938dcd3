"""Convert an Avro schema with Kafka Connect's attributes to the schema that Connect's JsonConverter
writes into its records.

Attributes are in the converter's order, so that equal keys have equal bytes, whichever program
wrote them: compaction and the choice of a key's partition depend on that. Source:
org.apache.kafka.connect.json.JsonConverter 4.3, with which tests/debezium compares the result.
"""

from __future__ import annotations

import base64
from typing import Any, Final

Avro = Any
_TYPES: Final = {
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}


class NamedTypes(dict[str, Avro]):
    """The record types found so far, by their short and their full names."""

    def resolve(self, avro: Avro) -> tuple[Avro, bool]:
        """Return the type without its union, and whether it may be null. The name of a record type
        is replaced by the type."""
        is_optional = isinstance(avro, list)
        if is_optional:
            (avro,) = [branch for branch in avro if branch != "null"]
        if isinstance(avro, str) and avro not in _TYPES:
            avro = self[avro]
        if isinstance(avro, dict) and avro["type"] == "record":
            self[avro["name"]] = avro
            if "namespace" in avro:
                self[f"{avro['namespace']}.{avro['name']}"] = avro
        return avro, is_optional


def connect_json_schema(avro: Avro, names: NamedTypes | None = None) -> dict[str, Any]:
    names = NamedTypes() if names is None else names
    avro, is_optional = names.resolve(avro)
    attributes = avro if isinstance(avro, dict) else {"type": avro}
    found: dict[str, Any] = {}
    match attributes["type"]:
        case "record":
            fields = [connect_json_field(field, names) for field in attributes["fields"]]
            found = {"type": "struct", "fields": fields}
        case "array":
            found = {"type": "array", "items": connect_json_schema(attributes["items"], names)}
        case "map":
            keys = {"type": "string", "optional": False}
            found = {"type": "map", "keys": keys, "values": connect_json_schema(attributes["values"], names)}
        case primitive:
            found = {"type": attributes.get("connect.type", _TYPES[primitive])}
    found["optional"] = is_optional
    for name in ("name", "version", "doc", "parameters"):
        if f"connect.{name}" in attributes:
            found[name] = attributes[f"connect.{name}"]
    if "connect.default" in attributes:
        found["default"] = _json_default(attributes["type"], attributes["connect.default"])
    return found


def connect_json_field(field: dict[str, Any], names: NamedTypes) -> dict[str, Any]:
    found = connect_json_schema(field["type"], names)
    if "pg.protected" in field:
        found["parameters"] = {**found.get("parameters", {}), "pg.protected": field["pg.protected"]}
    found["field"] = field["name"]
    return found


def _json_default(primitive: str, default: Any) -> Any:
    return base64.b64encode(default.encode("latin-1")).decode() if primitive == "bytes" else default
