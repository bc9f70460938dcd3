"""Decode `COPY ... (FORMAT binary)` (PostgreSQL manual, COPY, "Binary Format") into rows for the
stream's encoders.

A field of COPY is a length and a value; in TupleData (PostgreSQL manual, "Logical Replication
Message Formats") a letter for binary or text precedes them. The decoder inserts these letters, so
that the same encoder handles values from COPY and from the stream. Column rules therefore apply to
both, and keys are equal.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from librt.strings import read_i16_be, read_i32_be

from gateway.errors import Retry
from gateway.events.row_encoder import RowEncoder
from schemas.wire_format import FRAME_BYTES

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(_SIGNATURE) + 4
"""Number of bytes of the signature and the flags. The length of the header extension and the
extension itself follow."""
_NULL: Final = b"n"


class UnreadableCopy(Retry):
    """COPY sent data that is not in the documented format, or ended early."""


class CopyDecoder:
    """Decode data that is fed in pieces of any size. `rows` has (framed key, rest of the READ
    event) for each row.

    `is_binary`: for each column, whether its value is in binary form or PostgreSQL's text.
    `keeps_tuples`: `rows` has the row's tuple instead of the READ event. Methods raise
    UnreadableCopy and what RowEncoder raises.
    """

    def __init__(self, encoder: RowEncoder, is_binary: Sequence[bool], *, keeps_tuples: bool = False) -> None:
        self.rows: list[tuple[bytes | None, bytes]] = []
        self.byte_count = 0
        self._encoder = encoder.of_copies(is_binary)
        self._keeps_tuples = keeps_tuples
        letters = [b"b" if each else b"t" for each in is_binary]
        self._letters: list[bytes] = letters
        self._only_letter = letters[0] if len(set(letters)) == 1 else None
        self._head = b"N" + len(is_binary).to_bytes(2, "big")
        self._rest = b""
        self._pieces: list[bytes] = []
        """Data that follows `_rest`. It is decoded only when it is as long as `_rest`, because a
        large row arrives in thousands of pieces."""
        self._piece_bytes = 0
        self._begun = False
        self._ended = False

    def feed(self, piece: bytes) -> None:
        self.byte_count += len(piece)
        if self._rest:
            self._pieces.append(piece)
            self._piece_bytes += len(piece)
            if self._piece_bytes >= len(self._rest):
                self._read(self._joined())
        else:
            self._read(piece)

    def _joined(self) -> bytes:
        data = b"".join((self._rest, *self._pieces))
        self._pieces.clear()
        self._piece_bytes = 0
        return data

    def _read(self, data: bytes) -> None:
        place = 0
        if not self._begun:
            place = self._begin(data)
            if place < 0:
                self._rest = data
                return
        place = self._mixed_rows(data, place) if self._only_letter is None else self._rows(data, place)
        if self._is_end(data, place):
            self._ended = True
            place += 2
        self._rest = data[place:] if place else data

    def _begin(self, data: bytes) -> int:
        """Return the position of the first row, or -1 if more data is needed."""
        if len(data) < _HEADER_BYTES + 4:
            return -1
        extension: int = read_i32_be(data, _HEADER_BYTES)
        if not data.startswith(_SIGNATURE) or extension < 0:
            raise UnreadableCopy("COPY: no signature of the binary format")
        place = _HEADER_BYTES + 4 + extension
        if place > len(data):
            return -1
        self._begun = True
        return place

    def _rows(self, data: bytes, place: int) -> int:
        """Decode the complete rows of data[place:] and return the position after them.

        All columns have the same letter here, which can therefore be the separator that joins the
        values. Measured with 7 columns: 1.1 us a row, against 1.4 us in `_mixed_rows`.
        """
        end, head, letter = len(data), self._head, self._only_letter
        columns = self._letters
        count = len(columns)
        copied, rows = self._encoder.copied, self.rows
        assert letter is not None
        while place + 2 <= end and read_i16_be(data, place) == count:
            parts = [head]
            at = place + 2
            for _ in columns:
                if at + 4 > end:
                    return place
                length: int = read_i32_be(data, at)
                if length < 0:
                    parts[-1] += _NULL
                    at += 4
                    continue
                start = at
                at += 4 + length
                parts.append(data[start:at])
            if at > end:
                return place
            row = letter.join(parts)
            found = copied(row, len(row))
            rows.append((found[0], row) if self._keeps_tuples else found)
            place = at
        return place

    def _mixed_rows(self, data: bytes, place: int) -> int:
        end, head, letters = len(data), self._head, self._letters
        count = len(letters)
        copied, rows = self._encoder.copied, self.rows
        while place + 2 <= end and read_i16_be(data, place) == count:
            parts = [head]
            at = place + 2
            for letter in letters:
                if at + 4 > end:
                    return place
                length: int = read_i32_be(data, at)
                if length < 0:
                    parts.append(_NULL)
                    at += 4
                    continue
                start = at
                at += 4 + length
                parts.append(letter)
                parts.append(data[start:at])
            if at > end:
                return place
            row = b"".join(parts)
            found = copied(row, len(row))
            rows.append((found[0], row) if self._keeps_tuples else found)
            place = at
        return place

    def _is_end(self, data: bytes, place: int) -> bool:
        """Return whether the trailer is at `place`. If not, `place` is the beginning of an
        incomplete row, or the end of the data."""
        if place + 2 > len(data):
            return False
        fields: int = read_i16_be(data, place)
        if fields not in (-1, len(self._letters)):
            raise UnreadableCopy(f"COPY: a row of {fields} columns, expected {len(self._letters)}")
        return fields == -1

    def keep(self, keys: Container[bytes]) -> None:
        """Keep only the rows with these keys."""
        self.rows = [row for row in self.rows if row[0] is not None and row[0][FRAME_BYTES:] in keys]

    def finish(self) -> None:
        """Decode the data that is left after the last piece. Raises UnreadableCopy if the data is
        incomplete."""
        if self._pieces:
            self._read(self._joined())
        if not self._ended or self._rest:
            raise UnreadableCopy(f"COPY: ended in the middle of a row, {len(self._rest)} bytes left over")
