"""Log sequence numbers: positions in the write-ahead log (PostgreSQL manual, 8.20 pg_lsn Type)."""

from __future__ import annotations

import re
from typing import Self

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """An unsigned 64-bit byte position in the WAL, printed as PostgreSQL prints it:
    `16/B374D848`."""

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if not 0 <= value < 1 << 64:
            raise ValueError(f"LSN out of range: {value}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse PostgreSQL's text. Raises ValueError."""
        number = _number(text)
        if number is None:
            raise ValueError(f"not an LSN: {text!r}, expected two hexadecimal numbers like 16/B374D848")
        return cls(number)

    def __str__(self) -> str:
        return format_lsn(self)

    def __repr__(self) -> str:
        return f"Lsn({str(self)!r})"


def format_lsn(lsn: int) -> str:
    """Return PostgreSQL's text of an LSN that is held as a plain number."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Parse `16/B374D848`, or a plain number. Raises ValueError on anything else."""
    if text.isdecimal():
        return int(text)
    number = _number(text)
    if number is None:
        raise ValueError(f"{text!r} is not an LSN such as 16/B374D848")
    return number


def _number(text: str) -> int | None:
    match = _TEXT.fullmatch(text)
    return None if match is None else int(match[1], 16) << 32 | int(match[2], 16)
