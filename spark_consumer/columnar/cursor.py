"""A position for each record in a shared buffer of bytes, and the three ways in which Avro's values
move it: varint, fixed, and length-prefixed."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_consumer.errors import MalformedRecord

Longs: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Rows: TypeAlias = Longs | None  # the records that a decoder moves; None: all of them, without a gather

# A varint that begins at the last byte of the buffer is read up to 9 bytes beyond it.
_PADDING = np.zeros(16, np.uint8)


class Cursor:
    """Positions of all records in `buffer`. `ends` (one per record) limits every length, so that
    damaged data cannot cause an allocation larger than the record."""

    __slots__ = ("buffer", "ends", "positions")

    def __init__(self, buffer: Bytes, positions: Longs, ends: Longs) -> None:
        self.buffer = buffer
        self.positions = positions
        self.ends = ends

    @classmethod
    def over(cls, values: pa.Array, skip: int) -> Cursor:
        """Return a cursor at byte `skip` of each value of a pa.binary() array (32-bit offsets, no
        nulls)."""
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1].astype(
            np.int64
        )
        data = values.buffers()[2]
        raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        starts, ends = offsets[:-1] + skip, offsets[1:]
        if (starts > ends).any():
            raise MalformedRecord(f"a record is shorter than the {skip} bytes of its header (Confluent's wire format)")
        return cls(np.concatenate([raw, _PADDING]), starts, ends.copy())

    def select(self, rows: Longs) -> Cursor:
        """Return a cursor with the positions of `rows` only."""
        return Cursor(self.buffer, self.positions[rows], self.ends[rows])

    def at(self, rows: Rows) -> Longs:
        return self.positions if rows is None else self.positions[rows]

    def _move(self, rows: Rows, positions: Longs) -> None:
        if rows is None:
            self.positions = positions
        else:
            self.positions[rows] = positions

    def _bytes(self, index: npt.NDArray[np.int64]) -> Bytes:
        try:
            taken: Bytes = self.buffer[index]
        except IndexError:
            raise MalformedRecord("a record ends before its last field") from None
        return taken

    def varint(self, rows: Rows) -> Longs:
        """Read zigzag varints of at most 10 bytes."""
        start = self.at(rows)
        first = self._bytes(start)
        more = np.flatnonzero(first & 0x80)
        if not len(more):
            small = first.astype(np.int64)
            self._move(rows, start + 1)
            result: Longs = (small >> 1) ^ -(small & 1)
            return result
        raw = (first & 0x7F).astype(np.uint64)
        width = np.ones(len(start), np.int64)
        for byte in range(1, 11):
            if byte == 10:
                raise MalformedRecord("a varint has more than 10 bytes")
            following = self._bytes(start[more] + byte)
            raw[more] |= (following & 0x7F).astype(np.uint64) << np.uint64(7 * byte)
            width[more] += 1
            more = more[(following & 0x80) != 0]
            if not len(more):
                break
        self._move(rows, start + width)
        signed: Longs = (raw >> np.uint64(1)).astype(np.int64) ^ -((raw & np.uint64(1)).astype(np.int64))
        return signed

    def fixed(self, rows: Rows, width: int) -> Bytes:
        """Read a fixed number of bytes for each record; return a byte array of shape (records,
        width)."""
        start = self.at(rows)
        taken = self._bytes(start[:, None] + np.arange(width))
        self._move(rows, start + width)
        return taken

    def span(self, rows: Rows) -> tuple[Longs, Longs]:
        """Return the starts and lengths of length-prefixed values, which are checked to lie within
        their own records."""
        length = self.varint(rows)
        start = self.at(rows)
        ends = self.ends if rows is None else self.ends[rows]
        if len(length) and (int(length.min()) < 0 or bool((length > ends - start).any())):
            raise MalformedRecord("a length reaches beyond the end of its record")
        self._move(rows, start + length)
        return start, length

    def check_at_end(self) -> None:
        """Raise MalformedRecord unless every record was read exactly to its last byte."""
        wrong = np.flatnonzero(self.positions != self.ends)
        if len(wrong):
            first = int(wrong[0])
            raise MalformedRecord(
                f"{len(wrong)} of {len(self.ends)} records do not end where their schema ends "
                f"(the first is record {first}: {int(self.ends[first] - self.positions[first])} bytes left)"
            )


def gather(buffer: Bytes, start: Longs, length: Longs) -> tuple[Bytes, npt.NDArray[np.int32]]:
    """Return the concatenated spans, and their Arrow offsets."""
    offsets = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    if int(offsets[-1]) > 0x7FFFFFFF:
        raise MalformedRecord("a batch of more than 2 GiB in one column")
    index = np.repeat(start - offsets[:-1], length)
    index += np.arange(int(offsets[-1]))
    return buffer[index], offsets.astype(np.int32)
