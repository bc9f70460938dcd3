"""`COPY ... (FORMAT binary)` (PostgreSQL manual, COPY, "Binary Format") -> rows as the encoders of the stream read them.

A field is a length and a value there; in TupleData (55.9) a letter stands before it that says binary or text. So the letters
are put in, and one value has one encoder, whichever way it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from librt.strings import read_i16_be, read_i32_be

from gateway.events.row_encoder import RowEncoder
from gateway.snapshot.errors import UnreadableCopy

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(_SIGNATURE) + 4
"""Signature and flags; behind them stand the length of an extension, and the extension."""
_NULL: Final = b"n"


class CopiedRows:
    """Feed it the data in pieces of any size. `rows`: (framed key, rest of the READ event) of each.

    `is_binary`: for each column, whether its value comes in binary form; else it is PostgreSQL's text. Raises UnreadableCopy, and
    what RowEncoder raises.
    """

    def __init__(self, encoder: RowEncoder, is_binary: Sequence[bool]) -> None:
        self.rows: list[tuple[bytes | None, bytes]] = []
        self.byte_count = 0
        self._encoder = encoder.of_copies(is_binary)
        self._letters: list[bytes] = [b"b" if each else b"t" for each in is_binary]
        self._head = b"N" + len(is_binary).to_bytes(2, "big")
        self._rest = b""
        self._begun = False
        self._ended = False

    def feed(self, piece: bytes) -> None:
        data = self._rest + piece if self._rest else piece
        self.byte_count += len(piece)
        end = len(data)
        place = 0
        if not self._begun:
            if end < _HEADER_BYTES + 4:
                self._rest = data
                return
            extension: int = read_i32_be(data, _HEADER_BYTES)
            place = _HEADER_BYTES + 4 + extension
            if not data.startswith(_SIGNATURE) or extension < 0:
                raise UnreadableCopy("COPY: no signature of the binary format")
            if place > end:
                self._rest = data
                return
            self._begun = True
        letters = self._letters
        count = len(letters)
        copied = self._encoder.copied
        rows = self.rows
        while place + 2 <= end:
            fields: int = read_i16_be(data, place)
            if fields != count:
                if fields != -1:
                    raise UnreadableCopy(f"COPY: a row of {fields} columns, expected {count}")
                self._ended = True
                place += 2
                break
            parts = [self._head]
            at = place + 2
            for letter in letters:
                if at + 4 > end:
                    break
                length: int = read_i32_be(data, at)
                if length < 0:
                    parts.append(_NULL)
                    at += 4
                    continue
                behind = at + 4 + length
                if behind > end:
                    break
                parts.append(letter)
                parts.append(data[at:behind])
                at = behind
            else:
                row = b"".join(parts)
                rows.append(copied(row, len(row)))
                place = at
                continue
            break
        self._rest = data[place:] if place else data

    def finish(self) -> None:
        """The data have ended."""
        if not self._ended or self._rest:
            raise UnreadableCopy(f"COPY: ended in the middle of a row, {len(self._rest)} bytes left over")
