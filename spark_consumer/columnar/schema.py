"""Build decoders from an Avro schema (parsed JSON)."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from spark_consumer.columnar import nested, scalars
from spark_consumer.columnar.cursor import Cursor
from spark_consumer.columnar.malformed import first_malformed
from spark_consumer.columnar.scalars import Decoder
from spark_consumer.errors import MalformedRecord, UnsupportedSchema

_PLAIN = {
    "boolean": scalars.BOOLEAN,
    "double": scalars.DOUBLE,
    "float": scalars.FLOAT,
    "string": scalars.STRING,
    "bytes": scalars.BYTES,
}


class RecordDecoder:
    """Decoder of one record schema. `fields` maps name -> Decoder in the order of the schema.

    A RecordDecoder is thread-safe, since it has no state while decoding.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        if schema.get("type") != "record":
            raise UnsupportedSchema("the schema of a table's topic is not an Avro record")
        self.fields = dict(_record_fields(schema, {}, ""))

    def decode(self, values: pa.Array, *, skip: int) -> dict[str, pa.Array]:
        """Decode all fields of `values` (pa.binary()), whose Avro begins at byte `skip`. Raises
        MalformedRecord, with its field `record` set if possible."""
        try:
            return self._decode(values, skip)
        except MalformedRecord as problem:
            raise first_malformed(lambda some: self._decode(some, skip), values, problem) from None

    def _decode(self, values: pa.Array, skip: int) -> dict[str, pa.Array]:
        cursor = Cursor.over(values, skip)
        columns = {name: decoder.decode(cursor, None, len(values)) for name, decoder in self.fields.items()}
        cursor.check_at_end()
        return columns


def _record_fields(schema: dict[str, Any], named: dict[str, Decoder], namespace: str) -> list[tuple[str, Decoder]]:
    inner = _namespace(schema, namespace)
    return [(field["name"], _decoder(field["type"], named, inner)) for field in schema["fields"]]


def _namespace(schema: dict[str, Any], enclosing: str) -> str:
    if "." in schema["name"]:
        return str(schema["name"].rpartition(".")[0])
    return str(schema.get("namespace", enclosing))


def _decoder(schema: Any, named: dict[str, Decoder], namespace: str) -> Decoder:
    """Return the decoder of a type. `named` collects the decoders of records, enums and fixeds by
    full name, since a schema may refer to these types by name later."""
    if isinstance(schema, list):
        return _union(schema, named, namespace)
    if isinstance(schema, str):
        found = _PLAIN.get(schema) or named.get(schema) or named.get(f"{namespace}.{schema}")
        if found is not None:
            return found
        if schema in ("int", "long"):
            return scalars.integer_decoder(schema, None)
        raise UnsupportedSchema(f"Avro type {schema!r} cannot be read")
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _decoder(kind, named, namespace)
    if kind in ("record", "enum", "fixed"):
        return _named(schema, named, namespace)
    if kind == "array":
        return nested.array_decoder(_decoder(schema["items"], named, namespace))
    if kind == "map":
        return nested.map_decoder(_decoder(schema["values"], named, namespace))
    if kind in ("int", "long"):
        return scalars.integer_decoder(kind, schema.get("logicalType"))
    if kind == "bytes" and schema.get("logicalType") == "decimal":
        return scalars.decimal_decoder(schema)
    return _decoder(kind, named, namespace)


def _union(schema: list[Any], named: dict[str, Decoder], namespace: str) -> Decoder:
    inner = [branch for branch in schema if branch != "null"]
    if len(schema) != 2 or len(inner) != 1:
        raise UnsupportedSchema(f"a union that is not of null and one other type: {json.dumps(schema)[:80]}")
    return nested.optional_decoder(_decoder(inner[0], named, namespace), schema.index(inner[0]))


def _named(schema: dict[str, Any], named: dict[str, Decoder], namespace: str) -> Decoder:
    kind = schema["type"]
    if kind == "record":
        decoder = nested.record_decoder(_record_fields(schema, named, namespace))
    elif kind == "enum":
        decoder = scalars.enum_decoder(schema["symbols"])
    elif schema.get("logicalType") == "decimal":
        decoder = scalars.decimal_decoder(schema)
    else:
        decoder = scalars.fixed_decoder(int(schema["size"]))
    space = _namespace(schema, namespace)
    name = schema["name"].rpartition(".")[2]
    named[f"{space}.{name}" if space else name] = decoder
    return decoder
