"""Column defaults in the schemas of Debezium's dialect: the catalog's expression -> Avro's JSON
form and bytes.

The rules are Debezium's. A literal is the default, and a function call is replaced by the type's
zero (`now()` is 1970). Any other expression, such as arithmetic, gives no default; nor does any
expression if Debezium does not read defaults of the type. Other than in Debezium, infinity is not
the default of a date or a timestamp: a sink that creates a column with the number that represents
it would fail.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from math import isfinite
from typing import Any, Final

from gateway.debezium.connect_codec import encode_text
from gateway.debezium.connect_type import ConnectType, Form
from gateway.debezium.envelope_schema import CatalogColumn, ConnectColumn, ConnectRelation
from gateway.values.column_readers import some_bytes
from gateway.values.special_values import NotRenderable, UnrepresentableValue
from schemas.relation import Kind
from schemas.varint import decode_long, encode_long

_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_FUNCTION = re.compile(r"^[(]?[A-Za-z0-9_.]+\(")
_CURRENT: Final = frozenset({"current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"})
_GENERATED: Final = {
    16: "f", 20: "0", 21: "0", 23: "0", 700: "0.0", 701: "0.0", 1700: "0.0",
    25: "", 1042: "", 1043: "", 114: "{}", 3802: "{}", 142: "",
    2950: "00000000-0000-0000-0000-000000000000",
    1082: "1970-01-01", 1083: "00:00:00", 1114: "1970-01-01 00:00:00", 1184: "1970-01-01 00:00:00+00", 1186: "PT0S",
    1560: "00", 1562: "0",
}  # fmt: skip
"""The default that replaces a function call, as PostgreSQL text, by type oid. Other types have no
defaults."""
_DATED: Final = frozenset({1082, 1114, 1184})
"""date, timestamp, timestamptz"""
_FLOAT: Final = struct.Struct("<f")
_TOO_LARGE: Final = 2.0**128 - 2.0**103
"""From this number on, a number is rounded to infinity as float4."""
_UNEVEN: Final = frozenset({2.0**-96, 2.0**87, 2.0**90})
"""The float4 for which the nearest decimal of eight digits is read back as another, but the next
greater one is not: below a power of two, float4 are closer to each other."""
_MALFORMED: Final = (
    ValueError,
    IndexError,
    OverflowError,
    InvalidOperation,
    struct.error,
    UnrepresentableValue,
    NotRenderable,
)


def with_defaults(relation: ConnectRelation, catalog: list[CatalogColumn]) -> ConnectRelation:
    """Return the relation with the defaults of its columns."""
    expressions = {column.name: column.default for column in catalog if column.default}
    columns = tuple(
        None if column is None else _with_default(column, expressions.get(column.name, ""), described.facts.kind)
        for column, described in zip(relation.columns, relation.description.columns, strict=True)
    )
    return ConnectRelation(relation.description, columns, relation.key)


def as_recorded(relation: ConnectRelation, fields: Mapping[str, Mapping[str, Any]]) -> ConnectRelation:
    """Return the relation with columns of its key as an earlier key schema has them, so that equal
    keys keep their bytes. `fields` has the fields of that schema by the names of the columns."""
    columns = list(relation.columns)
    for at in relation.key:
        column = columns[at]
        if column is not None and column.name in fields:
            columns[at] = _as_recorded(column, fields[column.name])
    return replace(relation, columns=tuple(columns))


def _as_recorded(column: ConnectColumn, field: Mapping[str, Any]) -> ConnectColumn:
    is_optional = isinstance(field["type"], list)
    (avro,) = (each for each in (field["type"] if is_optional else [field["type"]]) if each != "null")
    column = replace(column, is_optional=is_optional)
    default = field.get("default")
    if default is None or _without_default(avro) != _without_default(column.type.avro):
        return column
    encoded = _encoded_default(column.type.avro, default)
    return replace(column, has_default=True, default=default, encoded_default=encoded)


def _without_default(avro: Any) -> dict[str, Any]:
    attributes = avro if isinstance(avro, dict) else {"type": avro}
    return {name: value for name, value in attributes.items() if name != "connect.default"}


def _encoded_default(avro: Any, default: Any) -> bytes:
    """Return a default of a schema in Avro's binary form: the inverse of `_json_form`."""
    match _without_default(avro)["type"]:
        case "boolean":
            return b"\1" if default else b"\0"
        case "int" | "long":
            return encode_long(default)
        case "float":
            return _FLOAT.pack(default)
        case "double":
            return struct.pack("<d", default)
        case primitive:
            return some_bytes(default.encode("latin-1" if primitive == "bytes" else "utf-8"))[1:]


def _with_default(column: ConnectColumn, expression: str, kind: Kind) -> ConnectColumn:
    if not expression or column.protection is not None:
        return column
    if isinstance(column.type.avro, dict) and column.type.avro["type"] in ("record", "array", "map"):
        return column
    text = _default_text(column.type, expression.strip(), kind)
    if text is None:
        return column
    try:
        if column.type.form in (Form.DECIMAL, Form.DECIMAL_TEXT) and column.type.precision:
            text = format(Decimal(text).quantize(Decimal(1).scaleb(-column.type.scale), ROUND_HALF_UP), "f")
        encoded = encode_text(column.type)(text.encode())[1:]
    except _MALFORMED:
        return column
    default = _json_form(column.type.avro, encoded)
    if isinstance(default, float) and not isfinite(default):  # JSON, and so a schema, has no such number
        return column
    return replace(column, has_default=True, default=default, encoded_default=encoded)


def _default_text(type_: ConnectType, expression: str, kind: Kind) -> str | None:
    if expression.startswith("NULL::"):
        return None
    literal = _LITERAL.search(expression)
    if kind is Kind.ENUM:
        return None if literal is None else literal[1]
    generated = _GENERATED.get(type_.facts.oid)
    if kind is not Kind.BASE or generated is None:
        return None
    if _FUNCTION.match(expression) or expression.lower() in _CURRENT:
        return generated
    text = expression if literal is None else literal[1].replace("''", "'")
    if type_.facts.oid == 16:
        return "t" if text.lower() == "true" else "f"
    if type_.facts.oid in _DATED and text in ("infinity", "-infinity"):
        return None
    return text


def _json_form(avro: Any, encoded: bytes) -> Any:
    """Return the value in the form that a default has in a schema. Bytes are a string with one code
    point for each byte."""
    primitive = avro["type"] if isinstance(avro, dict) else avro
    match primitive:
        case "boolean":
            return encoded == b"\1"
        case "int" | "long":
            return decode_long(encoded, 0)[0]
        case "float":
            return shortest_float(struct.unpack("<f", encoded)[0])
        case "double":
            return struct.unpack("<d", encoded)[0]
    length, start = decode_long(encoded, 0)
    content = encoded[start : start + length]
    return content.decode("latin-1") if primitive == "bytes" else content.decode()


def shortest_float(number: float) -> float:
    """Return the shortest decimal that is read back as the same float4."""
    packed = _FLOAT.pack(number)
    for digits in range(1, 9):
        found = float(f"{number:.{digits}g}")
        if abs(found) < _TOO_LARGE and _FLOAT.pack(found) == packed:
            return found
    if abs(number) in _UNEVEN:
        return float(f"{number * (1 + 2**-26):.8g}")
    return float(f"{number:.9g}")  # nine digits distinguish any two float4
