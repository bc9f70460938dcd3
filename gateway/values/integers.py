"""Encoders, readers and renderers of bool, int2, int4, int8, oid, xid and xid8."""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be

from gateway.pgoutput.letters import KIND_BINARY, KIND_NULL, KIND_TEXT
from gateway.values.column_readers import AVRO_NULL, UNSIGNED, Parts, Reader, SlowPathNeeded
from gateway.values.special_values import UnrepresentableValue
from schemas.varint import (
    CHUNK_MASK,
    HALF,
    HALF_BITS,
    HALF_MASK,
    LAST,
    MORE,
    SOME_EVEN,
    SOME_SMALL,
    TWO_CHUNKS_END,
    encode_long,
    encode_some_long,
)

_INT2 = struct.Struct("!h")
_INT4 = struct.Struct("!i")
_INT8 = struct.Struct("!q")
_UINT4 = struct.Struct("!I")
_UINT8 = struct.Struct("!Q")
_FALSE: Final = b"\2\0"
_TRUE: Final = b"\2\1"
_MAX_LONG: Final = (1 << 63) - 1


def bool_from_text(value: bytes) -> bytes:
    return _TRUE if value == b"t" else _FALSE


def bool_from_binary(value: bytes) -> bytes:
    return _TRUE if value[0] else _FALSE


def render_bool(value: bytes) -> bytes:
    return b"t" if value[0] else b"f"


def int_from_text(value: bytes) -> bytes:
    return encode_some_long(int(value))


def int2_from_binary(value: bytes) -> bytes:
    return encode_some_long(_INT2.unpack(value)[0])


def int4_from_binary(value: bytes) -> bytes:
    return encode_some_long(_INT4.unpack(value)[0])


def int8_from_binary(value: bytes) -> bytes:
    return encode_some_long(_INT8.unpack(value)[0])


def uint4_from_binary(value: bytes) -> bytes:
    return encode_some_long(_UINT4.unpack(value)[0])


def render_int2(value: bytes) -> bytes:
    return b"%d" % _INT2.unpack(value)[0]


def render_int4(value: bytes) -> bytes:
    return b"%d" % _INT4.unpack(value)[0]


def render_int8(value: bytes) -> bytes:
    return b"%d" % _INT8.unpack(value)[0]


def render_uint4(value: bytes) -> bytes:
    return b"%d" % _UINT4.unpack(value)[0]


def render_uint8(value: bytes) -> bytes:
    return b"%d" % _UINT8.unpack(value)[0]


def uint8_from_text(value: bytes) -> bytes:
    """Encode an xid8, which is an unsigned 64-bit number; Avro's long is signed."""
    number = int(value)
    if number > _MAX_LONG:
        raise UnrepresentableValue
    return encode_some_long(number)


def uint8_from_binary(value: bytes) -> bytes:
    number: int = _UINT8.unpack(value)[0]
    if number > _MAX_LONG:
        raise UnrepresentableValue
    return encode_some_long(number)


# Readers of the everyday types: `encode_some_long` is inlined because a call costs as much as the
# work.


def read_bool(data: bytes, position: int, parts: Parts) -> int:
    if data[position] == KIND_BINARY:
        parts.append(_TRUE if data[position + 5] else _FALSE)
        return position + 6
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        return position + 1
    raise SlowPathNeeded


def read_int2(data: bytes, position: int, parts: Parts) -> int:
    if data[position] == KIND_BINARY:
        parts.append(encode_some_long(read_i16_be(data, position + 5)))
        return position + 7
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        return position + 1
    raise SlowPathNeeded


def read_int4(data: bytes, position: int, parts: Parts) -> int:
    if data[position] == KIND_BINARY:
        number: int = read_i32_be(data, position + 5)
        if number < HALF:
            parts.append(SOME_SMALL[number] if number >= -HALF else encode_some_long(number))
        elif number < TWO_CHUNKS_END:
            parts.append(SOME_EVEN[number & HALF_MASK] + LAST[number >> HALF_BITS])
        else:
            parts.append(encode_some_long(number))
        return position + 9
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        return position + 1
    raise SlowPathNeeded


