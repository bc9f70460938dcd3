"""Input of `walgate decode`: hexadecimal text, one message per line, or a file of bytes.

A line is hexadecimal with or without `\\x`, alone or after LSN and xid, so that psql's output can
be used:

    psql -Atc "SELECT * FROM pg_logical_slot_peek_binary_changes('slot', NULL, NULL,
        'proto_version', '4', ...)" | walgate decode

Bytes are one message, a record in Confluent's framing (which begins with a zero byte, as no message
does), or CopyData frames as on the wire.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.errors import WalgateError
from gateway.postgres.copy_frames import COPY_DATA, KEEPALIVE, FrameError, split
from schemas.lsn import Lsn

_LINE = re.compile(
    r"(?:([0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})\s*[|,\t ]\s*\d+\s*[|,\t ]\s*)?(?:\\\\?x)?((?:[0-9A-Fa-f]{2})+)"
)
_TEXT = frozenset(b"0123456789abcdefABCDEFx\\/|, \t\r\n")


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """A message or record. `place` is where it was found, such as "line 3", for errors."""

    place: str
    payload: bytes
    change_lsn: Lsn | None = None

    @property
    def is_framed(self) -> bool:
        return self.payload[:1] == b"\0"


def read_given(data: bytes) -> Iterator[DecodeInput]:
    """Yield the messages in `data`. Raises WalgateError after yielding those before the error."""
    if not data.strip():
        raise WalgateError("nothing to decode", hint="give hexadecimal text or a file; see --help")
    if _TEXT.issuperset(data):
        yield from _lines(data.decode("ascii"))
    elif data[0] == COPY_DATA:
        yield from _frames(data)
    else:
        yield DecodeInput("the file", data)


def _lines(text: str) -> Iterator[DecodeInput]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise WalgateError(
                f"line {number} is not a message in hexadecimal",
                hint="expected an even number of hexadecimal digits, with or without \\x, alone or after LSN and xid",
            )
        yield DecodeInput(f"line {number}", bytes.fromhex(match[2]), None if match[1] is None else Lsn.parse(match[1]))


def _frames(data: bytes) -> Iterator[DecodeInput]:
    try:
        for number, (kind, lsn, start, end) in enumerate(split(data), 1):
            if kind != KEEPALIVE:
                yield DecodeInput(f"CopyData message {number}", data[start:end], Lsn(lsn))
    except FrameError as error:
        raise WalgateError(f"the CopyData messages of the file: {error.message}") from error
