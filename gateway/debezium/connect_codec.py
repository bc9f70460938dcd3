"""The encoder of each column in Debezium's dialect, by the Connect type that
`gateway.debezium.connect_type` chooses.

Most encoders are those of Walgate's own dialect; the values that Debezium writes in another form
are in connect_times.py and connect_forms.py. The description of a column in the catalog determines
which of three kinds its field is. The field is required (no union), optional (null first), or
optional with a default (null last, because Avro requires a default to be of the first branch).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from librt.strings import read_i32_be

from gateway.debezium import connect_forms as forms
from gateway.debezium import connect_times as times
from gateway.debezium.connect_type import ConnectType, Form
from gateway.debezium.envelope_schema import ConnectColumn
from gateway.pgoutput.letters import KIND_BINARY, KIND_NULL, KIND_TEXT
from gateway.values import dates, integers
from gateway.values.arrays import array_from_binary, array_from_text
from gateway.values.column_codec import Codec, codec
from gateway.values.column_readers import (
    AVRO_NULL,
    NOTHING,
    Encode,
    Parts,
    Reader,
    Render,
    SlowPathNeeded,
    always_unusual,
    read_with,
)
from gateway.values.numeric import decimal_from_binary, decimal_from_text, read_decimal
from gateway.values.protected_columns import protected_codec
from gateway.values.renderers import renderer
from gateway.values.row_readers import parts_of_null
from schemas.avro_types import column_type

_SAME: Final = frozenset({Form.BOOLEAN, Form.INTEGER, Form.FLOAT, Form.DOUBLE, Form.BYTES, Form.UUID, Form.TEXT})
"""Forms that are written as in Walgate's own dialect."""


def connect_codec(column: ConnectColumn, *, in_key_tuple: bool = False) -> Codec:
    """Return the encoders of a column's values for its kind of field.

    In a key tuple (`in_key_tuple`), NULL in a required column stands for a value that was not sent,
    and is encoded as `fallback_value`. In other tuples, the reader raises SlowPathNeeded for it.
    """
    rule = column.protection
    plain = _codec(column.type) if rule is None else protected_codec(column.type.facts, rule)
    if column.is_optional and not column.has_default:
        return plain
    if column.is_optional:
        return Codec(
            _null_last(plain.from_text),
            None if plain.from_binary is None else _null_last(plain.from_binary),
            plain.render,
            _read_null_last(plain.read_text),
            _read_null_last(plain.read_binary),
        )
    fallback = fallback_value(column) if in_key_tuple else None
    return Codec(
        _required(plain.from_text),
        None if plain.from_binary is None else _required(plain.from_binary),
        plain.render,
        _read_required(plain.read_text, fallback),
        _read_required(plain.read_binary, fallback),
    )


def null_value(column: ConnectColumn) -> bytes:
    """Return the bytes of NULL in the field; in a required field, what Debezium writes for a value
    that was not sent."""
    if not column.is_optional:
        return fallback_value(column)
    return b"\2" if column.has_default else AVRO_NULL


def fallback_value(column: ConnectColumn) -> bytes:
    """Return what a required field without a value contains: the column's default, or else the
    type's zero."""
    if column.encoded_default is not None:
        return column.encoded_default
    return forms.ZEROS[column.type.form](column.type)


def placeholder(column: ConnectColumn, text_: str) -> bytes | None:
    """Return the bytes that replace an UNCHANGED value; None for a type without a placeholder."""
    if column.protection is not None and column.protection.is_hidden:
        return AVRO_NULL
    found = forms.placeholder(column.type, text_)
    if found is None:
        return None
    if not column.is_optional:
        return found[1:]
    return b"\0" + found[1:] if column.has_default else found


def skip_column(data: bytes, position: int, parts: Parts) -> int:
    """Read past a column that the record leaves out."""
    if data[position] in (KIND_TEXT, KIND_BINARY):
        length: int = read_i32_be(data, position + 1)
        return position + 5 + length
    return position + 1


def _codec(type_: ConnectType) -> Codec:
    if type_.form in _SAME:
        return codec(column_type(type_.facts, type_.typmod))
    render = renderer(type_.facts)
    from_text = encode_text(type_)
    from_binary = None if render is None else _from_binary(type_, from_text, render)
    return Codec(from_text, from_binary, render, read_with(from_text, KIND_TEXT), _read_binary(type_, from_binary))


