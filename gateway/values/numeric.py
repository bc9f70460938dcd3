"""Encode numeric as a decimal of the column's scale, and render numeric and money as text.

The binary form of numeric (`numeric.c`, numeric_send) is the digit count, weight, sign and dscale
as int16, then the digits in base 10,000.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be

from gateway.pgoutput.letters import KIND_BINARY, KIND_NULL
from gateway.values.column_readers import AVRO_NULL, UNSIGNED, Encode, Parts, Reader, Render, SlowPathNeeded
from gateway.values.special_values import NotRenderable, UnrepresentableValue
from schemas.varint import SOME_SMALL

_HEADER = struct.Struct("!HhHH").unpack_from
_NEGATIVE: Final = 0x4000
_NOT_A_NUMBER: Final = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}


def _encode_unscaled(unscaled: int) -> bytes:
    """Return branch 1, the length, and the shortest two's complement in big-endian order (Avro
    specification, "Decimal")."""
    length = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() >> 3) + 1
    return SOME_SMALL[length] + unscaled.to_bytes(length, "big", signed=True)


_SHORT: Final = 1 << 15
_SOME_SHORT: Final = tuple(_encode_unscaled(unscaled) for unscaled in range(_SHORT))
"""The encodings of non-negative numbers that fit into two bytes."""
_THREE_BYTES_END: Final = 1 << 23
_PACK_THREE_BYTES: Final = struct.Struct("!BI").pack


def decimal_from_text(precision: int, scale: int) -> Encode:
    """Return the encoder for the text of numeric(precision, scale), which always has exactly
    `scale` digits after the point, or `-scale` zeros at its end. The encoder raises
    UnrepresentableValue for NaN and infinity."""
    limit = 10**precision
    point = -scale - 1

    def encode(value: bytes) -> bytes:
        try:
            if scale < 0:
                unscaled, lost = divmod(int(value), 10**-scale)
                if lost:
                    raise UnrepresentableValue
            elif scale:
                if value[point] != 46:  # '.'
                    raise UnrepresentableValue
                unscaled = int(value[:point] + value[-scale:])
            else:
                unscaled = int(value)
        except (ValueError, IndexError):
            raise UnrepresentableValue from None
        if not -limit < unscaled < limit:
            raise UnrepresentableValue
        return _encode_unscaled(unscaled)

    return encode


def decimal_from_binary(precision: int, scale: int) -> Encode:
    """Return the encoder for the binary form of numeric(precision, scale). The encoder raises
    UnrepresentableValue for NaN and infinity, and if a digit would be lost, which the type's own
    scale rules out."""
    limit = 10**precision

    def encode(value: bytes) -> bytes:
        count, weight, sign, _ = _HEADER(value)
        if sign and sign != _NEGATIVE:
            raise UnrepresentableValue
        unscaled = 0
        for digit in struct.unpack_from(f"!{count}H", value, 8):
            unscaled = unscaled * 10000 + digit
        exponent = (weight - count + 1) * 4 + scale
        if exponent >= 0:
            unscaled *= 10**exponent
        else:
            unscaled, lost = divmod(unscaled, 10**-exponent)
            if lost:
                raise UnrepresentableValue
        if unscaled >= limit:
            raise UnrepresentableValue
        return _encode_unscaled(-unscaled if sign else unscaled)

    return encode


def read_decimal(precision: int, scale: int) -> Reader:
    """Return a reader that is fast for values of up to three digits in base 10,000 (8 to 12 decimal
    digits): their header determines how they are converted."""
    encode = decimal_from_binary(precision, scale)
    limit = 10**precision
    layouts = _layouts(precision, scale)

    def read(data: bytes, position: int, parts: Parts) -> int:
        if data[position] == KIND_BINARY:
            header: int = read_i64_be(data, position + 5)
            layout = layouts.get(header)
            if layout is not None:
                count, is_negative, times, parted = layout
                unscaled: int = read_i16_be(data, position + 13) if count else 0
                if count > 1:
                    digit: int = read_i16_be(data, position + 15)
                    unscaled = unscaled * 10000 + digit
                    if count == 3:
                        digit = read_i16_be(data, position + 17)
                        unscaled = unscaled * 10000 + digit
                unscaled = unscaled * times // parted
                if unscaled < limit:
                    if is_negative:
                        parts.append(_encode_unscaled(-unscaled))
                    elif unscaled < _SHORT:
                        parts.append(_SOME_SHORT[unscaled])
                    elif unscaled < _THREE_BYTES_END:
                        parts.append(_PACK_THREE_BYTES(2, 0x0600_0000 | unscaled))
                    else:
                        size = (unscaled.bit_length() >> 3) + 1
                        parts.append(SOME_SMALL[size] + unscaled.to_bytes(size, "big"))
                    return position + 13 + 2 * count
            length: int = read_i32_be(data, position + 1)
            start = position + 5
            end = start + (length & UNSIGNED)
            parts.append(encode(data[start:end]))
            return end
        if data[position] == KIND_NULL:
            parts.append(AVRO_NULL)
            return position + 1
        raise SlowPathNeeded

    return read


def _layouts(precision: int, scale: int) -> dict[int, tuple[int, bool, int, int]]:
    """Return the meaning of each header of a value of up to three digits in base 10,000. This is
    the number of digits, whether the value is negative, and the factor and the divisor of the
    number that the digits form."""
    layouts = {scale: (0, False, 1, 1)}  # zero has no digits
    for sign in (0, _NEGATIVE):
        for count in (1, 2, 3):
            for weight in range(-scale // 4, -(-(precision - scale) // 4)):
                header = struct.unpack("!q", struct.pack("!HhHH", count, weight, sign, scale))[0]
                exponent = (weight - count + 1) * 4 + scale
                layouts[header] = (count, sign == _NEGATIVE, 10 ** max(exponent, 0), 10 ** max(-exponent, 0))
    return layouts


def render_numeric(value: bytes) -> bytes:
    """Render a numeric as `numeric_out` does, with all integer digits, and exactly dscale digits
    after the point."""
    count, weight, sign, dscale = _HEADER(value)
    if sign in _NOT_A_NUMBER:
        return _NOT_A_NUMBER[sign]
    if sign not in (0, _NEGATIVE):
        raise NotRenderable("sign of a numeric")
    digits = b"".join(b"%04d" % digit for digit in struct.unpack_from(f"!{count}H", value, 8))
    integer_digits = (weight + 1) * 4
    if integer_digits <= 0:
        whole, fraction = b"0", b"0" * -integer_digits + digits
    else:
        digits = digits.ljust(integer_digits, b"0")
        whole, fraction = digits[:integer_digits].lstrip(b"0") or b"0", digits[integer_digits:]
    text = b"-" + whole if sign else whole
    return text + b"." + fraction[:dscale].ljust(dscale, b"0") if dscale else text


_CASH = struct.Struct("!q").unpack
_DIGIT = re.compile(rb"[0-9]")
_MOST_DIGITS: Final = 19


def money_renderer(outputs: Sequence[str]) -> Render | None:
    """Return the renderer of money, derived from the server's own texts of three amounts
    (`outputs`); None if these are not as expected."""
    if len(outputs) != 3:
        return None
    positive, negative, zero = (_DIGIT.split(output.encode()) for output in outputs)
    least = len(zero) - 1
    if len(positive) != _MOST_DIGITS + 1 or positive[1:-1] != negative[1:-1] or not 1 <= least <= _MOST_DIGITS:
        return None
    before_each = [b"", *positive[1:-1]]

    def render(value: bytes) -> bytes:
        (units,) = _CASH(value)
        head, tail = (negative[0], negative[-1]) if units < 0 else (positive[0], positive[-1])
        digits = b"%0*d" % (least, abs(units))
        marks = [b"", *before_each[_MOST_DIGITS - len(digits) + 1 :]]
        written = [mark + digits[at : at + 1] for at, mark in enumerate(marks)]
        return b"".join([head, *written, tail])

    return render
