"""Read the keys of row messages without encoding their rows, for a dialect whose records have keys
of another form.

A snapshot compares the keys of changes with those of the rows that it reads (RowEncoder.copied).
Both have the same bytes in every dialect.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from librt.strings import read_i16_be, read_i32_be

from gateway.events.row_encoder import Key
from gateway.events.row_encoder_slow import TupleCodec
from gateway.pgoutput.cursor import Cursor
from gateway.pgoutput.letters import (
    DELETE,
    INSERT,
    KIND_BINARY,
    KIND_NULL,
    KIND_TEXT,
    KIND_UNCHANGED,
    NEW_TUPLE,
    UPDATE,
)
from gateway.pgoutput.row import HEAD_BYTES, TuplePart, check_column_count, read_earlier, read_earlier_and_new, read_new
from gateway.pgoutput.tuple_data import UNCHANGED
from gateway.values.column_codec import Codec
from gateway.values.column_readers import AVRO_NULL, NOT_PLAIN, SlowPathNeeded
from schemas.relation import RelationDescription

_NAMES: Final = {INSERT: "Insert", UPDATE: "Update", DELETE: "Delete"}


class ChangeKeys:
    """Read the keys of row messages, for one version of a relation. `key_frame` is None for a
    relation without identity. `without_values` has the indexes of columns of whose values nothing
    is sent. Methods raise PgOutputError, UnreadableValue and KeyNotSent."""

    def __init__(
        self, description: RelationDescription, key_frame: bytes | None, without_values: Set[int] = frozenset()
    ) -> None:
        self._tuples = TupleCodec(description)
        self._without_values = without_values | self._tuples.hidden
        self._count = len(description.columns)
        self._key_frame = key_frame
        self._codecs: list[Codec | None] = [None] * self._count
        for index, codec in self._tuples.keys:
            self._codecs[index] = codec

    def of(self, data: bytes, kind: int, position: int, end: int) -> tuple[Key, Key, bool]:
        """Return the new key and the old key of a message, and whether the new tuple of an UPDATE
        lacks values. The keys are the same if the message has only one. `kind` is the first byte of
        the message, and `position` the place of its first tuple."""
        try:
            key, place, lacks_values = self._read(data, position)
            if kind != UPDATE or data[position] == NEW_TUPLE:
                if place == end and (data[position] == NEW_TUPLE) == (kind != DELETE):
                    return key, key, lacks_values
            elif data[place] == NEW_TUPLE:
                new_key, place, lacks_values = self._read(data, place)
                if place == end:
                    return new_key, key, lacks_values
        except NOT_PLAIN:
            pass
        return self._parsed(data, kind, position, end)

    def _read(self, data: bytes, position: int) -> tuple[Key, int, bool]:
        """Return the key of the tuple at `position`, the position after the tuple, and whether the
        tuple lacks values."""
        if read_i16_be(data, position + 1) != self._count:
            raise SlowPathNeeded
        parts: list[bytes] = []
        place = position + 3
        lacks_values = False
        for index, codec in enumerate(self._codecs):
            form = data[place]
            place += 1
            if form in (KIND_TEXT, KIND_BINARY):
                start = place + 4
                place = start + read_i32_be(data, place)
                if codec is not None:
                    encode = codec.from_text if form == KIND_TEXT else codec.from_binary
                    if encode is None:
                        raise SlowPathNeeded
                    parts.append(encode(data[start:place]))
            elif codec is not None:
                if form != KIND_NULL:
                    raise SlowPathNeeded
                parts.append(AVRO_NULL)
            elif form == KIND_UNCHANGED:
                lacks_values = lacks_values or index not in self._without_values
            elif form != KIND_NULL:
                raise SlowPathNeeded
        return None if self._key_frame is None else self._key_frame + b"".join(parts), place, lacks_values

    def _parsed(self, data: bytes, kind: int, position: int, end: int) -> tuple[Key, Key, bool]:
        cursor = Cursor(data[position:end], 0, _NAMES[kind], HEAD_BYTES)
        earlier: TuplePart | None = None
        if kind == INSERT:
            newest = read_new(cursor)
        elif kind == DELETE:
            newest = read_earlier(cursor)
        else:
            earlier, newest = read_earlier_and_new(cursor)
        cursor.finish()
        check_column_count(newest, self._count, cursor)
        if earlier is not None:
            check_column_count(earlier, self._count, cursor)
        key = self._framed(self._tuples.encode_key(newest, earlier))
        old_key = key if earlier is None else self._framed(self._tuples.encode_key(earlier, None))
        lacks_values = kind == UPDATE and any(
            value is UNCHANGED and index not in self._without_values for index, value in enumerate(newest.values)
        )
        return key, old_key, lacks_values

    def _framed(self, key: list[bytes]) -> Key:
        return None if self._key_frame is None else self._key_frame + b"".join(key)