def encode_text(type_: ConnectType) -> Encode:
    """Return the function that encodes PostgreSQL's text in Avro, preceded by the index of union
    branch 1."""
    if type_.form in _SAME:
        return codec(column_type(type_.facts, type_.typmod)).from_text
    if type_.form is Form.DECIMAL:
        return decimal_from_text(type_.precision, type_.scale)
    if type_.form is Form.ARRAY:
        assert type_.element is not None
        return forms.unshifted_text(array_from_text(encode_text(type_.element), type_.facts.delimiter))
    if type_.form in forms.FROM_TEXT:
        return forms.FROM_TEXT[type_.form](type_)
    if type_.form is Form.ZONED_TIMESTAMP and type_.digits == 6:
        return times.encode_moment_text
    decode, _, encode = _TIMED[type_.form](type_)
    return lambda value: encode(decode(value))


def _from_binary(type_: ConnectType, from_text: Encode, render: Render) -> Encode | None:
    if type_.form is Form.DECIMAL:
        return decimal_from_binary(type_.precision, type_.scale)
    if type_.form is Form.ARRAY:
        assert type_.element is not None and type_.facts.element is not None
        element = _codec(type_.element).from_binary
        assert element is not None  # every type with a renderer has a binary encoder
        return forms.unshifted_binary(array_from_binary(element, type_.facts.element.oid))
    if type_.form in forms.FROM_TEXT:
        return lambda value: from_text(render(value))
    _, decode, encode = _TIMED[type_.form](type_)
    return lambda value: encode(decode(value))


_Timed = tuple[Callable[[bytes], Any], Callable[[bytes], Any], Callable[[Any], bytes]]
"""Three functions: decode text, decode binary, encode to Avro."""
_DAYS: Final = (times.days_from_text, times.days_from_binary)
_CLOCK: Final = (times.clock_from_text, times.clock_from_binary)
_MOMENT: Final = (times.micros_from_text, times.micros_from_binary)
_INTERVAL: Final = (times.interval_from_text, times.interval_from_binary)
_TIMED: Final[dict[Form, Callable[[ConnectType], _Timed]]] = {
    Form.DAYS: lambda _: (*_DAYS, times.encode_days),
    Form.DATE_TEXT: lambda _: (*_DAYS, times.encode_day_text),
    Form.TIME: lambda type_: (*_CLOCK, times.clock_in(type_.per_second)),
    Form.TIME_TEXT: lambda _: (*_CLOCK, times.encode_clock_text),
    Form.TIMESTAMP: lambda type_: (*_MOMENT, times.moment_in(type_.per_second)),
    Form.TIMESTAMP_TEXT: lambda _: (*_MOMENT, times.moment_text(None)),
    Form.ZONED_TIMESTAMP: lambda type_: (*_MOMENT, times.moment_text(type_.digits)),
    Form.ZONED_TIME: lambda _: (times.zoned_clock_from_text, times.zoned_clock_from_binary, times.encode_clock_text),
    Form.DURATION: lambda _: (*_INTERVAL, times.encode_duration),
    Form.DURATION_TEXT: lambda _: (*_INTERVAL, times.encode_duration_text),
}


def _read_binary(type_: ConnectType, from_binary: Encode | None) -> Reader:
    if from_binary is None:
        return always_unusual
    if type_.form is Form.DECIMAL and type_.scale >= 0:
        return read_decimal(type_.precision, type_.scale)
    if type_.form is Form.ZONED_TIMESTAMP and type_.digits == 6:
        return times.read_moment_text
    if type_.form is Form.TIMESTAMP and type_.per_second == 1_000_000:
        return dates.read_timestamp
    return read_with(from_binary, KIND_BINARY)


# -- the three kinds of fields


def _required(encode: Encode) -> Encode:
    return lambda value: encode(value)[1:]


def _null_last(encode: Encode) -> Encode:
    return lambda value: b"\0" + encode(value)[1:]


def _read_required(read: Reader, fallback: bytes | None) -> Reader:
    more = [NOTHING] * (len(parts_of_null(read)) - 1)
    fast = _REQUIRED.get(read)
    if fast is not None and fallback is None:
        return fast

    def read_required(data: bytes, position: int, parts: Parts) -> int:
        if data[position] == KIND_NULL:
            if fallback is None:
                raise SlowPathNeeded
            parts.append(fallback)
            parts.extend(more)
            return position + 1
        if fast is not None:
            return fast(data, position, parts)
        first = len(parts)
        end = read(data, position, parts)
        parts[first] = parts[first][1:]
        return end

    return read_required


def _read_null_last(read: Reader) -> Reader:
    more = [NOTHING] * (len(parts_of_null(read)) - 1)

    def read_null_last(data: bytes, position: int, parts: Parts) -> int:
        if data[position] == KIND_NULL:
            parts.append(b"\2")
            parts.extend(more)
            return position + 1
        first = len(parts)
        end = read(data, position, parts)
        parts[first] = b"\0" + parts[first][1:]
        return end

    return read_null_last


_REQUIRED: Final[dict[Reader, Reader]] = {
    integers.read_int4: integers.read_required_int4,
    integers.read_int8: integers.read_required_int8,
}
