"""PostgreSQL's text of a log sequence number ('16/B374D848') to and from the number in our columns."""

from __future__ import annotations

import re

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """'16/B374D848' or a plain number. Raises ValueError on anything else."""
    if text.isdecimal():
        return int(text)
    match = _LSN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an LSN such as 16/B374D848")
    return int(match[1], 16) << 32 | int(match[2], 16)
