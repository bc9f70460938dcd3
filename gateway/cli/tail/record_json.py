"""Records in Confluent's framing -> JSON objects, decoded with their schemas from the registry.

Fields of the envelope that are null or empty are left out. LSNs are in PostgreSQL's form; bytes are
text if they are UTF-8, otherwise in the hexadecimal form of bytea.
"""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import fastavro
from fastavro.schema import SchemaParseException

from gateway.cli.tail.message_json import Shown, readable
from gateway.errors import WalgateError
from gateway.schema_errors import classified_schema_errors
from schemas.errors import SchemaError
from schemas.lsn import Lsn
from schemas.registry_client import RegistryClient
from schemas.schema_metadata import recorded_relation
from schemas.topic_names import avro_namespace, format_relation
from schemas.wire_format import FRAME_BYTES, read_schema_id

_DEBEZIUM_OPERATIONS: Final = {
    "c": "Insert",
    "r": "Read",
    "u": "Update",
    "d": "Delete",
    "t": "Truncate",
    "m": "Message",
}
_NOTHING: Final[tuple[Any, ...]] = (None, [], {}, "")
_MARKER: Final = "TransactionMarker"


class RecordRenderer:
    """Decoder of records into JSON objects, with the schemas of a registry."""

    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry

    async def show(self, value: bytes | None, key: bytes | None = None) -> Shown:
        """Return a record of any topic, or a framed value alone, as a JSON object. Raises
        WalgateError."""
        if value is None:
            return {"message": "Tombstone"} | await self._key(key)
        with classified_schema_errors():
            schema_id = read_schema_id(value)
            schema = await self._registry.schema(schema_id)
        record = _decoded(value, schema, schema_id)
        if not isinstance(record, dict):
            return {"message": "Value", "schema_id": schema_id, "value": _plain(record)}
        shown: Shown = {"message": _name(record, schema), "schema_id": schema_id}
        relation = recorded_relation(schema)
        if relation is not None:
            shown["relation"] = format_relation(*relation)
        if "op" in record and record.get("commit_lsn", 0) is None:  # Debezium's records have no such field
            shown["in_progress"] = True
        shown |= await self._key(key)
        named = ("op",) if "op" in record else ("kind",) if schema.get("name") == _MARKER else ()
        fields = {name: _field(name, value) for name, value in record.items() if name not in named}
        return shown | {name: value for name, value in fields.items() if value not in _NOTHING}

    async def native_relation(self, value: bytes, prefix: str) -> tuple[str, str] | None:
        """Return the relation whose change this is, or None if no gateway with this prefix has
        registered its schema for the native dialect."""
        schema: Any = await self._registry.schema(read_schema_id(value))  # of another application, perhaps a text
        relation = recorded_relation(schema) if isinstance(schema, dict) and schema.get("name") == "Change" else None
        return relation if relation and schema["namespace"] == avro_namespace(prefix, *relation) else None

    async def _key(self, key: bytes | None) -> Shown:
        if key is None:
            return {}
        try:
            schema = await self._registry.schema(read_schema_id(key))
            return {"key": _plain(_decoded(key, schema, read_schema_id(key)))}
        except SchemaError:
            return {"key": readable(key)}


class UnreadableRecord(WalgateError):
    """A record's bytes do not match its schema."""


def _decoded(framed: bytes, schema: dict[str, Any], schema_id: int) -> Any:
    for each in (schema, _as_numbers(schema)):
        try:
            return fastavro.schemaless_reader(io.BytesIO(framed[FRAME_BYTES:]), each, None)
        except (EOFError, IndexError, ValueError, TypeError, OverflowError, SchemaParseException) as error:
            found = type(error).__name__
    raise UnreadableRecord(f"the record does not match schema {schema_id}: {found}")


def _as_numbers(schema: Any) -> Any:
    """Return the schema with dates and times as plain numbers: Python has only the years 1 to 9999.
    Decimals remain, with a precision that fastavro accepts."""
    if isinstance(schema, list):
        return [_as_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") == "decimal" and schema["scale"] >= 0:
        return {**schema, "precision": max(schema["precision"], schema["scale"])}
    return {name: _as_numbers(each) for name, each in schema.items() if name != "logicalType"}


def _name(record: dict[str, Any], schema: dict[str, Any]) -> str:
    if "op" in record:
        return _DEBEZIUM_OPERATIONS.get(record["op"]) or str(record["op"]).capitalize()
    return str(record["kind"]) if schema.get("name") == _MARKER else str(schema.get("name", "Record"))


def _field(name: str, value: Any) -> Any:
    return str(Lsn(value)) if name.endswith("_lsn") and isinstance(value, int) and value >= 0 else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return readable(bytes(value))
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    return value
