"""Values that Debezium writes in a form of its own: decimals, money, bits, points, hstore, and
bytes as text. The last part has the values that Debezium writes for those that were not sent, in a
required column or as UNCHANGED.

Each factory takes a column's type and returns the encoder of PostgreSQL's text. Encoded bytes begin
with the index of union branch 1.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from hashlib import md5
from typing import Final
from uuid import UUID

from gateway.config.debezium import BinaryMode
from gateway.debezium.connect_type import ConnectType, Form
from gateway.values.column_readers import AVRO_NULL, Encode, some_bytes
from gateway.values.integers import bool_from_text
from gateway.values.special_values import UnrepresentableValue
from schemas.varint import encode_long, encode_some_long

_SOME: Final = b"\2"
_NOT_FINITE: Final = {b"NaN": b"NAN", b"Infinity": b"POSITIVE_INFINITY", b"-Infinity": b"NEGATIVE_INFINITY"}
"""Values of numeric that are not finite, and Debezium's names for them."""
_MOST_INT_DIGITS: Final = 4300
_HSTORE_STRING: Final = rb'"((?:[^"\\]|\\.)*)"'
_HSTORE_PAIR: Final = re.compile(_HSTORE_STRING + rb"=>(?:" + _HSTORE_STRING + rb"|NULL)(?:, )?", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_POINT: Final = re.compile(rb"\(([^,]+),([^)]+)\)")
_MONEY: Final = re.compile(rb"(\D*)(\d(?:.*\d)?)(\D*)", re.DOTALL)
_MINUS: Final = re.compile(rb"[-(]|\xe2\x88\x92")
"""A sign of negative money, before or after the digits. The last alternative is U+2212 in UTF-8."""
_FRACTION_MARKS: Final = (b".", b",", b"'")
_BOUNDS: Final = re.compile(rb"^\[-?\d+:-?\d+\]=")
_ONE: Final = b"\0\0\0\1"
_WKB_POINT: Final = b"\1\1\0\0\0"
"""The bytes before the coordinates in the well-known binary of a point, little-endian."""


def _unscaled(number: int) -> bytes:
    """Return the number in two's complement, big-endian and as short as possible, preceded by its
    length."""
    value = number.to_bytes(((number if number >= 0 else ~number).bit_length() >> 3) + 1, "big", signed=True)
    return encode_long(len(value)) + value


def _variable_decimal(value: bytes) -> bytes:
    """Encode io.debezium.data.VariableScaleDecimal, without trailing zeros of the fraction. Raises
    UnrepresentableValue for NaN and the infinities."""
    if value in _NOT_FINITE:
        raise UnrepresentableValue
    whole, _, fraction = value.partition(b".")
    fraction = fraction.rstrip(b"0")
    return _SOME + encode_long(len(fraction)) + _unscaled(_integer(whole + fraction))


def _integer(digits: bytes) -> int:
    """Parse a number of any length: numeric has up to 147,455 digits, and `int` refuses more than
    4,300."""
    return int(digits) if len(digits) <= _MOST_INT_DIGITS else int(Decimal(digits.decode("ascii")))


def _decimal_text(value: bytes) -> bytes:
    return some_bytes(_NOT_FINITE.get(value, value))


def _zero_decimal_text(type_: ConnectType) -> bytes:
    return _string("0." + "0" * type_.scale if type_.precision and type_.scale else "0")


def _double(value: bytes) -> bytes:
    return _SOME + struct.pack("<d", float(value))


def _money_parser(type_: ConnectType) -> Callable[[bytes], Decimal]:
    """Return the parser of money, such as `$1,234.56` or `€ -0,50`. An amount has as many
    fractional digits as the server writes for zero. If that is not known, two digits after a mark
    are the fraction. The parsed number has at least two decimals."""
    outputs = type_.facts.outputs
    zero_digits = sum(character.isdigit() for character in outputs[2]) if len(outputs) == 3 else 0

    def parse(value: bytes) -> Decimal:
        match = _MONEY.fullmatch(value)
        if match is None:
            raise ValueError("not money")
        head, amount, tail = match.groups()
        has_cents = amount[-3:-2] in _FRACTION_MARKS
        decimals = zero_digits - 1 if zero_digits else 2 if has_cents else 0
        number = int(re.sub(rb"\D", b"", amount))
        is_negative = _MINUS.search(head) or _MINUS.search(tail)
        padded = max(2 - decimals, 0)
        return Decimal((-number if is_negative else number) * 10**padded).scaleb(-decimals - padded)

    return parse


def _money(type_: ConnectType) -> Encode:
    """Return the encoder of money as a decimal with the type's scale. The encoder raises
    UnrepresentableValue if digits would be lost."""
    parse = _money_parser(type_)

    def encode(value: bytes) -> bytes:
        unscaled = parse(value).scaleb(type_.scale)
        if unscaled != int(unscaled):
            raise UnrepresentableValue
        return _SOME + _unscaled(int(unscaled))

    return encode


def _money_text(type_: ConnectType) -> Encode:
    parse = _money_parser(type_)
    return lambda value: some_bytes(str(parse(value)).encode())


def _money_double(type_: ConnectType) -> Encode:
    parse = _money_parser(type_)
    return lambda value: _SOME + struct.pack("<d", float(parse(value)))


def _bits(value: bytes) -> bytes:
    """Encode io.debezium.data.Bits: little-endian, without zero bytes at the end."""
    number = int(value or b"0", 2)
    return some_bytes(number.to_bytes((number.bit_length() + 7) // 8, "little"))


def _point(value: bytes) -> bytes:
    match = _POINT.fullmatch(value)
    if match is None:
        raise ValueError("not a point")
    numbers = struct.pack("<dd", float(match[1]), float(match[2]))
    wkb = _WKB_POINT + numbers
    return _SOME + numbers + some_bytes(wkb) + AVRO_NULL


def _hstore_pairs(value: bytes) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {}
    place = 0
    while place < len(value):
        match = _HSTORE_PAIR.match(value, place)
        if match is None:
            raise ValueError("not an hstore")
        key = _ESCAPE.sub(rb"\1", match[1]).decode()
        pairs[key] = None if match[2] is None else _ESCAPE.sub(rb"\1", match[2]).decode()
        place = match.end()
    return pairs


def _hstore_json(value: bytes) -> bytes:
    return some_bytes(json.dumps(_hstore_pairs(value), separators=(",", ":"), ensure_ascii=False).encode())


def _encoded_map(pairs: dict[str, str | None]) -> bytes:
    parts = [_SOME]
    if pairs:
        parts.append(encode_long(len(pairs)))
        for key, item in pairs.items():
            parts.append(some_bytes(key.encode())[1:])
            parts.append(AVRO_NULL if item is None else some_bytes(item.encode()))
    return b"".join([*parts, AVRO_NULL])


def _bytes_of(value: bytes) -> bytes:
    """Parse bytea in hex format, to which the session sets bytea_output."""
    return bytes.fromhex(value[2:].decode("ascii"))


def unshifted_text(encode: Encode) -> Encode:
    """Return an encoder that removes the lower bound of a one-dimensional array, which Connect
    cannot represent, before it calls `encode`."""
    return lambda value: encode(_BOUNDS.sub(b"", value) if value[:1] == b"[" else value)


def unshifted_binary(encode: Encode) -> Encode:
    return lambda value: encode(value[:16] + _ONE + value[20:] if value[:4] == _ONE else value)


AS_BINARY: Final[dict[BinaryMode, Callable[[bytes], bytes]]] = {
    "bytes": bytes,
    "base64": base64.b64encode,
    "base64-url-safe": base64.urlsafe_b64encode,
    "hex": lambda value: value.hex().encode(),
}
"""The function that converts bytes to the form of each `binary_handling_mode`."""


def _bytea(type_: ConnectType) -> Encode:
    write = AS_BINARY[type_.binary_mode]
    return lambda value: some_bytes(write(_bytes_of(value)))


def _unknown(type_: ConnectType) -> Encode:
    """Encode a value of an unknown type: its text, encoded as bytea is."""
    write = AS_BINARY[type_.binary_mode]
    return lambda value: some_bytes(write(value))


FROM_TEXT: Final[dict[Form, Callable[[ConnectType], Encode]]] = {
    Form.VARIABLE_DECIMAL: lambda _: _variable_decimal,
    Form.DECIMAL_TEXT: lambda _: _decimal_text,
    Form.DECIMAL_DOUBLE: lambda _: _double,
    Form.MONEY: _money,
    Form.MONEY_TEXT: _money_text,
    Form.MONEY_DOUBLE: _money_double,
    Form.BIT: lambda _: lambda value: bool_from_text(b"t" if value == b"1" else b"f"),
    Form.BITS: lambda _: _bits,
    Form.POINT: lambda _: _point,
    Form.HSTORE_JSON: lambda _: _hstore_json,
    Form.HSTORE_MAP: lambda _: lambda value: _encoded_map(_hstore_pairs(value)),
    Form.BINARY_TEXT: _bytea,
    Form.UNKNOWN: _unknown,
}


# -- values that were not sent

_EMPTY: Final = b"\0"
_ZERO: Final = b"\0"
_ZERO_DECIMAL: Final = b"\2\0"


def _always(value: bytes) -> Callable[[ConnectType], bytes]:
    return lambda _: value


def _string(text: str) -> bytes:
    return some_bytes(text.encode())[1:]


ZEROS: Final[dict[Form, Callable[[ConnectType], bytes]]] = {
    Form.BOOLEAN: _always(b"\0"),
    Form.INTEGER: _always(_ZERO),
    Form.FLOAT: _always(bytes(4)),
    Form.DOUBLE: _always(bytes(8)),
    Form.TEXT: _always(_EMPTY),
    Form.UUID: _always(_EMPTY),
    Form.BYTES: _always(_EMPTY),
    Form.BINARY_TEXT: _always(_EMPTY),
    Form.UNKNOWN: _always(_EMPTY),
    Form.DECIMAL: _always(_ZERO_DECIMAL),
    Form.VARIABLE_DECIMAL: _always(_ZERO + _ZERO_DECIMAL),
    Form.DECIMAL_TEXT: _zero_decimal_text,
    Form.DECIMAL_DOUBLE: _always(bytes(8)),
    Form.MONEY: _always(_ZERO_DECIMAL),
    Form.MONEY_TEXT: _always(_string("0.00")),
    Form.MONEY_DOUBLE: _always(bytes(8)),
    Form.DAYS: _always(_ZERO),
    Form.DATE_TEXT: _always(_string("1970-01-01Z")),
    Form.TIME: _always(_ZERO),
    Form.TIME_TEXT: _always(_string("00:00:00Z")),
    Form.TIMESTAMP: _always(_ZERO),
    Form.TIMESTAMP_TEXT: _always(_string("1970-01-01T00:00:00Z")),
    Form.ZONED_TIMESTAMP: _always(_string("1970-01-01T00:00:00Z")),
    Form.ZONED_TIME: _always(_string("00:00:00Z")),
    Form.DURATION: _always(_ZERO),
    Form.DURATION_TEXT: _always(_string("P0Y0M0DT0H0M0S")),
    Form.BIT: _always(b"\0"),
    Form.BITS: _always(_EMPTY),
    Form.POINT: _always(_point(b"(0,0)")[1:]),
    Form.HSTORE_JSON: _always(_string("{}")),
    Form.HSTORE_MAP: _always(_EMPTY),
    Form.ARRAY: _always(_EMPTY),
}
"""The value that Debezium writes for a required column that was not sent."""

_TEXT_ELEMENTS: Final = frozenset({25, 1042, 1043, 114, 3802})
"""text, bpchar, varchar, json, jsonb"""
_TEXT_FORMS: Final = frozenset({Form.TEXT, Form.UUID, Form.BINARY_TEXT, Form.BYTES, Form.UNKNOWN, Form.DECIMAL_TEXT})


def placeholder(type_: ConnectType, text: str) -> bytes | None:
    """Return what Debezium writes for an UNCHANGED value, preceded by the index of union branch 1;
    None for a type without a placeholder."""
    encoded = text.encode()
    if type_.form in _TEXT_FORMS:
        return some_bytes(encoded)
    if type_.form is Form.HSTORE_JSON:
        return some_bytes(json.dumps({text: text}, separators=(",", ":"), ensure_ascii=False).encode())
    if type_.form is Form.HSTORE_MAP:
        return _encoded_map({text: text})
    if type_.element is None:
        return None
    oid = type_.element.facts.oid
    if oid in _TEXT_ELEMENTS or (oid == 17 and type_.element.form in _TEXT_FORMS):
        return _array([some_bytes(encoded)])
    if oid in (20, 23) or (oid == 1082 and type_.element.form is Form.DAYS):
        return _array([encode_some_long(byte) for byte in struct.unpack(f"{len(encoded)}b", encoded)])
    if oid == 2950:
        return _array([some_bytes(str(_name_uuid(encoded)).encode())])
    return None


def _array(items: list[bytes]) -> bytes:
    return b"".join([encode_some_long(len(items)), *items, AVRO_NULL])


def _name_uuid(name: bytes) -> UUID:
    """Return the UUID of Java's UUID.nameUUIDFromBytes: version 3 without a namespace."""
    return UUID(bytes=md5(name, usedforsecurity=False).digest(), version=3)
