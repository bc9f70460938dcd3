"""Encode float4 and float8 as Avro's float and double (little-endian), in which NaN and the
infinities are valid, and render them as text."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Final

_FLOAT4 = struct.Struct("!f")
_FLOAT8 = struct.Struct("!d")
_NAN4: Final = b"\2" + struct.pack("<f", math.nan)
_NAN8: Final = b"\2" + struct.pack("<d", math.nan)


def float8_from_text(value: bytes) -> bytes:
    """Encode the text of a float8. Python parses 'NaN', 'Infinity' and '-Infinity' as the server
    writes them."""
    return b"\2" + struct.pack("<d", float(value))


def float8_from_binary(value: bytes) -> bytes:
    """Encode a binary float8. All NaNs are encoded alike, as the text form does not distinguish
    them."""
    number = _FLOAT8.unpack(value)[0]
    return b"\2" + value[::-1] if number == number else _NAN8


def float4_from_text(value: bytes) -> bytes:
    """Encode the text of a float4. This is the shortest text that gives the same float4 again, so
    its conversion by way of a double is exact, except in a tie, which is checked."""
    number = float(value)
    packed = struct.pack("<f", number)
    if number == number and not math.isinf(number):
        packed = _untie(value, number, packed)
    return b"\2" + packed if number == number else _NAN4


def _untie(value: bytes, number: float, packed: bytes) -> bytes:
    """Return the nearer float4 for a double half-way between two float4 values: the double does not
    show on which side the text was, so the text itself is compared."""
    low = struct.unpack("<f", packed)[0]
    if low == number:
        return packed
    bits = struct.unpack("<I", packed)[0]
    step = 1 if abs(number) > abs(low) else -1
    neighbour = struct.pack("<I", bits + step)
    high = struct.unpack("<f", neighbour)[0]
    if math.isinf(high) or Fraction(number) * 2 != Fraction(low) + Fraction(high):
        return packed
    exact = Fraction(value.decode())
    return packed if abs(exact - Fraction(low)) <= abs(exact - Fraction(high)) else neighbour


def float4_from_binary(value: bytes) -> bytes:
    number = _FLOAT4.unpack(value)[0]
    return b"\2" + value[::-1] if number == number else _NAN4


def render_float8(value: bytes) -> bytes:
    """Render a float8 as `float8out` does: with the shortest digits that read back as the same
    value, and an exponent from 1e+15 on and below 1e-4."""
    number: float = _FLOAT8.unpack(value)[0]
    unlike_numbers = _NOT_FINITE.get(repr(number))
    if unlike_numbers is not None:
        return unlike_numbers
    shortest = repr(number)
    digits, exponent = _split(shortest)
    if (len(digits) > 15 or exponent > 15) and _is_half_way(shortest, number):
        # The server's algorithm (Ryu in d2s.c) rejects a decimal on the very edge of the interval,
        # such as 1e23.
        digits, exponent = _digits_inside(number, len(digits) + 1)
    return _layout(number, digits, exponent, 15)


def render_float4(value: bytes) -> bytes:
    """Render a float4 as `float4out` does: like a float8, but with an exponent from 1e+06 on."""
    number: float = _FLOAT4.unpack(value)[0]
    unlike_numbers = _NOT_FINITE.get(repr(number))
    if unlike_numbers is not None:
        return unlike_numbers
    texts = (f"{number:.{precision}e}" for precision in range(9))  # 9 digits distinguish any two float4
    digits, exponent = _split(next(text for text in texts if _is_this_float4(text, number)))
    return _layout(number, digits, exponent, 6)


_NOT_FINITE: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


def _is_this_float4(text: str, number: float) -> bool:
    """Return whether `text` is strictly nearer to `number` than to the neighbouring float4
    values."""
    bits = struct.unpack("<I", struct.pack("<f", abs(number)))[0]
    exact, middle = abs(Fraction(text)), Fraction(abs(number))
    above = struct.unpack("<f", struct.pack("<I", bits + 1))[0]
    if bits == 0:
        return exact == 0
    below = struct.unpack("<f", struct.pack("<I", bits - 1))[0]
    upper = middle + (middle - Fraction(below)) / 2 if math.isinf(above) else (middle + Fraction(above)) / 2
    return (middle + Fraction(below)) / 2 < exact < upper


def _is_half_way(text: str, number: float) -> bool:
    twice = Fraction(text) * 2
    for direction in (math.inf, -math.inf):
        neighbour = math.nextafter(number, direction)
        if not math.isinf(neighbour) and twice == Fraction(number) + Fraction(neighbour):
            return True
    return False


def _digits_inside(number: float, digit_count: int) -> tuple[str, int]:
    texts = (f"{number:.{count - 1}e}" for count in range(digit_count, 18))  # 17 digits distinguish any two doubles
    return _split(next(text for text in texts if float(text) == number and not _is_half_way(text, number)))


def _split(text: str) -> tuple[str, int]:
    """Return the significant digits without zeros at either end, and the decimal exponent of the
    first digit."""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    power = int(exponent or 0) + len(whole) - 1
    significant = digits.lstrip("0")
    power -= len(digits) - len(significant)
    return (significant.rstrip("0"), power) if significant else ("0", 0)


def _layout(number: float, digits: str, exponent: int, first_scientific: int) -> bytes:
    """Write a number as to_chars does in d2s.c and f2s.c."""
    if exponent < -4 or exponent >= first_scientific:
        text = digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + f"e{exponent:+03d}"
    elif exponent < 0:
        text = "0." + "0" * (-exponent - 1) + digits
    elif len(digits) <= exponent + 1:
        text = digits.ljust(exponent + 1, "0")
    else:
        text = digits[: exponent + 1] + "." + digits[exponent + 1 :]
    return ("-" + text if math.copysign(1, number) < 0 else text).encode()
