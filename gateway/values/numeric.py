"""numeric: as a decimal of the column's scale, and as text.

Binary form (`numeric.c`, numeric_send): digit count, weight, sign, dscale as int16, then digits in base 10,000.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be

from gateway.events.varint import SOME_SMALL
from gateway.values.reader import AVRO_NULL, BINARY, NULL, UNSIGNED, Encode, Parts, Reader, Unusual
from gateway.values.special import Special

_HEADER = struct.Struct("!HhHH").unpack_from
_NEGATIVE: Final = 0x4000
_NOT_A_NUMBER: Final = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}


def _encode_unscaled(unscaled: int) -> bytes:
    """Branch 1 and the shortest two's complement, big-endian (Avro specification, "Decimal")."""
    length = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() >> 3) + 1
    return SOME_SMALL[length] + unscaled.to_bytes(length, "big", signed=True)


_SHORT: Final = 1 << 15
_SOME_SHORT: Final = tuple(_encode_unscaled(unscaled) for unscaled in range(_SHORT))
"""What two bytes hold."""
_THREE_BYTES_END: Final = 1 << 23
_PACK_THREE_BYTES: Final = struct.Struct("!BI").pack


def decimal_from_text(precision: int, scale: int) -> Encode:
    """Of numeric(precision, scale), whose text always has exactly `scale` digits after the point. Special: NaN, infinity."""
    limit = 10**precision
    point = -scale - 1

    def encode(value: bytes) -> bytes:
        try:
            if scale:
                if value[point] != 46:  # '.'
                    raise Special
                unscaled = int(value[:point] + value[-scale:])
            else:
                unscaled = int(value)
        except (ValueError, IndexError):
            raise Special from None
        if not -limit < unscaled < limit:
            raise Special
        return _encode_unscaled(unscaled)

    return encode


def decimal_from_binary(precision: int, scale: int) -> Encode:
    """The same from binary. Special also where a digit would be lost, which the type's own scale rules out."""
    limit = 10**precision

    def encode(value: bytes) -> bytes:
        count, weight, sign, _ = _HEADER(value)
        if sign and sign != _NEGATIVE:
            raise Special
        unscaled = 0
        for digit in struct.unpack_from(f"!{count}H", value, 8):
            unscaled = unscaled * 10000 + digit
        exponent = (weight - count + 1) * 4 + scale
        if exponent >= 0:
            unscaled *= 10**exponent
        else:
            unscaled, lost = divmod(unscaled, 10**-exponent)
            if lost:
                raise Special
        if unscaled >= limit:
            raise Special
        return _encode_unscaled(-unscaled if sign else unscaled)

    return encode


def read_decimal(precision: int, scale: int) -> Reader:
    """Fast for values of up to three base-10,000 digits, 8 to 12 decimal ones: the header tells what to do with them."""
    encode = decimal_from_binary(precision, scale)
    layouts = _layouts(precision, scale)
    limit = 10**precision
    short_end, three_bytes_end = min(_SHORT, limit), min(_THREE_BYTES_END, limit)

    def read(data: bytes, position: int, parts: Parts) -> int:
        if data[position] == BINARY:
            header: int = read_i64_be(data, position + 5)
            layout = layouts.get(header)
            if layout is not None:
                size, first_times, second_times, last_times, parted = layout
                position += size
                last_two: int = read_i32_be(data, position - 4)
                unscaled = (last_two >> 16) * second_times + (last_two & 0xFFFF) * last_times
                if first_times:
                    first: int = read_i16_be(data, position - 6)
                    unscaled += first * first_times
                unscaled //= parted
                if 0 <= unscaled < short_end:
                    parts.append(_SOME_SHORT[unscaled])
                elif 0 <= unscaled < three_bytes_end:
                    parts.append(_PACK_THREE_BYTES(2, 0x0600_0000 | unscaled))
                elif -limit < unscaled < limit:
                    parts.append(_encode_unscaled(unscaled))
                else:
                    raise Special
                return position
            length: int = read_i32_be(data, position + 1)
            start = position + 5
            end = start + (length & UNSIGNED)
            parts.append(encode(data[start:end]))
            return end
        if data[position] == NULL:
            parts.append(AVRO_NULL)
            return position + 1
        raise Unusual

    return read


def _layouts(precision: int, scale: int) -> dict[int, tuple[int, int, int, int, int]]:
    """Header -> the column's size, what its last three int16 are multiplied with (0: it is the header's), and what their sum is
    divided by: no digit is lost, for dscale is the column's."""
    layouts = {scale: (13, 0, 0, 0, 1)}  # zero has no digits
    for sign, factor in ((0, 1), (_NEGATIVE, -1)):
        for count in (1, 2, 3):
            for weight in range(-scale // 4, -(-(precision - scale) // 4)):
                header = struct.unpack("!q", struct.pack("!HhHH", count, weight, sign, scale))[0]
                exponent = (weight - count + 1) * 4 + scale
                times, parted = factor * 10 ** max(exponent, 0), 10 ** max(-exponent, 0)
                first, second = 10**8 * times if count == 3 else 0, 10**4 * times if count >= 2 else 0
                layouts[header] = (13 + 2 * count, first, second, times, parted)
    return layouts


def render_numeric(value: bytes) -> bytes:
    """`numeric_out`: all integer digits, and exactly dscale digits after the point."""
    count, weight, sign, dscale = _HEADER(value)
    if sign in _NOT_A_NUMBER:
        return _NOT_A_NUMBER[sign]
    digits = b"".join(b"%04d" % digit for digit in struct.unpack_from(f"!{count}H", value, 8))
    integer_digits = (weight + 1) * 4
    if integer_digits <= 0:
        whole, fraction = b"0", b"0" * -integer_digits + digits
    else:
        digits = digits.ljust(integer_digits, b"0")
        whole, fraction = digits[:integer_digits].lstrip(b"0") or b"0", digits[integer_digits:]
    text = b"-" + whole if sign else whole
    return text + b"." + fraction[:dscale].ljust(dscale, b"0") if dscale else text