def read_int8(data: bytes, position: int, parts: Parts) -> int:
    if data[position] == KIND_BINARY:
        number: int = read_i64_be(data, position + 5)
        if number < HALF:
            parts.append(SOME_SMALL[number] if number >= -HALF else encode_some_long(number))
        elif number < TWO_CHUNKS_END:
            parts.append(SOME_EVEN[number & HALF_MASK] + LAST[number >> HALF_BITS])
        else:
            parts.append(encode_some_long(number))
        return position + 13
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        return position + 1
    raise SlowPathNeeded


def read_bool_text(data: bytes, position: int, parts: Parts) -> int:
    if data[position] == KIND_TEXT:
        parts.append(_TRUE if data[position + 5] == 116 else _FALSE)  # 't'
        return position + 6
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        return position + 1
    raise SlowPathNeeded


def read_int_text(data: bytes, position: int, parts: Parts) -> int:
    if data[position] == KIND_TEXT:
        length: int = read_i32_be(data, position + 1)
        start = position + 5
        end = start + (length & UNSIGNED)
        number = int(data[start:end])
        if number < HALF:
            parts.append(SOME_SMALL[number] if number >= -HALF else encode_some_long(number))
        elif number < TWO_CHUNKS_END:
            parts.append(SOME_EVEN[number & HALF_MASK] + LAST[number >> HALF_BITS])
        else:
            parts.append(encode_some_long(number))
        return end
    if data[position] == KIND_NULL:
        parts.append(AVRO_NULL)
        return position + 1
    raise SlowPathNeeded


def read_integers_side_by_side(one: Reader, code: str, count: int) -> Reader:
    """Return a reader of `count` columns. It unpacks them with one struct (`code` is its letter) if
    no column is NULL, and otherwise reads each with `one`."""
    width = 5 + struct.calcsize(f"!{code}")
    unpack = struct.Struct("!" + f"5x{code}" * count).unpack_from
    kinds = bytes([KIND_BINARY]) * count

    def read(data: bytes, position: int, parts: Parts) -> int:
        end = position + width * count
        if data[position:end:width] == kinds:
            for number in unpack(data, position):
                if number < HALF:
                    parts.append(SOME_SMALL[number] if number >= -HALF else encode_some_long(number))
                elif number < TWO_CHUNKS_END:
                    parts.append(SOME_EVEN[number & HALF_MASK] + LAST[number >> HALF_BITS])
                else:
                    parts.append(encode_some_long(number))
            return end
        for _ in kinds:
            position = one(data, position, parts)
        return position

    return read


# Readers without a union, for columns that are NOT NULL in Debezium's format


def read_required_int4(data: bytes, position: int, parts: Parts) -> int:
    if data[position] != KIND_BINARY:
        raise SlowPathNeeded
    number: int = read_i32_be(data, position + 5)
    if 0 <= number < HALF:
        parts.append(LAST[number << 1])
    elif HALF <= number < TWO_CHUNKS_END:
        parts.append(MORE[number << 1 & CHUNK_MASK] + LAST[number >> HALF_BITS])
    else:
        parts.append(encode_long(number))
    return position + 9


def read_required_int8(data: bytes, position: int, parts: Parts) -> int:
    if data[position] != KIND_BINARY:
        raise SlowPathNeeded
    number: int = read_i64_be(data, position + 5)
    if 0 <= number < HALF:
        parts.append(LAST[number << 1])
    elif HALF <= number < TWO_CHUNKS_END:
        parts.append(MORE[number << 1 & CHUNK_MASK] + LAST[number >> HALF_BITS])
    else:
        parts.append(encode_long(number))
    return position + 13
