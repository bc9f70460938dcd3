"""money: text from binary (`cash.c`, cash_out), which is a number of the smallest unit.

Its text follows the server's `lc_monetary`. So it is learned from what the server writes for 9000000000000000000 units, for the
same below zero and for none: where the digits are, what stands between them, before and behind, and how many there are at least.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final

from gateway.values.column_readers import Render

_CASH = struct.Struct("!q").unpack
_DIGIT = re.compile(rb"[0-9]")
_MOST_DIGITS: Final = 19


def money_renderer(outputs: Sequence[str]) -> Render | None:
    """None where the server writes something else than expected."""
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
