"""Choose a column's encoders and readers, once for each version of a relation. The Avro type is
chosen by `schemas.avro_types`."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.pgoutput.letters import KIND_BINARY, KIND_TEXT
from gateway.values import dates, floats, integers, text
from gateway.values.arrays import array_from_binary, array_from_text
from gateway.values.column_readers import (
    Encode,
    Reader,
    Render,
    always_unusual,
    read_bytes,
    read_with,
    some_bytes,
    some_text,
)
from gateway.values.numeric import decimal_from_binary, decimal_from_text, read_decimal
from gateway.values.renderers import renderer
from schemas.avro_types import ColumnType, Form, column_type
from schemas.relation import TypeFacts


@dataclass(frozen=True, slots=True)
class Codec:
    """A column's encoders and readers. `from_binary` is None if the type's binary form is not
    known, so that its text must be requested.

    The readers do what the encoders do, but start from the column's place in the tuple. `render`
    makes the text for `special`.
    """

    from_text: Encode
    from_binary: Encode | None
    render: Render | None
    read_text: Reader
    read_binary: Reader


_FROM_TEXT: dict[Form, Encode] = {
    Form.BOOLEAN: integers.bool_from_text,
    Form.INT: integers.int_from_text,
    Form.LONG: integers.int_from_text,
    Form.UNSIGNED: integers.uint8_from_text,
    Form.DOUBLE: floats.float8_from_text,
    Form.FLOAT: floats.float4_from_text,
    Form.BYTES: text.bytea_from_text,
    Form.UUID: some_bytes,
    Form.DATE: dates.date_from_text,
    Form.TIME: dates.time_from_text,
    Form.TIMESTAMP: dates.timestamp_from_text,
    Form.TIMESTAMPTZ: dates.timestamptz_from_text,
}
_FROM_BINARY: dict[Form, Encode] = {
    Form.BOOLEAN: integers.bool_from_binary,
    Form.UNSIGNED: integers.uint8_from_binary,
    Form.DOUBLE: floats.float8_from_binary,
    Form.FLOAT: floats.float4_from_binary,
    Form.BYTES: some_bytes,
    Form.UUID: text.uuid_from_binary,
    Form.DATE: dates.date_from_binary,
    Form.TIME: dates.time_from_binary,
    Form.TIMESTAMP: dates.timestamp_from_binary,
    Form.TIMESTAMPTZ: dates.timestamp_from_binary,
}
_INTEGER_FROM_BINARY: dict[int, Encode] = {
    20: integers.int8_from_binary,
    21: integers.int2_from_binary,
    23: integers.int4_from_binary,
    26: integers.uint4_from_binary,  # oid
    28: integers.uint4_from_binary,  # xid
}
_READ_BINARY: dict[int, Reader] = {
    16: integers.read_bool,
    20: integers.read_int8,
    21: integers.read_int2,
    23: integers.read_int4,
    1114: dates.read_timestamp,
    1184: dates.read_timestamp,
}
_READ_TEXT: dict[Form, Reader] = {
    Form.BOOLEAN: integers.read_bool_text,
    Form.INT: integers.read_int_text,
    Form.LONG: integers.read_int_text,
    Form.TIMESTAMPTZ: dates.read_timestamptz_text,
}
_CHAR_OID = 18


def codec(column: ColumnType) -> Codec:
    """Return the encoders and readers for the form of `column`, which is that of its type or, in a
    key, perhaps text."""
    from_text = _from_text(column)
    render = renderer(column.facts)
    from_binary = _from_binary(column, render)
    return Codec(from_text, from_binary, render, _read_text(column, from_text), _read_binary(column, from_binary))


def has_binary_decoder(facts: TypeFacts) -> bool:
    """Return whether columns of the type can be requested in binary. A type without a send function
    is sent as text anyway."""
    return not column_type(facts, -1).facts.sends_binary or is_copied_in_binary(facts)


def is_copied_in_binary(facts: TypeFacts) -> bool:
    """Return whether columns of the type can be requested in binary from COPY: unlike the stream,
    COPY fails if a type has no send function."""
    return renderer(column_type(facts, -1).facts) is not None


def _from_text(column: ColumnType) -> Encode:
    if column.form is Form.DECIMAL:
        return decimal_from_text(column.precision, column.scale)
    if column.form is Form.STRING:
        return text.char_from_text if column.facts.oid == _CHAR_OID else some_text
    if column.form is Form.ARRAY:
        assert column.element is not None
        return array_from_text(_from_text(column.element), column.facts.delimiter)
    return _FROM_TEXT[column.form]


def _from_binary(column: ColumnType, render: Render | None) -> Encode | None:
    if render is None:
        return None
    if column.form is Form.STRING:
        return some_text if render is text.render_same else rendered(render, some_text)
    if column.form is Form.DECIMAL:
        return decimal_from_binary(column.precision, column.scale)
    if column.form is Form.ARRAY:
        return _array_from_binary(column)
    if column.form in (Form.INT, Form.LONG):
        return _INTEGER_FROM_BINARY[column.facts.oid]
    return _FROM_BINARY[column.form]


def _array_from_binary(column: ColumnType) -> Encode | None:
    assert column.element is not None and column.facts.element is not None
    encode = _from_binary(column.element, renderer(column.element.facts))
    return None if encode is None else array_from_binary(encode, column.facts.element.oid)


def rendered(render: Render, from_text: Encode) -> Encode:
    """Return the encoder of a binary form whose values are encoded from their text."""

    def encode(value: bytes) -> bytes:
        return from_text(render(value))

    return encode


def _read_text(column: ColumnType, from_text: Encode) -> Reader:
    if from_text in (some_text, some_bytes):
        return read_bytes(KIND_TEXT, from_text is some_text)
    known = _READ_TEXT.get(column.form)
    return read_with(from_text, KIND_TEXT) if known is None else known


def _read_binary(column: ColumnType, from_binary: Encode | None) -> Reader:
    if from_binary is None:
        return always_unusual
    if from_binary in (some_text, some_bytes):
        return read_bytes(KIND_BINARY, from_binary is some_text)
    if column.form is Form.DECIMAL:
        return read_decimal(column.precision, column.scale)
    if column.form is not Form.STRING and column.facts.oid in _READ_BINARY:
        return _READ_BINARY[column.facts.oid]
    return read_with(from_binary, KIND_BINARY)
