"""interval as the server writes it with IntervalStyle iso_8601. Binary: microseconds int64, days int32, months int32."""

from __future__ import annotations

import struct
from typing import Final

_INTERVAL = struct.Struct("!qii")
_INFINITE: Final = {
    ((1 << 63) - 1, (1 << 31) - 1, (1 << 31) - 1): b"infinity",  # since 17
    (-(1 << 63), -(1 << 31), -(1 << 31)): b"-infinity",
}


def render_interval(value: bytes) -> bytes:
    """EncodeInterval in `datetime.c`: each part has its own sign; seconds and their fraction share one."""
    micros, days, months = _INTERVAL.unpack(value)
    if (micros, days, months) in _INFINITE:
        return _INFINITE[micros, days, months]
    if not (micros or days or months):
        return b"PT0S"
    years, months = _truncated(months, 12)
    parts = ["P"]
    parts += [f"{number}{unit}" for number, unit in ((years, "Y"), (months, "M"), (days, "D")) if number]
    if micros:
        parts.append("T" + _clock(micros))
    return "".join(parts).encode()


def _clock(micros: int) -> str:
    hours, micros = _truncated(micros, 3_600_000_000)
    minutes, micros = _truncated(micros, 60_000_000)
    text = "".join(f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M")) if number)
    if micros:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        sign = "-" if micros < 0 else ""
        text += f"{sign}{seconds}" + (f".{fraction:06d}".rstrip("0") if fraction else "") + "S"
    return text


def _truncated(number: int, divisor: int) -> tuple[int, int]:
    """C's division, towards zero."""
    quotient, rest = divmod(abs(number), divisor)
    return (-quotient, -rest) if number < 0 else (quotient, rest)
